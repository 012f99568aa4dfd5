"""The CPU backend's own cutoffs: guessed from a view that no input can be aimed at.

A policy's view is part of the model, and so known to whoever makes a row. Where it misses, and where there is none, the
CPU backend takes one score of every `stride` by a hash of a seed that is drawn for each call, and the score of a sample
rank there as a cutoff. The answer does not depend on the seed. Statistics do in one place: a guess that admits fewer
than k scores, which happens by chance alone, costs a further read of the row, and `Stats.scans` counts it. So the model
takes the seed too.

Integers only, but for one square root; the functions of plain numbers are compiled into the kernels as they stand.
"""

from __future__ import annotations

import math
import os

import numpy as np
from numpy.typing import NDArray

MOST_GUESSES = 3
"""Guesses for one row before its read admits every score: each is safer than the one before."""

BLOCK = 64
"""Scores that the CPU backend compares at a time. It makes room for candidates before a block, never within one."""

LARGEST_STRIDE = 64

LEAST_SAMPLES = 512
"""Scores that a guess looks at in a short row, at the least."""

GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64, whose n-th output is the place of the sample in the n-th period."""

_WORD = (1 << 64) - 1


def fresh_seed() -> int:
    """Seed of one call, from the operating system: 63 bits."""
    return int.from_bytes(os.urandom(8), "little") >> 1


def stride_of(length: int) -> int:
    """One score in how many a guess looks at: a power of two."""
    stride = LARGEST_STRIDE
    while stride > 1 and stride * LEAST_SAMPLES > length:
        stride //= 2
    return stride


def rank_of(length: int, k: int, stride: int, attempt: int) -> int:
    """Sample rank of the cutoff; 0 where the row is so short, or k so large, that every score is admitted.

    With m = k / stride of the k best expected in the sample, rank m + 4 sqrt(m) + 8 lies at least four standard
    deviations above them: one row in 600,000 is unlucky with k = 2,048. Each further attempt adds as much again.
    """
    expected = k / stride
    rank = int(expected + (attempt + 1) * (4 * math.sqrt(expected) + 8))
    return 0 if stride == 1 or rank * stride > length * 3 // 4 else rank


def mixed(word: int) -> int:
    """SplitMix64's finalizer."""
    word = (word ^ word >> 30) * MIX_1 & _WORD
    word = (word ^ word >> 27) * MIX_2 & _WORD
    return word ^ word >> 31


def state_of(seed: int, row: int, attempt: int) -> int:
    """State from which a row's places are drawn; never 0."""
    return mixed(seed + (row * MOST_GUESSES + attempt + 1) * GOLDEN & _WORD) | 1


def positions(state: int, length: int) -> NDArray[np.int64]:
    """Positions that a guess looks at: one in each period of `stride_of` scores, ascending."""
    stride = stride_of(length)
    numbers = np.arange(-(-length // stride), dtype=np.uint64)
    word = np.uint64(state) + numbers * np.uint64(GOLDEN)
    word = (word ^ word >> np.uint64(30)) * np.uint64(MIX_1)
    word = (word ^ word >> np.uint64(27)) * np.uint64(MIX_2)
    offsets = (word ^ word >> np.uint64(31)) & np.uint64(stride - 1)
    found = numbers.astype(np.int64) * stride + offsets.astype(np.int64)
    return found[found < length]


def cutoff(keys: NDArray[np.uint32], k: int, seed: int, row: int, attempt: int) -> int | None:
    """Ordered key that a guess admits, inclusive; None where it admits every score."""
    rank = rank_of(keys.size, k, stride_of(keys.size), attempt)
    if not rank:
        return None
    sample = keys[positions(state_of(seed, row, attempt), keys.size)]
    return int(np.partition(sample, rank - 1)[rank - 1])
