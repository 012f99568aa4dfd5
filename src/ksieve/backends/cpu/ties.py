"""The highest positions among scores equal to the worst selected one.

The lowest positions need no extra step: candidates are stored in index order, and a full storage drops the last of the
scores equal to the worst kept one, and later equal ones. The stored candidates therefore always include the lowest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu.simd import (
    INF_KEY,
    TILE,
    Int,
    Word,
    block_mask,
    jit,
    raw_limit,
    store_i32,
    tile_of,
    valid_mask,
)
from ksieve.core.guess import BLOCK


@jit
def emit_last_stored(out: Int, k: Int, ties: Int, index: Any, key: Any, count: Int, worst: Word) -> None:
    """Write the last `ties` stored candidates equal to `worst` into the slots before k."""
    i = count
    for slot in range(k - ties, k):
        i -= 1
        while key[i] != worst:
            i -= 1
        store_i32(out + 4 * slot, index[i])


@jit
def emit_last_of_row(row: Int, length: Int, dtype: Int, out: Int, k: Int, ties: Int, worst: Word, wide: Any) -> None:
    """Write the last `ties` scores of the row that equal `worst`, reading it from its end.

    Another thread may have changed the row, so that fewer are found: all slots must have been written before.
    """
    limit = raw_limit(worst)
    has_better = worst > np.uint32(INF_KEY)
    better = raw_limit(np.uint32(worst - np.uint32(1))) if has_better else np.uint32(0)
    slot = k - ties
    for first in range((length - 1) // TILE * TILE, -1, -TILE):
        last = min(first + TILE, length)
        tile = tile_of(row, first, last, dtype, wide)
        for begin in range(first + (last - first - 1) // BLOCK * BLOCK, first - 1, -BLOCK):
            block = tile + 4 * (begin - first)
            mask = block_mask(block, limit) & valid_mask(last - begin)
            if has_better:
                mask &= ~block_mask(block, better)
            for bit in range(BLOCK - 1, -1, -1):
                if mask == 0:
                    break
                if (mask >> np.uint64(bit)) & np.uint64(1):
                    store_i32(out + 4 * slot, np.int32(begin + bit))
                    slot += 1
                    if slot == k:
                        return
                    mask &= ~(np.uint64(1) << np.uint64(bit))
