"""Entries, what a row's k are selected of: scores, blocks of scores, or scores that stand for several positions.

The one definition of `block_size`, `force_first`, `force_last`, `forced_extra`, `expand` and `tail`, in five steps:

1. Pool (`ksieve.model.pooling`): the best score of each block. Where `expand` is used without blocks, each score is an
   entry as it is.
2. Force (`forced`): the first and last entries of a row rank above all others, and are equal to one another.
3. Select: the best of the others, by a plain selection among them.
4. Expand (`ksieve.model.entries`): the positions of each selected entry, side by side.
5. Add the tail: the positions after the last whole entry.

Numbers of entries, and positions, count from where indices do (`Options.index_base`): the start of the window or of the
row. In the latter case the window may cut the first block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ksieve.core.options import Options
from ksieve.core.windows import windows

I64 = NDArray[np.int64]

UNBOUNDED = 1 << 62
"""End of the positions of a row whose length in positions is not given."""

POSITIONS = 1 << 31
"""Positions that int32 holds: an entry with others is no part of its row."""


class Blocks(NamedTuple):
    """Blocks of each row, as `pool` takes them.

    `column` (ndarray of int64, shape (rows,)): column of the row's first score. `low`, `high` (ndarray of int64, shape
    (rows,)): positions of its scores, [low, high). `number`, `total` (ndarray of int64, shape (rows,)): number of the
    first block, and how many there are. Block b has the positions of [b size, (b + 1) size) that lie in [low, high).
    """

    size: int
    column: I64
    low: I64
    high: I64
    number: I64
    total: I64


class Entries(NamedTuple):
    """Entries of each row.

    `scores`: ndarray of the scores' dtype, shape (rows, width). Of int64, shape (rows,). `begin`, `total`: column of
    the first entry, and the number of entries. `number`: the first entry's; the others follow. `low`, `high`: bounds of
    the positions that are written. `tail`: first position of the tail, if any, which ends at `high`. `places` (ndarray
    of int32, shape (rows, width), or None): the numbers, in place of `number` (`ksieve.model.gathering`).
    """

    scores: NDArray[Any]
    begin: I64
    total: I64
    number: I64
    places: NDArray[np.int32] | None
    low: I64
    high: I64
    tail: I64


class Forced(NamedTuple):
    """Ranges of each row's entries, as arrays of int64: the forced ones, and the others.

    `first`, `first_end`, `last`, `last_end` (ndarray of int64, shape (rows,)): the forced ones that are selected.
    `begin`, `total` (ndarray of int64, shape (rows,)): first of the others, and their number. `slots` (ndarray of
    int64, shape (rows,)): how many of them are selected, if there are as many.
    """

    first: I64
    first_end: I64
    last: I64
    last_end: I64
    begin: I64
    total: I64
    slots: I64


def selecting(options: Options) -> Options:
    """Options of the selection among the entries that are not forced."""
    kept = ("per_row_k", "order", "tie_break", "largest", "nan")
    return Options(windows="lengths", index_base="start", **{name: getattr(options, name) for name in kept})


def selected(options: Options, width: int, k: int) -> tuple[int, int]:
    """Width and k of that selection; the k may be 0."""
    return -(-width // options.block_size), max(k + options.beside - options.forced, 0)


def bounds(
    options: Options, rows: int, width: int, *, lengths: Any = None, starts: Any = None, tails: Any = None
) -> tuple[I64, I64, I64 | None]:
    """Return the windows of the rows (`ksieve.core.windows`), and their lengths in positions, or None.

    With `next_n`, earlier rows of a request see one position less: of `tails`, and of lengths if they are positions.
    """
    n = options.next_n
    if tails is not None:
        row = np.arange(rows, dtype=np.int64)
        tails = np.maximum(np.asarray(tails, np.int64)[row // n] - (n - 1 - row % n), 0)
    if options.expand > 1 and options.block_size == 1 and n > 1:
        lengths = None if lengths is None else np.repeat(lengths, n)
        options = replace(options, next_n=1)
    return *windows(options, rows, width, lengths=lengths, starts=starts), tails


def forced(options: Options, count: I64, k: I64) -> Forced:
    """Divide the entries of each row.

    `count` (ndarray of int64, shape (rows,)): number of entries. `k` (ndarray of int64, shape (rows,)): the row's own
    k. If its slots are fewer than the forced entries, the tie-break chooses among these, as among equal scores; without
    one they are the lowest.
    """
    slots = k + options.beside
    before = np.minimum(options.force_first, count)
    behind = np.minimum(options.force_last, count - before)
    left_out = np.maximum(before + behind - slots, 0)
    if options.tie_break == "high":
        first, last_end = np.minimum(left_out, before), count
        last = count - behind + left_out - first
        first_end = before
    else:
        first, last = np.zeros_like(count), count - behind
        last_end = np.maximum(count - left_out, last)
        first_end = before - (left_out - (count - last_end))
    return Forced(
        first, first_end, last, last_end, before, count - before - behind, np.maximum(slots - options.forced, 0)
    )
