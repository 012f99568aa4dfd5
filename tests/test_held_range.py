"""Where held rows look for their k-th score (kernels/held.cuh), modelled: hardly ever in vain, however they lie.

A row whose k-th score is outside that range is as exact as any, but takes several times as long, and its launch waits.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import ksieve
from ksieve.keys import order_key, score_of_key
from ksieve.workloads.producers import PRODUCERS

KERNELS = Path(ksieve.__file__).parent / "kernels"
TEXT = (KERNELS / "heldrow.cuh").read_text(encoding="utf-8")
REACH = [tuple(map(int, found)) for found in re.findall(r"under\((\d+), (\d+), (\d+)\)", TEXT)]
"""Tenths of k, for up to 8 warps, up to 16, and more: pools' three thresholds, then those of how far it is raised."""

STEPS = 2047
FEWEST = 32  # as many in the step of the k-th are ranked at once
LANES = np.arange(32)
PART = (LANES & 1) | (LANES & 2) << 3 | (LANES & 28) >> 1


@dataclass(frozen=True)
class Shape:
    """A CTA's launch shape: `stages` vectors of four scores a thread."""

    threads: int
    stages: int

    def sample(self, rows, lengths):
        """What each warp's lanes see of rows (n, width): (n, warps, 32), minus infinity past a row's end."""
        thread = np.arange(self.threads)
        turn = PART[thread % 32] * (4 * self.stages) // 32 + thread // 32 + np.arange(len(rows))[:, None]
        at = turn % (4 * self.stages)
        place = 4 * thread + at // 4 * 4 * self.threads + at % 4
        seen = np.take_along_axis(rows, np.minimum(place, rows.shape[1] - 1), 1)
        return np.where(place < lengths[:, None], seen, np.float32(-np.inf)).reshape(len(rows), -1, 32)


def chosen(thresholds, values, ratio, warps):
    column = 0 if warps <= 8 else 1 if warps <= 16 else 2
    return np.select([ratio < limits[column] / 10 for limits in thresholds], values[:-1], values[-1])


def range_of(sample, ratio):
    """The keys that begin and end the range of rows, as fold_sampled adds up what look_at_samples gives."""
    warps = sample.shape[1]
    pool = chosen(REACH[:3], (1, 2, 4, 8), ratio, warps)[:, None]
    raised = chosen(REACH[3:], (0, 1, 3, 1, 3), ratio, warps)[:, None]
    best_of_all = ~(ratio < REACH[5][min((warps - 1) // 8, 2)] / 10)[:, None]
    ends, groups = [], sample.reshape(*sample.shape[:2], 4, 8).max(-1)
    for size in (1, 2, 4, 8):  # pools of none but minus infinity do not count
        pools = sample.reshape(*sample.shape[:2], 32 // size, size).max(-1)
        ends.append(np.where(pools > -np.inf, pools, np.inf).min(-1))
    end = np.select([pool == 1, pool == 2, pool == 4], ends[:3], ends[3]).astype(np.float32)
    groups.sort(-1)
    top = np.where(best_of_all, groups[..., 3], groups[..., 2])
    with np.errstate(invalid="ignore", over="ignore"):
        longer = 2 * end - top
        longer = np.where(end > 0, np.maximum(longer, end * np.float32(2**-12)), longer)
        top = np.where(raised > 0, raised * (top - end) + top, top).astype(np.float32)
    end = np.where(pool == 1, longer, end).astype(np.float32)
    return order_key(top).min(1), (order_key(end).astype(np.int64) // warps).sum(1).astype(np.uint32)


def outside(rows, lengths, k, shape):
    """Rows whose k-th score is not in the range, or in a step with many others, where steps are equal in size."""
    most, least = range_of(shape.sample(rows, lengths), lengths / k)
    begin, end = score_of_key(most).astype(np.float64), score_of_key(least).astype(np.float64)
    count = 0
    for row, length, high, low in zip(rows, lengths, begin, end, strict=True):
        step = np.floor(np.clip((high - row[:length]) / (high - low), 0, 1) * STEPS)
        kth = np.partition(step, k - 1)[k - 1]
        count += kth == STEPS or ((step == kth).sum() > FEWEST and (step <= kth).sum() != k)
    return count


def test_the_thresholds_are_the_kernels():
    assert len(REACH) == 7
    for part in (REACH[:3], REACH[3:5]):
        for first, then in itertools.pairwise(part):
            assert all(a <= b for a, b in zip(first, then, strict=True))


@pytest.mark.parametrize("threads", [256, 512, 1024])
@pytest.mark.parametrize("drawn", ["standard_normal", "uniform", "standard_exponential"])
@pytest.mark.parametrize("ratio", [1.05, 1.5, 1.95, 2.1, 3.2, 3.9, 6.5, 8, 12, 16, 24, 40, 100])
def test_the_kth_of_independent_scores_is_in_the_range(ratio, drawn, threads):
    """Samples of 4,000 rows of any length, beside the quantile that the k-th is: none misses it."""
    draw = getattr(np.random.default_rng(int(10 * ratio) + threads), drawn)
    rows = 4000
    most, least = range_of(draw(size=(rows, threads // 32, 32)).astype(np.float32), np.full(rows, ratio))
    kth = order_key(np.float32(np.quantile(draw(size=1_000_000), 1 - 1 / ratio)))
    assert (most <= kth).all() and (kth < least).all()


@pytest.mark.parametrize("shape", [Shape(256, 4), Shape(256, 8), Shape(256, 16), Shape(512, 12)], ids=str)
@pytest.mark.parametrize("name", ["random_normal", "endpoint_structured", "ascending", "descending", "stride_peak"])
def test_rows_in_order_and_with_periods_too(name, shape):
    rows, width, k = 24, 4 * shape.threads * shape.stages, 2048
    lengths = np.linspace(0.8 * width, width, rows).astype(np.int64)
    scores = PRODUCERS[name](rows, width, k=k)
    assert outside(np.asarray(scores, np.float32), lengths, k, shape) == 0
