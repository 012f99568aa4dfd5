"""Rows of at most `TILE` scores: their keys stay in cache, where bisection finds the k-th one.

A guess, stored candidates and a histogram, as for longer rows, cost more than such a row. Its scores are read once,
so that the keys do not change while another thread rewrites them.
"""

from __future__ import annotations

import numpy as np

from ksieve.backends.cpu.compiled import kernel
from ksieve.backends.cpu.ranking import make_keys
from ksieve.backends.cpu.simd import (
    INF_KEY,
    Int,
    Word,
    bit_count,
    call,
    copy,
    jit,
    key_mask,
    lowest_bit,
    store_i32,
    u32s,
)
from ksieve.core.keys import NAN_KEY
from ksieve.model.guess import BLOCK


@jit
def _store_bits(slot: Int, end: Int, position: Int, mask: Word) -> Int:
    """Store the positions of the bits set in `mask` from address `slot` up to `end`; return the next address."""
    while mask != np.uint64(0) and slot < end:
        store_i32(slot, np.int32(position + lowest_bit(mask)))
        mask &= mask - np.uint64(1)
        slot += 4
    return slot


@kernel
def select_short(row: Int, length: Int, convert: Int, slots: Int, k: Int, keys: Int) -> None:
    """Write the positions of the k best of `length` > k scores: the better ones, then the first equal to the k-th.

    `keys`, the address of uint32 (TILE,), receives the keys.
    """
    key, filled = u32s(keys), (length + BLOCK - 1) // BLOCK * BLOCK
    if convert == 0:
        copy(row, keys, 4 * length)
    else:
        call(convert, (row, length, keys))
    make_keys(keys, 0, length)
    for i in range(length, filled):
        key[i] = NAN_KEY  # never counted, and never stored: ties are stored in order, and end before
    # At most `high` are k keys or more, below `low` fewer than k. With exactly k the search is over.
    low, high, count = INF_KEY, NAN_KEY, length
    while low < high and count != k:
        middle = (low + high) // 2
        found = 0
        for i in range(0, filled, BLOCK):
            found += bit_count(key_mask(keys + 4 * i, np.uint32(middle)))
        if found < k:
            low = middle + 1
        else:
            high, count = middle, found
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
