"""How ranks agree on the k best scores of every row: three schedules, and the list of all positions.

Each rank brings its *best*: composites of its own k best scores of every row, ascending. A composite holds the ordered
key of a score (`ksieve.core.keys`) above its global position, so that a smaller one is a better score, or an equal one
that the tie-break prefers, and no two are equal. The k best of the whole row are the k smallest composites of all
ranks; of each rank they are the first n of its best. A schedule finds that n for every row.

* `pairs`: every rank sends its best, and all select among them.
* `samples`: two collectives. Every step-th composite of each rank bounds the rank of any composite from both sides: of
  the pooled samples, one is surely at most the k-th best and one surely at least. The few composites between the two
  are added up in slots whose places all ranks compute, and the q-th smallest of them is the k-th best of all. The
  number of slots follows from the step and the number of ranks, for every input.
* `digits`: added histograms of the digits of a composite, from the most significant one on. Contiguous shards need
  the digits of the key alone: the scores equal to the k-th are divided by their count on each rank.

The number and the shapes of the messages depend on the plan alone. A row of fewer than k valid scores, or of none,
takes the same steps: slots without a score are `NOTHING`, and the k-th best of such a row is `NOTHING` too.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from ksieve.distributed.collectives import NOTHING, AllGather, AllReduce, TorchOps
from ksieve.distributed.schedules import Digits, Pairs, Samples, Schedule, Shape

Steps = Generator[AllGather | AllReduce, Any, "Agreed"]


@dataclass(frozen=True)
class Agreed:
    """What a rank knows at the end.

    `count` (array of int64, shape (rows,)): how many of this rank's best are selected. `pooled` (array of int64, shape
    (rows, world * k), or None): the best of all ranks, ascending, where the schedule gathers them.
    """

    count: Any
    pooled: Any = None


def agree(schedule: Schedule, ops: TorchOps, shape: Shape, rank: int, best: Any, ks: Any) -> Steps:
    """Run a schedule.

    `shape`: the same on every rank. `best` (array of int64, shape (rows, k)): ascending composites of this rank, then
    `NOTHING`. `ks` (array of int64, shape (rows,)): the k of each row, in [0, k]; the same on every rank. It
    yields collectives, receives their results, and returns `Agreed`.
    """
    if isinstance(schedule, Pairs):
        return _pairs(ops, best, ks)
    if isinstance(schedule, Samples):
        return _samples(ops, shape, schedule.step, rank, best, ks)
    return _digits(ops, shape, schedule, rank, best, ks)


def _pairs(ops: TorchOps, best: Any, ks: Any) -> Steps:
    gathered = yield AllGather(best)
    pooled = ops.sort(_flat(ops.by_row(gathered)))
    last = ops.where(ks > 0, ops.take(pooled, ops.clip(ks - 1, 0)[:, None])[:, 0], -1)
    return Agreed(_first(ops, best, last), pooled)


def _samples(ops: TorchOps, shape: Shape, step: int, rank: int, best: Any, ks: Any) -> Steps:
    k = best.shape[1]
    # 1. Pool every step-th composite. With m samples at or below x, a rank holds m * step to m * step + step - 1.
    samples = ops.by_row((yield AllGather(best[:, step - 1 :: step])))
    pooled = ops.sort(_flat(samples))
    surely = ops.clip(ks - shape.world * (step - 1), 0) // step
    enough = (ks + step - 1) // step
    low = ops.where(surely > 0, ops.take(pooled, ops.clip(surely - 1, 0)[:, None])[:, 0], -1)
    high = ops.take(pooled, ops.clip(enough - 1, 0, pooled.shape[1] - 1)[:, None])[:, 0]
    high = ops.where(enough > pooled.shape[1], NOTHING, ops.where(enough > 0, high, -1))
    # 2. Add up what lies in (low, high]. Each rank has room for what its samples there allow.
    inside = (samples > low[:, None, None]) & (samples <= high[:, None, None]) & (samples < NOTHING)
    room = ops.count(inside) * step + (step - 1)
    start = (ops.cumsum(room) - room)[:, rank : rank + 1]
    below, reached = _first(ops, best, low), _first(ops, best, high)
    slot = ops.columns(Samples(step).slots(shape)) - start
    mine = (slot >= 0) & (slot < (reached - below)[:, None])
    found = ops.take(best, ops.clip(slot + below[:, None], 0, k - 1))
    # An empty slot is 0, which is NOTHING after the sum.
    merged = yield AllReduce(ops.join(below[:, None], ops.where(mine, NOTHING - found, 0)))
    between = ops.sort(NOTHING - merged[:, 1:])
    left = ks - merged[:, 0]
    last = ops.take(between, ops.clip(left - 1, 0, between.shape[1] - 1)[:, None])[:, 0]
    return Agreed(_first(ops, best, ops.where(left > 0, last, low)))


def _digits(ops: TorchOps, shape: Shape, schedule: Digits, rank: int, best: Any, ks: Any) -> Steps:
    present = best < NOTHING
    prefix, left, total = ks * 0, ks, None
    shift = shape.composite_bits
    for bits in schedule.rounds(shape):
        shift -= bits
        within = present & ((best >> (shift + bits)) == prefix[:, None])
        digit = (best >> shift) & ((1 << bits) - 1)
        counts = yield AllReduce(ops.narrow(ops.histogram(ops.where(within, digit, 0), within * 1, 1 << bits)))
        sums = ops.cumsum(counts)
        total = sums[:, -1] if total is None else total
        chosen = ops.clip(ops.count(sums < left[:, None]), 0, (1 << bits) - 1)
        before = ops.take(sums, ops.clip(chosen - 1, 0)[:, None])[:, 0]
        left = left - ops.where(chosen > 0, before, 0)
        prefix = (prefix << bits) | chosen
    every = _first(ops, best, ks * 0 + NOTHING)
    if not schedule.divides(shape):
        last = ops.where(ks > 0, prefix, -1)
        return Agreed(ops.where(total <= ks, every, _first(ops, best, last)))
    # `prefix` is the key of the k-th best score. The first `left` scores that equal it are selected.
    better = _first(ops, best, (prefix << shape.position_bits) - 1)
    ties = _first(ops, best, prefix << shape.position_bits | ((1 << shape.position_bits) - 1)) - better
    by_rank = ops.by_row((yield AllGather(ops.narrow(ties)[:, None])))[:, :, 0]
    first = by_rank[:, rank + 1 :] if shape.high_first else by_rank[:, :rank]
    count = better + ops.least(ops.clip(left - first.sum(1), 0), ties)
    return Agreed(ops.where(total <= ks, every, ops.where(ks > 0, count, 0)))


def _flat(by_row: Any) -> Any:
    """One row for each row; -1 in a shape would be ambiguous without rows."""
    rows, world, n = by_row.shape
    return by_row.reshape(rows, world * n)


def _first(ops: TorchOps, best: Any, last: Any) -> Any:
    """Count the composites up to `last` of each row; all of them where that is `NOTHING`."""
    return ops.upto(best, ops.clip(last, -1, NOTHING - 1))


def everywhere(
    ops: TorchOps, shape: Shape, rank: int, positions: Any, agreed: Agreed, ks: Any
) -> Generator[Any, Any, Any]:
    """Bring the selected positions of every row to every rank.

    `ops`, `shape`, `rank`: as of `agree`. `positions` (array of int64, shape (rows, k)): global positions of this
    rank's best. `ks`: array of int64, shape (rows,). Returns the positions, int64 of shape (rows, k), in no
    particular order, -1 in unused slots.
    """
    slot = ops.columns(shape.k)
    if agreed.pooled is not None:
        pooled = agreed.pooled[:, : shape.k]
        place = pooled & ((1 << shape.position_bits) - 1)
        place = shape.extent - 1 - place if shape.high_first else place
        return ops.where((slot < ks[:, None]) & (pooled < NOTHING), place, -1)
    by_rank = ops.by_row((yield AllGather(ops.narrow(agreed.count)[:, None])))[:, :, 0]
    own = slot - by_rank[:, :rank].sum(1)[:, None]
    mine = (own >= 0) & (own < agreed.count[:, None])
    found = ops.take(positions, ops.clip(own, 0, shape.k - 1))
    return (yield AllReduce(ops.narrow(ops.where(mine, found + 1, 0)))) - 1
