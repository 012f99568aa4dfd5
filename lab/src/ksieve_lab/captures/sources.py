"""Arrays in files of NumPy, PyTorch and safetensors; `ksieve_lab.captures.importers` copies them.

An array maps its file, so that it may be larger than memory. A member of a `.npz` maps a temporary file. No code in a
file is executed; a damaged or malicious file raises `FileFormatError`.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.filesize import decimal

from ksieve.core import problem
from ksieve.core.dtypes import canonical
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.core.installation import require_torch
from ksieve.files.arrays import Array, map_npy, pick, read_header, readable
from ksieve.files.scores import FLOATS
from ksieve_lab.captures.factors import FACTORS

FOREIGN_SUFFIXES = (".npy", ".npz", ".pt", ".pth")
"""File types that are no captures."""

SUFFIXES = (*FOREIGN_SUFFIXES, ".safetensors")
"""File types that can be imported."""

TAKES = 'float32, float16, bfloat16 (uint16 bits in NumPy), or float64 rounded on request: dtype="float32"'


class Source(NamedTuple):
    """An array in a file: `dtype` is a canonical name; `names` are all arrays of the file, or none."""

    array: Array
    dtype: str
    names: Sequence[str]


@contextmanager
def open_source(path: Path, name: str | None, prefer: str) -> Iterator[Source]:
    """Open an array of a file by the file's suffix; exceptions of the libraries become `FileFormatError`."""
    if path.suffix not in SUFFIXES:
        raise FileFormatError(f"{path}: unknown file type {path.suffix!r}; takes {', '.join(SUFFIXES)}")
    with ExitStack() as resources:
        with readable(path, path.suffix):
            if path.suffix == ".npy":
                _refuse_name(path, name)
                source = _of_numpy(map_npy(path))
            elif path.suffix == ".npz":
                folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="ksieve-import-"))
                source = _of_archive(path, name, prefer, folder)
            elif path.suffix == ".safetensors":
                source = _of_safetensors(path, name, prefer)
            else:
                source = _of_torch(path, name, prefer)
        yield source


def _of_numpy(array: Array, names: Sequence[str] = ()) -> Source:
    if array.dtype.hasobject:
        raise ValueError("it holds Python objects, not numbers")
    return Source(array, canonical(array.dtype.newbyteorder("=").name), names)


def _of_archive(path: Path, name: str | None, prefer: str, folder: str) -> Source:
    with zipfile.ZipFile(path) as archive:
        members = {member.removesuffix(".npy"): member for member in archive.namelist() if member.endswith(".npy")}
        chosen = pick(path, dict.fromkeys(members, ""), name, prefer)
        member = archive.getinfo(members[chosen])
        if member.file_size > shutil.disk_usage(folder).free:
            size = decimal(member.file_size)
            raise FileFormatError(f"{path}: array {chosen!r} takes {size} of the disk of temporary files (TMPDIR)")
        extracted = archive.extract(member, folder)
    try:
        return _of_numpy(map_npy(Path(extracted)), list(members))
    except FileFormatError as error:
        raise ValueError(f"array {chosen!r}: {error.__cause__}") from error


def _of_safetensors(path: Path, name: str | None, prefer: str) -> Source:
    tensors, _ = read_header(path)
    if name is None and prefer == "scores" and prefer not in tensors and FACTORS.issubset(tensors):
        raise FileFormatError(f"{path}: a capture already, of factors: it needs no import")
    tensor = tensors[pick(path, tensors, name, prefer)]
    array = tensor.map()
    return Source(array, FLOATS.get(tensor.dtype, array.dtype.name), list(tensors))


def _of_torch(path: Path, name: str | None, prefer: str) -> Source:
    torch = require_torch(f"{path}: reading a torch file needs PyTorch")
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no archive, as torch.save writes")
    # A mapped storage ends with the file, and PyTorch refuses a tensor that goes beyond its storage.
    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    names: list[str] = []
    if isinstance(loaded, torch.Tensor):
        _refuse_name(path, name)
    elif isinstance(loaded, dict):
        tensors = {str(n): t for n, t in loaded.items() if isinstance(t, torch.Tensor)}
        names = list(tensors)
        facts = {n: f"({' x '.join(f'{size:,}' for size in t.shape)}, {_dtype(t)})" for n, t in tensors.items()}
        loaded = tensors[pick(path, facts, name, prefer)]
    else:
        raise FileFormatError(f"{path}: holds a {type(loaded).__name__}; takes a tensor or a dict of tensors")
    try:
        return Source(problem.as_numpy(loaded), _dtype(loaded), names)
    except (TypeError, RuntimeError) as e:  # float8, quantised and sparse tensors have no NumPy counterpart
        raise FileFormatError(
            f"{path}: a {loaded.layout} tensor of {_dtype(loaded)}; takes a dense one of {TAKES}"
        ) from e


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _refuse_name(path: Path, name: str | None) -> None:
    if name is not None:
        raise ArgumentError("name", repr(name), f"nothing: {path} holds a single array")
