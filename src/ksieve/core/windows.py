"""The window of valid scores of each row: the one definition of lengths, starts, ends and `next_n`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.options import Options

I64 = NDArray[np.int64]


def windows(options: Options, rows: int, width: int, *, lengths: Any = None, starts: Any = None) -> tuple[I64, I64]:
    """Return the first position and the number of valid scores of every row's window.

    `options`: `windows` and `next_n` alone are used. `rows`, `width`: shape of the scores; rows is a multiple of
    next_n. `lengths` (array_like of int, shape (rows // next_n,)): lengths, or with windows "ends" the exclusive ends;
    None: every window ends with the row. `starts`: array_like of int, shape (rows,), or None. Returns ndarrays of
    int64, shape (rows,): ``0 <= begin <= begin + length <= width``.
    """
    row = np.arange(rows, dtype=np.int64)
    later = options.next_n - 1 - row % options.next_n
    begin = np.zeros(rows, np.int64) if starts is None else clamped(np.asarray(starts, np.int64), 0, width)
    if lengths is None:
        end = width - later
    else:
        # Clamped first, so that no 64-bit length wraps below.
        entries = clamped(np.asarray(lengths, np.int64), -1, width + options.next_n)
        end = entries[row // options.next_n] - later
        if options.windows != "ends":
            end = begin + np.maximum(end, 0)
    return begin, np.minimum(np.maximum(end, begin), width) - begin


def of_segments(indptr: Any, total: int, width: int) -> tuple[I64, I64]:
    """Return the first score and the length of every segment of `total` flat scores, at most `width` each."""
    bounds = clamped(np.asarray(indptr, np.int64), 0, total)
    return bounds[:-1].copy(), clamped(bounds[1:] - bounds[:-1], 0, width)


def clamped(numbers: NDArray[Any], least: int, most: int) -> NDArray[Any]:
    """Limit numbers to [least, most]: np.clip takes three times as long on a few rows."""
    found: NDArray[Any] = np.minimum(np.maximum(numbers, least), most)
    return found
