"""Score matrices saved by NumPy or PyTorch, copied into captures block by block.

One function, `import_scores`, for every source; what differs between file types is how an array in them is
found and how its next rows are read, which the `_Source` classes hold. A `.npy` file and a torch file are
memory-mapped, a `.npz` member is decompressed as it is read, so the matrix may be larger than memory.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.lib import format as npy

from ksieve import problem
from ksieve.errors import ArgumentError, BackendError, CaptureFormatError, KsieveError
from ksieve.text import printable
from ksieve.workloads.capture import BLOCK_BYTES, Array, Progress, rows_per_block
from ksieve.workloads.numbers import narrow
from ksieve.workloads.writer import CaptureWriter

NUMPY_SUFFIXES = (".npy", ".npz")
TORCH_SUFFIXES = (".pt", ".pth")
SUFFIXES = NUMPY_SUFFIXES + TORCH_SUFFIXES
"""File types that can be imported."""

_TAKES = "float32, float16, bfloat16 (uint16 bits in NumPy), or float64 rounded on request (dtype float32)"
_RAW16 = np.dtype("V2")
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError)
"""What zipfile and NumPy raise for broken or foreign files."""


def import_scores(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    name: str | None = None,
    lengths: Any = None,
    lengths_name: str | None = None,
    dtype: str | None = None,
    k: int | None = None,
    metadata: Mapping[str, str] | None = None,
    max_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
) -> None:
    """Copy a score matrix into a capture.

    Parameters
    ----------
    source : path
        ``.npy``, ``.npz``, or a torch file ``.pt`` / ``.pth`` that holds a tensor or a dict of tensors.
    target : path
        The capture to write.
    name : str, optional
        Which array of an ``.npz`` or dict holds the scores. Default: the one named "scores", or the only one.
    lengths : path or array of int, shape (rows,), optional
        Valid lengths: an array, or a file of any of the source's types. Default: the array named "lengths" in the
        source itself, if there is one; else every row is valid throughout.
    lengths_name : str, optional
        Which array of the lengths file (or of the source, when `lengths` is omitted) holds the lengths.
    dtype : {"float32", "float16", "bfloat16"}, optional
        Round the scores to this dtype, to nearest even. Default: keep them; float64 scores need it.
    k : int, optional
        The K that the capture is meant for.
    metadata : mapping of str to str, optional
        Stored with the capture; "source", the file's name, is added when absent.
    max_bytes : int
        Bound on the bytes of scores held at a time.
    progress : callable, optional
        Called as ``progress(rows done, rows in all)``.

    Raises
    ------
    CaptureFormatError
        The file is absent, damaged or no matrix of scores; names the file and the problem.
    ArgumentError
        `name`, `lengths` or `dtype` does not fit what the file holds.
    BackendError
        A torch file, and PyTorch is not installed.
    """
    path = Path(source)
    with _open(path, name, prefer="scores") as matrix:
        kept = _score_dtype(path, matrix, dtype)
        rows, width = matrix.shape
        valid = _find_lengths(path, matrix.names, lengths, lengths_name, rows)
        facts = {"source": printable(path.name)} | dict(metadata or {})
        # Eight bytes per score: the source may be float64.
        step = rows_per_block(2 * width, "float32", max_bytes)
        with CaptureWriter(target, rows, width, kept, k=k, metadata=facts) as writer:
            for begin in range(0, rows, step):
                end = min(begin + step, rows)
                block = matrix.next_rows(end - begin)
                if dtype is not None:
                    block = narrow(block, dtype)
                writer.write(block, None if valid is None else valid[begin:end])
                if progress is not None:
                    progress(end, rows)


def load_array(source: str | os.PathLike[str], name: str | None = None, *, prefer: str) -> Array:
    """Read one array, such as lengths or indices, from a file of any importable type.

    Parameters
    ----------
    source : path
    name : str, optional
        Which array of an ``.npz`` or dict of tensors. Default: the one named `prefer`, or the only one.
    prefer : str

    Returns
    -------
    ndarray
        Contiguous; of a ``.npy`` or torch file a read-only or copy-on-write map of the file where it can be.

    Raises
    ------
    CaptureFormatError, ArgumentError, BackendError
        As `import_scores`.
    """
    with _open(Path(source), name, prefer=prefer) as found:
        if not found.shape:
            raise CaptureFormatError(f"{source}: holds a single number; takes an array")
        return found.next_rows(found.shape[0])


class _Source(Protocol):
    """An array in a file whose rows are read once, in order.

    `dtype` is a canonical name, `names` are all arrays of the file (empty where it holds just one, unnamed).
    """

    shape: tuple[int, ...]
    dtype: str
    names: tuple[str, ...]

    def next_rows(self, count: int) -> Array:
        """Read the next rows."""


class _ArraySource:
    """An array that can be sliced: a memory map or a tensor's storage."""

    def __init__(self, array: Array, dtype: str, names: tuple[str, ...] = ()) -> None:
        self.shape, self.dtype, self.names = array.shape, dtype, names
        self._array = array
        self._at = 0

    def next_rows(self, count: int) -> Array:
        begin, self._at = self._at, self._at + count
        return _native(self._array[begin : self._at])


class _StreamSource:
    """A member of an `.npz` archive, decompressed as it is read."""

    def __init__(self, stream: IO[bytes], path: Path, member: str, names: tuple[str, ...]) -> None:
        self._stream, self._path, self._member, self.names = stream, path, member, names
        version = npy.read_magic(stream)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        self.shape, by_columns, self._stored = read_header(stream)
        if by_columns and len(self.shape) > 1:
            raise CaptureFormatError(
                f"{path}: array {member!r} is stored by columns (Fortran order) and cannot be read row by row; "
                "save numpy.ascontiguousarray(array), or save it alone as .npy"
            )
        if self._stored.hasobject:
            raise CaptureFormatError(f"{path}: array {member!r} holds Python objects, not numbers")
        self.dtype = _dtype_name(self._stored)

    def next_rows(self, count: int) -> Array:
        size = count * int(np.prod(self.shape[1:], dtype=np.int64)) * self._stored.itemsize
        try:
            data = self._stream.read(size)
        except _DAMAGE as e:
            raise CaptureFormatError(f"{self._path}: array {self._member!r} is damaged ({e})") from e
        if len(data) != size:
            raise CaptureFormatError(f"{self._path}: array {self._member!r} ends early")
        return _native(np.frombuffer(data, dtype=self._stored).reshape(count, *self.shape[1:]))


@contextmanager
def _open(path: Path, name: str | None, prefer: str) -> Iterator[_Source]:
    """Find an array in a file by its suffix; reading errors of the libraries become CaptureFormatError."""
    if path.suffix not in SUFFIXES:
        raise CaptureFormatError(f"{path}: unknown file type {path.suffix!r}; takes {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise CaptureFormatError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    with ExitStack() as resources:
        try:
            if path.suffix == ".npz":
                source = _open_npz(path, name, prefer, resources)
            elif path.suffix == ".npy":
                _refuse_name(path, name)
                array = np.load(path, mmap_mode="r", allow_pickle=False)
                if not isinstance(array, np.ndarray):  # a zip archive, whatever its name
                    array.close()
                    raise CaptureFormatError(f"{path}: an .npz archive named .npy; rename it to {path.stem}.npz")
                source = _ArraySource(array, _dtype_name(array.dtype))
            else:
                source = _open_torch(path, name, prefer)
        except KsieveError:
            raise
        except _DAMAGE as e:
            raise CaptureFormatError(f"{path}: not a readable {path.suffix} file ({e})") from e
        yield source


def _open_npz(path: Path, name: str | None, prefer: str, resources: ExitStack) -> _Source:
    archive = resources.enter_context(zipfile.ZipFile(path))
    members = {m.removesuffix(".npy"): m for m in archive.namelist() if m.endswith(".npy")}
    chosen = _choose(path, tuple(members), name, prefer)
    return _StreamSource(resources.enter_context(archive.open(members[chosen])), path, chosen, tuple(members))


def _open_torch(path: Path, name: str | None, prefer: str) -> _Source:
    try:
        import torch
    except ImportError as e:
        raise BackendError(f"{path}: reading a torch file needs PyTorch: pip install torch") from e
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as e:  # by content: RuntimeError, UnpicklingError, EOFError, ValueError and more
        raise CaptureFormatError(f"{path}: not a torch file of tensors ({str(e).splitlines()[0]})") from e
    names: tuple[str, ...] = ()
    if isinstance(loaded, torch.Tensor):
        _refuse_name(path, name)
    elif isinstance(loaded, dict):
        tensors = {str(n): t for n, t in loaded.items() if isinstance(t, torch.Tensor)}
        names = tuple(tensors)
        loaded = tensors[_choose(path, names, name, prefer)]
    else:
        raise CaptureFormatError(f"{path}: holds a {type(loaded).__name__}; takes a tensor or a dict of tensors")
    dtype = str(loaded.dtype).removeprefix("torch.")
    try:
        return _ArraySource(problem.as_numpy(loaded), dtype, names)
    except (TypeError, RuntimeError) as e:  # float8, quantised and sparse tensors have no NumPy counterpart
        raise CaptureFormatError(f"{path}: a {loaded.layout} tensor of {dtype}; takes a dense one of {_TAKES}") from e


def _choose(path: Path, names: tuple[str, ...], name: str | None, prefer: str) -> str:
    if not names:
        raise CaptureFormatError(f"{path}: holds no array")
    if name is not None:
        if name not in names:
            raise ArgumentError("name", repr(name), f"one of {list(names)}, the arrays of {path}")
        return name
    if prefer in names:
        return prefer
    if len(names) == 1:
        return names[0]
    raise ArgumentError("name", None, f"one of {list(names)}, the arrays of {path}")


def _refuse_name(path: Path, name: str | None) -> None:
    if name is not None:
        raise ArgumentError("name", repr(name), f"nothing: {path} holds a single array")


def _score_dtype(path: Path, matrix: _Source, asked: str | None) -> str:
    if len(matrix.shape) != 2:
        raise CaptureFormatError(f"{path}: holds an array of shape {matrix.shape}; takes a matrix (rows, width)")
    if asked is not None and asked not in problem.SCORE_DTYPES:
        raise ArgumentError("dtype", repr(asked), f"one of {list(problem.SCORE_DTYPES)}")
    if matrix.dtype in problem.SCORE_DTYPES:
        return asked or matrix.dtype
    if matrix.dtype == "float64" and asked is not None:
        return asked
    raise CaptureFormatError(f"{path}: scores of dtype {matrix.dtype}; takes {_TAKES}")


def _find_lengths(
    path: Path, names: tuple[str, ...], lengths: Any, lengths_name: str | None, rows: int
) -> Array | None:
    """Turn the `lengths` argument into int32 lengths; None when neither it nor the source has any."""
    where = "lengths"
    if isinstance(lengths, (str, os.PathLike)):
        where = f"lengths in {lengths}"
        lengths = load_array(lengths, lengths_name, prefer="lengths")
    elif lengths is None:
        if lengths_name is None and "lengths" not in names:
            return None
        where = f"lengths in {path}"
        lengths = load_array(path, lengths_name, prefer="lengths")
    found = np.asarray(problem.as_numpy(lengths))
    if found.dtype.kind not in "iu" or found.shape != (rows,):
        raise ArgumentError(where, f"dtype {found.dtype}, shape {found.shape}", f"integers of shape ({rows},)")
    # A length beyond int32 means the same as the largest int32: longer than any row.
    valid: Array = np.clip(found, -(1 << 31), (1 << 31) - 1).astype(np.int32)
    return valid


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Name a stored dtype; raw 2-byte items are what numpy.save makes of ``ml_dtypes.bfloat16``."""
    if dtype in (np.uint16, _RAW16):
        return "bfloat16"
    return str(dtype.newbyteorder("=").name)


def _native(array: Array) -> Array:
    """Contiguous and in this machine's byte order, a view where it is already; raw 2-byte items as uint16."""
    bits = array.view(np.uint16) if array.dtype == _RAW16 else array
    return np.ascontiguousarray(bits, dtype=bits.dtype.newbyteorder("="))
