"""Rows that are read by tiles of columns, for `ksieve.Running`: rows wider than memory, or in several files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core import problem
from ksieve.core.errors import ArgumentError
from ksieve.files.scores import Scores, as_lengths


class JoinedColumns:
    """Files that hold the columns of the same rows, one after another.

    `rows`, `width`: `width` is the sum of the files' widths; positions count through all of them. `lengths` (ndarray of
    int32, shape (rows,)): valid scores of each row, in all files. `dtype`, `k`, `path`: of the first file. Raises
    `ArgumentError` if rows or dtypes differ, or the width does not fit int32.
    """

    def __init__(self, files: Sequence[Scores]) -> None:
        first = files[0]
        self.rows, self.dtype, self.k, self.path = first.rows, first.dtype, first.k, first.path
        for other in files[1:]:
            if (other.rows, other.dtype) != (self.rows, self.dtype):
                got = f"{other.path}: {other.rows} rows of {other.dtype}"
                raise ArgumentError("--next", got, f"files of {self.rows} rows of {self.dtype}, as {first.path} is")
        self.width = problem.check_size(sum(file.width for file in files), "width")
        self._files, self._valid = files, [_clamped(file) for file in files]
        self.lengths: NDArray[np.int32] = np.broadcast_to(np.int32(self.width), self.rows)
        if any(valid.strides != (0,) for valid in self._valid):
            self.lengths = np.sum(self._valid, axis=0, dtype=np.int32)

    def tiles(self, begin: int, end: int, most: int) -> Iterator[tuple[int, Any, NDArray[np.int32]]]:
        """Tiles of at most `most` columns: first column, scores, and where valid ones end, of rows `begin` to `end`."""
        before = 0
        for file, valid in zip(self._files, self._valid, strict=True):
            ends = valid[begin:end] + np.int32(before)
            for first in range(0, file.width, most):
                last = min(first + most, file.width)
                yield before + first, file.tile(begin, end, first, last), ends
            before += file.width

    def rows_block(self, begin: int, end: int) -> Any:
        """Rows `begin` to `end` for `ksieve.verify`: valid scores of all files come first. See `packed`."""
        blocks = [file.rows_block(begin, end) for file in self._files]
        found = np.concatenate(blocks, axis=1)
        for row in range(end - begin):
            parts = [block[row, : valid[begin + row]] for block, valid in zip(blocks, self._valid, strict=True)]
            found[row, : self.lengths[begin + row]] = np.concatenate(parts)
        return found

    def packed(self, indices: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Turn positions in all files into those in rows of `rows_block`; what is no position stays.

        Both are the same in a row that is full in all files before the last one that has scores of it.
        """
        given, total = indices.astype(np.int64), self.lengths[:, None].astype(np.int64)
        found, before, used = given, 0, np.zeros_like(total)
        for file, lengths in zip(self._files, self._valid, strict=True):
            valid, offset = lengths[:, None].astype(np.int64), given - before
            there = np.where(offset < valid, used + offset, total + before - used + offset - valid)
            found = np.where((offset >= 0) & (offset < file.width), there, found)
            before, used = before + file.width, used + valid
        return found


def share_lengths(files: Sequence[Scores], lengths: NDArray[Any]) -> None:
    """Set the lengths of files of the same rows: `lengths` of whole rows replace the files' own."""
    whole, before = as_lengths(lengths, files[0].rows).astype(np.int64), 0
    for file in files:
        file.lengths = np.clip(whole - before, 0, file.width).astype(np.int32)
        before += file.width


def _clamped(file: Scores) -> NDArray[np.int32]:
    """Lengths within [0, width]; those of full rows, one number in memory, stay as they are."""
    return file.lengths if file.lengths.strides == (0,) else np.clip(file.lengths, 0, file.width)
