"""The entries of every row: the best score of each block, or the scores that have a number (`ksieve.core.entries`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.entries import I64, POSITIONS, UNBOUNDED, Blocks, Entries
from ksieve.core.keys import order_key, widen
from ksieve.core.options import Options
from ksieve.core.ranking import Ranking, ranked
from ksieve.model import gathering
from ksieve.model.gathering import Gathered


def entries_of(
    options: Options,
    scores: NDArray[Any],
    begin: I64,
    length: I64,
    tails: I64 | None,
    *,
    positions: NDArray[np.int32] | None = None,
    gather: Callable[..., Gathered] = gathering.gather,
    pooled: Callable[..., NDArray[Any]] | None = None,
) -> Entries:
    """Lay out the entries of every row.

    `scores`: ndarray, shape (rows, width). `begin`, `length`, `tails`: as `bounds` returns them. `positions` (ndarray
    of int32, shape (rows, width), optional): numbers of the entries, in place of their columns; a score with a negative
    one is none. `gather`, `pooled`: compiled forms of `ksieve.model.gathering.gather` and of `pool`.
    """
    size, expand, none = options.block_size, options.expand, np.zeros_like(begin)
    number, end, places = begin if options.index_base == "row" else none, POSITIONS // expand + none, None
    if size > 1:
        low, high = number, number + length
        if tails is not None:
            high = np.clip(tails, low, high)
        number, last = low // size, high // size if tails is not None else -(-high // size)
        count = np.where(high > low, last - number, 0)
        blocks = Blocks(size, begin, low, high, number, count)
        found = (pooled or pool)(scores, blocks, options.ranking)
        return Entries(found, none, count, number, None, low, high, np.clip(last * size, low, high))
    if positions is not None:
        scores, places, found_lengths = gather(scores, positions, begin, length, True)
        begin = number = none
        length = found_lengths.astype(np.int64)
    low, high = number * expand, UNBOUNDED + none
    if tails is not None:
        end = np.minimum(end, tails // expand)
        high = np.maximum(tails, low)
    count = np.clip(end - number, 0, length)
    if places is not None:
        count = np.array([np.searchsorted(own[:n], e) for own, n, e in zip(places, length, end, strict=True)], np.int64)
    return Entries(scores, begin, count, number, places, low, high, np.clip(end * expand, low, high))


def pool(scores: NDArray[Any], blocks: Blocks, ranking: Ranking) -> NDArray[Any]:
    """Return the best score of each block, bit for bit: the first of equal ones.

    `scores`: ndarray, shape (rows, width). `ranking`: {"largest", "smallest", "nan_first"}. Returns ndarray of the
    scores' dtype, shape (rows, ceil(width / size)): row r has ``blocks.total[r]`` scores; the others are zeros.
    """
    rows, width = scores.shape
    found = np.zeros((rows, -(-width // blocks.size)), scores.dtype)
    for r, (column, low, high, number, count) in enumerate(zip(*map(np.ndarray.tolist, blocks[1:]), strict=True)):
        if not count:
            continue
        begins = np.maximum((number + np.arange(count)) * blocks.size - low, 0)
        row = scores[r, column : column + min(high, (number + count) * blocks.size) - low]
        keys = order_key(widen(ranked(row, ranking)))
        best = np.minimum.reduceat(keys, begins)
        own = np.repeat(np.arange(count), np.diff(np.append(begins, row.size)))
        equal = np.flatnonzero(keys == best[own])
        _, first = np.unique(own[equal], return_index=True)
        found[r, :count] = row[equal[first]]
    return found
