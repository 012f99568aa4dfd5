"""Arrays in files: `.npy` and `.safetensors` as read-only memory maps, `.npz` and torch files in memory.

NumPy and safetensors check what a file says of itself; no code in a file is executed. A damaged file raises
`FileFormatError`, which names the file and the fault.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ksieve.core.dtypes import SCORE_DTYPES, held
from ksieve.core.errors import ArgumentError, FileFormatError, KsieveError
from ksieve.core.installation import require_torch
from ksieve.core.paths import as_path, unreadable

Array = np.ndarray[Any, Any]

NUMPY_OF = {
    **{dtype.safetensors: held(name).newbyteorder("<").str for name, dtype in SCORE_DTYPES.items()},
    "F64": "<f8", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
}  # fmt: skip
"""NumPy dtype of the safetensors dtypes that are read; bfloat16 as its bits."""

_LISTED = 20
"""Arrays of a file that an error lists."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a safetensors file; `offset` is its first byte in the file."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def map(self) -> Array:
        """Map the tensor's bytes."""
        if self.dtype not in NUMPY_OF:
            raise FileFormatError(
                f"{self.path}: tensor {self.name!r} has dtype {self.dtype}; takes {', '.join(NUMPY_OF)}"
            )
        with readable(self.path, ".safetensors"):
            return np.memmap(self.path, NUMPY_OF[self.dtype], "r", self.offset, self.shape)

    def __str__(self) -> str:
        return f"({' x '.join(f'{size:,}' for size in self.shape)}, {self.dtype})"


@contextmanager
def readable(path: Path, kind: str) -> Iterator[None]:
    """Turn what a library raises for a damaged file into `FileFormatError`."""
    if fault := unreadable(path):
        raise FileFormatError(f"{path}: {fault}")
    try:
        # NumPy warns of sizes whose product overflows, and then refuses them.
        with np.errstate(over="ignore"):
            yield
    except KsieveError:
        raise
    # It depends on the content: ValueError, SafetensorError, BadZipFile, UnpicklingError, RecursionError and more.
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0][:300]
        fault = "it ends before its array does" if said.startswith("mmap ") else said
        raise FileFormatError(f"{path}: not a readable {kind} file ({fault}): write it again") from error


def map_npy(path: Path) -> Array:
    """Map the array of a `.npy` file; raw 2-byte items, as ``ml_dtypes.bfloat16`` is saved, become uint16 bits."""
    with readable(path, ".npy"):
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array.view(np.uint16) if array.dtype == np.dtype("V2") else array


def read_header(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    from safetensors import safe_open

    with readable(path, ".safetensors"):
        # The library checks names, dtypes, shapes and ranges of bytes, but does not return the ranges. Its slices
        # cannot give bfloat16 to NumPy.
        with safe_open(path, framework="np"):
            pass
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(size))
        metadata = header.pop("__metadata__", None) or {}
        tensors = {
            name: Tensor(path, name, facts["dtype"], tuple(facts["shape"]), 8 + size + facts["data_offsets"][0])
            for name, facts in header.items()
        }
        return tensors, metadata


def is_npy(path: Path) -> bool:
    """Whether a file begins with the bytes of `.npy`; its name does not count."""
    with readable(path, ".npy"), path.open("rb") as file:
        return file.read(6) == b"\x93NUMPY"


def load_array(path: str | os.PathLike[str], name: str | None = None, *, prefer: str) -> Array:
    """Read one array, such as lengths or indices.

    Parameters
    ----------
    path : path
        ``.npz``, a torch file (``.pt``, ``.pth``) of a tensor or a dict of tensors, or ``.npy`` or ``.safetensors``
        under any name.
    name : str, optional
        Name of the array in a file of several. Default: `prefer`, or the only one.
    prefer : str
        Name that is taken by default.

    Returns
    -------
    ndarray
        A read-only map of a ``.npy`` or ``.safetensors`` file; uint16 bits for bfloat16.

    Raises
    ------
    FileFormatError
        The file is absent or damaged.
    ArgumentError
        `name` is no array of the file, or is needed.
    BackendError
        A torch file, and PyTorch is not installed.
    """
    path = as_path(path)
    if path.suffix == ".npz":
        with readable(path, ".npz"), np.load(path, allow_pickle=False) as archive:
            return np.asarray(archive[pick(path, dict.fromkeys(archive.files, ""), name, prefer)])
    if path.suffix in (".pt", ".pth"):
        with readable(path, "torch"):
            return _load_torch(path, name, prefer)
    if is_npy(path):
        if name is not None:
            raise ArgumentError("name", repr(name), f"nothing: {path} holds a single array")
        return map_npy(path)
    tensors, _ = read_header(path)
    return tensors[pick(path, tensors, name, prefer)].map()


def pick(path: Path, found: Mapping[str, object], name: str | None, prefer: str, option: str = "name") -> str:
    """Return the name of the array that is meant; `option` is the argument that chooses it, for the error."""
    if name is None and (prefer in found or len(found) == 1):
        return prefer if prefer in found else next(iter(found))
    if name is not None and name in found:
        return name
    if not found:
        raise FileFormatError(f"{path}: holds no array")
    listed = ", ".join(f"{other!r} {facts}".rstrip() for other, facts in list(found.items())[:_LISTED])
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    raise ArgumentError(option, None if name is None else repr(name), f"an array of {path}: {listed}{more}")


def _load_torch(path: Path, name: str | None, prefer: str) -> Array:
    torch = require_torch(f"{path}: reading a torch file needs PyTorch")
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(loaded, dict):
        tensors = {str(key): each for key, each in loaded.items() if isinstance(each, torch.Tensor)}
        loaded = tensors[pick(path, dict.fromkeys(tensors, ""), name, prefer)]
    array: Array = loaded.numpy()
    return array
