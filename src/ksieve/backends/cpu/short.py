"""Rows of at most `SHORT` scores: their keys stay in cache, where counts of keys up to a limit find the k-th one.

A guess, stored candidates and a histogram, as for longer rows, cost more than such a row. Its scores are read once,
so that the keys do not change while another thread rewrites them.
"""

from __future__ import annotations

import numpy as np

from ksieve.backends.cpu.compiled import kernel
from ksieve.backends.cpu.ranking import make_keys
from ksieve.backends.cpu.simd import (
    LINE,
    Int,
    Word,
    call,
    copy,
    jit,
    key_mask,
    lowest_bit,
    prefetch,
    smaller,
    store_i32,
    u32s,
)
from ksieve.core.keys import NAN_KEY
from ksieve.model.guess import BLOCK

STEP = 1 << 22
"""The first step of the search from the best key: half an octave of scores."""

PORTION = 1024
"""Bytes of the next row that a pass prefetches. A whole row at once would wait for memory."""


@jit
def _store_bits(slot: Int, end: Int, position: Int, mask: Word) -> Int:
    """Store the positions of the bits set in `mask` from address `slot` up to `end`; return the next address."""
    while mask != np.uint64(0) and slot < end:
        store_i32(slot, np.int32(position + lowest_bit(mask)))
        mask &= mask - np.uint64(1)
        slot += 4
    return slot


@kernel
def select_short(
    row: Int, length: Int, convert: Int, slots: Int, k: Int, keys: Int, ahead: Int, until: Int
) -> Int:  # fmt: skip
    """Write the positions of the k best of `length` > k scores: the better ones, then the first equal to the k-th.

    Returns the number of passes over the keys that found the k-th: 38 at most, 6 in steps and 32 that bisect.
    `keys`, the address of uint32 (SHORT,), receives the keys. Scores from address `ahead` to `until` are prefetched.
    """
    key, filled = u32s(keys), (length + BLOCK - 1) // BLOCK * BLOCK
    if convert == 0:
        copy(row, keys, 4 * length)
    else:
        call(convert, (row, length, keys))
    make_keys(keys, 0, length)
    for i in range(length, filled):
        key[i] = NAN_KEY  # never counted, and never stored: ties are stored in order, and end before
    best = np.uint32(NAN_KEY)
    for i in range(length):
        best = key[i] if key[i] < best else best
    # At most `high` are k keys or more, below `low` fewer than k. With exactly k the search is over. Steps from the
    # best key grow until one passes the k-th; the range of that step is bisected, which is most often a narrow one.
    low, high, count, step, passes = np.int64(best), NAN_KEY, length, STEP, 0
    while low < high and count != k:
        passes += 1
        middle = smaller(low + step, (low + high) // 2)
        for line in range(ahead, smaller(ahead + PORTION, until), LINE):
            prefetch(line)
        ahead += PORTION
        found, limit = np.uint32(0), np.uint32(middle)
        for i in range(filled):
            found = np.uint32(found + np.uint32(key[i] <= limit))
        if found < k:
            low, step = middle + 1, smaller(4 * step, NAN_KEY)
        else:
            high, count = middle, np.int64(found)
    limit, least = np.uint32(high), np.uint32(NAN_KEY)
    for i in range(length):
        gap = np.uint32(limit - key[i])  # of a worse key it wraps, and is larger than that of any other
        least = gap if gap < least else least
    worst = np.uint32(limit - least)
    better, end = np.uint32(worst - np.uint32(1)), slots + 4 * k
    for i in range(0, filled, BLOCK):
        slots = _store_bits(slots, end, i, key_mask(keys + 4 * i, better))
    for i in range(0, filled, BLOCK):
        if slots == end:
            break
        slots = _store_bits(slots, end, i, key_mask(keys + 4 * i, worst) & ~key_mask(keys + 4 * i, better))
    return passes
