"""The compiled form of `ksieve.core.gathering`: scores that have a position, gathered into plain rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu.compiled import cached_jit
from ksieve.backends.cpu.finishing import sort_by_bytes
from ksieve.backends.cpu.kernels import source_digest
from ksieve.backends.cpu.simd import Int, load_u16, load_u32


def _entry(source: str) -> Any:
    """Make `gather_rows`. The disk cache keys on the values a function closes over, so on `source` too."""

    @cached_jit
    def gather_rows(
        begin: Int,
        end: Int,
        scores: Int,
        pitch: Int,
        itemsize: Int,
        positions: Int,
        positions_pitch: Int,
        begins: Any,
        lengths: Any,
        by_position: Int,
        narrow: Any,
        wide: Any,
        places: Any,
        counts: Any,
    ) -> None:
        """Gather rows [begin, end).

        Parameters
        ----------
        scores, positions : int
            Addresses of row 0; a pitch counts bytes.
        begins, lengths : array of int64, shape (rows,)
            Windows.
        narrow, wide : array of uint16 and uint32, shape (rows, width)
            The one of the item size receives the scores.
        places : array of int32, shape (rows, width)
        counts : array of int32, shape (rows,)
        """
        assert source  # closes over it
        width = places.shape[1]
        size = width if by_position else 0
        words, spare, digits = np.empty(size, np.uint64), np.empty(size, np.uint64), np.empty(256, np.int64)
        for r in range(begin, end):
            row = scores + r * pitch + begins[r] * itemsize
            own = positions + r * positions_pitch + begins[r] * 4
            kept, last, differing, unordered = 0, np.int64(-1), np.uint64(0), 0
            for i in range(lengths[r]):
                place = np.int64(np.int32(load_u32(own + 4 * i)))
                if place < 0:
                    continue
                places[r, kept] = np.int32(place)
                if itemsize == 4:
                    wide[r, kept] = load_u32(row + 4 * i)
                else:
                    narrow[r, kept] = load_u16(row + 2 * i)
                if by_position:
                    words[kept] = np.uint64(place) << np.uint64(32) | np.uint64(i)
                    differing |= words[kept] ^ words[0]
                    unordered += int(place < last)
                    last = place
                kept += 1
            counts[r] = kept
            if not unordered:
                continue
            moved = sort_by_bytes(words, spare, kept, 4, 8, differing, digits)
            for j in range(kept):
                word = spare[j] if moved else words[j]
                at = np.int64(word & np.uint64(0xFFFFFFFF))
                places[r, j] = np.int32(word >> np.uint64(32))
                if itemsize == 4:
                    wide[r, j] = load_u32(row + 4 * at)
                else:
                    narrow[r, j] = load_u16(row + 2 * at)

    return gather_rows


gather_rows = _entry(source_digest())
