"""Score captures on disk: a score matrix with valid lengths, stored as scores or as an indexer's factors.

The format is safetensors with a few agreed names; docs/reference/capture-format.md specifies it. A capture is opened
without reading its scores: `Capture.rows_block` reads (kind "scores") or computes (kind "factors") any range of rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ksieve.core import problem
from ksieve.core.errors import ArgumentError, FileFormatError, shown
from ksieve.core.keys import widen
from ksieve.core.paths import as_path
from ksieve.core.text import bytes_text
from ksieve.files.arrays import Array, read_header
from ksieve.files.scores import FLOATS, FREE_ROWS, K_KEY, KIND_KEY, MAX_SIZE, VERSION_KEY, mmap_of, stored_k
from ksieve_lab.captures import factors

Kind = Literal["scores", "factors"]
Progress = Callable[[int, int], None]
"""Called as ``progress(rows done, rows in all)``."""

FORMAT_VERSION = 1

BLOCK_BYTES = 64 << 20
"""Default bound on the bytes of one block of scores."""


class Block(NamedTuple):
    """Consecutive rows of a capture, from row `begin` on."""

    begin: int
    scores: Array
    lengths: NDArray[np.int32]


class Capture:
    """A capture opened for reading; made by `open_capture`.

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
        self.path = as_path(path)
        self._tensors, self.metadata = read_header(self.path)
        self.kind: Kind = self._recognise()
        self.k = stored_k(self.path, self.metadata) if VERSION_KEY in self.metadata else None
        if self.kind == "scores":
            self._first = self._scores = self._map("scores", (*FLOATS,), ("rows", "width"))
            self.rows, self.width = self._scores.shape
            self.dtype = FLOATS[self._tensors["scores"].dtype]
        else:
            self._open_factors()
        self._bytes = mmap_of(self._first).size()
        for count, what in ((self.rows, "rows"), (self.width, "keys" if self.kind == "factors" else "scores a row")):
            if count > max(FREE_ROWS, self._bytes):
                raise self._error(f"{count:,} {what} in a file of {self._bytes:,} bytes")
        self.lengths: NDArray[np.int32] = self._read_lengths()

    def rows_block(self, begin: int, end: int) -> Array:
        """Read or compute the scores of rows `begin` to `end`, as a slice does.

        Returns
        -------
        ndarray, shape (rows of the slice, width)
            A new, writable, contiguous array of `dtype`; uint16 bits for bfloat16. The valid lengths are
            ``lengths[begin:end]``; scores past them are stored padding, or evaluated by the formula. The bits of a row
            do not depend on the block in which it is read.

        Raises
        ------
        FileFormatError
            If the file was cut short after it was opened.
        """
        return self.tile(begin, end, 0, self.width)

    def tile(self, begin: int, end: int, first: int, last: int) -> Array:
        """Read or compute columns `first` to `last` of rows `begin` to `end`; otherwise as `rows_block`."""
        first, last, _ = slice(first, last).indices(self.width)
        return self._read(slice(begin, end), first, last)

    def rows_at(self, rows: Sequence[int]) -> Array:
        """Read or compute the scores of any rows, in the order given; otherwise as `rows_block`."""
        return self._read(np.array(rows, np.intp), 0, self.width)

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
        lengths = self.clamped()
        return int(lengths.min()), int(lengths.max()), int(lengths.sum(dtype=np.int64))

    def clamped(self) -> NDArray[np.int32]:
        """Return the lengths, clamped to [0, width]; those of full rows take no memory."""
        return self.lengths if self.lengths.strides == (0,) else np.clip(self.lengths, 0, self.width)

    def describe(self) -> dict[str, str]:
        """Return the facts for display, in order: shape, lengths, size, then metadata."""
        least, most, total = self.valid_scores()
        matrix = self.rows * self.width * itemsize(self.dtype)
        facts = {
            "file": f"{self.path} ({bytes_text(self.path.stat().st_size)})",
            "kind": self.kind,
            "scores": f"{self.rows:,} rows x {self.width:,} {self.dtype} ({bytes_text(matrix)})",
            "lengths": f"{least:,} to {most:,}, {total:,} valid scores" if self.rows else "none",
        }
        if self.kind == "factors":
            _, heads, dim = self._q.shape
            facts["factors"] = (
                f"{heads} heads of {dim}; queries {self._tensors['q'].dtype}, keys {self._tensors['k'].dtype}"
            )
        facts["suggested k"] = f"{self.k:,}" if self.k is not None else "none"
        own = (VERSION_KEY, KIND_KEY, K_KEY)
        # A metadata key of the same name never replaces a measured fact.
        return facts | {
            f"metadata {name}" if name in facts else name: value
            for name, value in self.metadata.items()
            if name not in own
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the use of the file; it is closed when the capture is gone."""

    def __repr__(self) -> str:
        return f"<Capture {str(self.path)!r}: {self.kind}, {self.rows} x {self.width} {self.dtype}>"

    def _recognise(self) -> Kind:
        version = self.metadata.get(VERSION_KEY)
        if version not in (None, str(FORMAT_VERSION)):
            raise self._error(f"capture format version {version!r}; this ksieve reads {FORMAT_VERSION}")
        names = set(self._tensors)
        found: Kind
        if "scores" in names:
            found = "scores"
        elif names >= factors.FACTORS:
            found = "factors"
        else:
            raise self._error(
                f"not a score capture: it holds tensors {sorted(names)}; a capture holds 'scores', or 'q', 'k' and 'w'"
            )
        stated = self.metadata.get(KIND_KEY, found) if version is not None else found
        if stated != found:
            raise self._error(f"metadata says kind {stated!r}, its tensors say {found!r}")
        return found

    def _map(self, name: str, dtypes: Sequence[str], shape: Sequence[int | str]) -> Array:
        """Map a tensor after a check of its dtype and shape; a string in `shape` stands for any size."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise self._error(f"tensor {name!r} is missing; the file holds {sorted(self._tensors)}")
        if tensor.dtype not in dtypes:
            raise self._error(f"tensor {name!r} has dtype {tensor.dtype}; takes {' or '.join(dtypes)}")
        if len(tensor.shape) != len(shape) or any(
            isinstance(want, int) and got != want for got, want in zip(tensor.shape, shape, strict=True)
        ):
            wanted = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
            raise self._error(f"tensor {name!r} has shape {tensor.shape}; takes ({wanted})")
        if max(tensor.shape) > MAX_SIZE:
            raise self._error(f"tensor {name!r} has shape {tensor.shape}; takes sizes up to {MAX_SIZE}")
        return tensor.map()

    def _open_factors(self) -> None:
        self._first = self._q = self._map("q", (*FLOATS,), ("rows", "heads", "dim"))
        self.rows, heads, dim = self._q.shape
        self._keys = self._map("k", ("I8", *FLOATS), ("width", dim))
        self.width, self.dtype = self._keys.shape[0], "float32"
        self._w = self._map("w", ("F32",), (self.rows, heads))
        self._scale: Array | None = None
        if self._tensors["k"].dtype == "I8" or "k_scale" in self._tensors:
            self._scale = np.array(self._map("k_scale", ("F32",), (self.width,)))
            if not (np.isfinite(self._scale) & (self._scale >= 0)).all():
                raise self._error("tensor 'k_scale' holds a negative or non-finite scale")

    def _read(self, rows: slice | NDArray[np.intp], first: int, last: int) -> Array:
        """Copy or compute columns `first` to `last` of some rows."""
        # Reading a page of a map behind the end of its file ends the process.
        if mmap_of(self._first).size() < self._bytes:
            raise self._error("it was cut after it was opened")
        if self.kind == "scores":
            return np.array(self._scores[rows, first:last], order="C")
        read = lambda i, j: _wide(self._keys[first + i : first + j])  # noqa: E731
        scale = None if self._scale is None else self._scale[first:last]
        return factors.evaluate(_wide(self._q[rows]), self._w[rows], last - first, read, scale)

    def _read_lengths(self) -> NDArray[np.int32]:
        if "lengths" in self._tensors:
            return np.array(self._map("lengths", ("I32",), (self.rows,)))
        if self.kind == "scores":
            return np.broadcast_to(np.int32(self.width), self.rows)  # one number in memory
        if self.rows > self.width:
            raise self._error(
                f"{self.rows} queries for {self.width} keys: a file without 'lengths' is a causal window, "
                "which has no more queries than keys"
            )
        return np.arange(self.width - self.rows + 1, self.width + 1, dtype=np.int32)

    def _error(self, fault: str) -> FileFormatError:
        return FileFormatError(f"{self.path}: {fault}")


def _wide(array: Array) -> Array:
    return widen(array) if array.dtype == np.uint16 else array


def open_capture(path: str | os.PathLike[str]) -> Capture:
    """Open a score capture without reading its scores.

    Parameters
    ----------
    path : path
        A ``.safetensors`` file of scores or of factors.

    Returns
    -------
    Capture

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


def rows_per_block(width: int, dtype: str, max_bytes: int) -> int:
    """Rows of a block of at most `max_bytes` of scores; at least one."""
    if not problem.is_int(max_bytes) or max_bytes < 1:
        raise ArgumentError("max_bytes", repr(max_bytes), "an int of at least 1")
    return max(1, int(max_bytes) // max(1, width * itemsize(dtype)))


def itemsize(dtype: str) -> int:
    """Bytes of a score."""
    return 4 if dtype == "float32" else 2
