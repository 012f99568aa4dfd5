"""Score captures on disk: a score matrix with valid lengths, stored as scores or as an indexer's factors.

The format is safetensors with a few agreed names; docs/reference/capture-format.md specifies it. A capture is opened
without reading its scores: `Capture.rows_block` reads (kind "scores") or computes (kind "factors") any range of rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ksieve.core import problem
from ksieve.core.errors import ArgumentError, shown
from ksieve.core.keys import widen
from ksieve.core.text import bytes_text
from ksieve.files.scores import FLOATS, FREE_ROWS, K_KEY, KIND_KEY, VERSION_KEY
from ksieve_lab.captures import factors
from ksieve_lab.captures.tensorfile import DTYPE_OF_NAME, NUMPY_OF, TensorFile, TensorInfo

Array = np.ndarray[Any, Any]
Kind = Literal["scores", "factors"]
Progress = Callable[[int, int], None]
"""Called as ``progress(rows done, rows in all)``."""

FORMAT_VERSION = 1

BLOCK_BYTES = 64 << 20
"""Default bound on the bytes of one block of scores."""

_PART = 1 << 20
"""Rows whose lengths are clamped at a time."""

_SHOWN = 40
"""Largest number of characters of a file's text in an error."""

_NAME_OF_DTYPE = {v: k for k, v in DTYPE_OF_NAME.items()}


class Block(NamedTuple):
    """Consecutive rows of a capture, from row `begin` on."""

    begin: int
    scores: Array
    lengths: NDArray[np.int32]


class Capture:
    """A capture opened for reading; made by `open_capture`, closed by `close` or a ``with`` block.

    Attributes
    ----------
    path : Path
    kind : {"scores", "factors"}
    rows, width : int
        Shape of the score matrix.
    dtype : {"float32", "float16", "bfloat16"}
        Dtype of the blocks. bfloat16 is represented as uint16 bits; captures of factors give float32.
    lengths : ndarray of int32, shape (rows,)
        As stored, not clamped: values may be below 0 or above `width`; `ksieve.topk` clamps them. Read-only, and one
        number in memory, for full rows of which the file holds no lengths.
    k : int or None
        The K that the capture is meant for; None if its metadata names none.
    metadata : dict of str to str
        All of the file's metadata.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = TensorFile(path)
        try:
            self.path = self._file.path
            self.metadata = self._file.metadata
            self.kind: Kind = self._recognise()
            self.k = self._suggested_k()
            if self.kind == "scores":
                self._scores = self._file.require("scores", (*FLOATS,), ("rows", "width"))
                self.rows, self.width = self._scores.shape
                self.dtype = _NAME_OF_DTYPE[self._scores.dtype]
            else:
                self._open_factors()
            for count, what in (
                (self.rows, "rows"),
                (self.width, "keys" if self.kind == "factors" else "scores a row"),
            ):
                if count > max(FREE_ROWS, self._file.size):
                    raise self._file.error(f"{count:,} {what} in a file of {self._file.size:,} bytes")
            self.lengths: NDArray[np.int32] = self._read_lengths()
        except BaseException:
            self._file.close()
            raise

    def rows_block(self, begin: int, end: int) -> Array:
        """Read or compute the scores of rows `begin` to `end`.

        Parameters
        ----------
        begin, end : int
            ``0 <= begin <= end <= rows``.

        Returns
        -------
        ndarray, shape (end - begin, width)
            A new, writable, contiguous array of `dtype`; uint16 bits for bfloat16. The valid lengths are
            ``lengths[begin:end]``; scores past them are stored padding, or evaluated by the formula. The bits of a row
            do not depend on the block in which it is read.

        Raises
        ------
        ArgumentError
            If ``0 <= begin <= end <= rows`` does not hold, or the capture is closed.
        FileFormatError
            If the file was cut short after it was opened.
        """
        _check_span("begin, end", begin, end, self.rows)
        if self.kind == "scores":
            return self._file.read(self._scores, begin, end)
        return self._evaluate(self._read_factor(self._q, begin, end), self._read_factor(self._w, begin, end))

    def tile(self, begin: int, end: int, first: int, last: int) -> Array:
        """Read or compute columns `first` to `last` of rows `begin` to `end`; otherwise as `rows_block`.

        Parameters
        ----------
        begin, end : int
            ``0 <= begin <= end <= rows``.
        first, last : int
            ``0 <= first <= last <= width``.
        """
        _check_span("begin, end", begin, end, self.rows)
        _check_span("first, last", first, last, self.width)
        if self.kind == "scores":
            return self._file.read_columns(self._scores, begin, end, first, last)
        q, weights = self._read_factor(self._q, begin, end), self._read_factor(self._w, begin, end)
        return self._evaluate(q, weights, first, last)

    def rows_at(self, rows: Sequence[int]) -> Array:
        """Read or compute the scores of any rows, in the order given; otherwise as `rows_block`.

        Parameters
        ----------
        rows : sequence of int
            Each from 0 to ``self.rows - 1``.
        """
        for row in rows:
            if not problem.is_int(row) or not 0 <= row < self.rows:
                raise ArgumentError("rows", shown(row), f"row numbers from 0 to {self.rows - 1}")
        if not len(rows):
            return self.rows_block(0, 0)
        if self.kind == "scores":
            return np.concatenate([self._file.read(self._scores, r, r + 1) for r in rows])
        return self._evaluate(
            np.concatenate([self._read_factor(self._q, r, r + 1) for r in rows]),
            np.concatenate([self._read_factor(self._w, r, r + 1) for r in rows]),
        )

    def iter_blocks(self, max_bytes: int = BLOCK_BYTES, *, progress: Progress | None = None) -> Iterator[Block]:
        """Iterate over all rows in blocks of at most `max_bytes` of scores (at least one row each).

        Parameters
        ----------
        max_bytes : int
        progress : callable, optional
            Called as ``progress(rows done, rows in all)`` after the consumer has finished with each block.

        Yields
        ------
        Block
            ``(begin, scores, lengths)``.
        """
        step = rows_per_block(self.width, self.dtype, max_bytes)
        for begin in range(0, self.rows, step):
            end = min(begin + step, self.rows)
            yield Block(begin, self.rows_block(begin, end), self.lengths[begin:end])
            if progress is not None:
                progress(end, self.rows)

    def valid_scores(self) -> tuple[int, int, int]:
        """Return the least, the largest and the sum of the lengths, clamped to [0, width]; zeros without a row."""
        if not self.rows:
            return 0, 0, 0
        if self.lengths.strides == (0,):
            return self.width, self.width, self.rows * self.width
        found = [(part.min(), part.max(), part.sum(dtype=np.int64)) for _, part in self.iter_clamped()]
        least, most, sums = zip(*found, strict=True)
        return int(min(least)), int(max(most)), int(sum(sums))

    def clamped(self, begin: int = 0, end: int | None = None) -> NDArray[np.int32]:
        """Return the lengths of rows `begin` to `end`, clamped to [0, width]; full rows take no memory."""
        lengths = self.lengths[begin:end]
        return lengths if lengths.strides == (0,) else np.clip(lengths, 0, self.width)

    def iter_clamped(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Iterate over the first row and `clamped` lengths of parts of the rows, which take little memory."""
        for begin in range(0, self.rows, _PART):
            yield begin, self.clamped(begin, begin + _PART)

    def describe(self) -> dict[str, str]:
        """Return the facts for display, in order: shape, lengths, size, then metadata."""
        least, most, total = self.valid_scores()
        matrix = self.rows * self.width * NUMPY_OF[DTYPE_OF_NAME[self.dtype]].itemsize
        facts = {
            "file": f"{self.path} ({bytes_text(self.path.stat().st_size)})",
            "kind": self.kind,
            "scores": f"{self.rows:,} rows x {self.width:,} {self.dtype} ({bytes_text(matrix)})",
            "lengths": f"{least:,} to {most:,}, {total:,} valid scores" if self.rows else "none",
        }
        if self.kind == "factors":
            _, heads, dim = self._q.shape
            facts["factors"] = f"{heads} heads of {dim}; queries {self._q.dtype}, keys {self._keys.dtype}"
        facts["suggested k"] = f"{self.k:,}" if self.k is not None else "none"
        own = (VERSION_KEY, KIND_KEY, K_KEY)
        # A metadata key of the same name never replaces a measured fact.
        return facts | {
            f"metadata {name}" if name in facts else name: value
            for name, value in self.metadata.items()
            if name not in own
        }

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Capture {str(self.path)!r}: {self.kind}, {self.rows} x {self.width} {self.dtype}>"

    def _recognise(self) -> Kind:
        version = self.metadata.get(VERSION_KEY)
        if version not in (None, str(FORMAT_VERSION)):
            raise self._file.error(f"capture format version {version!r}; this ksieve reads {FORMAT_VERSION}")
        names = set(self._file.tensors)
        found: Kind
        if "scores" in names:
            found = "scores"
        elif names >= factors.FACTORS:
            found = "factors"
        else:
            raise self._file.error(
                f"not a score capture: it holds tensors {sorted(names)}; a capture holds 'scores', or 'q', 'k' and 'w'"
            )
        stated = self.metadata.get(KIND_KEY, found) if version is not None else found
        if stated != found:
            raise self._file.error(f"metadata says kind {stated!r}, its tensors say {found!r}")
        return found

    def _suggested_k(self) -> int | None:
        text = self.metadata.get(K_KEY)
        if text is None or VERSION_KEY not in self.metadata:
            return None
        # Every K has at most seven digits; int() of thousands of digits would raise or be slow.
        if not (re.fullmatch("[0-9]{1,7}", text) and 1 <= int(text) <= problem.MAX_K):
            shown = repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
            raise self._file.error(f"metadata {K_KEY!r} is {shown}; takes an int from 1 to {problem.MAX_K}")
        return int(text)

    def _open_factors(self) -> None:
        file = self._file
        self._q = file.require("q", (*FLOATS,), ("rows", "heads", "dim"))
        self.rows, heads, dim = self._q.shape
        self._keys = file.require("k", ("I8", *FLOATS), ("width", dim))
        self.width, self.dtype = self._keys.shape[0], "float32"
        self._w = file.require("w", ("F32",), (self.rows, heads))
        self._scale: Array | None = None
        if self._keys.dtype == "I8" or "k_scale" in file.tensors:
            self._scale = file.read(file.require("k_scale", ("F32",), (self.width,)), 0, self.width)
            if not (np.isfinite(self._scale) & (self._scale >= 0)).all():
                raise file.error("tensor 'k_scale' holds a negative or non-finite scale")

    def _evaluate(self, q: Array, weights: Array, first: int = 0, last: int | None = None) -> Array:
        last = self.width if last is None else last
        scale = None if self._scale is None else self._scale[first:last]
        read = lambda i, j: self._read_factor(self._keys, first + i, first + j)  # noqa: E731
        return factors.evaluate(q, weights, last - first, read, scale)

    def _read_factor(self, tensor: TensorInfo, begin: int, end: int) -> Array:
        array = self._file.read(tensor, begin, end)
        return widen(array) if tensor.dtype == "BF16" else array

    def _read_lengths(self) -> NDArray[np.int32]:
        if "lengths" in self._file.tensors:
            return self._file.read(self._file.require("lengths", ("I32",), (self.rows,)), 0, self.rows)
        if self.kind == "scores":
            return np.broadcast_to(np.int32(self.width), self.rows)  # one number in memory
        if self.rows > self.width:
            raise self._file.error(
                f"{self.rows} queries for {self.width} keys: a file without 'lengths' is a causal window, "
                "which has no more queries than keys"
            )
        return np.arange(self.width - self.rows + 1, self.width + 1, dtype=np.int32)


def open_capture(path: str | os.PathLike[str]) -> Capture:
    """Open a score capture without reading its scores.

    Parameters
    ----------
    path : path
        A ``.safetensors`` file of scores or of factors.

    Returns
    -------
    Capture
        Close it, or use it in a ``with`` block.

    Raises
    ------
    ArgumentError
        If `path` is no path.
    FileFormatError
        The message names the file and the fault: absent, no complete safetensors file, not a capture, or a tensor of a
        dtype or shape that the format does not take.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError("path", shown(path), "the path of a capture (.safetensors)")
    return Capture(path)


def _check_span(names: str, begin: Any, end: Any, most: int) -> None:
    """Check the ends of a range of rows or columns; `names` are those of both arguments."""
    whole = problem.is_int(begin) and problem.is_int(end)
    if not whole or not 0 <= begin <= end <= most:
        takes = f"{'' if whole else 'ints with '}0 <= {names.replace(', ', ' <= ')} <= {most}"
        raise ArgumentError(names, f"{shown(begin)}, {shown(end)}", takes)


def rows_per_block(width: int, dtype: str, max_bytes: int) -> int:
    """Rows of a block of at most `max_bytes` of scores; at least one."""
    if not problem.is_int(max_bytes) or max_bytes < 1:
        raise ArgumentError("max_bytes", repr(max_bytes), "an int of at least 1")
    return max(1, int(max_bytes) // max(1, width * NUMPY_OF[DTYPE_OF_NAME[dtype]].itemsize))
