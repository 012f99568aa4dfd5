"""One read of a row: scores up to a cutoff are stored; where storage is full, the cutoff is tightened."""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu import scratch as at
from ksieve.backends.cpu.compiled import kernel
from ksieve.backends.cpu.ranking import keep, kth, make_keys
from ksieve.backends.cpu.simd import (
    INF_KEY,
    TILE,
    Int,
    Word,
    bit_count,
    block_mask,
    i32s,
    i64s,
    jit,
    load_u32,
    lowest_bit,
    prefetch_block,
    raw_limit,
    smaller,
    store_i32,
    tile_of,
    u32s,
    valid_mask,
)
from ksieve.backends.cpu.views import guess_cutoff
from ksieve.model.guess import BLOCK


@kernel
def tighten(cutoff: Int, count: Int, guesses: Int, memory: Int) -> Int:
    """Drop some of `count` stored candidates; return how many stay, and in FOUND the new, better cutoff.

    `guesses`: whether a cutoff may be guessed.
    """
    index, keys, asked = i32s(memory + at.INDEX), at.key_of(memory), i64s(memory + at.ASKED)
    key, found, work = u32s(keys), i64s(memory + at.FOUND), i64s(memory + at.WORK)
    k, half = asked[at.K], asked[at.ROOM] // 2
    if guesses:
        tighter = guess_cutoff(0, memory)
        if tighter < cutoff:
            cutoff = tighter
            work[0] += count
            count = keep(index, key, count, cutoff, count)
    if count > half:
        # Few scores are better than a guess. If they fill more than half of the storage, most equal the cutoff. Those
        # better and the first equal ones stay, k in total. If fewer are at or above the cutoff, all stay: a score that
        # is rewritten during the call can become worse.
        better, equal = 0, 0
        for i in range(count):
            better += key[i] < cutoff
            equal += key[i] == cutoff
        if better + equal >= k:
            work[0] += 2 * count
            count = keep(index, key, count, cutoff, k - better)
        cutoff -= 1
    if count > half:
        # The k best and all that equal the worst of them, if at most half; otherwise k, with the first of the equal.
        worst = kth(keys, count, k, at.spare_of(memory), memory)
        ties, equal, cutoff = found[0], found[1], worst - 1
        if k - ties + equal <= half:
            ties, cutoff = equal, worst
        work[0] += count
        count = keep(index, key, count, worst, ties)
    found[0] = cutoff
    return count


@jit
def _append(address: Int, position: Int, mask: Word, hits: Int) -> None:
    """Store the positions of the bits set in `mask`, then up to four stray ones.

    One group of four is stored at least. Most blocks have few or none, and a branch on their exact number
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


@kernel
def sieve(cutoff: Int, guesses: Int, memory: Int) -> Int:
    """Read the row once and store its scores whose key is at most `cutoff`.

    Returns the number of stored candidates, and in FOUND the final cutoff. All scores up to the final cutoff are
    stored. If it differs from `cutoff` and at least k candidates are stored, the k best scores of the row are among
    them.
    """
    row, _, length, size, convert = at.row_of(memory)
    slots, found, work = memory + at.INDEX, i64s(memory + at.FOUND), i64s(memory + at.WORK)
    index, keys, room = i32s(slots), at.key_of(memory), i64s(memory + at.ASKED)[at.ROOM]
    key = u32s(keys)
    count, keyed = np.int64(0), np.int64(0)
    limit = raw_limit(cutoff)
    for first in range(0, length, TILE):
        last = smaller(first + TILE, length)
        tile = tile_of(row, first, last, size, convert, memory + at.WIDE)
        looked_up = count
        for begin in range(first, last, BLOCK):
            block = tile + 4 * (begin - first)
            if convert == 0:
                prefetch_block(block, 4)
            valid = valid_mask(last - begin)
            mask = block_mask(block, limit) & valid
            if count > room:
                _look_up(tile, first, looked_up, count, index, key)
                make_keys(keys, keyed, count)
                work[0] += count - keyed
                count = tighten(cutoff, count, guesses, memory)
                cutoff = found[0]
                looked_up, keyed, guesses = count, count, 0
                if cutoff < INF_KEY:
                    return count  # k infinities are stored: no score is better
                limit = raw_limit(cutoff)
                mask = block_mask(block, limit) & valid
            hits = bit_count(mask)
            _append(slots + 4 * count, begin, mask, hits)
            count += hits
        _look_up(tile, first, looked_up, count, index, key)
    make_keys(keys, keyed, count)
    work[0] += count - keyed
    found[0] = cutoff
    return count
