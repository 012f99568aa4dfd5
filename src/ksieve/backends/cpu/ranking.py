"""Selection within the stored candidates: the k-th smallest key, reduction of the storage, and output.

The lowest positions among equal scores need no extra step, since candidates are stored in index order. A full storage
drops the last of the scores equal to the worst kept one, and later equal ones. The stored candidates therefore always
include the lowest. For the highest positions there is `emit_last`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu import scratch as at
from ksieve.backends.cpu.accounting import SCANS
from ksieve.backends.cpu.compiled import kernel
from ksieve.backends.cpu.simd import (
    HIST_BINS,
    INF_KEY,
    TILE,
    Int,
    block_mask,
    i32s,
    i64s,
    jit,
    larger,
    order_key,
    raw_limit,
    smaller,
    store_i32,
    tile_of,
    u32s,
    valid_mask,
)
from ksieve.model.guess import BLOCK


@kernel
def make_keys(keys: Int, begin: Int, end: Int) -> None:
    """Turn stored score bits into ordered keys; many at a time, because short loops do not vectorise."""
    key = u32s(keys)
    for j in range(begin, end):
        key[j] = order_key(key[j])


@kernel
def kth(keys: Int, count: Int, rank: Int, spare: Int, memory: Int) -> Int:
    """Return the rank-th smallest of ``keys[:count]``; put its rank among the keys equal to it, and their number, into
    the scratch memory's FOUND.

    Ranks count from 1, and `rank` is at most `count`. Each round maps a range of keys to the histogram's bins and
    continues with one bin. It copies the bin's keys to `spare` if they are at most half of the current ones. `keys` is
    not changed. Keys of 32 bits take at most three rounds.
    """
    histogram, found, work = i32s(memory + at.HISTOGRAM), i64s(memory + at.FOUND), i64s(memory + at.WORK)
    source, kept, outside = u32s(keys), u32s(spare), False
    low: Int = np.int64(0)
    span: Int = np.int64(0)
    while True:
        if not outside:
            least, most = np.uint32(0xFFFFFFFF), np.uint32(0)
            for i in range(count):
                key = source[i]
                least = key if key < least else least
                most = key if key > most else most
            work[0] += count
            low, span = np.int64(least), np.int64(most) - np.int64(least)
            if span == 0:
                found[0], found[1] = rank, count
                return low
        shift = 0
        while span >> shift >= HIST_BINS:
            shift += 1
        for i in range((span >> shift) + 1):
            histogram[i] = 0
        start = np.uint32(low)
        if outside:
            for i in range(count):
                above = np.uint32(source[i] - start)
                if above <= span:
                    histogram[above >> shift] += 1
        else:
            for i in range(count):
                histogram[np.uint32(source[i] - start) >> shift] += 1
        work[0] += count
        boundary = 0
        while histogram[boundary] < rank:
            rank -= histogram[boundary]
            boundary += 1
        low += boundary << shift
        inside = np.int64(histogram[boundary])
        if shift == 0:
            found[0], found[1] = rank, inside
            return low
        span = (1 << shift) - 1
        outside = 2 * inside > count
        if not outside:
            copied: Int = 0
            start, width = np.uint32(low), np.uint32(span)
            for i in range(count):
                key = source[i]
                kept[copied] = key
                copied += int(np.uint32(key - start) <= width)
            work[0] += count
            source, count = kept, copied


@jit
def keep(index: Any, key: Any, count: Int, limit: Int, ties: Int) -> Int:
    """Keep, in place, the candidates better than `limit` and the first `ties` that equal it; return their number."""
    kept, bound = 0, np.uint32(limit)
    for i in range(count):
        this = key[i]
        index[kept] = index[i]
        key[kept] = this
        tie = np.int64(this == bound) & np.int64(ties > 0)
        ties -= tie
        kept += tie + (this < bound)
    return kept


@jit
def emit(out: Int, k: Int, index: Any, key: Any, count: Int, worst: Int, ties: Int) -> None:
    """Write the indices of the k best candidates: all better than the k-th key, then the first `ties` equal to it."""
    better, tied, bound = 0, k - ties, np.uint32(worst)
    for i in range(count):
        # `better` never exceeds k - ties < k, so the store without a branch stays inside the row.
        store_i32(out + 4 * better, index[i])
        better += key[i] < bound
    for i in range(count):
        if tied == k:
            break
        if key[i] == bound:
            store_i32(out + 4 * tied, index[i])
            tied += 1


@kernel
def emit_last_of_row(out: Int, ties: Int, worst: Int, memory: Int) -> None:
    """Write the last `ties` scores of the row that equal `worst`, reading it from its end.

    Another thread may have changed the row, so that fewer are found: all slots must have been written before.
    """
    (row, _, length, size, convert), k = at.row_of(memory), i64s(memory + at.ASKED)[at.K]
    limit, has_better = raw_limit(worst), worst > INF_KEY
    better = raw_limit(worst - 1) if has_better else np.uint32(0)
    slot = k - ties
    for first in range((length - 1) // TILE * TILE, -1, -TILE):
        last = smaller(first + TILE, length)
        tile = tile_of(row, first, last, size, convert, memory + at.WIDE)
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
def emit_last(out: Int, ties: Int, equal: Int, worst: Int, stored: Int, cutoff: Int, memory: Int) -> None:
    """Write the last `ties` of the scores equal to `worst` into the slots before k, which hold the first ones.

    The stored candidates lack some only if the scores better than or equal to the k-th key fill more than half of the
    storage. In that case the row is always read from its end, so that the number of reads does not depend on the
    guesses.
    """
    (_, _, length, _, _), asked = at.row_of(memory), i64s(memory + at.ASKED)
    k, room = asked[at.K], asked[at.ROOM]
    if length > room and (worst > cutoff or k - ties + equal > larger(k, room // 2)):
        i32s(asked[at.STATISTICS])[SCANS] += 1
        emit_last_of_row(out, ties, worst, memory)
    elif equal > ties:
        index, key, work = i32s(memory + at.INDEX), u32s(at.key_of(memory)), i64s(memory + at.WORK)
        work[0] += stored
        i = stored
        for slot in range(k - ties, k):
            i -= 1
            while key[i] != worst:
                i -= 1
            store_i32(out + 4 * slot, index[i])
