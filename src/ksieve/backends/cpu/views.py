"""Looking at a row before it is read: the policy's view, and a second one that no period in the data can fool."""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu.lanes import FLOAT32, Int, Word, jit, make_keys, prefetch, score_bits
from ksieve.backends.cpu.ranking import keep_best_keys, kth
from ksieve.backends.cpu.scratch import BATCH
from ksieve.keys import NAN_KEY
from ksieve.policy import JITTER_MIX, JITTER_PERIOD, JITTER_ROW, JITTER_SHIFT

GROUPS_AHEAD = 16
"""Sampled groups asked for in advance: as many cache misses as a core keeps under way."""

GUESS_STRIDE = 64
"""Largest stride of the second view."""

GUESS_SAMPLES = 512
"""Scores that the second view takes of a short row, at the least."""

GUESS_ROW = 0xFFFFFFFF
"""Row whose jitter the second view has: one that does not exist, so that no row's own view repeats in it."""


@jit
def offset(row_id: Int, period: Int, stride: Int) -> Int:
    """`SamplingPolicy.offsets` of one period, with jitter; 0 with a stride of 1."""
    mixed = np.uint32(np.uint32(row_id) * np.uint32(JITTER_ROW) + np.uint32(period) * np.uint32(JITTER_PERIOD))
    mixed = np.uint32((mixed ^ (mixed >> np.uint32(JITTER_SHIFT))) * np.uint32(JITTER_MIX))
    return np.int64((np.uint64(mixed) * np.uint64(stride)) >> np.uint64(32))


@jit
def view_size(length: Int, last: Int, group: Int, period: Int) -> Int:
    """Number of scores in a view of one group per period; `last`: where the group of the last, cut off one begins."""
    return length // period * group + min(max(length % period - last, 0), group)


@jit
def _best_of_each(key: Any, count: Int, share: Int) -> Int:
    """Reduce each `share` adjacent keys to their best, in place; return how many are left."""
    left = (count + share - 1) // share
    for j in range(left):
        best = key[j * share]
        for i in range(j * share + 1, min(j * share + share, count)):
            best = min(best, key[i])
        key[j] = best
    return left


@jit
def sample_keys(
    row: Int,
    length: Int,
    dtype: Int,
    first: Int,
    group: Int,
    period: Int,
    row_id: Int,
    jitter: Int,
    share: Int,
    most: Int,
    key: Any,
    spare: Any,
    scratch: Any,
) -> Int:
    """Store the keys of a view, of a large one only its `most` best and some more; return how many.

    In each period a group begins at `first`, or one of `jitter` groups behind it, by the hash of `row_id`. Each `share`
    adjacent scores of a group stand for the best of them. Scores are fetched in batches, by a loop that
    does nothing else, so that many cache misses are under way at a time.
    """
    batch, itemsize = scratch.batch, 4 if dtype == FLOAT32 else 2
    count, size = 0, min(key.size, max(4 * most, 256))
    bound = np.uint32(NAN_KEY)
    groups = (length - first + period - 1) // period
    step = max(BATCH // group, 1)
    for begin in range(0, groups, step):
        fetched = 0
        for number in range(begin, min(begin + step, groups)):
            start = first + number * period + offset(row_id, number, jitter) * group
            ahead = number + GROUPS_AHEAD
            prefetch(row + itemsize * (first + ahead * period + offset(row_id, ahead, jitter) * group))
            for position in range(start, min(start + group, length)):
                batch[fetched] = score_bits(row, position, dtype)
                fetched += 1
        make_keys(0, fetched, batch)
        if share > 1:
            fetched = _best_of_each(batch, fetched, share)
        for i in range(fetched):
            if count == size:
                bound = np.uint32(keep_best_keys(key, size, most, spare, scratch.histogram) - np.uint32(1))
                count = most
            key[count] = batch[i]
            count += batch[i] <= bound
    return count


@jit
def guess_cutoff(row: Int, length: Int, dtype: Int, k: Int, scratch: Any) -> Word:
    """Key that admits little more than k scores in all probability, from a jittered view; `NAN_KEY` if none would.

    With m = k / stride of the k best expected in the view, rank m + 4 sqrt(m) + 8 lies at least four standard
    deviations above them. A row that is unlucky all the same is read once more.
    """
    stride = GUESS_STRIDE
    while stride > 1 and stride * GUESS_SAMPLES > length:
        stride //= 2
    expected = k / stride
    rank = np.int64(expected + 4 * np.sqrt(expected)) + 8
    half = scratch.spare.size // 2
    if rank * stride > length * 3 // 4 or 2 * rank > half:
        return np.uint32(NAN_KEY)
    keys, rest = scratch.spare[:half], scratch.spare[half:]
    count = sample_keys(row, length, dtype, 0, 1, stride, GUESS_ROW, stride, 1, rank, keys, rest, scratch)
    guess, _ = kth(keys, count, rank, rest, scratch.histogram)
    return guess
