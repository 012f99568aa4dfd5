"""Arrays in files of NumPy, PyTorch and safetensors, read row by row; `ksieve_lab.captures.importers` copies them.

File types differ in how an array is found and how its next rows are read. A `.npy` and a torch file are memory-mapped,
a member of a `.npz` is decompressed as it is read, a safetensors file is read in pieces. No code in a file is executed;
a damaged or malicious file raises `FileFormatError`.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.lib import format as npy

from ksieve.core import problem
from ksieve.core.errors import ArgumentError, BackendError, FileFormatError, KsieveError
from ksieve.core.paths import unreadable
from ksieve_lab.captures.factors import FACTORS
from ksieve_lab.captures.tensorfile import NUMPY_OF, OTHERS, SIZES, TensorFile, TensorInfo, too_large
from ksieve_lab.captures.torchfile import check_storages

Array = np.ndarray[Any, Any]

NUMPY_SUFFIXES = (".npy", ".npz")
TORCH_SUFFIXES = (".pt", ".pth")
SAFETENSORS = ".safetensors"
FOREIGN_SUFFIXES = NUMPY_SUFFIXES + TORCH_SUFFIXES
"""File types that are no captures."""

SUFFIXES = (*FOREIGN_SUFFIXES, SAFETENSORS)
"""File types that can be imported."""

TAKES = 'float32, float16, bfloat16 (uint16 bits in NumPy), or float64 rounded on request: dtype="float32"'

_RAW16 = np.dtype("V2")
_PIECE_BYTES = 16 << 20


class Source(Protocol):
    """An array in a file.

    Its rows run along the last axis, in C order over all other axes, and are read once, in order. `dtype` is a
    canonical name; `names` lists all arrays of the file, and is empty for a file of one unnamed array.
    """

    shape: tuple[int, ...]
    dtype: str
    names: tuple[str, ...]

    def skip(self, rows: int) -> None:
        """Pass over rows."""

    def next_rows(self, count: int) -> Array:
        """Read the next rows: an array of shape (count, width)."""

    def whole(self) -> Array:
        """Read the whole array, of any rank; an alternative to reading rows."""


class _ArraySource:
    """An array that can be sliced: a memory map or a tensor's storage."""

    def __init__(self, array: Array, dtype: str, names: tuple[str, ...] = ()) -> None:
        self.shape, self.dtype, self.names = array.shape, dtype, names
        self._array = array
        self._at = 0

    def skip(self, rows: int) -> None:
        self._at += rows

    def next_rows(self, count: int) -> Array:
        pieces = []
        end = self._at + count
        while self._at < end:
            # Indexing the leading axes gives a view for any strides; reshaping could copy the whole array.
            matrix, row = divmod(self._at, self.shape[-2])
            lead = np.unravel_index(matrix, self.shape[:-2]) if self.shape[:-2] else ()
            piece = self._array[tuple(map(int, lead))][row : row + end - self._at]
            pieces.append(np.ascontiguousarray(_native(piece)))
            self._at += piece.shape[0]
        if not pieces:
            return np.empty((0, self.shape[-1]), _native(self._array[:0]).dtype)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def whole(self) -> Array:
        return _native(self._array)


class _TensorSource:
    """A tensor of a safetensors file."""

    def __init__(self, file: TensorFile, tensor: TensorInfo, names: tuple[str, ...]) -> None:
        self._file, self._tensor = file, tensor
        self.shape, self.names = tensor.shape, names
        self.dtype = "bfloat16" if tensor.dtype == "BF16" else str(tensor.storage.name)
        self._at = 0

    def skip(self, rows: int) -> None:
        self._at += rows

    def next_rows(self, count: int) -> Array:
        t = self._tensor
        rows = TensorInfo(t.name, t.dtype, (math.prod(t.shape[:-1]), t.shape[-1]), t.offset)
        begin, self._at = self._at, self._at + count
        return _native(self._file.read(rows, begin, self._at))

    def whole(self) -> Array:
        return _native(self._file.read(self._tensor, 0, self.shape[0]))


class _StreamSource:
    """A member of an `.npz` archive, decompressed as it is read."""

    def __init__(self, stream: IO[bytes], size: int, path: Path, member: str, names: tuple[str, ...]) -> None:
        self._stream, self._path, self._member, self.names = stream, path, member, names
        self.shape, by_columns, self._stored = _npy_header(stream)
        if by_columns and len(self.shape) > 1:
            raise FileFormatError(
                f"{path}: array {member!r} is stored by columns (Fortran order) and cannot be read row by row; "
                "save numpy.ascontiguousarray(array), or save it alone as .npy"
            )
        if self._stored.hasobject:
            raise FileFormatError(f"{path}: array {member!r} holds Python objects, not numbers")
        if stream.tell() + math.prod(self.shape) * self._stored.itemsize > size:
            raise FileFormatError(f"{path}: array {member!r} ends early")
        self.dtype = _dtype_name(self._stored)

    def skip(self, rows: int) -> None:
        left = rows * self.shape[-1] * self._stored.itemsize
        while left:
            left -= len(self._read(min(left, _PIECE_BYTES)))

    def next_rows(self, count: int) -> Array:
        return self._array((count, self.shape[-1]))

    def whole(self) -> Array:
        return self._array(self.shape)

    def _array(self, shape: tuple[int, ...]) -> Array:
        data = self._read(math.prod(shape) * self._stored.itemsize)
        return _native(np.frombuffer(data, dtype=self._stored).reshape(shape))

    def _read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except Exception as e:  # zipfile and the decompressors raise BadZipFile, zlib.error, EOFError and more
            raise FileFormatError(f"{self._path}: array {self._member!r} is damaged ({_words(e)})") from e
        if len(data) != size:
            raise FileFormatError(f"{self._path}: array {self._member!r} ends early")
        return data


@contextmanager
def open_source(path: Path, name: str | None, prefer: str) -> Iterator[Source]:
    """Open an array of a file by the file's suffix; exceptions of the libraries become `FileFormatError`."""
    if path.suffix not in SUFFIXES:
        raise FileFormatError(f"{path}: unknown file type {path.suffix!r}; takes {', '.join(SUFFIXES)}")
    if fault := unreadable(path):
        raise FileFormatError(f"{path}: {fault}")
    with ExitStack() as resources:
        source: Source
        try:
            if path.suffix == ".npz":
                source = _open_npz(path, name, prefer, resources)
            elif path.suffix == ".npy":
                _refuse_name(path, name)
                array = _map_npy(path)
                source = _ArraySource(array, _dtype_name(array.dtype))
            elif path.suffix == SAFETENSORS:
                source = _open_safetensors(path, name, prefer, resources)
            else:
                source = _open_torch(path, name, prefer)
        except KsieveError:
            raise
        except (
            Exception
        ) as e:  # depends on the content: ValueError, BadZipFile, struct.error, UnicodeDecodeError, RecursionError ...
            raise FileFormatError(f"{path}: not a readable {path.suffix} file ({_words(e)})") from e
        if too_large(source.shape):
            raise FileFormatError(f"{path}: holds an array of shape {source.shape}; takes {SIZES}")
        yield source


def _map_npy(path: Path) -> Array:
    with path.open("rb") as file:
        magic = file.read(len(npy.MAGIC_PREFIX))
        if magic.startswith(b"PK"):
            raise ValueError("it is a zip archive: rename it to .npz")
        file.seek(0)
        shape, _, stored = _npy_header(file)
        size = os.fstat(file.fileno()).st_size
        if not stored.hasobject and file.tell() + math.prod(shape) * stored.itemsize > size:
            raise ValueError(f"shape {shape} of {stored} takes more than its {size:,} bytes")
    array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_columns, stored = read(stream)
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"shape {shape}; takes ints of at least 0")
    return shape, by_columns, stored


def _open_npz(path: Path, name: str | None, prefer: str, resources: ExitStack) -> Source:
    archive = resources.enter_context(zipfile.ZipFile(path))
    members = {m.removesuffix(".npy"): m for m in archive.namelist() if m.endswith(".npy")}

    def shapes() -> dict[str, str]:
        found = {}
        for name, member in members.items():
            with archive.open(member) as stream:
                shape, _, stored = _npy_header(stream)
                found[name] = _facts(shape, _dtype_name(stored))
        return found

    chosen = _choose(path, tuple(members), name, prefer, shapes)
    member = archive.getinfo(members[chosen])
    return _StreamSource(resources.enter_context(archive.open(member)), member.file_size, path, chosen, tuple(members))


def _open_safetensors(path: Path, name: str | None, prefer: str, resources: ExitStack) -> Source:
    file = TensorFile(path)
    resources.callback(file.close)
    names = tuple(sorted(file.tensors))
    if name is None and prefer == "scores" and prefer not in names and FACTORS.issubset(names):
        raise FileFormatError(f"{path}: a capture already, of factors: it needs no import")
    chosen = _choose(
        path, names, name, prefer, lambda: {n: _facts(file.tensors[n].shape, file.tensors[n].dtype) for n in names}
    )
    tensor = file.tensors[chosen]
    if tensor.dtype not in NUMPY_OF and tensor.dtype not in OTHERS:
        raise FileFormatError(f"{path}: tensor {chosen!r} has dtype {tensor.dtype}; takes {TAKES}")
    return _TensorSource(file, tensor, names)


def _open_torch(path: Path, name: str | None, prefer: str) -> Source:
    try:
        import torch
    except ImportError as e:
        raise BackendError(f"{path}: reading a torch file needs PyTorch: pip install 'ksieve[torch]'") from e
    try:
        check_storages(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as e:  # depends on the content: RuntimeError, UnpicklingError, EOFError, ValueError and more
        raise FileFormatError(f"{path}: not a torch file of tensors ({_words(e)})") from e
    names: tuple[str, ...] = ()
    if isinstance(loaded, torch.Tensor):
        _refuse_name(path, name)
    elif isinstance(loaded, dict):
        tensors = {str(n): t for n, t in loaded.items() if isinstance(t, torch.Tensor)}
        names = tuple(tensors)
        loaded = tensors[
            _choose(
                path, names, name, prefer,
                lambda: {n: _facts(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in tensors.items()},
            )
        ]  # fmt: skip
    else:
        raise FileFormatError(f"{path}: holds a {type(loaded).__name__}; takes a tensor or a dict of tensors")
    dtype = str(loaded.dtype).removeprefix("torch.")
    try:
        return _ArraySource(problem.as_numpy(loaded), dtype, names)
    except (TypeError, RuntimeError) as e:  # float8, quantised and sparse tensors have no NumPy counterpart
        raise FileFormatError(f"{path}: a {loaded.layout} tensor of {dtype}; takes a dense one of {TAKES}") from e


def _choose(path: Path, names: tuple[str, ...], name: str | None, prefer: str, shapes: Any) -> str:
    if not names:
        raise FileFormatError(f"{path}: holds no array")
    if name is None and prefer in names:
        return prefer
    if name is None and len(names) == 1:
        return names[0]
    if name is not None and name in names:
        return name
    found: Mapping[str, str] = shapes()
    listed = ", ".join(f"{n!r} {facts}" for n, facts in list(found.items())[:_LISTED])
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    got = None if name is None else repr(name)
    raise ArgumentError("name", got, f"one of {list(names)[:_LISTED]}, the arrays of {path}: {listed}{more}")


_LISTED = 20


def _facts(shape: tuple[int, ...], dtype: str) -> str:
    return f"({' x '.join(f'{n:,}' for n in shape)}, {dtype})" if shape else f"(a number, {dtype})"


def _refuse_name(path: Path, name: str | None) -> None:
    if name is not None:
        raise ArgumentError("name", repr(name), f"nothing: {path} holds a single array")


def _words(error: Exception) -> str:
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Name a stored dtype; numpy.save writes ``ml_dtypes.bfloat16`` as raw 2-byte items."""
    if dtype in (np.uint16, _RAW16):
        return "bfloat16"
    return str(dtype.newbyteorder("=").name)


def _native(array: Array) -> Array:
    """Array in native byte order, a view where possible: an expanded tensor may be larger than memory.

    Raw 2-byte items become uint16.
    """
    bits = array.view(np.uint16) if array.dtype == _RAW16 else array
    return np.asarray(bits, dtype=bits.dtype.newbyteorder("="))
