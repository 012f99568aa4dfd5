"""Scratch memory of one thread: one piece, bounded, allocated once per call, reused for every row.

Kernels take its address. Its parts lie at these distances from there, in bytes.
"""

from __future__ import annotations

from typing import Any

from ksieve.backends.cpu.simd import HIST_BINS, SHORT, Int, i64s, jit
from ksieve.core.stats import STATS_COLUMNS
from ksieve.model.guess import BLOCK

BATCH = 512
"""Samples fetched at a time."""

GROUPS_AHEAD = 16
"""Sampled groups prefetched ahead: about the number of cache misses that a core keeps in flight."""

THRESHOLDS = 12

HISTOGRAM = 0
"""int32 (HIST_BINS,)."""
WIDE = HISTOGRAM + 4 * HIST_BINS
"""uint32 (SHORT,): float32 bits of a tile that cannot be read in place; keys of a short row."""
PLACES = WIDE + 4 * SHORT
"""int64 (BATCH + GROUPS_AHEAD,): where the groups of a batch begin, and some of the next one."""
FOUND = PLACES + 8 * (BATCH + GROUPS_AHEAD)
"""int64 (2,): what a kernel returns besides its result."""
WORK = FOUND + 8 * 2
"""int64 (1,): scores sampled, stored, and compared again, so far of this row."""
TAUS = WORK + 8
"""int64 (2,): the proposed boundaries."""
APART = TAUS + 8 * 2
"""int64 (2,): whether scores equal to a boundary form a set of their own."""
COUNTS = APART + 8 * 2
"""int64 (THRESHOLDS,): keys at most each threshold."""
LIMITS = COUNTS + 8 * THRESHOLDS
"""int64 (THRESHOLDS,): the thresholds."""
ASKED = LIMITS + 8 * THRESHOLDS
"""int64 (9,): what `select_rows` was called with for this row: the numbers of `row_of`, then by these names."""
K, SEED, ROOM, STATISTICS = 5, 6, 7, 8
STATS = ASKED + 8 * 9
"""int32 (16,): statistics of a row whose call asks for none."""
INDEX = STATS + 4 * len(STATS_COLUMNS)
"""int32 (room + BLOCK,): positions of the stored candidates. The next three parts follow."""


@jit
def row_of(memory: Int) -> Any:
    """Address, number and length of the row, the bytes of a score, and the address of the scores' converter."""
    asked = i64s(memory + ASKED)
    return asked[0], asked[1], asked[2], asked[3], asked[4]


@jit
def _after(memory: Int, part: Int) -> Int:
    """Address of one of the parts after INDEX, from 1 on."""
    return memory + INDEX + 4 * part * (i64s(memory + ASKED)[ROOM] + BLOCK)


@jit
def key_of(memory: Int) -> Int:
    """Address of uint32 (room + BLOCK,): ordered keys of the stored candidates."""
    return _after(memory, 1)


@jit
def spare_of(memory: Int) -> Int:
    """Address of uint32 (room + BLOCK,): keys that a selection narrows down."""
    return _after(memory, 2)


@jit
def batch_of(memory: Int) -> Int:
    """Address of uint32 and uint16 (at least BATCH,): sampled scores, and what they are widened from."""
    return _after(memory, 3)
