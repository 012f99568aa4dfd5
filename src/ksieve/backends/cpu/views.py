"""Sampling of a row before its scan: at the positions of the policy and of a guess (`ksieve.model.guess`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu import scratch as at
from ksieve.backends.cpu.compiled import kernel
from ksieve.backends.cpu.ranking import kth, make_keys
from ksieve.backends.cpu.simd import (
    Int,
    Word,
    call,
    i64s,
    jit,
    larger,
    load_score,
    prefetch,
    smaller,
    store_score,
    u32s,
)
from ksieve.core.keys import NAN_KEY
from ksieve.core.policy import JITTER_MIX, JITTER_PERIOD, JITTER_ROW, JITTER_SHIFT
from ksieve.model import guess
from ksieve.model.guess import BLOCK, MOST_GUESSES

_stride_of, _rank_of = jit(guess.stride_of), jit(guess.rank_of)
_GOLDEN, _MIX_1, _MIX_2 = np.uint64(guess.GOLDEN), np.uint64(guess.MIX_1), np.uint64(guess.MIX_2)


@jit
def mixed(word: Word) -> Word:
    """`ksieve.model.guess.mixed`."""
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    return word ^ (word >> np.uint64(31))


@jit
def state_of(seed: Int, row_id: Int, attempt: Int) -> Word:
    """`ksieve.model.guess.state_of`."""
    number = np.uint64(row_id * MOST_GUESSES + attempt + 1)
    return mixed(np.uint64(seed) + number * _GOLDEN) | np.uint64(1)


@jit
def offset(row_id: Int, period: Int, stride: Int) -> Int:
    """`SamplingPolicy.offsets` of one period, with jitter; 0 with a stride of 1."""
    mixed = np.uint32(np.uint32(row_id) * np.uint32(JITTER_ROW) + np.uint32(period) * np.uint32(JITTER_PERIOD))
    mixed = np.uint32((mixed ^ (mixed >> np.uint32(JITTER_SHIFT))) * np.uint32(JITTER_MIX))
    return np.int64((np.uint64(mixed) * np.uint64(stride)) >> np.uint64(32))


@jit
def _group_of(row_id: Int, state: Word, number: Int, jitter: Int) -> Int:
    """Sampled group of a period, below `jitter`: from a guess's state, or if `state` is 0 from the policy's hash."""
    if state != np.uint64(0):
        return np.int64(mixed(state + np.uint64(number) * _GOLDEN) & np.uint64(jitter - 1))
    return offset(row_id, number, jitter)


@jit
def view_size(length: Int, last: Int, group: Int, period: Int) -> Int:
    """Number of samples with one group per period; `last`: start of the group in the last, incomplete period."""
    return length // period * group + smaller(larger(length % period - last, 0), group)


@jit
def _best_of_each(key: Any, count: Int, share: Int) -> Int:
    """Reduce each `share` adjacent keys to their best, in place; return the new number of keys."""
    left = (count + share - 1) // share
    for j in range(left):
        best = key[j * share]
        for i in range(j * share + 1, smaller(j * share + share, count)):
            best = key[i] if key[i] < best else best
        key[j] = best
    return left


@kernel
def sample_keys(
    first: Int, group: Int, period: Int, state: Int, jitter: Int, share: Int, most: Int, keys: Int, fits: Int,
    spare: Int, memory: Int, low: Int, high: Int,
) -> Int:  # fmt: skip
    """Store the keys of the samples, of many only the `most` best and some more; return the number stored.

    In each period the sampled group begins at `first`, or up to `jitter` - 1 groups later. A guess's `state` decides,
    or if that is 0, the hash of the row's number. Of each `share` adjacent samples only the best is stored. Scores are
    fetched in batches, in a loop of loads alone, so that many cache misses are in flight. `fits` keys fit the memory at
    `keys`. Only periods from `low` up to `high` are sampled.
    """
    row, row_id, length, size, convert = at.row_of(memory)
    address, places, work = at.batch_of(memory), i64s(memory + at.PLACES), i64s(memory + at.WORK)
    key, batch, raw = u32s(keys), u32s(address), address if size == 4 else address + 4 * larger(at.BATCH, group)
    count, fits, bound = 0, smaller(fits, larger(4 * most, 256)), np.uint32(NAN_KEY)
    groups = smaller((length - first + period - 1) // period, high)
    step = larger(at.BATCH // group, 1)
    for begin in range(low, groups, step):
        fetched, taken = np.int64(0), smaller(step, groups - begin)
        for j in range(taken + at.GROUPS_AHEAD):
            number = begin + j
            places[j] = first + number * period + _group_of(row_id, np.uint64(state), number, jitter) * group
        for j in range(taken):
            start = places[j]
            prefetch(row + size * places[j + at.GROUPS_AHEAD])
            for position in range(start, smaller(start + group, length)):
                store_score(size, raw + size * fetched, load_score(size, row + size * position))
                fetched += 1
        if convert != 0:
            call(convert, (raw, fetched, address))
        make_keys(address, 0, fetched)
        work[0] += fetched
        if share > 1:
            fetched = _best_of_each(batch, fetched, share)
        for i in range(fetched):
            if count == fits:
                worst = kth(keys, count, most, spare, memory)
                bound, kept = np.uint32(worst - 1), 0
                for j in range(count):
                    this = key[j]
                    key[kept] = this
                    kept += this <= bound
                for j in range(kept, most):
                    key[j] = np.uint32(worst)
                work[0] += count
                count = most
            key[count] = batch[i]
            count += batch[i] <= bound
    return count


@kernel
def guess_cutoff(attempt: Int, memory: Int) -> Int:
    """`ksieve.model.guess.cutoff` of one attempt; `NAN_KEY` where every score is admitted.

    The samples fit half of the spare keys: with a stride of 2 or more, the rank is below k + 32. A storage of fewer
    than 2 k candidates holds the whole row, and the rank is at most three eighths of the row's length.
    """
    _, row_id, length, _, _ = at.row_of(memory)
    asked, stride = i64s(memory + at.ASKED), _stride_of(length)
    rank, half = _rank_of(length, asked[at.K], stride, attempt), (asked[at.ROOM] + BLOCK) // 2
    if rank == 0 or rank >= half:
        return NAN_KEY
    keys, state = at.spare_of(memory), np.int64(state_of(asked[at.SEED], row_id, attempt))
    rest = keys + 4 * half
    count = sample_keys(0, 1, stride, state, stride, 1, rank, keys, half, rest, memory, 0, length)
    return kth(keys, count, rank, rest, memory)
