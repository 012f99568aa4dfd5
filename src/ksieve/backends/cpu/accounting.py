"""Statistics of a row, computed after its selection: see `ksieve.core.stats`.

The kernels keep no digit histograms, because a bounded store with a rising cutoff needs none. Every set of the model is
a contiguous range of ordered keys that follows from the k-th key. Its size is therefore a difference of two counts of
scores. These are taken from the stored candidates, or from the row where not all candidates were stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu.simd import (
    INF_KEY,
    TILE,
    Int,
    Word,
    bit_count,
    block_mask,
    jit,
    raw_limit,
    tile_of,
    valid_mask,
)
from ksieve.core.guess import BLOCK
from ksieve.core.keys import DIGIT_SHIFTS
from ksieve.core.stats import STATS_COLUMNS, Route

# Routes and columns as plain ints: Numba compiles globals into the machine code as constants.
CERTIFIED, RESCUED = int(Route.CERTIFIED), int(Route.RESCUED)
RECOVERED, RECOVERED_AFTER_BAND, DIRECT = int(Route.RECOVERED), int(Route.RECOVERED_AFTER_BAND), int(Route.DIRECT)
ROUTE, TAU, ADMITTED, FRONTIER, COMMITTED, FILLED, SCANS, SAMPLED = (
    STATS_COLUMNS.index(name)
    for name in ("route", "tau0", "admitted0", "frontier0", "committed0", "filled", "scans", "sampled")
)
STATS_WIDTH = len(STATS_COLUMNS)
THRESHOLDS = 12


@jit
def count_row(row: Int, length: Int, dtype: Int, thresholds: Any, counts: Any, wide: Any) -> None:
    """Count the scores of the row whose ordered key is at most each threshold."""
    counts[:] = 0
    for first in range(0, length, TILE):
        last = min(first + TILE, length)
        tile = tile_of(row, first, last, dtype, wide)
        for t in range(thresholds.size):
            if thresholds[t] >= np.uint32(INF_KEY):
                limit, found = raw_limit(thresholds[t]), np.int64(0)
                for begin in range(first, last, BLOCK):
                    mask = block_mask(tile + 4 * (begin - first), limit)
                    found += bit_count(mask & valid_mask(last - begin))
                counts[t] += found


@jit
def count_stored(key: Any, stored: Int, thresholds: Any, counts: Any) -> None:
    """The same over stored keys."""
    for t in range(thresholds.size):
        found = np.int64(0)
        for i in range(stored):
            found += key[i] <= thresholds[t]
        counts[t] = found


@jit
def set_thresholds(thresholds: Any, taus: Any, worst: Word, bin_cutoffs: Any) -> None:
    """Ordered keys whose counts determine every set of the model, given the k-th key `worst`.

    0, 1: both boundaries. 2, 3: one key better than each. 4, 5: before and through the coarse bin of `worst`.
    6 + 2j, 7 + 2j: before and through the keys that share the leading j + 1 digits of `worst`.
    """
    one = np.uint32(1)
    thresholds[0], thresholds[1] = taus[0], taus[1]
    thresholds[2], thresholds[3] = np.uint32(taus[0] - one), np.uint32(taus[1] - one)
    coarse = np.searchsorted(bin_cutoffs, worst)
    thresholds[4] = bin_cutoffs[coarse - 1] if coarse > 0 else np.uint32(0)
    thresholds[5] = bin_cutoffs[coarse]
    for j in range(3):
        tail = np.uint32(np.uint32(one << np.uint32(DIGIT_SHIFTS[j])) - one)
        thresholds[6 + 2 * j] = np.uint32(np.uint32(worst & ~tail) - one)
        thresholds[7 + 2 * j] = np.uint32(worst | tail)


@jit
def fill_row(stats: Any, k: Int, apart: Any, c: Any) -> None:
    """Fill the model's numbers of a row from the counts `c` of keys at most each of `set_thresholds`.

    `scans` and `sampled` are counted during the selection. `apart` states for each boundary whether scores equal to it
    form a separate set.
    """
    route = stats[ROUTE]
    low, high = c[4], c[5]
    if route in (CERTIFIED, RESCUED):
        attempt = np.int64(route == RESCUED)
        better = c[2 + attempt] if apart[attempt] else np.int64(0)
        low = np.int64(0) if better >= k else better
        high = better if better >= k else c[attempt]
    if route != DIRECT:
        stats[ADMITTED] = c[0]
    if route in (RESCUED, RECOVERED_AFTER_BAND):
        stats[ADMITTED + 1] = c[1]
    stats[COMMITTED], stats[FRONTIER] = low, high - low
    quota = k - low
    for j in range(3):
        if high - low == quota:
            break
        inner, high = max(low, c[6 + 2 * j]), min(high, c[7 + 2 * j])
        stats[COMMITTED + j + 1], stats[FRONTIER + j + 1] = inner - low, high - inner
        quota -= inner - low
        low = inner
    stats[FILLED] = quota
