"""`ksieve::topk` as PyTorch operators, for ``torch.compile``, ``torch.export`` and direct calls.

Import this module to register the operators; `ksieve.topk` imports it when traced. ``import ksieve`` does not import
PyTorch.

Operators
---------
``torch.ops.ksieve.topk(scores, lengths, k) -> indices``
    A new int32 tensor of shape (rows, k).
``torch.ops.ksieve.topk_options(scores, k, plan, options, num_rows, ks, inputs, out!, workspace!, outputs!) -> ()``
    Writes `out`, with options in the text form of `encode`. Inputs and outputs are the arrays of the table of options
    (`ksieve.core.table`), by name; each is None where the options do not use it. `plan` is None or a plan in the text
    form of `ksieve.planning.plan_text`; `workspace` is None or bytes.
``torch.ops.ksieve.select``
    `topk_options` without outputs to write: it returns new arrays, which ``torch.func`` asks for. Under ``vmap`` the
    batch becomes further rows of one selection where it can.

All of them run on CPU and CUDA and have fake kernels. On CUDA every call allocates its workspace from PyTorch in stream
order, unless the caller passes one. ksieve's own cache is not used: in a CUDA graph the memory must belong to the
graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import torch

from ksieve import dispatch
from ksieve.core import arguments, problem
from ksieve.core import call as calls
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, kind_of, refuse
from ksieve.core.options import PLAIN, Options
from ksieve.core.selection import Selection
from ksieve.core.table import INPUTS, OUTPUTS, TABLE
from ksieve.frontends.torch import gradients
from ksieve.planning.plan import Plan
from ksieve.planning.plan_text import decode_plan, encode_plan

Facts = tuple[str, tuple[str, ...], int, int]
"""Dtype of indices, names of the outputs, columns of an entry and further ones. They are constants of a traced program,
whose k may be a symbol."""

_MATRICES = {option.name for option in TABLE if option.shape in ("table", "scores", "parts", "slots")}
"""Arrays of two dimensions; others have one."""

SCORES = tuple(getattr(torch, name) for name in SCORE_DTYPES)
INDICES = {"int32": torch.int32, "int64": torch.int64}

_ARRAYS = (*INPUTS, *OUTPUTS)
_TAGS = (torch.Tag.pt2_compliant_tag,)
_NAMES = ("scores", "k", "plan", "options", "num_rows", "ks", *INPUTS)
_INPUTS = "Tensor scores, int k, str? plan, str options" + "".join(f", Tensor? {name}=None" for name in _NAMES[4:])
_OUTPUTS = "".join(f", Tensor({'cdefgh'[i]}!)? {name}=None" for i, name in enumerate(OUTPUTS))

torch.library.define("ksieve::topk", "(Tensor scores, Tensor? lengths, int k) -> Tensor", tags=_TAGS)
torch.library.define(
    "ksieve::topk_options",
    f"({_INPUTS}, *, Tensor(a!) out, Tensor(b!)? workspace=None{_OUTPUTS}) -> ()",
    tags=_TAGS,
)
torch.library.define("ksieve::select", f"({_INPUTS}) -> Tensor[]", tags=_TAGS)


def _topk(scores: torch.Tensor, lengths: torch.Tensor | None, k: int) -> torch.Tensor:
    problem.check_scores(problem.inspect(scores, "scores"))
    indices = scores.new_empty((scores.shape[0], problem.check_k(k)), dtype=torch.int32)
    run(scores, k, None, None, {"lengths": lengths}, indices)
    return indices


def _fake_topk(scores: torch.Tensor, lengths: torch.Tensor | None, k: int) -> torch.Tensor:
    check_fake(scores, lengths, k)
    return scores.new_empty((scores.shape[0], k), dtype=torch.int32)


@lru_cache(maxsize=4096)
def decode_options(text: str) -> Options:
    """Read options back from their text; "" are plain ones."""
    return Options(**json.loads(text)) if text else PLAIN


_chosen: dict[Any, Plan] = {}
_MOST_CHOSEN = 4096


def _named(inputs: tuple[Any, ...], more: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an operator by name: PyTorch passes none at the end that has its default."""
    return dict.fromkeys(_NAMES) | dict(zip(_NAMES, inputs, strict=False)) | more


def _topk_options(*inputs: Any, **outputs: Any) -> None:
    given = _named(inputs, outputs)
    scores, k, plan, options = (given.pop(name) for name in _NAMES[:4])
    made = None if plan is None else decode_plan(plan)
    run(scores, k, made, decode_options(options), given, given.pop("out"))


def run(
    scores: torch.Tensor, k: int, plan: Plan | None, options: Options | None, given: dict[str, Any], out: torch.Tensor
) -> None:
    """Select into `out`; on CUDA with memory of PyTorch, unless the caller passes some.

    `given`: the other arguments of an operator, by name.
    """
    num_rows, ks, lengths, workspace = (given.pop(name, None) for name in ("num_rows", "ks", "lengths", "workspace"))
    arrays = {name: array for name, array in given.items() if array is not None}
    slots: Any = k
    if ks is not None:
        slots, arrays["max_k"] = ks, k
    if scores.is_cuda and workspace is None:
        key = (scores.shape, scores.stride(), scores.dtype, scores.device, out.shape, options)
        plan = plan or _chosen.get(key)
        if plan is None:
            call = calls.parse(scores, lengths, slots, out=out, num_rows=num_rows, given=arrays, options=options)
            if len(_chosen) >= _MOST_CHOSEN:
                _chosen.clear()
            plan = _chosen[key] = dispatch.choose(call.problem)
        if plan.workspace_bytes:
            workspace = scores.new_empty(plan.workspace_bytes, dtype=torch.uint8)
    dispatch.select(scores, lengths, slots, plan, out, workspace, num_rows, arrays, options=options)


def _select(*inputs: Any, **more: Any) -> list[torch.Tensor]:
    """Select into new arrays: the indices, then what the options have of raw ones and counts. There are no values."""
    given = _named(inputs, more)
    if given["indptr"] is None:
        problem.check_scores(problem.inspect(given["scores"], "scores"))
    found = _new(given, decode_options(given["options"]))
    _topk_options(**given, **found)
    return list(found.values())


def _new(given: Mapping[str, Any], asked: Options) -> dict[str, torch.Tensor]:
    """Results of a call without values, by name."""
    names = ["out", *(name for name in ("raw", "counts") if getattr(asked, name))]
    return _made(given["scores"], given["indptr"], asked.columns(given["k"]), asked.index_dtype, names)


def _made(scores: torch.Tensor, indptr: Any, columns: int, index_dtype: str, names: list[str]) -> dict[str, Any]:
    """New outputs of a call, by name."""
    leading = scores.shape[:-1] if indptr is None else (indptr.shape[0] - 1,)
    dtypes = {"values": scores.dtype, "counts": torch.int32}
    shapes = {name: leading if name == "counts" else (*leading, columns) for name in names}
    return {n: scores.new_empty(shapes[n], dtype=dtypes.get(n, INDICES[index_dtype])) for n in names}


def _vmapped(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[list[torch.Tensor], list[int]]:
    """Select every element of a batch: as rows of one selection, or one after another.

    Rows can be appended where scores and one entry for each row are all that is given. A plan, which is made for a
    number of rows, a page table, bounds of segments and `num_rows` belong to each element of its own.
    """
    batch = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(given, in_dims, strict=True)]
    single = [i for i, dim in enumerate(in_dims) if dim is None]
    by_name = dict(zip(_NAMES, batch, strict=False))
    scores = batch[0]
    if 0 in single or any(by_name.get(name) is not None for name in ("num_rows", "page_table", "indptr", "plan")):
        elements = [[x if i in single else x[n] for i, x in enumerate(batch)] for n in range(info.batch_size)]
        every = [torch.ops.ksieve.select(dense(element[0]), *element[1:]) for element in elements]
        return [torch.stack(found) for found in zip(*every, strict=True)], [0] * len(every[0])
    for i, vector in enumerate(batch):
        if i and isinstance(vector, torch.Tensor):
            whole = vector.expand(info.batch_size, *vector.shape) if i in single else vector
            batch[i] = whole.reshape(-1, *whole.shape[2:])
    batch[0] = dense(scores.reshape(scores.shape[:-1].numel(), scores.shape[-1]))
    found = torch.ops.ksieve.select(*batch)
    return [x.reshape(*scores.shape[:-1], *x.shape[1:]) for x in found], [0] * len(found)


def dense(scores: torch.Tensor) -> torch.Tensor:
    """Scores whose rows are contiguous and lie apart: the argument itself, or a copy."""
    apart = scores.dim() < 2 or scores.shape[-2] < 2 or scores.stride(-2) >= scores.shape[-1]
    return scores if scores.stride(-1) == 1 and apart else scores.contiguous()


def check_fake(scores: torch.Tensor, lengths: torch.Tensor | None, k: int, dimensions: int = 2) -> None:
    """Raise while tracing the errors of a run that dtypes and dimensions already determine."""
    if scores.dim() != dimensions or scores.dtype not in SCORES:
        got = f"{scores.dtype} of {scores.dim()} dimension(s)"
        raise ArgumentError("scores", got, f"{', '.join(SCORE_DTYPES)} of {dimensions} dimension(s)")
    if lengths is not None and (lengths.dim() != 1 or lengths.dtype != torch.int32):
        got = f"{lengths.dtype} of {lengths.dim()} dimension(s)"
        raise ArgumentError("lengths", got, "an int32 vector, such as lengths.to(torch.int32)")
    if isinstance(k, int):
        problem.check_k(k)


def _checked(given: Mapping[str, Any]) -> Options:
    """Check the inputs of a call with options as `check_fake` does, and return the options."""
    check_fake(given["scores"], given["lengths"], given["k"], 2 if given["indptr"] is None else 1)
    for name in (*_NAMES[5:], "counts"):
        array, dimensions = given.get(name), 2 if name in _MATRICES else 1
        wide = name == "indptr" and array is not None and array.dtype == torch.int64
        if array is not None and (array.dim() != dimensions or not (wide or array.dtype == torch.int32)):
            got, takes = f"{array.dtype} of {array.dim()} dimension(s)", f"int32 of {dimensions} dimension(s)"
            raise ArgumentError("k" if name == "ks" else name, got, takes)
    return decode_options(given["options"])


def _fake_topk_options(*inputs: Any, **outputs: Any) -> None:
    given = _named(inputs, outputs)
    index = INDICES[_checked(given).index_dtype]
    for name, dtype in (("out", index), ("values", given["scores"].dtype), ("raw", index)):
        array = given.get(name)
        if array is not None and (array.dim() != 2 or array.dtype != dtype):
            raise ArgumentError(name, f"{array.dtype} of {array.dim()} dimension(s)", f"{dtype} of shape (rows, k)")


def _fake_select(*inputs: Any, **more: Any) -> list[torch.Tensor]:
    given = _named(inputs, more)
    return list(_new(given, _checked(given)).values())


def traced(*passed: Any, stats: Any) -> Selection[Any]:
    """Run a call in a traced program or inside ``torch.func``, as one operator call.

    `passed`: arguments of `ksieve.dispatch.select`. Values that carry a gradient are gathered by operators of PyTorch
    (`ksieve.frontends.torch.gradients`).
    """
    scores, lengths, k, plan, out, workspace, num_rows, given = passed
    if stats is not False:
        refuse("stats", True, "False under torch.compile, torch.export and torch.func")
    if plan is not None and not isinstance(plan, Plan):
        refuse("plan", kind_of(plan), "a Plan from ksieve.plan, or None")
    live = problem.live_rows(num_rows, problem.MAX_SIZE)
    if live is not None:
        num_rows = torch.full((1,), live, dtype=torch.int32, device=scores.device)
    ks = k if isinstance(k, torch.Tensor) else None
    planned = None if plan is None else plan.problem
    slots = calls.slots_of(k, ks is not None, given.get("max_k"), planned, _whole)
    arrays = {name: given.get(name) for name in _ARRAYS}
    arrays["lengths"] = lengths
    wanted = {}
    for name in OUTPUTS:
        wanted[name] = arrays[name] is not None and arrays[name] is not False
        if isinstance(arrays[name], bool):
            arrays[name] = None
    for name, array in {"out": out, "workspace": workspace, "num_rows": num_rows, **arrays}.items():
        if array is not None and not isinstance(array, torch.Tensor):
            refuse(name, kind_of(array), "a torch tensor, while tracing")
    for name in ("lengths", "ends", "starts"):
        arrays[name] = _narrowed(arrays[name])
    stated = tuple(name for name in _ARRAYS if arrays[name] is not None or wanted.get(name))
    scalars = tuple((name, given[name]) for name in given if name not in _ARRAYS)
    dtype = None if out is None else str(out.dtype).removeprefix("torch.")
    carried, transformed = gradients.recorded(scores), gradients.inside_transform()
    detach = wanted["values"] and arrays["values"] is None and (carried or transformed)
    text, options, facts, layout = encode(scalars, stated, plan, detach, ks is not None, lengths is not None, dtype)
    if transformed:
        for name, array in {"out": out, "workspace": workspace, **{name: arrays[name] for name in OUTPUTS}}.items():
            if array is not None:
                refuse(name, "a tensor inside torch.func", "nothing there: the results are new tensors")
    if carried and arrays["values"] is not None:
        arguments.warn_of_gradients()
    # The workspace was made for the plan of the call, and not for that of the positions.
    detached, memory = (scores.detach(), None) if detach else (scores, workspace)
    if not (options or text or transformed) and out is None and num_rows is None and memory is None:
        bounds = arrays["ends"] if arrays["lengths"] is None else arrays["lengths"]
        found = Selection(torch.ops.ksieve.topk(detached, bounds, slots))
    else:
        inputs = (detached, slots, text, options, num_rows, ks, *[arrays[name] for name in INPUTS])
        found = _operator(inputs, facts, arrays, out, memory, transformed)
    if not detach:
        return found
    return gradients.with_values(scores, found, gradients.Layout(*layout), arrays["lengths"], arrays, wanted["raw"])


def _narrowed(lengths: Any) -> Any:
    """Lengths, ends or starts of 64 bits as int32 of the same effect: the operators take no others."""
    if lengths is None or lengths.dtype != torch.int64:
        return lengths
    return lengths.clamp(-problem.MAX_SIZE, problem.MAX_SIZE).to(torch.int32)


def _whole(k: Any, name: str, least: int) -> int:
    """A k that may be a symbol, whose range is checked where the program runs."""
    if isinstance(k, bool) or not isinstance(k, int):
        refuse(name, kind_of(k), f"an int from {least} to {problem.MAX_K}")
    return k


def _operator(
    inputs: tuple[Any, ...], facts: Facts, arrays: Mapping[str, Any], out: Any, workspace: Any, transformed: bool
) -> Selection[Any]:
    """Call the operator with options that serves."""
    index_dtype, asked, expand, further = facts
    scores, slots, *_ = inputs
    if transformed:
        found = dict(zip(asked, torch.ops.ksieve.select(*inputs), strict=True))
        return Selection(found["out"], None, found.get("raw"), found.get("counts"))
    outputs = {"out": out, **{name: arrays[name] for name in OUTPUTS}}
    missing = [name for name in asked if outputs[name] is None]
    # Dynamo of PyTorch's lowest version traces no `|=`.
    outputs.update(_made(scores, arrays["indptr"], slots * expand + further, index_dtype, missing))
    torch.ops.ksieve.topk_options(*inputs, workspace=workspace, **outputs)
    return Selection(*[outputs[name] if name in asked else None for name in calls.OUTPUTS])


def encode(
    scalars: tuple[tuple[str, Any], ...], arrays: tuple[str, ...], plan: Plan | None, detach: bool, *resolved: Any
) -> tuple[str | None, str, Facts, tuple[Any, ...]]:
    """Encode the plan of an operator call as text, None without one, and its options, "" for plain ones.

    `scalars`: options of the call that are no arrays. `arrays`: names of the others. `plan`: supplies the options that
    the call omits. `detach`: whether values carry a gradient, so that the operator selects their positions alone.
    `resolved`: `per_row_k`, `lengths` and `out_dtype` of `ksieve.core.arguments.resolve`. Also return what the program
    has to know of the options, and the fields of `ksieve.frontends.torch.gradients.Layout`.
    """
    per_row_k, lengths, out_dtype = resolved
    given = dict(scalars) | dict.fromkeys(arrays, True)
    planned = None if plan is None else plan.problem.options
    options = arguments.resolve(given, planned, per_row_k=per_row_k, lengths=lengths, out_dtype=out_dtype)
    layout = tuple(gradients.layout_of(options))
    if detach:
        options, plan = gradients.positions_only(options), None if plan is None else gradients.of_positions(plan)
    named = ("out", *(name for name in OUTPUTS if getattr(options, name)))
    facts = (options.index_dtype, named, options.expand, options.columns(0))
    text = "" if options.plain else json.dumps(asdict(options))
    return None if plan is None else encode_plan(plan), text, facts, layout


torch.library.impl("ksieve::topk", ("cpu", "cuda"), _topk)
torch.library.impl("ksieve::topk_options", ("cpu", "cuda"), _topk_options)
torch.library.impl("ksieve::select", ("cpu", "cuda"), _select)
torch.library.register_fake("ksieve::topk", _fake_topk)
torch.library.register_fake("ksieve::topk_options", _fake_topk_options)
torch.library.register_fake("ksieve::select", _fake_select)
torch.library.register_vmap("ksieve::select", _vmapped)

# A traced program guards on its plan and options, so that their texts are constants of the program.
torch.compiler.assume_constant_result(encode)
torch.compiler.assume_constant_result(gradients.inside_transform)
torch.compiler.assume_constant_result(arguments.warn_of_gradients)
torch.compiler.assume_constant_result(arguments.remedy_of)
torch.compiler.assume_constant_result(refuse)
