"""The PyTorch operators with options, `ksieve::topk_options` and `ksieve::select`, and batching by ``torch.vmap``.

`topk_options` writes the caller's arrays. `select` returns new ones, which ``torch.func`` asks for: under ``vmap`` the
batch becomes further rows of one selection where it can. `ksieve.frontends.torch.ops` describes all operators.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from ksieve import dispatch
from ksieve.core import call as calls
from ksieve.core import problem
from ksieve.core.errors import ArgumentError
from ksieve.core.options import PLAIN, Options
from ksieve.core.table import INPUTS, OUTPUTS, TABLE
from ksieve.planning.plan import Plan
from ksieve.planning.plan_text import decode_plan

_TAGS = (torch.Tag.pt2_compliant_tag,)
_NAMES = ("scores", "k", "plan", "options", "num_rows", "ks", *INPUTS)
_INPUTS = "Tensor scores, int k, str? plan, str options" + "".join(f", Tensor? {name}=None" for name in _NAMES[4:])
_OUTPUTS = "".join(f", Tensor({'cdefgh'[i]}!)? {name}=None" for i, name in enumerate(OUTPUTS))

torch.library.define(
    "ksieve::topk_options",
    f"({_INPUTS}, *, Tensor(a!) out, Tensor(b!)? workspace=None{_OUTPUTS}) -> ()",
    tags=_TAGS,
)
torch.library.define("ksieve::select", f"({_INPUTS}) -> Tensor[]", tags=_TAGS)

_MATRICES = {option.name for option in TABLE if option.shape in ("table", "scores", "parts", "slots")}
"""Arrays of two dimensions; others have one."""

SCORES = (torch.float32, torch.float16, torch.bfloat16)
INDICES = {"int32": torch.int32, "int64": torch.int64}


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


def leading_shape(scores: torch.Tensor, indptr: torch.Tensor | None) -> tuple[int, ...]:
    """Leading shape of a call."""
    return scores.shape[:-1] if indptr is None else (indptr.shape[0] - 1,)


def _new(given: Mapping[str, Any], asked: Options) -> dict[str, torch.Tensor]:
    scores = given["scores"]
    shape = (*leading_shape(scores, given["indptr"]), asked.columns(given["k"]))
    made = {name: scores.new_empty(shape, dtype=INDICES[asked.index_dtype]) for name in ("out", *["raw"] * asked.raw)}
    return made | ({"counts": scores.new_empty(shape[:-1], dtype=torch.int32)} if asked.counts else {})


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
        raise ArgumentError("scores", got, f"float32, float16 or bfloat16 of {dimensions} dimension(s)")
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


torch.library.impl("ksieve::topk_options", ("cpu", "cuda"), _topk_options)
torch.library.impl("ksieve::select", ("cpu", "cuda"), _select)
torch.library.register_fake("ksieve::topk_options", _fake_topk_options)
torch.library.register_fake("ksieve::select", _fake_select)
torch.library.register_vmap("ksieve::select", _vmapped)
