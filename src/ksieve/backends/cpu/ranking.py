"""Selection within the stored candidates: the k-th smallest key, reduction of the storage, and output."""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu.compiled import kernel
from ksieve.backends.cpu.scratch import FOUND, HISTOGRAM, WORK
from ksieve.backends.cpu.simd import HIST_BINS, Int, i32s, i64s, jit, order_key, store_i32, u32s


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
    continues with one bin, whose keys are copied to `spare` if they are at most half of the current ones; `keys` is not
    changed. Keys of 32 bits take at most three rounds.
    """
    histogram, found, work = i32s(memory + HISTOGRAM), i64s(memory + FOUND), i64s(memory + WORK)
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
            at: Int = 0
            start, width = np.uint32(low), np.uint32(span)
            for i in range(count):
                key = source[i]
                kept[at] = key
                at += int(np.uint32(key - start) <= width)
            work[0] += count
            source, count = kept, at


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
