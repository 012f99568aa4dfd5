"""Cutoffs that the CPU backend guesses from a random sample, which no input can be aimed at.

The sample positions of a policy are fixed, so that an adversary knows them. Where the policy's boundary fails, and
where there is no policy, the CPU backend samples one score in `stride`. The positions are a hash of a seed drawn for
each call. The score of a sample rank is the cutoff. The answer does not depend on the seed. One statistic does: by
chance a guess may admit fewer than k scores, which costs a further read of the row, and `Stats.scans` counts it. The
model therefore takes the seed too.

All arithmetic is in integers, except one square root. The functions of plain numbers are compiled into the kernels
without change.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_GUESSES = 3
"""Guesses for one row before its read admits every score; each has a larger margin than the one before."""

BLOCK = 64
"""Scores that the CPU backend compares at a time. Storage is reduced between blocks, never within one."""

LARGEST_STRIDE = 64

LEAST_SAMPLES = 512
"""Least number of scores that a guess samples in a short row."""

GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele, Lea and Flood, 2014); its n-th output places the sample of the n-th period."""

_WORD = (1 << 64) - 1


def fresh_seed() -> int:
    """Draw the 63-bit seed of one call from the operating system."""
    return int.from_bytes(os.urandom(8), "little") >> 1


def stride_of(length: int) -> int:
    """Sampling stride of a guess, a power of two: one score in this many is sampled."""
    stride = LARGEST_STRIDE
    while stride > 1 and stride * LEAST_SAMPLES > length:
        stride //= 2
    return stride


def rank_of(length: int, k: int, stride: int, attempt: int) -> int:
    """Sample rank of the cutoff; 0 where the row is so short, or k so large, that every score is admitted.

    The sample is expected to contain m = k / stride of the k best scores. Rank m + 4 sqrt(m) + 8 lies at least four
    standard deviations above m: with k = 2,048 one row in 600,000 underfills. Each further attempt adds the same
    margin.
    """
    expected = k / stride
    rank = int(expected + (attempt + 1) * (4 * math.sqrt(expected) + 8))
    return 0 if stride == 1 or rank * stride > length * 3 // 4 else rank


def mixed(word: Any) -> Any:
    """SplitMix64's finalizer, of a number or of an array of uint64."""
    word = (word ^ word >> 30) * MIX_1 & _WORD
    word = (word ^ word >> 27) * MIX_2 & _WORD
    return word ^ word >> 31


def state_of(seed: int, row: int, attempt: int) -> int:
    """Non-zero generator state of one attempt on one row."""
    return int(mixed(seed + (row * MOST_GUESSES + attempt + 1) * GOLDEN & _WORD) | 1)


def positions(state: int, length: int) -> NDArray[np.int64]:
    """Sample positions of a guess, ascending: one in each period of `stride_of` scores."""
    stride = stride_of(length)
    numbers = np.arange(-(-length // stride), dtype=np.uint64)
    offsets = mixed(np.uint64(state) + numbers * np.uint64(GOLDEN)) % np.uint64(stride)
    found: NDArray[np.int64] = (numbers * np.uint64(stride) + offsets).astype(np.int64)
    return found[found < length]


def cutoff(keys: NDArray[np.uint32], k: int, seed: int, row: int, attempt: int) -> int | None:
    """Inclusive ordered key of a guess's cutoff; None where it admits every score."""
    rank = rank_of(keys.size, k, stride_of(keys.size), attempt)
    if not rank:
        return None
    sample = keys[positions(state_of(seed, row, attempt), keys.size)]
    return int(np.partition(sample, rank - 1)[rank - 1])
