"""Boundaries that every phase of a sampling policy would propose for a row, all phases at once.

A view is a `SamplingPolicy`, here without its margins: `stride`, `group`, `peaks` and `boundary` say which scores stand
for the row. A sample rank is asked for separately. The paper's regular views are policies of group 1.

A jittered view has a group of its own in every period, by a hash of the row number. Its *phases* are the same hash
turned by 0 to `stride` - 1 groups. Phase 0 is what the row number samples. The phases partition the row, and every
phase is equally likely to be sampled by some row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.policy import PEAK, SamplingPolicy
from ksieve_lab.study.ranked import RankedRow

I64 = NDArray[np.int64]

UNUSABLE = -1
"""In place of a rank: the phase has fewer statistics than the sample rank asked for."""


def regular_view(stride: int) -> SamplingPolicy:
    """The paper's view that reads one score in `stride`."""
    return SamplingPolicy(f"1/{stride}", stride, boundary="exact", min_rank=1)


def phases_of(positions: I64, view: SamplingPolicy, row_id: int = 0) -> I64:
    """Phase of a view that samples each position; `row_id` decides the hash of a jittered one."""
    groups = positions // view.group
    return (groups - _turned(view, 0, row_id, groups // view.stride)) % view.stride


def _turned(view: SamplingPolicy, phase: Any, row_id: int, periods: I64) -> I64:
    """Group that a phase samples in each period; arguments broadcast."""
    first: I64 = view.offsets(row_id, periods) if view.jitter else np.zeros_like(periods)
    return np.asarray((first + phase) % view.stride, dtype=np.int64)


def realised_ranks(
    row: RankedRow, view: SamplingPolicy, sample_ranks: Sequence[int], *, beyond: bool = True, row_id: int = 0
) -> I64:
    """Complete-row ranks of the boundaries that each phase would propose: J_a(q), or the admitted C(tau).

    The result has the shape (view.stride, sample ranks). Sample ranks count from 1. Ties count at their worst;
    `UNUSABLE` stands where the view is too small. With a "coarse" boundary, the rank belongs to the sampled score's
    whole bin. A boundary past the row's kept scores is looked up in the complete row if `beyond`. Else it is given as
    the first rank not kept, where it counts only that it lies far down. `row_id` decides the hash of a jittered view.
    `SamplingPolicy.tightened` is left out: of a sorted row, fewer scores are admitted.
    """
    wanted = np.asarray(sample_ranks, dtype=np.int64)
    order = row.order
    ranks = row.coarse_ranks() if view.boundary == "coarse" else row.ranks
    if view.peaks:
        first = _first_of_each(order // PEAK)
        order, ranks = order[first], ranks[first]
    phases = phases_of(order, view, row_id).astype(np.uint16 if view.stride <= 1 << 16 else np.int64)
    by_phase = np.argsort(phases, kind="stable")
    counts = np.bincount(phases, minlength=view.stride)
    at = (np.cumsum(counts) - counts)[:, None] + wanted - 1
    found = wanted <= counts[:, None]
    padded = np.append(ranks[by_phase], UNUSABLE)
    out: I64 = np.where(found, padded[np.where(found, at, -1)], row.order.size + 1)
    if row.order.size == row.length:
        out[~found] = UNUSABLE
    elif beyond:
        return out if found.all() else realised_ranks(row.deeper, view, sample_ranks, row_id=row_id)
    else:
        sizes = statistics_sizes(row.length, view, row_id)
        out[wanted > sizes[:, None]] = UNUSABLE
    return out


def statistics_sizes(length: int, view: SamplingPolicy, row_id: int = 0) -> I64:
    """Number of statistics that each phase of a view ranks in a row of `length` scores."""
    whole, rest = divmod(length, view.stride * view.group)
    taken = _turned(view, np.arange(view.stride, dtype=np.int64), row_id, np.array(whole))
    last = np.clip(rest - taken * view.group, 0, view.group)
    if view.peaks:
        return whole * (view.group // PEAK) + -(-last // PEAK)
    return whole * view.group + last


def _first_of_each(labels: I64) -> I64:
    """Indices of the first appearance of every label, ascending."""
    _, first = np.unique(labels, return_index=True)
    first.sort()
    return first
