"""Rows of at most `TILE` scores: their keys stay in cache, where bisection finds the k-th one.

A guess, stored candidates and a histogram, as for longer rows, cost more than such a row. Its scores are read once,
so that the keys do not change while another thread rewrites them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu.simd import (
    FLOAT32,
    INF_KEY,
    Int,
    Word,
    bit_count,
    copy,
    jit,
    key_mask,
    lowest_bit,
    make_keys,
    store_i32,
    tile_of,
)
from ksieve.core.guess import BLOCK
from ksieve.core.keys import NAN_KEY


@jit
def _store_bits(slot: Int, end: Int, position: Int, mask: Word) -> Int:
    """Store the positions of the bits set in `mask` from address `slot` up to `end`; return the next address."""
    while mask != np.uint64(0) and slot < end:
        store_i32(slot, np.int32(position + lowest_bit(mask)))
        mask &= mask - np.uint64(1)
        slot += 4
    return slot


@jit
def select_short(row: Int, length: Int, dtype: Int, slots: Int, k: Int, key: Any) -> None:
    """Write the positions of the k best of `length` > k scores: the better ones, then the first equal to the k-th.

    `key`, an array of uint32 of shape (TILE,), receives the keys.
    """
    at = np.int64(key.ctypes.data)
    if dtype == FLOAT32:
        copy(row, at, 4 * length)
    else:
        tile_of(row, 0, length, dtype, key)
    make_keys(0, length, key)
    filled = (length + BLOCK - 1) // BLOCK * BLOCK
    key[length:filled] = NAN_KEY  # never counted, and never stored: ties are stored in order, and end before
    # At most `high` are k keys or more, below `low` fewer than k. With exactly k the search is over.
    low, high, count = INF_KEY, NAN_KEY, length
    while low < high and count != k:
        middle = (low + high) // 2
        found = 0
        for i in range(0, filled, BLOCK):
            found += bit_count(key_mask(at + 4 * i, np.uint32(middle)))
        if found < k:
            low = middle + 1
        else:
            high, count = middle, found
    worst, limit = np.uint32(0), np.uint32(high)
    for i in range(length):
        worst = max(worst, key[i] if key[i] <= limit else np.uint32(0))
    better, end = np.uint32(worst - np.uint32(1)), slots + 4 * k
    for i in range(0, filled, BLOCK):
        slots = _store_bits(slots, end, i, key_mask(at + 4 * i, better))
    for i in range(0, filled, BLOCK):
        if slots == end:
            break
        slots = _store_bits(slots, end, i, key_mask(at + 4 * i, worst) & ~key_mask(at + 4 * i, better))
