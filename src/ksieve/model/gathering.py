"""Rows whose scores have positions of their own, gathered into plain rows: the one definition of `positions`.

A selection over scores with `positions` is one over the scores that have one. If order or ties go by positions, they
are gathered in the order of these. The position within the gathered row then decides as they do.
`ksieve.backends.cpu.entries` has the compiled form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


class Gathered(NamedTuple):
    """Rows of the scores that have a position.

    `scores` (ndarray of the scores' dtype, shape (rows, width)): the first ``lengths[r]`` of each row are valid.
    `places` (ndarray of int32, shape (rows, width)): their positions. `lengths`: ndarray of int32, shape (rows,).
    """

    scores: NDArray[Any]
    places: NDArray[np.int32]
    lengths: NDArray[np.int32]


def empty(scores: Any) -> Gathered:
    """Rows without scores, of the shape and dtype of a matrix."""
    rows, width = scores.shape
    return Gathered(
        np.zeros((rows, width), scores.dtype), np.full((rows, width), -1, np.int32), np.zeros(rows, np.int32)
    )


def positions_of(table: NDArray[np.int32], width: int) -> NDArray[np.int32]:
    """Positions of the scores of blocks, one block after another.

    `table` (ndarray of int32, shape (rows, n)): number of the block of each ``width // n`` scores; negative where they
    are none. `width`: a multiple of n. Returns ndarray of int32, shape (rows, width): -1 for a score of no block, and
    for one whose position int32 does not hold.
    """
    size = width // max(table.shape[1], 1)
    found = np.repeat(table.astype(np.int64), size, axis=1) * size + np.tile(np.arange(size), table.shape[1])
    return np.where((found >= 0) & (found < 1 << 31), found, -1).astype(np.int32)


def gather(scores: NDArray[Any], positions: NDArray[np.int32], begin: I64, length: I64, by_position: bool) -> Gathered:
    """Gather the scores of each row's window whose position is not negative.

    `scores`: ndarray, shape (rows, width). `positions`: ndarray of int32, shape (rows, width). `begin`, `length`
    (ndarray of int64, shape (rows,)): windows of the rows. `by_position`: in ascending order of their positions, equal
    ones as they come; otherwise all as they come.
    """
    found = empty(scores)
    for r in range(scores.shape[0]):
        own = positions[r, begin[r] : begin[r] + length[r]]
        slots = np.flatnonzero(own >= 0)
        if by_position:
            slots = slots[np.argsort(own[slots], kind="stable")]
        found.lengths[r] = slots.size
        found.places[r, : slots.size] = own[slots]
        found.scores[r, : slots.size] = scores[r, begin[r] + slots]
    return found
