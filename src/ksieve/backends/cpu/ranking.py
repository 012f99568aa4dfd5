"""Selection within the stored candidates: the k-th smallest key, reduction of the storage, and output."""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu.simd import Int, Word, jit, store_i32

HIST_BINS = 2048


@jit
def kth(keys: Any, count: Int, rank: Int, spare: Any, histogram: Any, work: Any) -> tuple[Word, Int, Int]:
    """Return the rank-th smallest of ``keys[:count]``, its rank among the keys equal to it, and their number.

    Ranks count from 1, and `rank` is at most `count`. Each round maps a range of keys to the histogram's bins and
    continues with one bin, whose keys are copied to `spare` if they are at most half of the current ones; `keys` is not
    changed. Keys of 32 bits take at most three rounds.
    """
    source, outside, low, span = keys, False, np.uint32(0), np.uint32(0)
    while True:
        if not outside:
            low, high = np.uint32(0xFFFFFFFF), np.uint32(0)
            for i in range(count):
                low = min(low, source[i])
                high = max(high, source[i])
            work[0] += count
            if low == high:
                return low, rank, count
            span = np.uint32(high - low)
        shift = np.uint32(0)
        while np.uint32(span >> shift) >= np.uint32(HIST_BINS):
            shift = np.uint32(shift + np.uint32(1))
        histogram[: np.int64(np.uint32(span >> shift)) + 1] = 0
        if outside:
            for i in range(count):
                above = np.uint32(source[i] - low)
                if above <= span:
                    histogram[np.int64(np.uint32(above >> shift))] += 1
        else:
            for i in range(count):
                histogram[np.int64(np.uint32(source[i] - low) >> shift)] += 1
        work[0] += count
        boundary = 0
        while histogram[boundary] < rank:
            rank -= np.int64(histogram[boundary])
            boundary += 1
        low = np.uint32(low + np.uint32(np.uint32(boundary) << shift))
        inside = np.int64(histogram[boundary])
        if shift == np.uint32(0):
            return low, rank, inside
        span = np.uint32(np.uint32(np.uint32(1) << shift) - np.uint32(1))
        outside = 2 * inside > count
        if not outside:
            kept: Int = 0
            for i in range(count):
                key = source[i]
                spare[kept] = key
                kept += np.uint32(key - low) <= span
            work[0] += count
            source, count = spare, kept


@jit
def keep_best_keys(key: Any, size: Int, most: Int, spare: Any, histogram: Any, work: Any) -> Word:
    """Reduce `key` to its `most` best, in place; return the worst of them."""
    worst, _, _ = kth(key, size, most, spare, histogram, work)
    kept = 0
    for i in range(size):
        this = key[i]
        key[kept] = this
        kept += this < worst
    work[0] += size
    key[kept:most] = worst
    return worst


@jit
def keep_best(
    index: Any, key: Any, count: Int, k: Int, most: Int, spare: Any, histogram: Any, work: Any
) -> tuple[Int, Word]:
    """Reduce the stored candidates, in place, to the k best and all that equal the worst of them, if at most `most`.

    Otherwise reduce to k candidates, keeping the first of the equal ones. Returns the number that stay, and the worst
    key that can still be selected: the cutoff of scores that are read later.
    """
    worst, ties, equal = kth(key, count, k, spare, histogram, work)
    cutoff = np.uint32(worst - np.uint32(1))
    if k - ties + equal <= most:
        ties, cutoff = equal, worst
    kept = 0
    for i in range(count):
        this = key[i]
        index[kept] = index[i]
        key[kept] = this
        tie = np.int64(this == worst) & np.int64(ties > 0)
        ties -= tie
        kept += tie + (this < worst)
    work[0] += count
    return kept, cutoff


@jit
def drop_ties(index: Any, key: Any, count: Int, k: Int, cutoff: Word, work: Any) -> Int:
    """Reduce the stored candidates to those better than the cutoff and the first that equal it, k in total.

    If fewer than k are at or above the cutoff, all stay: a score that is rewritten during the call can be worse than
    when it passed the cutoff.
    """
    better, equal = 0, 0
    for i in range(count):
        better += key[i] < cutoff
        equal += key[i] == cutoff
    if better + equal < k:
        return count
    ties, kept = k - better, 0
    for i in range(count):
        this = key[i]
        index[kept] = index[i]
        key[kept] = this
        tie = np.int64(this == cutoff) & np.int64(ties > 0)
        ties -= tie
        kept += tie + (this < cutoff)
    work[0] += 2 * count
    return kept


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
    """Write the indices of the candidates better than `worst`, of which there are fewer than k."""
    better = 0
    for i in range(count):
        # `better` never exceeds k - ties < k, so the store without a branch stays inside the row.
        store_i32(out + 4 * better, index[i])
        better += key[i] < worst
