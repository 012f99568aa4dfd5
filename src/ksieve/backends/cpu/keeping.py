"""Scores that are not worse than a bound of their row, appended to lists: what a producer's epilogue does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.backends.cpu.compiled import cached_jit
from ksieve.backends.cpu.kernels import source_digest
from ksieve.backends.cpu.runner import INLINE_SCORES, PORTION_SCORES, _dtype_number, _placed, thread_count
from ksieve.backends.cpu.sharing import share
from ksieve.backends.cpu.simd import (
    FLOAT32,
    INF_KEY,
    TILE,
    Int,
    block_mask,
    item_size,
    load_u16,
    load_u32,
    lowest_bit,
    prefetch_block,
    raw_limit,
    store_i32,
    store_u16,
    tile_of,
    valid_mask,
)
from ksieve.core.guess import BLOCK
from ksieve.core.ranking import Ranking


def _entry(source: str) -> Any:
    """Make `keep_rows`. The disk cache keys on the values a function closes over, so on `source` too."""

    @cached_jit
    def keep_rows(
        begin: Int,
        end: Int,
        scores: Int,
        pitch: Int,
        dtype: Int,
        begins: Any,
        lengths: Any,
        first: Int,
        bounds: Any,
        values: Int,
        values_pitch: Int,
        places: Int,
        places_pitch: Int,
        counts: Any,
        most: Int,
        capacity: Int,
    ) -> None:
        """Keep scores of rows [begin, end); arguments as of `keep`, matrices by address and pitch in bytes."""
        assert source  # closes over it
        size, wide = item_size(dtype), np.empty(TILE, np.uint32)
        for r in range(begin, end):
            if bounds[r] < np.uint32(INF_KEY):
                continue
            limit, held, room = raw_limit(bounds[r]), counts[r], min(capacity, counts[r] + most)
            row = scores + r * pitch + begins[r] * size
            own_values, own_places = values + r * values_pitch, places + r * places_pitch
            for at in range(0, lengths[r], TILE):
                if held > room:
                    break
                last = min(at + TILE, lengths[r])
                tile = tile_of(row, at, last, dtype, wide)
                for block in range(at, last, BLOCK):
                    address = tile + 4 * (block - at)
                    if dtype == FLOAT32:
                        prefetch_block(address, 4)
                    mask = block_mask(address, limit) & valid_mask(last - block)
                    while mask != np.uint64(0):
                        i = block + lowest_bit(mask)
                        mask &= mask - np.uint64(1)
                        if held < room:
                            if size == 4:
                                store_i32(own_values + 4 * held, np.int32(load_u32(row + 4 * i)))
                            else:
                                store_u16(own_values + 2 * held, load_u16(row + 2 * i))
                            store_i32(own_places + 4 * held, np.int32(first + begins[r] + i))
                        held += 1
            counts[r] = held

    return keep_rows


keep_rows = _entry(source_digest())


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

    Parameters
    ----------
    scores : ndarray, shape (rows, width)
        As of `ksieve.backends.cpu.runner.run`.
    begins, lengths : ndarray of int64, shape (rows,)
        Windows, within the width.
    first : int
        Position of the first column.
    bounds : ndarray of uint32, shape (rows,)
        Ordered keys of the ranked scores (`ksieve.core.keys.order_key`) that are kept are not larger.
    values, places : ndarray of the scores' dtype and of int32, shape (rows, capacity)
        Lists of the rows; receive scores and positions, in ascending order of position.
    counts : ndarray of int64, shape (rows,)
        Slots in use; rewritten. More than the capacity, or than `most` more than before, where the row has more such
        scores; the last of them were then not counted or listed.
    most : int
        Scores that are appended to a row.
    ranking : Ranking
    """
    rows, width = scores.shape
    dtype, capacity = _dtype_number(scores, ranking), values.shape[1]
    matrix, kept, own = map(_placed, (scores, values, places))

    def work(begin: int, end: int) -> None:
        keep_rows(
            begin, end, matrix.address, matrix.pitch, dtype, begins, lengths, first, bounds, kept.address, kept.pitch,
            own.address, own.pitch, counts, most, capacity,
        )  # fmt: skip

    threads = 1 if rows * width <= INLINE_SCORES else min(thread_count(), rows)
    if not keep_rows.signatures:
        work(0, 0)  # compile on the calling thread
    share(work, rows, threads, -(-PORTION_SCORES // max(width, 1)))
