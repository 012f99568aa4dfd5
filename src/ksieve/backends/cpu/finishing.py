"""The compiled epilogue of selected rows: order, index base, transform, values. Its model is `ksieve.model.epilogue`.

The thread that selected the rows calls it without the GIL, while their slots are in its cache. Scores are moved and
compared as integers, so that the result does not depend on the thread's flush-to-zero mode.
"""

from __future__ import annotations

import numpy as np

from ksieve.backends.cpu.compiled import entry, kernel
from ksieve.backends.cpu.simd import (
    Int,
    call,
    i64s,
    jit,
    load_score,
    load_u32,
    order_key,
    smaller,
    store_i32,
    store_score,
    u32s,
    u64s,
)

AS_INDEX, BY_PAGES, BY_OFFSETS = 0, 1, 2

DIGITS = 256
LAST_INDEX = 0x7FFFFFFF


@kernel
def sort_by_bytes(words: Int, spare: Int, digits: Int, count: Int, first: Int, last: Int, differing: Int) -> Int:
    """Sort uint64 words by their bytes [first, last), stably; return the one of the two addresses where they lie then.

    A pass over each byte in which some words differ. `digits` is the address of int64 (DIGITS,).
    """
    counts = i64s(digits)
    for byte in range(first, last):
        shift = np.uint64(8 * byte)
        if (np.uint64(differing) >> shift) & np.uint64(DIGITS - 1) == np.uint64(0):
            continue
        source, target = u64s(words), u64s(spare)
        for value in range(DIGITS):
            counts[value] = 0
        for i in range(count):
            counts[np.int64((source[i] >> shift) & np.uint64(DIGITS - 1))] += 1
        at = 0
        for value in range(DIGITS):
            found = counts[value]
            counts[value] = at
            at += found
        for i in range(count):
            word = source[i]
            digit = np.int64((word >> shift) & np.uint64(DIGITS - 1))
            target[counts[digit]] = word
            counts[digit] += 1
        words, spare = spare, words
    return words


def bytes_needed(k: int) -> int:
    """Bytes of the memory in which a row is put in order."""
    return 8 * (2 * k + DIGITS)


@entry
def order_rows(
    begin: Int, end: Int, k: Int, slots: Int, slots_pitch: Int, begins: Int, scores: Int, pitch: Int, width: Int,
    size: Int, convert: Int, by_value: Int, flip: Int, memory: Int,
) -> None:  # fmt: skip
    """Put the positions of rows [begin, end) in order, in place, unused slots last.

    `slots`, `scores`: addresses of row 0; a ``..._pitch`` counts bytes. `slots` is int32 (rows, k): positions within
    the windows, -1 in unused slots. `begins`: address of int64 (rows,), the first position of every row's window.
    `width`, `size`, `convert`: of the scores, columns, bytes of each, and as of `kernels.select_rows`. `by_value`,
    `flip`: whether the best score comes first, and LAST_INDEX if then the highest of equal ones does, else 0. `memory`:
    address of `bytes_needed`.
    """
    bits, loaded = u32s(memory + 8 * k), memory + (8 if size == 4 else 12) * k
    for r in range(begin, end):
        words, own, used, first = u64s(memory), slots + r * slots_pitch, 0, i64s(begins)[r]
        for i in range(k):
            # Candidates come mostly by ascending position: read them backwards where the highest position is first.
            position = np.int64(np.int32(load_u32(own + 4 * (k - 1 - i if flip else i))))
            if position >= 0:
                words[used] = position ^ flip
                score = scores + r * pitch + size * smaller(first + position, width - 1)
                if by_value:
                    store_score(size, loaded + size * used, load_score(size, score))
                used += 1
        if by_value and convert != 0:
            call(convert, (loaded, used, memory + 8 * k))
        differing = np.uint64(0)
        for i in range(used):
            if by_value:
                words[i] |= np.uint64(order_key(bits[i])) << np.uint64(32)
            differing |= words[i] ^ words[0]
        here, there, begin_byte, end_byte = memory, memory + 8 * k, 4 if by_value else 0, 8 if by_value else 4
        while True:
            ordered = sort_by_bytes(here, there, memory + 16 * k, used, begin_byte, end_byte, np.int64(differing))
            words, wrong = u64s(ordered), 0
            for i in range(1, used):
                wrong += words[i] < words[i - 1]
            if wrong == 0:
                break
            here, there, begin_byte = ordered, here + there - ordered, 0
        for i in range(used):
            store_i32(own + 4 * i, np.int32(np.int64(words[i] & np.uint64(0xFFFFFFFF)) ^ flip))
        for i in range(used, k):
            store_i32(own + 4 * i, np.int32(-1))


@jit
def _store_index(address: Int, slot: Int, wide: Int, value: Int) -> None:
    """Store an index as int32, or as int64 in two halves, at any alignment."""
    if wide:
        store_i32(address + 8 * slot, np.int32(value))
        store_i32(address + 8 * slot + 4, np.int32(value >> 32))
    else:
        store_i32(address + 4 * slot, np.int32(value))


@entry
def write_rows(
    begin: Int, end: Int, k: Int, slots: Int, slots_pitch: Int, begins: Int, scores: Int, pitch: Int, width: Int,
    size: Int, least: Int, values: Int, values_pitch: Int, from_row: Int, out: Int, out_pitch: Int, raw: Int,
    raw_pitch: Int, wide: Int, transform: Int, table: Int, table_pitch: Int, requests: Int, pages: Int, page_size: Int,
    row_to_request: Int, next_n: Int, offsets: Int, places: Int, places_pitch: Int, filled: Int,
) -> None:  # fmt: skip
    """Write the values and the indices of rows [begin, end) from their positions within the windows.

    The first ten arguments: as of `order_rows`. Others are addresses of row 0, 0 where absent; a ``..._pitch`` counts
    bytes. `least`: bits of the value of an unused slot. `from_row`, `wide`: whether an index counts from the start of
    the row, and whether it takes 64 bits. `transform`: AS_INDEX, BY_PAGES or BY_OFFSETS. `requests`, `pages`,
    `page_size`, `next_n`: of the page table.
    """
    for r in range(begin, end):
        own, first, used = slots + r * slots_pitch, i64s(begins)[r], 0
        row, target, base = scores + r * pitch, values + r * values_pitch, first if from_row else 0
        for i in range(k if values != 0 else 0):
            position = np.int64(np.int32(load_u32(own + 4 * i)))
            score = row + size * smaller(first + position, width - 1)
            store_score(size, target + size * i, load_score(size, score) if position >= 0 else np.uint32(least))
        if out == 0:  # the positions are the indices
            continue
        offset, request = np.int64(0), r // next_n
        if transform == BY_OFFSETS:
            offset = np.int64(np.int32(load_u32(offsets + 4 * r)))
        elif transform == BY_PAGES and row_to_request != 0:
            request = np.int64(np.int32(load_u32(row_to_request + 4 * r)))
        known = 0 <= request < requests
        for i in range(k):
            index = np.int64(np.int32(load_u32(own + 4 * i)))
            if index >= 0:
                used += 1
                if places != 0:  # of the window, whose first position is 0
                    index = np.int64(np.int32(load_u32(places + r * places_pitch + 4 * index)))
                index += base
            if raw != 0:
                _store_index(raw + r * raw_pitch, i, wide, index)
            if index >= 0 and transform == BY_PAGES:
                page, within = index // page_size, index % page_size
                index = np.int64(-1)
                if known and page < pages:
                    number = np.int64(np.int32(load_u32(table + request * table_pitch + 4 * page)))
                    if number >= 0:
                        index = number * page_size + within
            elif index >= 0:
                index += offset
            _store_index(out + r * out_pitch, i, wide, index)
        if filled != 0:
            store_i32(filled + 4 * r, np.int32(used))
