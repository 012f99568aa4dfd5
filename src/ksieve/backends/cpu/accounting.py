"""Statistics of a row, computed after its selection: see `ksieve.core.stats`.

The kernels keep no digit histograms, because a bounded store with a rising cutoff needs none. Every set of the model is
a contiguous range of ordered keys that follows from the k-th key. Its size is therefore a difference of two counts of
scores. These are taken from the stored candidates, or from the row where not all candidates were stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu import scratch as at
from ksieve.backends.cpu.compiled import kernel
from ksieve.backends.cpu.simd import (
    INF_KEY,
    TILE,
    Int,
    bit_count,
    block_mask,
    i32s,
    i64s,
    jit,
    larger,
    raw_limit,
    smaller,
    tile_of,
    u32s,
    valid_mask,
)
from ksieve.core.keys import DIGIT_SHIFTS
from ksieve.core.stats import STATS_COLUMNS, Route
from ksieve.model.guess import BLOCK

# Routes and columns as plain ints: Numba compiles globals into the machine code as constants.
CERTIFIED, RESCUED = int(Route.CERTIFIED), int(Route.RESCUED)
RECOVERED, RECOVERED_AFTER_BAND, DIRECT = int(Route.RECOVERED), int(Route.RECOVERED_AFTER_BAND), int(Route.DIRECT)
ROUTE, TAU, ADMITTED, FRONTIER, COMMITTED, FILLED, SCANS, SAMPLED = (
    STATS_COLUMNS.index(name)
    for name in ("route", "tau0", "admitted0", "frontier0", "committed0", "filled", "scans", "sampled")
)
STATS_WIDTH = len(STATS_COLUMNS)
SHIFT_1, SHIFT_2, SHIFT_3 = map(int, DIGIT_SHIFTS)


@jit
def bin_of(cutoffs: Int, key: Int) -> Int:
    """Coarse bin of a key: the first of `ksieve.core.keys.BIN_CUTOFF_KEY` that is not smaller."""
    cutoff, low, high = u32s(cutoffs), 0, 2047
    while low < high:
        middle = (low + high) >> 1
        if cutoff[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def _set_limits(limits: Any, taus: Any, worst: Int, bin_cutoffs: Int) -> None:
    """Ordered keys whose counts determine every set of the model, given the k-th key `worst`.

    0, 1: both boundaries. 2, 3: one key better than each. 4, 5: before and through the coarse bin of `worst`.
    6 + 2j, 7 + 2j: before and through the keys that share the leading j + 1 digits of `worst`.
    """
    limits[0], limits[1], limits[2], limits[3] = taus[0], taus[1], taus[0] - 1, taus[1] - 1
    coarse, cutoff = bin_of(bin_cutoffs, worst), u32s(bin_cutoffs)
    limits[4] = np.int64(cutoff[coarse - 1]) if coarse > 0 else 0
    limits[5] = cutoff[coarse]
    for j in range(3):
        tail = (1 << (SHIFT_1 if j == 0 else SHIFT_2 if j == 1 else SHIFT_3)) - 1
        limits[6 + 2 * j] = (worst & ~tail) - 1
        limits[7 + 2 * j] = worst | tail


@kernel
def account(worst: Int, stored: Int, complete: Int, bin_cutoffs: Int, memory: Int) -> None:
    """Fill the model's numbers of a row whose k-th key is `worst`, but for those that are counted as it is selected.

    If the stored keys are `complete`, they are counted, otherwise the row.
    """
    row, _, length, size, convert = at.row_of(memory)
    limits, counts, key = i64s(memory + at.LIMITS), i64s(memory + at.COUNTS), u32s(at.key_of(memory))
    asked = i64s(memory + at.ASKED)
    _set_limits(limits, i64s(memory + at.TAUS), worst, bin_cutoffs)
    for t in range(at.THRESHOLDS):
        found, limit = 0, np.uint32(larger(limits[t], 0))
        for i in range(stored if complete else 0):
            found += key[i] <= limit
        counts[t] = found
    for first in range(0, 0 if complete else length, TILE):
        last = smaller(first + TILE, length)
        tile = tile_of(row, first, last, size, convert, memory + at.WIDE)
        for t in range(at.THRESHOLDS):
            if limits[t] >= INF_KEY:
                limit, found = raw_limit(limits[t]), 0
                for begin in range(first, last, BLOCK):
                    found += bit_count(block_mask(tile + 4 * (begin - first), limit) & valid_mask(last - begin))
                counts[t] += found
    _fill(i32s(asked[at.STATISTICS]), asked[at.K], i64s(memory + at.APART), counts)


@jit
def _fill(stats: Any, k: Int, apart: Any, c: Any) -> None:
    """Fill a row's numbers from the counts `c` of keys at most each of the limits.

    `apart` states for each boundary whether scores equal to it form a separate set.
    """
    route = stats[ROUTE]
    low, high = c[4], c[5]
    attempt = 1 if route == RESCUED else 0
    if attempt or route == CERTIFIED:
        better = c[2 + attempt] if apart[attempt] != 0 else 0
        low = 0 if better >= k else better
        high = better if better >= k else c[attempt]
    if route != DIRECT:
        stats[ADMITTED] = c[0]
    if attempt or route == RECOVERED_AFTER_BAND:
        stats[ADMITTED + 1] = c[1]
    stats[COMMITTED], stats[FRONTIER] = low, high - low
    quota = k - low
    for j in range(3):
        if high - low == quota:
            break
        inner, high = larger(low, c[6 + 2 * j]), smaller(high, c[7 + 2 * j])
        stats[COMMITTED + j + 1], stats[FRONTIER + j + 1] = inner - low, high - inner
        quota -= inner - low
        low = inner
    stats[FILLED] = quota
