"""Scores that are not worse than a bound of their row, appended to lists: what a producer's epilogue does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.backends.cpu.compiled import entry, prepare
from ksieve.backends.cpu.rows import address_of, placed
from ksieve.backends.cpu.runner import _reading, _scratch, spread
from ksieve.backends.cpu.simd import (
    INF_KEY,
    TILE,
    Int,
    block_mask,
    i64s,
    load_score,
    lowest_bit,
    prefetch_block,
    raw_limit,
    smaller,
    store_i32,
    store_score,
    tile_of,
    u32s,
    valid_mask,
)
from ksieve.core.ranking import Ranking
from ksieve.model.guess import BLOCK


@entry
def keep_rows(
    begin: Int, end: Int, scores: Int, pitch: Int, size: Int, convert: Int, begins: Int, lengths: Int, first: Int,
    bounds: Int, values: Int, values_pitch: Int, places: Int, places_pitch: Int, counts: Int, most: Int, capacity: Int,
    memory: Int,
) -> None:  # fmt: skip
    """Keep scores of rows [begin, end).

    Arguments as of `keep`; matrices by address and pitch in bytes, other arrays by address; `memory` is the address of
    uint32 (TILE,).
    """
    for r in range(begin, end):
        if u32s(bounds)[r] < INF_KEY:
            continue
        limit, held = raw_limit(np.int64(u32s(bounds)[r])), i64s(counts)[r]
        room, at_first, length = smaller(capacity, held + most), i64s(begins)[r], i64s(lengths)[r]
        row = scores + r * pitch + at_first * size
        own_values, own_places = values + r * values_pitch, places + r * places_pitch
        for at in range(0, length, TILE):
            if held > room:
                break
            last = smaller(at + TILE, length)
            tile = tile_of(row, at, last, size, convert, memory)
            for block in range(at, last, BLOCK):
                address = tile + 4 * (block - at)
                if convert == 0:
                    prefetch_block(address, 4)
                mask = block_mask(address, limit) & valid_mask(last - block)
                while mask != np.uint64(0):
                    i = block + lowest_bit(mask)
                    mask &= mask - np.uint64(1)
                    if held < room:
                        store_score(size, own_values + size * held, load_score(size, row + size * i))
                        store_i32(own_places + 4 * held, np.int32(first + at_first + i))
                    held += 1
        i64s(counts)[r] = held


def keep(
    scores: NDArray[Any],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    first: int,
    bounds: NDArray[np.uint32],
    values: NDArray[Any],
    places: NDArray[np.int32],
    counts: NDArray[np.int64],
    most: int,
    ranking: Ranking,
) -> None:
    """Append the scores of each row's window that are not worse than its bound.

    `scores` (ndarray, shape (rows, width)): as of `ksieve.backends.cpu.runner.run`. `begins`, `lengths` (ndarray of
    int64, shape (rows,)): windows, within the width. `first`: position of the first column. `bounds` (ndarray of
    uint32, shape (rows,)): ordered keys of the ranked scores (`ksieve.core.keys.order_key`) that are kept are not
    larger. `values`, `places` (ndarray of the scores' dtype and of int32, shape (rows, capacity)): the rows' lists.
    They receive scores and positions, in ascending order of position. `counts` (ndarray of int64, shape (rows,)): slots
    in use; rewritten. More than the capacity, or than `most` more than before, if the row has more such scores. The
    last ones were then not counted or listed. `most`: scores that are appended to a row.
    """
    rows, width = scores.shape
    matrix, kept, own = map(placed, (scores, values, places))
    capacity, reading = values.shape[1], _reading(matrix, ranking)
    windows = [address_of(array) for array in (begins, lengths)]
    limits, held = address_of(bounds), address_of(counts)
    prepare(keep_rows)

    def work(begin: int, end: int) -> None:
        memory = _scratch(4 * TILE)
        keep_rows(
            begin, end, matrix.address, matrix.pitch, *reading, *windows, first, limits, kept.address, kept.pitch,
            own.address, own.pitch, held, most, capacity, memory.address,
        )  # fmt: skip

    spread(work, 0, rows, width)
