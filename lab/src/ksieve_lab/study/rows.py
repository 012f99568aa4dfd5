"""Selection of the rows of a capture to study, and reading them block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ksieve.core.errors import ArgumentError
from ksieve_lab.captures.format import BLOCK_BYTES, Capture, rows_per_block

I64 = NDArray[np.int64]

LEAST_LENGTH = 4
"""Rows of at least this many k scores are eligible, so that every one has an upper tail of several k (paper)."""

ROWS = 4096
"""Default number of rows of a capture, at equal spacing among the eligible ones (paper)."""


class RowBlock(NamedTuple):
    """Some rows of a capture: their numbers, scores and clamped lengths."""

    rows: I64
    scores: Any
    lengths: I64


def eligible_rows(capture: Capture, k: int, most: int | None = ROWS) -> I64:
    """Numbers of the rows to study, ascending: at most `most` of the eligible ones, at equal spacing; None takes all.

    Raises `ArgumentError` if no row is long enough.
    """
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise ArgumentError("rows", repr(most), "an int of at least 1")
    lengths = capture.clamped()
    if lengths.strides == (0,):  # full rows, whose lengths are one number in memory
        eligible: range | I64 = range(capture.rows if capture.width >= LEAST_LENGTH * k else 0)
    else:
        eligible = np.flatnonzero(lengths >= LEAST_LENGTH * k)
    total = len(eligible)
    if not total:
        longest = capture.valid_scores()[1]
        takes = f"a k of at most {longest // LEAST_LENGTH}: only rows of {LEAST_LENGTH} k scores show an upper tail"
        raise ArgumentError("k", f"{k} for {capture.path.name}, whose longest row has {longest:,} scores", takes)
    if most is None or total <= most:
        return np.asarray(eligible, np.int64)
    wanted = np.round(np.linspace(0, total - 1, most)).astype(np.int64)
    return wanted if isinstance(eligible, range) else eligible[wanted]


def read_blocks(capture: Capture, rows: I64, max_bytes: int = BLOCK_BYTES) -> Iterator[RowBlock]:
    """Read chosen rows in blocks of at most `max_bytes` of scores, at least one row each."""
    lengths = capture.clamped()
    step = rows_per_block(capture.width, capture.dtype, max_bytes)
    for begin in range(0, rows.size, step):
        block = rows[begin : begin + step]
        first, last = int(block[0]), int(block[-1])
        whole = last - first + 1 == block.size
        scores = capture.rows_block(first, last + 1) if whole else capture.rows_at([int(r) for r in block])
        yield RowBlock(block, scores, lengths[block].astype(np.int64))
