"""The highest positions among scores equal to the worst selected one.

The lowest positions need no extra step: candidates are stored in index order, and a full storage drops the last of the
scores equal to the worst kept one, and later equal ones. The stored candidates therefore always include the lowest.
"""

from __future__ import annotations

import numpy as np

from ksieve.backends.cpu.accounting import SCANS
from ksieve.backends.cpu.compiled import kernel
from ksieve.backends.cpu.scratch import INDEX, WIDE, WORK, key_of
from ksieve.backends.cpu.simd import (
    INF_KEY,
    TILE,
    Int,
    block_mask,
    i32s,
    i64s,
    larger,
    raw_limit,
    smaller,
    store_i32,
    tile_of,
    u32s,
    valid_mask,
)
from ksieve.model.guess import BLOCK


@kernel
def emit_last_of_row(
    row: Int, length: Int, size: Int, convert: Int, out: Int, k: Int, ties: Int, worst: Int, memory: Int
) -> None:
    """Write the last `ties` scores of the row that equal `worst`, reading it from its end.

    Another thread may have changed the row, so that fewer are found: all slots must have been written before.
    """
    limit, has_better = raw_limit(worst), worst > INF_KEY
    better = raw_limit(worst - 1) if has_better else np.uint32(0)
    slot = k - ties
    for first in range((length - 1) // TILE * TILE, -1, -TILE):
        last = smaller(first + TILE, length)
        tile = tile_of(row, first, last, size, convert, memory + WIDE)
        for begin in range(first + (last - first - 1) // BLOCK * BLOCK, first - 1, -BLOCK):
            block = tile + 4 * (begin - first)
            mask = block_mask(block, limit) & valid_mask(last - begin)
            if has_better:
                mask &= ~block_mask(block, better)
            for bit in range(BLOCK - 1, -1, -1):
                if mask == np.uint64(0):
                    break
                if (mask >> np.uint64(bit)) & np.uint64(1):
                    store_i32(out + 4 * slot, np.int32(begin + bit))
                    slot += 1
                    if slot == k:
                        return
                    mask &= ~(np.uint64(1) << np.uint64(bit))


@kernel
def emit_last(
    row: Int,
    length: Int,
    size: Int,
    convert: Int,
    out: Int,
    k: Int,
    ties: Int,
    equal: Int,
    worst: Int,
    stored: Int,
    cutoff: Int,
    statistics: Int,
    memory: Int,
    room: Int,
) -> None:
    """Write the last `ties` of the scores equal to `worst` into the slots before k, which hold the first ones.

    They may have been dropped from the stored candidates, but only if the scores better than or equal to the k-th key
    fill more than half of the storage. In that case the row is always read from its end, so that the number of reads
    does not depend on the guesses.
    """
    if length > room and (worst > cutoff or k - ties + equal > larger(k, room // 2)):
        i32s(statistics)[SCANS] += 1
        emit_last_of_row(row, length, size, convert, out, k, ties, worst, memory)
    elif equal > ties:
        index, key, work = i32s(memory + INDEX), u32s(key_of(memory, room)), i64s(memory + WORK)
        work[0] += stored
        i = stored
        for slot in range(k - ties, k):
            i -= 1
            while key[i] != worst:
                i -= 1
            store_i32(out + 4 * slot, index[i])
