"""Gradients of the values of a selection, for PyTorch.

The positions are selected without a gradient, and the values are gathered from the scores there by PyTorch's own
operators. So one expression serves eager calls, ``torch.compile`` and ``torch.func``, backward, forward and to any
order. The gradient of a value belongs to the score that was selected; unused slots have none.

Only calls that need a gradient do so; the others return the values that the kernels write. Importing this module
imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from ksieve import dispatch
from ksieve.core import arguments
from ksieve.core.errors import ArgumentError
from ksieve.core.options import Options
from ksieve.core.selection import Selection
from ksieve.core.table import MAX_INT
from ksieve.planning.plan import Plan

_ARRAYS = ("starts", "indptr", "tail", "positions", "block_table")
"""Arrays that say, with lengths or ends, which score the index of a slot stands for."""


def recorded(tensor: Any) -> bool:
    """Whether operations on a tensor are recorded for a backward pass."""
    return bool(tensor.requires_grad and torch.is_grad_enabled())


def inside_transform() -> bool:
    """Whether a transform of ``torch.func`` is active. While Dynamo traces one, it is."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def wanted(scores: Any) -> bool:
    """Whether values of these scores carry a gradient: a backward one, or the tangent of forward mode."""
    return recorded(scores) or forward_ad.unpack_dual(scores).tangent is not None


def positions_only(options: Options) -> Options:
    """Options of the call that selects the positions, in every slot: no values, and raw indices where they differ."""
    return replace(options, filled=True, values=False, raw=options.raw or options.transform != "none")


@lru_cache
def of_positions(plan: Plan) -> Plan:
    """Plan of the calls that select the positions; cached, since a repeated call is known by its plan."""
    return replace(plan, problem=replace(plan.problem, options=positions_only(plan.problem.options)))


def select(*passed: Any, stats: bool = False) -> Selection[Any]:
    """Run a call of tensors that asks for values; they carry a gradient where scores do.

    `passed`: arguments of `ksieve.dispatch.select`. Values that are written to a given tensor carry none, which is said
    once; one that requires grad is refused.
    """
    scores, lengths, k, plan, out, workspace, num_rows, given = passed
    array = given["values"]
    try:
        carried, given_one = wanted(scores), isinstance(array, torch.Tensor) and recorded(array)
    except Exception:  # a subclass may raise anything; the checks of the call report it
        carried = given_one = False
    if array is not True:
        if given_one and not inside_transform():
            raise ArgumentError("values", "a tensor that requires grad", "one that does not: values.detach()")
        if carried:
            arguments.warn_of_gradients()
    if array is not True or not carried:
        return dispatch.select(*passed, stats=stats)
    planned = plan.problem.options if isinstance(plan, Plan) else None
    options = arguments.resolve(given, planned, lengths=lengths is not None)
    inner = positions_only(options)
    if planned is not None:
        # What the call of the positions asks otherwise is compared here, and the rest where that one is checked.
        if differing := arguments.difference(options, planned, ("raw", "values", "filled")):
            raise ArgumentError("plan", *differing)
        plan = of_positions(plan)
    # The workspace was made for the plan of the call, and not for that of the positions.
    raw = given.get("raw", False)
    asked = {**given, "values": False, "raw": inner.raw if raw is False else raw, "fill": True}
    memory = None if scores.is_cuda else workspace
    found = dispatch.select(scores.detach(), lengths, k, plan, out, memory, num_rows, asked, stats=stats)
    return with_values(scores, found, layout_of(options), lengths, given, options.raw)


class Layout(NamedTuple):
    """What raw indices say about the scores that values are; attributes of `Options`."""

    block_size: int
    expand: int
    next_n: int
    windows: str
    index_base: str
    ranking: str
    unused_value: float


def layout_of(options: Options) -> Layout:
    """Layout of a call."""
    return Layout(*(getattr(options, name) for name in Layout._fields))


def with_values(
    scores: Any, found: Selection[Any], layout: Layout, lengths: Any, given: Mapping[str, Any], raw: bool
) -> Selection[Any]:
    """Answer of a call with values, from the answer with its positions; `given` holds its arrays of any library."""
    own = {name: given.get(name) for name in _ARRAYS}
    own["lengths"] = given.get("ends") if lengths is None else lengths
    for name, array in own.items():
        if array is not None and not isinstance(array, torch.Tensor):
            own[name] = torch.as_tensor(array, device=scores.device)
    values = _gather(scores, found.indices if found.raw is None else found.raw, layout, own)
    return Selection(found.indices, values, found.raw if raw else None, found.counts, found.stats)


def _gather(scores: Any, raw: Any, layout: Layout, own: Mapping[str, Any]) -> Any:
    """Values at raw indices, as a differentiable function of the scores.

    `scores`: Tensor, shape (..., width). `raw` (Tensor of int32 or int64, shape (..., columns)): as with ``raw=True``:
    -1 in unused slots. `own`: arrays of the call, or None. Returns Tensor of the scores' dtype, shape (..., columns):
    the scores, bit for bit. A block gives the first of its best ones; slots of the tail hold the value of unused ones.
    """
    starts, indptr, tail, positions, block_table, lengths = (own[name] for name in (*_ARRAYS, "lengths"))
    width, shape = scores.shape[-1], raw.shape
    scores, raw = (x.flatten(0, -2) if x.dim() > 1 else x[None] for x in (scores, raw.long()))
    if width == 0:
        scores = torch.nn.functional.pad(scores, (0, 1))  # an unused slot too is gathered from somewhere
    if indptr is not None:
        found = scores[0][torch.where(raw >= 0, raw + indptr.long()[:-1, None].clamp(0, width), 0)]
        return torch.where(raw >= 0, found, layout.unused_value)
    placed, used = positions is not None or block_table is not None, raw >= 0
    row = torch.arange(raw.shape[0], device=scores.device)
    begin = end = shift = torch.zeros_like(row)
    if layout.block_size > 1 or placed or layout.index_base == "start":
        begin, end = _window(layout, row, width, lengths, starts)
        shift = begin if layout.index_base == "start" else shift
    if tail is not None:
        n = layout.next_n
        limit = (tail.long().reshape(-1)[row // n] - (n - 1 - row % n)).clamp(min=0)
        if layout.block_size > 1:
            limit = torch.minimum(limit, end - shift)
        used = used & (raw < (limit // layout.expand * layout.expand)[:, None])
    entry = torch.where(used, raw, 0) // layout.expand
    if layout.block_size > 1:
        column = _best(scores, layout, begin, end, shift).gather(-1, entry)
    elif placed:
        column = _at(_places(positions, block_table, width), entry, begin, end)
    else:
        column = entry + shift[:, None]
    found = scores.gather(-1, torch.where(used, column, 0))
    return torch.where(used, found, layout.unused_value).reshape(shape)


def _window(layout: Layout, row: Any, width: int, lengths: Any, starts: Any) -> tuple[Any, Any]:
    """First column and end of the window of each row, as `ksieve.core.entries.bounds` has them."""
    n = 1 if layout.expand > 1 and layout.block_size == 1 else layout.next_n
    later = n - 1 - row % n
    begin = torch.zeros_like(row) if starts is None else starts.long().reshape(-1).clamp(0, width)
    end = width - later
    if lengths is not None:
        end = lengths.long().reshape(-1).clamp(-1, width + layout.next_n)[row // layout.next_n] - later
        end = end if layout.windows == "ends" else begin + end.clamp(min=0)
    return begin, torch.maximum(end.clamp(max=width), begin)


def _best(scores: Any, layout: Layout, begin: Any, end: Any, shift: Any) -> Any:
    """Column of the best score of each block, the first of equal ones, of shape (rows, blocks)."""
    size, width = layout.block_size, scores.shape[-1]
    # By the bits: float comparisons change in a flush-to-zero mode.
    bits = scores.detach().float().view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    level = torch.where(bits < 0, -magnitude, magnitude)
    level = -level if layout.ranking == "smallest" else level
    # Above every level of a number, or below all.
    level = torch.where(magnitude > 0x7F800000, MAX_INT if layout.ranking == "nan_first" else 1 - MAX_INT, level)
    column = torch.arange(-(-width // size) * size, device=scores.device) + shift[:, None]
    inside = (column >= begin[:, None]) & (column < end[:, None])
    level = torch.where(inside, level.gather(-1, column.clamp(max=width - 1)), -MAX_INT)
    best = level.unflatten(-1, (-1, size)).argmax(-1, keepdim=True)
    return column.unflatten(-1, (-1, size)).gather(-1, best).squeeze(-1)


def _places(positions: Any, block_table: Any, width: int) -> Any:
    """Positions of the scores, as `ksieve.model.gathering.positions_of` has them."""
    given = positions if positions is not None else block_table
    given = given.flatten(0, -2).long() if given.dim() > 1 else given[None].long()
    if positions is not None:
        return given
    size = width // max(given.shape[-1], 1)
    return (given[..., None] * size + torch.arange(size, device=given.device)).flatten(1)


def _at(places: Any, entry: Any, begin: Any, end: Any) -> Any:
    """Columns within the windows in which positions stand."""
    if places.shape[-1] == 0:
        return torch.zeros_like(entry)
    column = torch.arange(places.shape[-1], device=places.device)
    inside = (column >= begin[:, None]) & (column < end[:, None])
    ordered, order = torch.where(inside, places, -1).sort(-1)
    return order.gather(-1, torch.searchsorted(ordered, entry).clamp(max=places.shape[-1] - 1))
