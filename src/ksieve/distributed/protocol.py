"""How ranks agree on the k best scores of every row: three schedules, and the list of all positions.

Each rank brings its *best*: composites of its own k best scores of every row, ascending. A composite holds the ordered
key of a score (`ksieve.core.keys`) above its global position, so no two are equal. A smaller one is a better score, or
an equal one that the tie-break prefers. The k best of the whole row are the k smallest composites of all ranks. From
each rank they are the first n of its best. A schedule finds that n for every row.

* `pairs`: every rank sends its best, and all select among them.
* `samples`: two collectives. Every step-th composite of each rank bounds the rank of any composite from both sides. Of
  the pooled samples, one is surely at most the k-th best, and one at least. The few composites between the two are
  added up in slots whose places all ranks compute. The q-th smallest of them is the k-th best of all. The number of
  slots follows from the step and the number of ranks, for every input.
* `digits`: added histograms of the digits of a composite, from the most significant one on. Contiguous shards need
  the digits of the key alone: the scores equal to the k-th are divided by their count on each rank.

A protocol is a generator of operations of PyTorch: it yields a collective and receives its result. Nothing of it waits
for a device: no value is read back. The number and the shapes of the messages depend on the plan alone. A row of fewer
than k valid scores takes the same steps. Slots without a score are `NOTHING`, and so is the row's k-th best.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from ksieve.distributed.schedules import Digits, Pairs, Samples, Schedule, Shape

NOTHING = (1 << 63) - 1
"""The composite of a slot without a score: after every other."""


@dataclass(frozen=True)
class AllGather:
    """Ask for the arrays of all ranks, stacked along a new first dimension in the order of the ranks."""

    array: Any


@dataclass(frozen=True)
class AllReduce:
    """Ask for the sum of the arrays of all ranks."""

    array: Any


Steps = Generator[AllGather | AllReduce, Any, "Agreed"]


@dataclass(frozen=True)
class Agreed:
    """What a rank knows at the end.

    `count` (Tensor of int64, shape (rows,)): how many of this rank's best are selected. `pooled` (Tensor of int64,
    shape (rows, world * k), or None): the best of all ranks, ascending, where the schedule gathers them.
    """

    count: Any
    pooled: Any = None


def agree(schedule: Schedule, shape: Shape, rank: int, best: Any, ks: Any) -> Steps:
    """Run a schedule.

    `shape`: the same on every rank. `best` (Tensor of int64, shape (rows, k)): ascending composites of this rank, then
    `NOTHING`. `ks` (Tensor of int64, shape (rows,)): the k of each row, in [0, k]; the same on every rank. It
    yields collectives, receives their results, and returns `Agreed`.
    """
    if isinstance(schedule, Pairs):
        return _pairs(best, ks)
    if isinstance(schedule, Samples):
        return _samples(shape, schedule, rank, best, ks)
    return _digits(shape, schedule, rank, best, ks)


def _pairs(best: Any, ks: Any) -> Steps:
    torch: Any = sys.modules["torch"]
    gathered = yield AllGather(best)
    pooled = _flat(gathered).sort(1).values
    last = torch.where(ks > 0, _nth(pooled, ks), -1)
    return Agreed(_first(best, last), pooled)


def _samples(shape: Shape, schedule: Samples, rank: int, best: Any, ks: Any) -> Steps:
    torch: Any = sys.modules["torch"]
    k, step = best.shape[1], schedule.step
    # 1. Pool every step-th composite. With m samples at or below x, a rank holds m * step to m * step + step - 1.
    gathered = yield AllGather(best[:, step - 1 :: step])
    samples, pooled = gathered.transpose(0, 1), _flat(gathered).sort(1).values
    surely = (ks - shape.world * (step - 1)).clamp(min=0) // step
    enough = (ks + step - 1) // step
    low = torch.where(surely > 0, _nth(pooled, surely), -1)
    high = torch.where(enough > 0, _nth(pooled, enough), -1)
    high = torch.where(enough > pooled.shape[1], NOTHING, high)
    # 2. Add up what lies in (low, high]. Each rank has room for what its samples there allow.
    inside = (samples > low[:, None, None]) & (samples <= high[:, None, None]) & (samples < NOTHING)
    room = inside.sum(-1) * step + (step - 1)
    start = (room.cumsum(1) - room)[:, rank : rank + 1]
    below, reached = _first(best, low), _first(best, high)
    slot = _columns(best, schedule.slots(shape)) - start
    mine = (slot >= 0) & (slot < (reached - below)[:, None])
    found = best.gather(1, (slot + below[:, None]).clamp(0, k - 1))
    # An empty slot is 0, which is NOTHING after the sum.
    merged = yield AllReduce(torch.cat([below[:, None], torch.where(mine, NOTHING - found, 0)], 1))
    between = (NOTHING - merged[:, 1:]).sort(1).values
    left = ks - merged[:, 0]
    return Agreed(_first(best, torch.where(left > 0, _nth(between, left), low)))


def _digits(shape: Shape, schedule: Digits, rank: int, best: Any, ks: Any) -> Steps:
    torch: Any = sys.modules["torch"]
    present = best < NOTHING
    prefix, left, total = ks * 0, ks, None
    shift = shape.composite_bits
    for bits in schedule.rounds(shape):
        shift -= bits
        within = present & ((best >> (shift + bits)) == prefix[:, None])
        digit = (best >> shift) & ((1 << bits) - 1)
        histogram = best.new_zeros((shape.rows, 1 << bits))
        counts = yield AllReduce(histogram.scatter_add_(1, torch.where(within, digit, 0), within.long()).int())
        sums = counts.cumsum(1)
        total = sums[:, -1] if total is None else total
        chosen = (sums < left[:, None]).sum(-1).clamp(0, (1 << bits) - 1)
        left = left - torch.where(chosen > 0, _nth(sums, chosen), 0)
        prefix = (prefix << bits) | chosen
    every = _first(best, ks * 0 + NOTHING)
    if not schedule.divides(shape):
        last = torch.where(ks > 0, prefix, -1)
        return Agreed(torch.where(total <= ks, every, _first(best, last)))
    # `prefix` is the key of the k-th best score. The first `left` scores that equal it are selected.
    better = _first(best, (prefix << shape.position_bits) - 1)
    ties = _first(best, prefix << shape.position_bits | ((1 << shape.position_bits) - 1)) - better
    by_rank = _flat((yield AllGather(ties.int()[:, None])))
    first = by_rank[:, rank + 1 :] if shape.high_first else by_rank[:, :rank]
    count = better + torch.minimum((left - first.sum(1)).clamp(min=0), ties)
    return Agreed(torch.where(total <= ks, every, torch.where(ks > 0, count, 0)))


def _flat(gathered: Any) -> Any:
    """One row for each row of what all ranks sent; -1 in a shape would be ambiguous without rows."""
    world, rows, n = gathered.shape
    return gathered.transpose(0, 1).reshape(rows, world * n)


def _nth(ascending: Any, n: Any) -> Any:
    """The n-th number of each row, from 1 on; the first or last one where there is no such."""
    return ascending.gather(1, (n - 1).clamp(0, ascending.shape[1] - 1)[:, None])[:, 0]


def _first(best: Any, last: Any) -> Any:
    """Count the composites up to `last` of each row; all of them where that is `NOTHING`."""
    return sys.modules["torch"].searchsorted(best, last.clamp(-1, NOTHING - 1)[:, None], right=True)[:, 0]


def _columns(like: Any, n: int) -> Any:
    """Numbers 0 to n - 1 on the device of another tensor, shape (1, n)."""
    return sys.modules["torch"].arange(n, device=like.device)[None]


def everywhere(shape: Shape, rank: int, positions: Any, agreed: Agreed, ks: Any) -> Generator[Any, Any, Any]:
    """Bring the selected positions of every row to every rank.

    `shape`, `rank`: as of `agree`. `positions` (Tensor of int64, shape (rows, k)): global positions of this rank's
    best. `ks`: Tensor of int64, shape (rows,). Returns the positions, int64 of shape (rows, k), in no particular order,
    -1 in unused slots.
    """
    torch: Any = sys.modules["torch"]
    slot = _columns(positions, shape.k)
    if agreed.pooled is not None:
        pooled = agreed.pooled[:, : shape.k]
        place = pooled & ((1 << shape.position_bits) - 1)
        place = shape.extent - 1 - place if shape.high_first else place
        return torch.where((slot < ks[:, None]) & (pooled < NOTHING), place, -1)
    by_rank = _flat((yield AllGather(agreed.count.int()[:, None])))
    own = slot - by_rank[:, :rank].sum(1)[:, None]
    mine = (own >= 0) & (own < agreed.count[:, None])
    found = positions.gather(1, own.clamp(0, shape.k - 1))
    return (yield AllReduce(torch.where(mine, found + 1, 0).int())) - 1


def marked(steps: Generator[Any, Any, Any], tag: int, world: int, flag: Any) -> Generator[Any, Any, Any]:
    """Send a tag of 62 bits after the data of a protocol's first message, and compare all ranks' tags there.

    Where they differ, `flag` becomes 1, indices are -1 and counts 0.
    """
    torch: Any = sys.modules["torch"]
    ask = next(steps)
    sent, halves = ask.array, [tag >> 31, tag & ((1 << 31) - 1)]
    answer = yield type(ask)(torch.cat([sent.reshape(-1), *(sent.new_full((1,), half) for half in halves)]))
    tags = answer[..., -2:]
    answer = answer[..., :-2].reshape(*answer.shape[:-1], *sent.shape)
    if isinstance(ask, AllReduce):
        most = 1 << (8 * sent.element_size())
        halves = [(world * half + most // 2) % most - most // 2 for half in halves]  # as sums of the dtype wrap
    other = ((tags[..., 0] != halves[0]) | (tags[..., 1] != halves[1])).any()
    flag |= other
    try:
        while True:
            ask = steps.send(answer)
            answer = yield ask
    except StopIteration as stop:
        found = stop.value if isinstance(stop.value, tuple) else (stop.value,)
    filled = tuple(torch.where(other, empty, array) for empty, array in zip((-1, 0), found, strict=False))
    return filled if len(filled) > 1 else filled[0]
