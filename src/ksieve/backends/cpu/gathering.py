"""The compiled form of `ksieve.model.gathering`: scores that have a position, gathered into plain rows."""

from __future__ import annotations

import numpy as np

from ksieve.backends.cpu.compiled import entry
from ksieve.backends.cpu.finishing import sort_by_bytes
from ksieve.backends.cpu.simd import Int, i32s, i64s, load_u16, load_u32, store_i32, store_u16, u64s


@entry
def gather_rows(
    begin: Int,
    end: Int,
    width: Int,
    scores: Int,
    pitch: Int,
    size: Int,
    positions: Int,
    positions_pitch: Int,
    begins: Int,
    lengths: Int,
    by_position: Int,
    gathered: Int,
    places: Int,
    counts: Int,
    memory: Int,
) -> None:
    """Gather rows [begin, end).

    Parameters
    ----------
    scores, positions
        Addresses of row 0; a pitch counts bytes.
    begins, lengths
        Addresses of int64 (rows,): windows.
    size
        Bytes of a score.
    gathered, places
        Addresses of the scores and of the int32 positions, both (rows, width).
    counts
        Address of int32 (rows,).
    memory
        Address of `finishing.bytes_needed`, for a row's width.
    """
    words, spare = u64s(memory), memory + 8 * width
    for r in range(begin, end):
        row, own = scores + r * pitch + i64s(begins)[r] * size, positions + r * positions_pitch + i64s(begins)[r] * 4
        target, place_of = gathered + r * width * size, i32s(places + r * width * 4)
        kept, last, differing, unordered = 0, np.int64(-1), np.uint64(0), 0
        for i in range(i64s(lengths)[r]):
            place = np.int64(np.int32(load_u32(own + 4 * i)))
            if place < 0:
                continue
            place_of[kept] = place
            if size == 4:
                store_i32(target + 4 * kept, np.int32(load_u32(row + 4 * i)))
            else:
                store_u16(target + 2 * kept, load_u16(row + 2 * i))
            if by_position:
                words[kept] = np.uint64(place) << np.uint64(32) | np.uint64(i)
                differing |= words[kept] ^ words[0]
                unordered += int(place < last)
                last = place
            kept += 1
        i32s(counts)[r] = kept
        if unordered == 0:
            continue
        ordered = u64s(sort_by_bytes(memory, spare, memory + 16 * width, kept, 4, 8, np.int64(differing)))
        for j in range(kept):
            at = np.int64(ordered[j] & np.uint64(0xFFFFFFFF))
            place_of[j] = np.int32(ordered[j] >> np.uint64(32))
            if size == 4:
                store_i32(target + 4 * j, np.int32(load_u32(row + 4 * at)))
            else:
                store_u16(target + 2 * j, load_u16(row + 2 * at))
