"""One read of a row: scores up to a cutoff are stored; where storage is full, the cutoff is tightened."""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu.ranking import drop_ties, keep_best
from ksieve.backends.cpu.simd import (
    FLOAT32,
    INF_KEY,
    TILE,
    Int,
    Word,
    bit_count,
    block_mask,
    jit,
    load_u32,
    lowest_bit,
    make_keys,
    prefetch_block,
    raw_limit,
    store_i32,
    tile_of,
    valid_mask,
)
from ksieve.backends.cpu.views import guess_cutoff
from ksieve.core.guess import BLOCK


@jit
def _tighten(
    row: Int, row_id: Int, length: Int, dtype: Int, cutoff: Word, k: Int, count: Int, seed: Int, scratch: Any
) -> tuple[Int, Word]:
    """Drop some of `count` stored candidates; return how many stay and the new, better cutoff.

    With `seed` -1 no cutoff is guessed.
    """
    index, key, half = scratch.index, scratch.key, (scratch.key.size - BLOCK) // 2
    if seed >= 0:
        tighter = guess_cutoff(row, row_id, length, dtype, k, 0, seed, scratch)
        if tighter < cutoff:
            cutoff = tighter
            kept = 0
            for i in range(count):
                this = key[i]
                index[kept] = index[i]
                key[kept] = this
                kept += this <= tighter
            scratch.work[0] += count
            count = kept
    if count > half:
        # Few scores are better than a guess. If they fill more than half of the storage, most equal the cutoff.
        count, cutoff = drop_ties(index, key, count, k, cutoff, scratch.work), np.uint32(cutoff - np.uint32(1))
    if count > half:
        count, cutoff = keep_best(index, key, count, k, half, scratch.spare, scratch.histogram, scratch.work)
    return count, cutoff


@jit
def _append(address: Int, position: Int, mask: Word, hits: Int) -> None:
    """Store the positions of the bits set in `mask`, and up to four stray ones behind them.

    At least four are stored, in groups of four: most blocks have few hits or none, and a branch on their exact number
    would be mispredicted too often.
    """
    while True:
        for j in range(4):
            store_i32(address + 4 * j, np.int32(position + lowest_bit(mask)))
            mask &= mask - np.uint64(1)
        address += 16
        hits -= 4
        if hits <= 0:
            break


@jit
def _look_up(tile: Int, first: Int, begin: Int, end: Int, index: Any, key: Any) -> None:
    """Store the bits of the scores at newly stored indices in the key array, while their tile is in cache."""
    for j in range(begin, end):
        key[j] = load_u32(tile + 4 * (np.int64(index[j]) - first))


@jit
def sieve(
    row: Int, row_id: Int, length: Int, dtype: Int, cutoff: Word, k: Int, seed: Int, scratch: Any
) -> tuple[Int, Word]:
    """Read the row once and store its scores whose key is at most `cutoff`.

    Returns the number of stored candidates, and the final cutoff. All scores up to the final cutoff are stored. If it
    differs from `cutoff` and at least k candidates are stored, the k best scores of the row are among them.
    """
    index, key = scratch.index, scratch.key
    slots = np.int64(index.ctypes.data)
    count, keyed = 0, 0
    room = index.size - BLOCK
    limit = raw_limit(cutoff)
    for first in range(0, length, TILE):
        last = min(first + TILE, length)
        tile = tile_of(row, first, last, dtype, scratch.wide)
        looked_up = count
        for begin in range(first, last, BLOCK):
            block = tile + 4 * (begin - first)
            if dtype == FLOAT32:
                prefetch_block(block, 4)
            valid = valid_mask(last - begin)
            mask = block_mask(block, limit) & valid
            if count > room:
                _look_up(tile, first, looked_up, count, index, key)
                make_keys(keyed, count, key)
                scratch.work[0] += count - keyed
                count, cutoff = _tighten(row, row_id, length, dtype, cutoff, k, count, seed, scratch)
                looked_up, keyed, seed = count, count, -1
                if cutoff < np.uint32(INF_KEY):
                    return count, cutoff  # k infinities are stored: no score is better
                limit = raw_limit(cutoff)
                mask = block_mask(block, limit) & valid
            hits = bit_count(mask)
            _append(slots + 4 * count, begin, mask, hits)
            count += hits
        _look_up(tile, first, looked_up, count, index, key)
    make_keys(keyed, count, key)
    scratch.work[0] += count - keyed
    return count, cutoff
