"""Reading and writing safetensors files piece by piece.

The safetensors library validates a file and names its tensors; it neither writes a tensor larger than memory
nor reads bfloat16 into NumPy, so the two small pieces for that are here: a header writer, and a reader of row
ranges. The header is 8 bytes of little-endian length, JSON, then the tensors' bytes back to back
(https://huggingface.co/docs/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from ksieve.core.errors import ArgumentError, FileFormatError, KsieveError
from ksieve.core.paths import as_path, unreadable
from ksieve.files.scores import FLOATS, MAX_SIZE

Array = np.ndarray[Any, Any]

NUMPY_OF: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
}
"""NumPy dtype of the safetensors dtypes that captures use; bfloat16 is stored as its bits."""

OTHERS: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "I16": np.dtype("<i2"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""NumPy dtype of further safetensors dtypes, for imports and index arrays."""

MAX_ENTRIES = 1 << 59
"""Largest product of the sizes that are not 0: NumPy addresses an array, also an empty one, by 63 bits."""

SIZES = f"sizes up to {MAX_SIZE}, and at most 2**59 entries"

DTYPE_OF_NAME = {name: dtype for dtype, name in FLOATS.items()}
"""Safetensors dtype of each score dtype."""

METADATA_BYTES = 90_000_000
"""Largest size of the metadata in bytes: the safetensors library reads headers of up to 100,000,000."""

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: `offset` is its first byte in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry along the first axis."""
        return math.prod(self.shape[1:]) * self.storage.itemsize

    @property
    def storage(self) -> np.dtype[Any]:
        """NumPy dtype of an entry; KeyError for dtypes without one."""
        return NUMPY_OF.get(self.dtype) or OTHERS[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.storage.itemsize


class TensorFile:
    """A safetensors file opened for reading row ranges; only the header is read at first.

    Raises
    ------
    FileFormatError
        If there is no such file or it is not a complete safetensors file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = as_path(path)
        if fault := unreadable(self.path):
            raise self.error(fault)
        try:
            with safe_open(self.path, framework="np"):
                pass
            self._file: BinaryIO = self.path.open("rb")
        except (SafetensorError, OSError) as e:
            raise self.error(f"not a complete safetensors file ({e})") from e
        try:
            self._read_header()
        except BaseException as e:
            self._file.close()
            if isinstance(e, (KeyError, TypeError, ValueError, RecursionError)) and not isinstance(e, KsieveError):
                raise self.error(f"its header is damaged ({type(e).__name__}: {e})") from e
            raise

    def _read_header(self) -> None:
        # The library has checked sizes, gaps and overlaps, but does not return data offsets. The facts used below are
        # checked again: a name may occur twice in the header, and the file may have been replaced in between.
        self.size = os.fstat(self._file.fileno()).st_size
        size = int.from_bytes(self._file.read(8), "little")
        if size > self.size:
            raise self.error(f"its header is cut: {self.size:,} of {size:,} bytes")
        header = json.loads(self._file.read(size))
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        self.tensors = {}
        for name, facts in header.items():
            shape, (begin, end) = tuple(facts["shape"]), facts["data_offsets"]
            t = self.tensors[name] = TensorInfo(name, facts["dtype"], shape, 8 + size + begin)
            if not all(type(n) is int and n >= 0 for n in (*shape, begin)):
                raise self.error(f"tensor {name!r} has shape {shape} at byte {begin}; takes ints of at least 0")
            if 8 + size + end > self.size or (t.dtype in (*NUMPY_OF, *OTHERS) and t.nbytes != end - begin):
                raise self.error(f"tensor {name!r} of shape {shape} does not take the bytes {begin} to {end}")

    def error(self, problem: str) -> FileFormatError:
        """Return an error whose message names this file and the fault."""
        return FileFormatError(f"{self.path}: {problem}")

    def require(self, name: str, dtypes: Sequence[str], shape: Sequence[int | str]) -> TensorInfo:
        """Look up a tensor and check its dtype and shape; a string in `shape` stands for any size.

        Raises
        ------
        FileFormatError
            If the tensor is absent or differs.
        """
        t = self.tensors.get(name)
        if t is None:
            raise self.error(f"tensor {name!r} is missing; the file holds {sorted(self.tensors)}")
        if t.dtype not in dtypes:
            raise self.error(f"tensor {name!r} has dtype {t.dtype}; takes {' or '.join(dtypes)}")
        if len(t.shape) != len(shape) or any(
            isinstance(want, int) and got != want for got, want in zip(t.shape, shape, strict=True)
        ):
            wanted = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
            raise self.error(f"tensor {name!r} has shape {t.shape}; takes ({wanted})")
        if too_large(t.shape):
            raise self.error(f"tensor {name!r} has shape {t.shape}; takes {SIZES}")
        return t

    def read(self, tensor: TensorInfo, begin: int, end: int) -> Array:
        """Read entries `begin` to `end` of the first axis into a new array."""
        out = np.empty((end - begin, *tensor.shape[1:]), dtype=tensor.storage)
        self._read_into(out, tensor, tensor.offset + begin * tensor.row_bytes)
        return out

    def read_columns(self, tensor: TensorInfo, begin: int, end: int, first: int, last: int) -> Array:
        """Read columns `first` to `last` of the rows `begin` to `end` of a matrix into a new array."""
        out = np.empty((end - begin, last - first), dtype=tensor.storage)
        for row, into in enumerate(out, begin):
            self._read_into(into, tensor, tensor.offset + row * tensor.row_bytes + first * tensor.storage.itemsize)
        return out

    def _read_into(self, out: Array, tensor: TensorInfo, offset: int) -> None:
        if self._file.closed:
            raise ArgumentError("capture", f"{self.path}, which is closed", "one that is still open")
        if out.size:
            self._file.seek(offset)
            if self._file.readinto(out.reshape(-1).view(np.uint8)) != out.nbytes:  # type: ignore[attr-defined]
                raise self.error(f"ended inside tensor {tensor.name!r}; it was cut after it was opened")

    def close(self) -> None:
        """Close the file; reading afterwards raises ArgumentError."""
        self._file.close()


def too_large(shape: Sequence[int]) -> bool:
    """Whether the sizes of an array exceed `SIZES`."""
    return max(shape, default=0) > MAX_SIZE or math.prod(size or 1 for size in shape) > MAX_ENTRIES


def write_header(
    file: BinaryIO, tensors: Sequence[TensorInfo], metadata: Mapping[str, str], *, align: str
) -> list[TensorInfo]:
    """Write a header for tensors that will follow back to back, in this order; return them with offsets.

    The header is padded with spaces so that the tensor named `align` begins at a multiple of 64 bytes. The order
    must keep the others aligned to their dtype: widest items first does.
    """
    spans: dict[str, tuple[int, int]] = {}
    end = 0
    for t in tensors:
        spans[t.name] = (end, end + t.nbytes)
        end += t.nbytes
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    header |= {t.name: {"dtype": t.dtype, "shape": t.shape, "data_offsets": spans[t.name]} for t in tensors}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text) + spans[align][0]) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    return [TensorInfo(t.name, t.dtype, t.shape, 8 + len(text) + spans[t.name][0]) for t in tensors]
