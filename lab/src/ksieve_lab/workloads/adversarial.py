"""Adversarial score families: each breaks a shortcut that some selector takes.

Ties and plateaus, rows inside one float16 value or one coarse bin, order and periodicity that a sample cannot see,
and the corners of float32. Same calling convention as `ksieve_lab.workloads.rowwise`.
"""

from __future__ import annotations

import numpy as np

from ksieve.core.keys import BIN_CUTOFF_KEY, score_of_key
from ksieve.core.policy import PAPER_128, SamplingPolicy, resolve_policy
from ksieve.planning.choose_cpu import default_policy
from ksieve_lab.workloads.rowwise import F32, Producer

RNG = np.random.Generator


def _spread(rng: RNG, width: int, parts: list[tuple[int, F32]], rest: F32) -> F32:
    """Scatter values over random positions: the first `count` of each part, then `rest` wherever nothing is."""
    out = rest.astype(np.float32)
    order = rng.permutation(width)
    begin = 0
    for count, values in parts:
        at = order[begin : begin + max(count, 0)]
        out[at] = values[: at.size] if values.size > 1 else values
        begin += at.size
    return out


def _normal(rng: RNG, width: int) -> F32:
    return rng.standard_normal(width, dtype=np.float32)


def _constant(value: float) -> F32:
    return np.array([value], dtype=np.float32)


# ---- ties -------------------------------------------------------------------------------------------------


def _all_equal(rng: RNG, width: int, row: int, k: int, *, value: float = 1.0) -> F32:
    """Every score is `value`."""
    return np.full(width, value, dtype=np.float32)


def _two_values(rng: RNG, width: int, row: int, k: int, *, high: float = 0.5) -> F32:
    """Ones and twos: rows alternate between `high` * k twos (rank k is a one) and half the row (rank k is a two)."""
    count = int(high * k) if row % 2 == 0 else width // 2
    return _spread(rng, width, [(count, _constant(2))], np.ones(width, np.float32))


def _huge_ties(rng: RNG, width: int, row: int, k: int, *, ties: int = 100_000) -> F32:
    """k/2 scores above 0.5, then 0.5 repeated `ties` times at the boundary, then scores below."""
    above = (np.float32(0.5) + np.abs(_normal(rng, width))) * np.float32(1.5)
    below = np.float32(0.25) - np.abs(_normal(rng, width))
    count = min(k // 2, width // 4)
    return _spread(rng, width, [(count, above), (min(ties, width - count), _constant(0.5))], below)


def _signed_zeros(rng: RNG, width: int, row: int, k: int) -> F32:
    """k/2 positive scores, then -0 and +0 in random order, which are equal; the boundary lies among them."""
    zeros = np.where(rng.random(width) < 0.5, np.float32(0.0), np.float32(-0.0))
    return _spread(rng, width, [(min(k // 2, width // 4), np.abs(_normal(rng, width)))], zeros)


# ---- below the resolution of a coarse key -----------------------------------------------------------------


def _one_coarse_bin(rng: RNG, width: int, row: int, k: int) -> F32:
    """All scores round to the same float16, 1.5: they differ only in float32 bits, 8191 values in all."""
    centre = int(np.float32(1.5).view(np.uint32))
    return (centre + rng.integers(-4095, 4096, width)).astype(np.uint32).view(np.float32)


def _rounds_to_zero(rng: RNG, width: int, row: int, k: int) -> F32:
    """Positive scores over 100 octaves, all of which round to zero in float16."""
    return np.exp2(rng.uniform(-126, -26, width)).astype(np.float32)


def _above_half_range(rng: RNG, width: int, row: int, k: int) -> F32:
    """Scores from 65520 up, all of which round to infinity in float16."""
    return (65520 * np.exp2(rng.uniform(0, 100, width))).astype(np.float32)


def _fp16_midpoints(rng: RNG, width: int, row: int, k: int) -> F32:
    """The float32 cutoff of random coarse bins, one float32 step above it, or one below."""
    finite = BIN_CUTOFF_KEY[np.isfinite(score_of_key(BIN_CUTOFF_KEY)) & (BIN_CUTOFF_KEY > 0)]
    return score_of_key(rng.choice(finite, width) + rng.integers(-1, 2, width).astype(np.uint32))


# ---- order and position -----------------------------------------------------------------------------------


def _ascending(rng: RNG, width: int, row: int, k: int) -> F32:
    """Normal scores in ascending order: a running threshold is raised by every score."""
    return np.sort(_normal(rng, width))


def _descending(rng: RNG, width: int, row: int, k: int) -> F32:
    """Normal scores in descending order."""
    return np.sort(_normal(rng, width))[::-1]


def _one_cluster(rng: RNG, width: int, row: int, k: int) -> F32:
    """The top k are adjacent at a random position: one thread or segment reads all of them."""
    out = _normal(rng, width)
    begin = int(rng.integers(0, max(width - k, 0) + 1))
    out[begin : begin + k] = np.float32(16) + np.abs(out[begin : begin + k])
    return out


Chosen = SamplingPolicy | str | None
"""A policy; None stands for the planner's for rows of the width, which gives the worst case."""


def _locked(rng: RNG, width: int, row: int, k: int, chosen: Chosen, raised: int, *, jitter: bool) -> F32:
    """Raise normal scores where the policy samples the row, or would sample it without jitter: in one class."""
    policy = resolve_policy(chosen) or default_policy(width, k) or PAPER_128
    out = _normal(rng, width)
    out[policy.view(row, width) if jitter else policy.view_of_phase(policy.phase(row), width)] += np.float32(raised)
    return out


def _stride_peak(rng: RNG, width: int, row: int, k: int, *, policy: Chosen = None) -> F32:
    """Top scores in one class of positions with the period of the view of `policy`: a regular one sees it alone."""
    return _locked(rng, width, row, k, policy, 16, jitter=False)


def _stride_hole(rng: RNG, width: int, row: int, k: int, *, policy: Chosen = None) -> F32:
    """Only small scores in one class of positions with the period of the view of `policy`."""
    return _locked(rng, width, row, k, policy, -16, jitter=False)


def _view_peak(rng: RNG, width: int, row: int, k: int, *, policy: Chosen = None) -> F32:
    """Top scores just where `policy` samples the row: the proposal is far too high, the row underfills."""
    return _locked(rng, width, row, k, policy, 16, jitter=True)


def _view_hole(rng: RNG, width: int, row: int, k: int, *, policy: Chosen = None) -> F32:
    """Only small scores where `policy` samples the row: the proposal admits everything else."""
    return _locked(rng, width, row, k, policy, -16, jitter=True)


# ---- blocks and forced entries ----------------------------------------------------------------------------


def _equal_blocks(rng: RNG, width: int, row: int, k: int, *, block: int = 8) -> F32:
    """All blocks are equal: the best score of each is 1, somewhere in it, and the others are below."""
    out = -np.abs(_normal(rng, width))
    begin = np.arange(0, width, block)
    out[begin + (rng.random(begin.size) * np.minimum(block, width - begin)).astype(np.int64)] = 1
    return out


def _one_block(rng: RNG, width: int, row: int, k: int, *, block: int = 128) -> F32:
    """One block holds all scores, the others hold -inf; which one it is goes by the row."""
    out = np.full(width, -np.inf, np.float32)
    begin = row % max(-(-width // block), 1) * block
    out[begin : begin + block] = _normal(rng, width)[begin : begin + block]
    return out


def _forced_best(rng: RNG, width: int, row: int, k: int, *, block: int = 128) -> F32:
    """The first and the last block are the best: what is forced would be selected anyway."""
    out = _normal(rng, width)
    for end in (slice(block), slice((width - 1) // block * block, None)):
        out[end] = np.float32(16) + np.abs(out[end])
    return out


def _forced_worst(rng: RNG, width: int, row: int, k: int, *, block: int = 128) -> F32:
    """The first and the last block are the worst: -inf in even rows, NaN in odd ones."""
    out = _normal(rng, width)
    out[:block] = out[(width - 1) // block * block :] = np.nan if row % 2 else -np.inf
    return out


# ---- corners of float32 -----------------------------------------------------------------------------------


def _descending_subnormals(rng: RNG, width: int, row: int, k: int) -> F32:
    """Consecutive float32 subnormals in descending order through zero: flushing them to zero makes all equal."""
    steps = width // 2 - np.arange(width)
    return np.where(steps < 0, np.uint32(1 << 31) | np.abs(steps).astype(np.uint32), steps.astype(np.uint32)).view(
        np.float32
    )


def _infinities(rng: RNG, width: int, row: int, k: int) -> F32:
    """Both infinities among normal scores: by row, rank k is finite, +inf, or -inf."""
    regime = row % 3
    tops = (k // 2, 2 * k, k // 2)[regime]
    bottoms = (width // 8, width // 8, width)[regime]
    return _spread(rng, width, [(tops, _constant(np.inf)), (bottoms, _constant(-np.inf))], _normal(rng, width))


def _nan_sprinkled(rng: RNG, width: int, row: int, k: int) -> F32:
    """NaN of both signs and any payload: 1 % of even rows, all but k/2 scores of odd rows."""
    payload = rng.integers(1, 1 << 23, width, dtype=np.uint32) | (rng.integers(0, 2, width, dtype=np.uint32) << 31)
    nans = (payload | np.uint32(0x7F800000)).view(np.float32)
    count = width // 100 if row % 2 == 0 else width - min(k // 2, width // 2)
    # Through integers: arithmetic or a float copy may quieten a signalling NaN.
    out = _normal(rng, width)
    at = rng.permutation(width)[:count]
    out.view(np.uint32)[at] = nans.view(np.uint32)[at]
    return out


def _random_bits(rng: RNG, width: int, row: int, k: int) -> F32:
    """Every bit pattern alike: subnormals, infinities, NaN and every octave."""
    return rng.integers(0, 1 << 32, width, dtype=np.uint32).view(np.float32)


ADVERSARIAL = tuple(
    Producer(make_row, adversarial=True)
    for make_row in (
        _all_equal, _two_values, _huge_ties, _signed_zeros, _one_coarse_bin, _rounds_to_zero, _above_half_range,
        _fp16_midpoints, _ascending, _descending, _one_cluster, _stride_peak, _stride_hole, _view_peak, _view_hole,
        _equal_blocks, _one_block, _forced_best, _forced_worst, _descending_subnormals, _infinities, _nan_sprinkled,
        _random_bits,
    )
)  # fmt: skip
"""Producers meant to break a selector."""
