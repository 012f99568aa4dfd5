"""Where held rows look for their k-th score (kernels/resident/select.cuh): a model of it hardly ever looks in vain.

A row whose k-th score is outside that range is as exact as any, but takes several times as long, and its launch waits.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import ksieve
from harness import ROOMY, SAMPLERS, sampled_at
from ksieve.core.keys import order_key, score_of_key
from ksieve_lab.workloads.producers import PRODUCERS

KERNELS = Path(ksieve.__file__).parent / "kernels"

STEPS = 2047
FEWEST = 32  # as many in the step of the k-th are ranked at once
DEVIATIONS = {4: 1.75, 8: 0.85, 16: 0.15}
BEYOND = (12, 6, 2)


@dataclass(frozen=True)
class Reach:
    """Ranks among a warp's samples that begin and end the range, and by how many ranges it is made longer there."""

    first: int
    last: int
    raised: int
    lengthened: int


def reach(length, k, warps, part):
    seen = min(32 / part * length, 32.0)
    mean = k / length * seen
    worse = seen - mean
    deviations = next((value for most, value in DEVIATIONS.items() if warps <= most), 0.0)
    margin = deviations * math.sqrt(mean * worse / seen) - 0.5

    def beyond(some):
        return 2 ** next((times for times, least in enumerate(BEYOND) if some * warps > least), 3) - 1

    first = max(math.floor(mean - max(margin + 1, 1)), 0)
    if beyond(worse):
        first = min(first, int(seen / 2))
    last = int(mean) if warps > 32 else math.ceil(mean + max(margin, 0))
    return Reach(first, min(last, 31), beyond(mean), beyond(worse))


def range_of(samples, there, to):
    """The keys that begin and end the range of rows, given what each warp's lanes see: (rows, warps, 32)."""
    keys = order_key(samples.astype(np.float32)).astype(np.int64)
    coarse = np.where(there, keys - int(order_key(np.float32(np.inf))), 0xFFFFFFFF) >> 17
    better = np.zeros(keys.shape, np.int64)
    for lane in range(32):
        better += coarse[..., lane : lane + 1] < coarse
    some = there.any(-1)
    rank = np.where(better <= to.first, better, 0).max(-1, keepdims=True)
    best = np.where((better >= rank) & there, keys, 0xFFFFFFFF).min(-1)
    worst = np.where((better <= to.last) & there, keys, 0).max(-1)
    top, end = (score_of_key(found.astype(np.uint32)).astype(np.float64) for found in (best, worst))
    if to.raised:
        best = np.where(some, order_key((top + to.raised * (top - end)).astype(np.float32)), best)
    if to.lengthened:
        longer = end - to.lengthened * (top - end)
        longer = np.where(end > 0, np.maximum(longer, end * 2.0**-12), longer)
        worst = np.where(some, order_key(longer.astype(np.float32)), worst)
    return best.min(1).astype(np.uint32), worst.max(1).astype(np.uint32)


@dataclass(frozen=True)
class Shape:
    """A CTA's launch shape: `stages` vectors of four scores a thread, of which the first `samplers` sample."""

    threads: int
    stages: int
    samplers: int

    def outside(self, rows, lengths, k):
        """Rows whose k-th score is not in the range, or in a step with many others, where steps are equal in size."""
        part, count = 4 * self.stages * self.threads, 0
        places = sampled_at(self.samplers, part, range(len(rows)))
        for row, length, place in zip(rows, lengths, places, strict=True):
            there = (place < length).reshape(1, -1, 32)
            seen = row[np.minimum(place, len(row) - 1)].reshape(1, -1, 32)
            most, least = range_of(seen, there, reach(length, k, self.samplers // 32, part))
            high, low = (float(score_of_key(key)[0]) for key in (most, least))
            step = np.floor(np.clip((high - row[:length]) / (high - low), 0, 1) * STEPS)
            kth = np.partition(step, k - 1)[k - 1]
            count += not kth < STEPS or ((step == kth).sum() > FEWEST and (step <= kth).sum() != k)
        return count


SHARED = Shape(512, 12, SAMPLERS)
ALONE = Shape(512, 24, 512)


def test_the_thresholds_are_the_kernels():
    text = (KERNELS / "resident/descriptor.cuh").read_text(encoding="utf-8")
    assert {int(w): float(d) for w, d in re.findall(r"warps <= (\d+) \? ([\d.]+)f", text)} == DEVIATIONS
    assert tuple(map(int, re.findall(r"all > (\d+)", text))) == BEYOND
    assert [32 * int(warps) for warps in re.findall(r"kSome = (\d+);", text)] == [SAMPLERS]
    text = (KERNELS / "common/codegen.cuh").read_text(encoding="utf-8")
    assert [int(room) for room in re.findall(r"kRoomy = kSpareRegisters >= (\d+);", text)] == [ROOMY]


@pytest.mark.parametrize("warps", [8, 16, 32, 64, 256])
@pytest.mark.parametrize("seen", [26, 29, 32])
def test_samples_of_any_distribution_hold_the_kth_between_them(warps, seen):
    """How many of a warp's samples are better is binomial: all warps together misjudge one row of 100,000."""
    length = 32 * seen
    for k in range(1, length, 3):
        share, to = k / length, reach(length, k, warps, 32 * 32)
        chance = [math.comb(seen, n) * share**n * (1 - share) ** (seen - n) for n in range(seen + 1)]
        assert to.raised or sum(chance[: to.first + 1]) ** warps < 1e-5
        assert to.lengthened or sum(chance[to.last + 1 :]) ** warps < 1e-5


@pytest.mark.parametrize(
    "shape", [*(Shape(256, stages, 256) for stages in (4, 8, 16)), Shape(512, 10, 256), SHARED, ALONE], ids=str
)
@pytest.mark.parametrize("name", ["random_normal", "endpoint_structured", "ascending", "descending", "stride_peak"])
def test_rows_in_order_and_with_periods_too(name, shape):
    """None misses it, but that periods crowd a step of a row in twelve where half of 24,576's warps sample."""
    rows, width, k = 24, 4 * shape.threads * shape.stages, 2048
    lengths = np.linspace(0.8 * width, width, rows).astype(np.int64)
    scores = PRODUCERS[name](rows, width, k=k)
    most = rows // 12 if (name, shape) == ("stride_peak", SHARED) else 0
    assert shape.outside(np.asarray(scores, np.float32), lengths, k) <= most


@pytest.mark.parametrize("k", [16, 128, 512])
def test_rows_so_short_that_warps_have_no_sample(k):
    """Those warps tell nothing of the range: it is the others'."""
    shape, rows = Shape(512, 32, 512), 60
    part = 4 * shape.stages * shape.threads
    lengths = np.linspace(600, 2000, rows).astype(np.int64)
    scores = np.random.default_rng(k).standard_normal((rows, 2000)).astype(np.float32)
    lacking = 0
    for row, length, place in zip(scores, lengths, sampled_at(shape.samplers, part, range(rows)), strict=True):
        there = (place < length).reshape(-1, 32)
        seen, some = row[np.minimum(place, 1999)].reshape(-1, 32), there.any(-1)
        to = reach(length, k, shape.samplers // 32, part)
        best, worst = range_of(seen[None], there[None], to)
        assert best == range_of(seen[None, some], there[None, some], to)[0]
        assert best < worst == range_of(seen[None, some], there[None, some], to)[1]
        assert np.isfinite(score_of_key(np.array([best[0], worst[0]]))).all()
        lacking += not some.all()
    assert lacking > rows // 2
    assert k < 512 or shape.outside(scores, lengths, k) <= rows // 10
