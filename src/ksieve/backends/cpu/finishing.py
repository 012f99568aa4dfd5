"""The compiled epilogue of selected rows: order, index base, transform, values. Its model is `ksieve.model.epilogue`.

The thread that selected the rows calls it without the GIL, while their slots are in its cache. Scores are moved and
compared as integers, so that the result does not depend on the thread's flush-to-zero mode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu.compiled import cached_jit
from ksieve.backends.cpu.kernels import source_digest
from ksieve.backends.cpu.simd import (
    BFLOAT16,
    FLOAT32,
    RANKED,
    SMALLEST,
    Int,
    Word,
    item_size,
    jit,
    load_u16,
    load_u32,
    order_key,
    score_bits,
    store_i32,
    store_u16,
)

ANY_ORDER, BY_VALUE, BY_INDEX = 0, 1, 2
AS_INDEX, BY_PAGES, BY_OFFSETS = 0, 1, 2

_DIGITS = 256
_LAST_INDEX = 0x7FFFFFFF


@jit
def _store_index(address: Int, slot: Int, wide: Int, value: Int) -> None:
    """Store an index as int32, or as int64 in two halves, at any alignment."""
    if wide:
        store_i32(address + 8 * slot, np.int32(value))
        store_i32(address + 8 * slot + 4, np.int32(value >> 32))
    else:
        store_i32(address + 4 * slot, np.int32(value))


@jit
def sort_by_bytes(words: Any, spare: Any, count: Int, first: Int, last: Int, differing: Word, counts: Any) -> Int:
    """Sort words by their bytes [first, last), stably; return whether the result lies in `spare`.

    A pass over each byte in which some words differ.
    """
    source, target, moved = words, spare, 0
    for byte in range(first, last):
        shift = np.uint64(8 * byte)
        if (differing >> shift) & np.uint64(_DIGITS - 1) == np.uint64(0):
            continue
        counts[:] = 0
        for i in range(count):
            counts[np.int64((source[i] >> shift) & np.uint64(_DIGITS - 1))] += 1
        at = 0
        for value in range(_DIGITS):
            found = counts[value]
            counts[value] = at
            at += found
        for i in range(count):
            word = source[i]
            digit = np.int64((word >> shift) & np.uint64(_DIGITS - 1))
            target[counts[digit]] = word
            counts[digit] += 1
        source, target, moved = target, source, 1 - moved
    return moved


@jit
def _order(
    row: Int,
    dtype: Int,
    limit: Int,
    local: Any,
    k: Int,
    by_value: bool,
    flip: Word,
    words: Any,
    spare: Any,
    counts: Any,
) -> None:
    """Put a row's positions in order, in place, unused slots last; `row` is the address of its window."""
    used, differing = 0, np.uint64(0)
    for i in range(k):
        # Candidates come mostly by ascending position: read them backwards where the highest position is first.
        position = local[k - 1 - i] if flip else local[i]
        if position >= 0:
            word = np.uint64(position) ^ np.uint64(flip)
            if by_value:
                score = score_bits(row, min(np.int64(position), limit), dtype)
                word |= np.uint64(order_key(score)) << np.uint64(32)
            words[used] = word
            differing |= word ^ words[0]
            used += 1
    moved = 0
    if by_value:
        moved = sort_by_bytes(words, spare, used, 4, 8, differing, counts)
        ordered, other = (spare, words) if moved else (words, spare)
        wrong = 0
        for i in range(1, used):
            wrong += ordered[i] < ordered[i - 1]
        if wrong:
            again = sort_by_bytes(ordered, other, used, 0, 8, differing, counts)
            moved = moved ^ again
    else:
        moved = sort_by_bytes(words, spare, used, 0, 4, differing, counts)
    ordered = spare if moved else words
    for i in range(used):
        local[i] = np.int32(np.uint64(ordered[i] & np.uint64(0xFFFFFFFF)) ^ np.uint64(flip))
    for i in range(used, k):
        local[i] = -1


def _entry(source: str) -> Any:
    """Make `finish_rows`. The disk cache keys on the values a function closes over, so on `source` too."""

    @cached_jit
    def finish_rows(
        begin: Int,
        end: Int,
        local: Any,
        begins: Any,
        scores: Int,
        pitch: Int,
        width: Int,
        dtype: Int,
        order: Int,
        highest: Int,
        from_row: Int,
        out: Int,
        out_pitch: Int,
        raw: Int,
        raw_pitch: Int,
        wide: Int,
        values: Int,
        values_pitch: Int,
        transform: Int,
        table: Int,
        table_pitch: Int,
        requests: Int,
        pages: Int,
        page_size: Int,
        row_to_request: Int,
        next_n: Int,
        offsets: Int,
        places: Int,
        places_pitch: Int,
        filled: Int,
    ) -> None:
        """Write rows [begin, end) from their positions within the windows, which may be reordered.

        Parameters
        ----------
        local : array of int32, shape (at least end - begin, k)
            Row ``begin`` first; -1 in unused slots.
        begins : array of int64
            First position of every row's window.
        scores, out, raw, values, table, row_to_request, offsets, places, filled : int
            Addresses of row 0, 0 where absent; a ``..._pitch`` counts bytes.
        dtype, width
            Of the scores; the dtype has a ranking (`simd.RANKED`), which orders them.
        order : int
            ANY_ORDER, BY_VALUE or BY_INDEX.
        highest, from_row, wide : int
            Whether the highest of equal scores comes first, whether an index counts from the start of the row, and
            whether it takes 64 bits.
        transform : int
            AS_INDEX, BY_PAGES or BY_OFFSETS.
        requests, pages, page_size, next_n : int
            Of the page table.
        """
        assert source  # closes over it
        k = local.shape[1]
        kind, itemsize = dtype % RANKED, item_size(dtype)
        size = 0 if order == ANY_ORDER else k
        words, spare = np.empty(size, np.uint64), np.empty(size, np.uint64)
        counts = np.empty(_DIGITS if size else 0, np.int64)
        flip = np.uint32(_LAST_INDEX if highest and order == BY_VALUE else 0)
        least = np.int64(0xFF800000) if kind == FLOAT32 else np.int64(0xFF80 if kind == BFLOAT16 else 0xFC00)
        if dtype // RANKED == SMALLEST:
            least ^= np.int64(0x80000000 if kind == FLOAT32 else 0x8000)
        for r in range(begin, end):
            slots, first = local[r - begin], begins[r]
            window, limit = scores + r * pitch + first * itemsize, width - 1 - first
            if order != ANY_ORDER:
                _order(window, dtype, limit, slots, k, order == BY_VALUE, flip, words, spare, counts)
            if values:
                target = values + r * values_pitch
                for i in range(k):
                    at = min(np.int64(slots[i]), limit)
                    if kind == FLOAT32:
                        bits = np.int64(load_u32(window + 4 * at)) if at >= 0 else least
                        store_i32(target + 4 * i, np.int32(bits))
                    else:
                        bits = np.int64(load_u16(window + 2 * at)) if at >= 0 else least
                        store_u16(target + 2 * i, np.uint16(bits))
            if filled:
                used = 0
                for i in range(k):
                    used += slots[i] >= 0
                store_i32(filled + 4 * r, np.int32(used))
            if places:  # of the window, whose first position is 0
                for i in range(k):
                    if slots[i] >= 0:
                        slots[i] = np.int32(load_u32(places + r * places_pitch + 4 * np.int64(slots[i])))
            base = first if from_row else np.int64(0)
            if raw:
                target = raw + r * raw_pitch
                for i in range(k):
                    position = np.int64(slots[i])
                    _store_index(target, i, wide, position + base if position >= 0 else np.int64(-1))
            target = out + r * out_pitch
            offset = np.int64(np.int32(load_u32(offsets + 4 * r))) if transform == BY_OFFSETS else np.int64(0)
            request = np.int64(0)
            if transform == BY_PAGES:
                request = np.int64(np.int32(load_u32(row_to_request + 4 * r))) if row_to_request else r // next_n
            known = 0 <= request < requests
            for i in range(k):
                position = np.int64(slots[i])
                index = position + base
                if position < 0:
                    index = np.int64(-1)
                elif transform == BY_PAGES:
                    page, entry = index // page_size, np.int64(-1)
                    if known and page < pages:
                        entry = np.int64(np.int32(load_u32(table + request * table_pitch + 4 * page)))
                    index = entry * page_size + index % page_size if entry >= 0 else np.int64(-1)
                else:
                    index += offset
                _store_index(target, i, wide, index)

    return finish_rows


finish_rows = _entry(source_digest())
