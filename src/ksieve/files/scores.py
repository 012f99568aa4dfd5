"""Score files: a matrix in a `.npy` or `.safetensors` file, read as blocks of rows, so it may be larger than memory.

Rows in several files, or wider than memory, are read by tiles of columns, for `ksieve.Running`.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ksieve.core import problem
from ksieve.core.atomic import write_bytes
from ksieve.core.dtypes import SCORE_DTYPES, canonical
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.core.installation import install_command
from ksieve.core.paths import as_path
from ksieve.core.problem import MAX_SIZE
from ksieve.files.arrays import Array, is_npy, map_npy, pick, read_header

FLOATS = {dtype.safetensors: name for name, dtype in SCORE_DTYPES.items()}
"""Score dtype of each safetensors dtype that scores may have."""

FREE_ROWS = 1 << 20
"""Largest number of rows without data; each further one takes a byte of the file, which bounds what is allocated."""

GROUP = "ksieve.files"
"""Entry points of readers for safetensors files that hold no matrix of scores."""

VERSION_KEY, KIND_KEY, K_KEY = "ksieve_capture", "kind", "topk"
"""Metadata of ksieve's own files: format version, what the tensors are, and the K that the scores are meant for."""


class Scores(Protocol):
    """What `open_scores` returns: a source for `ksieve.verify` and for selection by blocks or by tiles of columns.

    `lengths` are the file's, not clamped. Blocks are host arrays of `dtype`, bfloat16 as uint16 bits.
    """

    path: Path
    rows: int
    width: int
    dtype: str
    k: int | None
    lengths: NDArray[np.int32]

    def rows_block(self, begin: int, end: int) -> Array:
        """Scores of rows `begin` to `end`."""

    def tile(self, begin: int, end: int, first: int, last: int) -> Array:
        """Columns `first` to `last` of rows `begin` to `end`."""

    def __enter__(self) -> Self:
        """Return the source."""

    def __exit__(self, *_: object) -> None:
        """Close the file."""


Reader = Callable[[Path], Scores | None]
"""Opens a safetensors file of its own kind; None for any other."""

READERS: list[Reader] = []
"""Readers besides `GROUP`'s, for programs that run without installed metadata."""


class ScoreFile:
    """Scores in a file, mapped into memory; made by `open_scores`.

    Attributes
    ----------
    path : Path
    rows, width : int
        Shape of the matrix.
    dtype : {"float32", "float16", "bfloat16"}
        Of the blocks; bfloat16 is represented as uint16 bits.
    lengths : ndarray of int32, shape (rows,)
        As stored, not clamped. Without any in the file, rows are full, and the array is one number in memory.
    k : int or None
        The K that the scores are meant for, where the file says it.
    """

    def __init__(self, path: Path, matrix: Array, dtype: str, lengths: Array | None, k: int | None) -> None:
        where = f"{path}: an array of shape {matrix.shape}"
        if matrix.ndim != 2:
            raise FileFormatError(f"{where}; takes a matrix (rows, width): reshape it before it is saved")
        if max(matrix.shape) > MAX_SIZE:
            raise FileFormatError(f"{where}; takes sizes up to {MAX_SIZE}, so that indices fit int32")
        self.path, self.dtype, self.k = path, dtype, k
        self.rows, self.width = matrix.shape
        self._matrix = matrix
        base: Any = matrix  # a view of the file's map
        while not isinstance(base, mmap.mmap):
            base = base.base
        self._map = base
        self._bytes = self._map.size()
        if max(matrix.shape) > max(FREE_ROWS, self._bytes):
            raise FileFormatError(f"{where} in a file of {self._bytes:,} bytes; takes at most {FREE_ROWS:,} rows")
        self.lengths: NDArray[np.int32] = np.broadcast_to(np.int32(self.width), self.rows)
        if lengths is not None:
            try:
                self.lengths = as_lengths(lengths, self.rows)
            except ArgumentError as error:
                raise FileFormatError(f"{path}: {error}") from None

    def rows_block(self, begin: int, end: int) -> Array:
        """Return rows `begin` to `end`, as a slice does; a view of the file where it is row-major and little-endian.

        Raises
        ------
        FileFormatError
            If the file was cut short after it was opened.
        """
        return self.tile(begin, end, 0, self.width)

    def tile(self, begin: int, end: int, first: int, last: int) -> Array:
        """Return columns `first` to `last` of rows `begin` to `end`; otherwise as `rows_block`."""
        # Reading a page of a map past the end of its file ends the process.
        if self._map.size() < self._bytes:
            raise FileFormatError(f"{self.path}: it was cut after it was opened")
        block = self._matrix[begin:end, first:last]
        return np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("="))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the use of the file; it is closed when the last block of it is gone."""

    def __repr__(self) -> str:
        return f"<ScoreFile {str(self.path)!r}: {self.rows} x {self.width} {self.dtype}>"


def open_scores(path: str | os.PathLike[str], tensor: str | None = None) -> Scores:
    """Open a file of scores without reading them.

    Parameters
    ----------
    path : path
        A ``.npy`` file of a matrix (rows, width), or a ``.safetensors`` file with a tensor "scores", else with one
        matrix. A tensor "lengths" of integers (rows,) is optional. float32, float16 or bfloat16; NumPy's uint16 is read
        as bfloat16 bits. Other safetensors files are for the readers of installed packages.
    tensor : str, optional
        Name of the tensor of scores.

    Returns
    -------
    ScoreFile
        Or what the reader of another package returns, with the same attributes and methods.

    Raises
    ------
    FileFormatError
        The file is absent or damaged, or its array is no matrix of scores.
    ArgumentError
        `tensor` is none of the file's, or is needed.
    """
    path = as_path(path)
    if is_npy(path):
        if tensor is not None:
            raise ArgumentError("tensor", repr(tensor), f"nothing: {path} holds a single array")
        matrix = map_npy(path)
        dtype = canonical(matrix.dtype.name)
        return ScoreFile(path, matrix, _score_dtype(path, dtype), None, None)
    if path.suffix in (".npz", ".pt", ".pth"):
        raise FileFormatError(f"{path}: takes a .npy or .safetensors file: save the scores alone, with numpy.save")
    tensors, metadata = read_header(path)
    ours = VERSION_KEY in metadata
    matrices = [name for name, each in tensors.items() if len(each.shape) == 2]
    name = tensor or ("scores" if "scores" in tensors else matrices[0] if len(matrices) == 1 else None)
    plain = not ours or (metadata[VERSION_KEY], metadata.get(KIND_KEY, "scores")) == ("1", "scores")
    if tensor is None and not (plain and name):
        for reader in (*READERS, *(entry.load() for entry in entry_points(group=GROUP))):
            found: Scores | None = reader(path)
            if found is not None:
                return found
        if ours:
            raise FileFormatError(
                f"{path}: a capture of ksieve's laboratory, which is not installed: "
                f"{install_command(name='ksieve-lab')}"
            )
    among = tensors if name or not matrices else {other: tensors[other] for other in matrices}
    chosen = tensors[pick(path, among, name, "scores", "tensor")]
    dtype = _score_dtype(path, FLOATS.get(chosen.dtype, chosen.dtype))
    lengths = tensors["lengths"].map() if "lengths" in tensors else None
    return ScoreFile(path, chosen.map(), dtype, lengths, stored_k(path, metadata) if ours else None)


def save_scores(path: str | os.PathLike[str], tensors: Mapping[str, Any], k: int, **metadata: str) -> None:
    """Write "scores" and "lengths", tensors of PyTorch of any score dtype, to a file that `open_scores` reads.

    `k`: the K that the scores are meant for, which ``ksieve select`` takes by default. `metadata`: further facts.
    """
    from safetensors.torch import save

    write_bytes(path, save(dict(tensors), {VERSION_KEY: "1", KIND_KEY: "scores", K_KEY: str(k)} | metadata))


def as_lengths(lengths: Array, rows: int) -> NDArray[np.int32]:
    """Check the lengths of `rows` rows; numbers beyond int32 become its ends, which mean the same."""
    if lengths.dtype.kind not in "iu" or lengths.shape != (rows,):
        got = f"dtype {lengths.dtype}, shape {lengths.shape}"
        raise ArgumentError("lengths", got, f"integers of shape ({rows},), one for each row")
    if lengths.dtype.itemsize >= 4:
        lengths = np.clip(lengths, -MAX_SIZE if lengths.dtype.kind == "i" else 0, MAX_SIZE)
    return lengths.astype(np.int32)


def _score_dtype(path: Path, dtype: str) -> str:
    if dtype not in SCORE_DTYPES:
        takes = "float32, float16, or bfloat16, which is uint16 in NumPy: convert them before they are saved, "
        takes += "or with ksieve import --dtype float32 of ksieve-lab"
        raise FileFormatError(f"{path}: scores of dtype {dtype}; takes {takes}")
    return dtype


def stored_k(path: Path, metadata: dict[str, str]) -> int | None:
    """Return the K of a file's metadata, if it has one."""
    text = metadata.get(K_KEY)
    # Every K has at most seven digits; int() of thousands of digits would raise or be slow.
    if text is None or (re.fullmatch("[0-9]{1,7}", text) and 1 <= int(text) <= problem.MAX_K):
        return None if text is None else int(text)
    raise FileFormatError(f"{path}: metadata {K_KEY!r} is {text[:40]!r}; takes an int from 1 to {problem.MAX_K}")


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
