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
    `topk_options` without outputs to write (`ksieve.frontends.torch.select`), for ``torch.func``.

All of them run on CPU and CUDA and have fake kernels. On CUDA every call allocates its workspace from PyTorch in stream
order, unless the caller passes one, and never from ksieve's own cache: in a CUDA graph the memory must belong to the
graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from ksieve.core import arguments, problem
from ksieve.core import call as calls
from ksieve.core.errors import kind_of, refuse
from ksieve.core.selection import Selection
from ksieve.core.table import INPUTS, OUTPUTS
from ksieve.frontends.torch import gradients
from ksieve.frontends.torch.select import check_fake, leading_shape, run
from ksieve.planning.plan import Plan
from ksieve.planning.plan_text import encode_plan

Facts = tuple[bool, tuple[str, ...], int, int]
"""Whether indices are int64, which outputs there are, the columns of an entry, and further ones: constants of a traced
program, whose k may be a symbol."""

_ARRAYS = (*INPUTS, *OUTPUTS)
_TAGS = (torch.Tag.pt2_compliant_tag,)

torch.library.define("ksieve::topk", "(Tensor scores, Tensor? lengths, int k) -> Tensor", tags=_TAGS)


def _topk(scores: torch.Tensor, lengths: torch.Tensor | None, k: int) -> torch.Tensor:
    problem.check_scores(problem.inspect(scores, "scores"))
    indices = scores.new_empty((scores.shape[0], problem.check_k(k)), dtype=torch.int32)
    run(scores, k, None, None, {"lengths": lengths}, indices)
    return indices


torch.library.impl("ksieve::topk", ("cpu", "cuda"), _topk)


def _fake_topk(scores: torch.Tensor, lengths: torch.Tensor | None, k: int) -> torch.Tensor:
    check_fake(scores, lengths, k)
    return scores.new_empty((scores.shape[0], k), dtype=torch.int32)


torch.library.register_fake("ksieve::topk", _fake_topk)


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
    gathered = wanted["values"] and arrays["values"] is None and (carried or transformed)
    text, options, facts, layout = encode(scalars, stated, plan, gathered, ks is not None, lengths is not None, dtype)
    if transformed:
        for name, array in {"out": out, "workspace": workspace, **{name: arrays[name] for name in OUTPUTS}}.items():
            if array is not None:
                refuse(name, "a tensor inside torch.func", "nothing there: the results are new tensors")
    if carried and arrays["values"] is not None:
        arguments.warn_of_gradients()
    # The workspace was made for the plan of the call, and not for that of the positions.
    detached, memory = (scores.detach(), None) if gathered else (scores, workspace)
    if not (options or text or transformed) and out is None and num_rows is None and memory is None:
        bounds = arrays["ends"] if arrays["lengths"] is None else arrays["lengths"]
        found = Selection(torch.ops.ksieve.topk(detached, bounds, slots))
    else:
        inputs = (detached, slots, text, options, num_rows, ks, *[arrays[name] for name in INPUTS])
        found = _operator(inputs, facts, arrays, out, memory, transformed)
    if not gathered:
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
    index64, asked, expand, further = facts
    scores, slots, *_ = inputs
    if transformed:
        made = torch.ops.ksieve.select(*inputs)
        found = dict(zip(("out", *asked), made, strict=True))
        return Selection(found["out"], None, found.get("raw"), found.get("counts"))
    index, leading = torch.int64 if index64 else torch.int32, leading_shape(scores, arrays["indptr"])
    shape = (*leading, slots * expand + further)
    if out is None:
        out = scores.new_empty(shape, dtype=index)
    outputs = {name: arrays[name] for name in OUTPUTS}
    for name, dtype in (("values", scores.dtype), ("raw", index), ("counts", torch.int32)):
        if name in asked and outputs[name] is None:
            outputs[name] = scores.new_empty(leading if name == "counts" else shape, dtype=dtype)
    torch.ops.ksieve.topk_options(*inputs, out=out, workspace=workspace, **outputs)
    return Selection(out, *[outputs[name] if name in asked else None for name in OUTPUTS])


def encode(
    scalars: tuple[tuple[str, Any], ...], arrays: tuple[str, ...], plan: Plan | None, gathered: bool, *resolved: Any
) -> tuple[str | None, str, Facts, tuple[Any, ...]]:
    """Encode the plan of an operator call as text, None without one, and its options, "" for plain ones.

    `scalars`: options of the call that are no arrays. `arrays`: names of those that are. `plan`: supplies the options
    that the call omits. `gathered`: whether the operator selects the positions of values that carry a gradient.
    `resolved`: `per_row_k`, `lengths` and `out_dtype` of `ksieve.core.arguments.resolve`. Also return what the program
    has to know of the options, and the fields of `ksieve.frontends.torch.gradients.Layout`.
    """
    per_row_k, lengths, out_dtype = resolved
    given = dict(scalars) | dict.fromkeys(arrays, True)
    planned = None if plan is None else plan.problem.options
    options = arguments.resolve(given, planned, per_row_k=per_row_k, lengths=lengths, out_dtype=out_dtype)
    layout = tuple(gradients.layout_of(options))
    if gathered:
        options, plan = gradients.positions_only(options), None if plan is None else gradients.of_positions(plan)
    named = tuple(name for name in OUTPUTS if getattr(options, name))
    facts = (options.index_dtype == "int64", named, options.expand, options.columns(0))
    text = "" if options.plain else json.dumps(asdict(options))
    return None if plan is None else encode_plan(plan), text, facts, layout


# A traced program guards on its plan and options, so that their texts are constants of the program.
torch.compiler.assume_constant_result(encode)
torch.compiler.assume_constant_result(gradients.inside_transform)
torch.compiler.assume_constant_result(arguments.warn_of_gradients)
torch.compiler.assume_constant_result(arguments.remedy_of)
torch.compiler.assume_constant_result(refuse)
