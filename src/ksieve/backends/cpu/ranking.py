"""The k-th smallest of a bounded array of ordered keys, and what is kept or written up to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu.lanes import Int, Word, jit, store_i32

HIST_BINS = 2048


@jit
def kth(keys: Any, count: Int, rank: Int, spare: Any, histogram: Any) -> tuple[Word, Int]:
    """Return the rank-th smallest of ``keys[:count]`` and its rank among the keys equal to it, both from 1.

    Each round spreads the range of the unresolved keys over the histogram and keeps one bin of it in `spare`;
    `keys` is not changed.
    """
    source = keys
    while True:
        low, high = np.uint32(0xFFFFFFFF), np.uint32(0)
        for i in range(count):
            low = min(low, source[i])
            high = max(high, source[i])
        if low == high:
            return low, rank
        shift = np.uint32(0)
        while np.uint32(np.uint32(high - low) >> shift) >= np.uint32(HIST_BINS):
            shift = np.uint32(shift + np.uint32(1))
        histogram[: np.int64(np.uint32(high - low) >> shift) + 1] = 0
        for i in range(count):
            histogram[np.int64(np.uint32(source[i] - low) >> shift)] += 1
        boundary = 0
        while histogram[boundary] < rank:
            rank -= np.int64(histogram[boundary])
            boundary += 1
        if shift == np.uint32(0):
            return np.uint32(low + np.uint32(boundary)), rank
        kept = 0
        for i in range(count):
            key = source[i]
            spare[kept] = key
            kept += np.uint32(np.uint32(key - low) >> shift) == np.uint32(boundary)
        source, count = spare, kept


@jit
def keep_best_keys(key: Any, size: Int, most: Int, spare: Any, histogram: Any) -> Word:
    """Reduce `key` to its `most` best, in place; return the worst of them."""
    worst, _ = kth(key, size, most, spare, histogram)
    kept = 0
    for i in range(size):
        this = key[i]
        key[kept] = this
        kept += this < worst
    key[kept:most] = worst
    return worst


@jit
def keep_best(index: Any, key: Any, count: Int, k: Int, spare: Any, histogram: Any) -> Any:
    """Reduce the stored candidates to k best ones, in place; return the worst key kept."""
    worst, ties = kth(key, count, k, spare, histogram)
    kept = 0
    for i in range(count):
        this = key[i]
        index[kept] = index[i]
        key[kept] = this
        tie = np.int64(this == worst) & np.int64(ties > 0)
        ties -= tie
        kept += tie + (this < worst)
    return worst


@jit
def emit(out: Int, k: Int, index: Any, key: Any, count: Int, worst: Word, ties: Int) -> None:
    """Write the indices of the k best candidates: all better than the k-th key, then the first `ties` equal to it."""
    emit_better(out, index, key, count, worst)
    tied = k - ties
    for i in range(count):
        if tied == k:
            break
        if key[i] == worst:
            store_i32(out + 4 * tied, index[i])
            tied += 1


@jit
def emit_better(out: Int, index: Any, key: Any, count: Int, worst: Word) -> None:
    """Write the indices of the candidates better than `worst`, of which there is at least one place less than k."""
    better = 0
    for i in range(count):
        # `better` never exceeds k - ties < k, so the store without a branch stays inside the row.
        store_i32(out + 4 * better, index[i])
        better += key[i] < worst
