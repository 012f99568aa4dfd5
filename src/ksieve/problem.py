"""What a call asks for, checked: array descriptions, and the frozen `Problem` built from them.

Everything that can be wrong with an argument is found here, before any kernel is launched or any output is
written. No array library is imported: an array is recognised by what it is, and read through the
attributes, the CUDA array interface or the DLPack protocol that it offers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ksieve import dlpack
from ksieve.errors import ArgumentError

MAX_K = 1 << 20
SCORE_DTYPES = ("float32", "float16", "bfloat16")
"""Score dtypes; an unsigned 16-bit NumPy array is read as bfloat16 bits."""

_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_CUDA_HOST = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Device:
    """Where an array lives: kind "cpu" or "cuda", and the ordinal."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Host-known facts of one array. `strides` count elements; `pointer` is an address on `device`."""

    library: str
    device: Device
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def span(self) -> tuple[int, int]:
        """First byte and one past the last byte that indexing can touch (non-negative strides)."""
        if 0 in self.shape:
            return self.pointer, self.pointer
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.pointer, self.pointer + (last + 1) * self.itemsize


@dataclass(frozen=True, slots=True)
class Problem:
    """One checked selection problem: rows of `width` scores, `pitch` scores apart, k slots per row."""

    rows: int
    width: int
    pitch: int
    k: int
    dtype: str
    device: Device


def library_of(array: Any) -> str:
    """Name the array library of an object: numpy, torch, cupy, jax, or other."""
    root = type(array).__module__.partition(".")[0]
    return {"jaxlib": "jax"}.get(root, root) if root in ("numpy", "torch", "cupy", "jax", "jaxlib") else "other"


def inspect(array: Any, name: str) -> ArrayInfo:
    """Describe an array of any supported library.

    Raises
    ------
    ArgumentError
        If the object is no array, or lives on a device that ksieve does not know.
    """
    library = library_of(array)
    if isinstance(array, np.ndarray) and hasattr(array, "mask"):
        raise ArgumentError(name, "a masked array, whose mask would be ignored", "a plain array")
    if library == "numpy" and isinstance(array, np.ndarray):
        return _from_numpy(array, library)
    if library == "torch" and hasattr(array, "data_ptr"):
        if array.device.type not in ("cpu", "cuda"):
            raise ArgumentError(name, f"a torch tensor on {array.device}", "a tensor on cpu or cuda")
        if str(array.layout) != "torch.strided":
            raise ArgumentError(name, f"a torch tensor of layout {array.layout}", "a dense (strided) tensor")
        device = Device(array.device.type, array.device.index or 0)
        dtype = str(array.dtype).removeprefix("torch.")
        return ArrayInfo(
            library, device, array.data_ptr(), tuple(array.shape), tuple(array.stride()), dtype, array.element_size()
        )
    if hasattr(array, "__cuda_array_interface__"):
        return _from_cuda_interface(array, library)
    if hasattr(array, "__dlpack__"):
        kind, index = array.__dlpack_device__()
        if int(kind) in (_DLPACK_CPU, _DLPACK_CUDA_HOST):
            return _from_numpy(as_numpy(array), library)
        if int(kind) == _DLPACK_CUDA:
            return ArrayInfo(library, Device("cuda", int(index)), *dlpack.describe(array))
        raise ArgumentError(name, f"an array on DLPack device {int(kind)}:{index}", "an array on cpu or cuda")
    raise ArgumentError(
        name, f"{type(array).__module__}.{type(array).__qualname__}", "a NumPy, PyTorch, CuPy or JAX array"
    )


def as_numpy(array: Any) -> np.ndarray[Any, Any]:
    """View a host array of any supported library as NumPy, without copying; bfloat16 comes as uint16 bits."""
    library = library_of(array)
    if library == "torch":
        if str(array.dtype) == "torch.bfloat16":
            import torch

            return np.asarray(array.detach().view(torch.int16).numpy()).view(np.uint16)
        return np.asarray(array.detach().numpy())
    view = array if isinstance(array, np.ndarray) else _from_dlpack_or_buffer(array)
    return view.view(np.uint16) if view.dtype.name == "bfloat16" else view


def check_selection(
    scores: Any,
    lengths: Any,
    k: Any,
    *,
    out: Any = None,
    num_rows: Any = None,
) -> tuple[Problem, ArrayInfo, ArrayInfo | None]:
    """Check the arguments of one selection and return the problem with its array descriptions.

    Raises
    ------
    ArgumentError
        Names the argument, what it got and what it takes.
    """
    info = inspect(scores, "scores")
    k = check_k(k)
    dtype = check_scores(info)
    lengths_info = num_rows_info = None
    if lengths is not None:
        lengths_info = inspect(lengths, "lengths")
        _check_vector(lengths_info, "lengths", [(info.shape[0],)], info.device)
    if num_rows is not None:
        num_rows_info = inspect(num_rows, "num_rows")
        _check_vector(num_rows_info, "num_rows", [(1,), ()], info.device)
    if out is not None:
        out_info = inspect(out, "out")
        _check_out(out_info, info, {"scores": info, "lengths": lengths_info, "num_rows": num_rows_info}, k)
        if out_info.device.kind == "cpu" and not as_numpy(out).flags.writeable:
            raise ArgumentError("out", "a read-only array", "an array that can be written")
    rows, width = info.shape
    pitch = max(width, info.strides[0])
    return Problem(rows, width, pitch, k, dtype, info.device), info, lengths_info


def _check_aligned(info: ArrayInfo, name: str) -> None:
    # A GPU cannot load a number from an address that is no multiple of its size; a CPU can.
    if info.device.kind == "cuda" and info.pointer % info.itemsize:
        raise ArgumentError(
            name, f"address {info.pointer:#x}", f"an address that is a multiple of {info.itemsize} bytes"
        )


def check_k(k: Any) -> int:
    """Return k as an int in [1, 2**20]."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise ArgumentError("k", f"{type(k).__name__} {k!r}", f"an int from 1 to {MAX_K}")
    if not 1 <= k <= MAX_K:
        raise ArgumentError("k", int(k), f"an int from 1 to {MAX_K}")
    return int(k)


def check_scores(info: ArrayInfo, name: str = "scores") -> str:
    """Check a score matrix and return its canonical dtype name (uint16 reads as bfloat16)."""
    dtype = "bfloat16" if info.dtype == "uint16" else info.dtype
    if dtype not in SCORE_DTYPES:
        raise ArgumentError(name, f"dtype {info.dtype}", f"dtype {', '.join(SCORE_DTYPES)}")
    if len(info.shape) != 2:
        raise ArgumentError(name, f"shape {info.shape}", "a matrix of shape (rows, width)")
    rows, width = info.shape
    # An array without elements has whatever strides its library likes (NumPy: zeros).
    if rows and width > 1 and info.strides[1] != 1:
        raise ArgumentError(name, f"last stride {info.strides[1]}", "last stride 1 (rows contiguous)")
    if rows > 1 and width and info.strides[0] < width:
        raise ArgumentError(name, f"row pitch {info.strides[0]} for width {width}", "row pitch of at least width")
    if width >= 1 << 31:
        raise ArgumentError(name, f"width {width}", "width below 2**31, so that indices fit int32")
    _check_aligned(info, name)
    return dtype


def _check_vector(info: ArrayInfo, name: str, shapes: list[tuple[int, ...]], device: Device) -> None:
    if info.dtype != "int32":
        raise ArgumentError(name, f"dtype {info.dtype}", "dtype int32")
    if info.shape not in shapes:
        raise ArgumentError(name, f"shape {info.shape}", f"shape {' or '.join(map(str, shapes))}")
    if info.shape and info.shape[0] > 1 and info.strides[0] != 1:
        raise ArgumentError(name, f"stride {info.strides[0]}", "a contiguous vector (stride 1)")
    if info.device != device:
        raise ArgumentError(name, f"device {info.device}", f"the scores' device, {device}")
    _check_aligned(info, name)


def _check_out(out: ArrayInfo, scores: ArrayInfo, inputs: dict[str, ArrayInfo | None], k: int) -> None:
    shape = (scores.shape[0], k)
    if out.dtype != "int32":
        raise ArgumentError("out", f"dtype {out.dtype}", "dtype int32")
    if out.shape != shape:
        raise ArgumentError("out", f"shape {out.shape}", f"shape {shape}")
    if out.device != scores.device:
        raise ArgumentError("out", f"device {out.device}", f"the scores' device, {scores.device}")
    if (shape[0] and k > 1 and out.strides[1] != 1) or (shape[0] > 1 and out.strides[0] < k):
        raise ArgumentError("out", f"strides {out.strides}", "contiguous rows that do not overlap")
    _check_aligned(out, "out")
    for name, other in inputs.items():
        if other is None:
            continue
        (a, b), (c, d) = out.span, other.span
        if a < d and c < b:
            raise ArgumentError("out", f"memory that overlaps {name}", "memory of its own")


def _from_numpy(array: np.ndarray[Any, Any], library: str) -> ArrayInfo:
    itemsize = array.dtype.itemsize
    strides = _in_elements(array.strides, itemsize)
    pointer = array.__array_interface__["data"][0]
    dtype = array.dtype.name if array.dtype.isnative else f"{array.dtype} (foreign byte order)"
    return ArrayInfo(library, Device("cpu"), pointer, array.shape, strides, dtype, itemsize)


def _from_cuda_interface(array: Any, library: str) -> ArrayInfo:
    facts = array.__cuda_array_interface__
    dtype = np.dtype(facts["typestr"])
    shape = tuple(int(n) for n in facts["shape"])
    steps = facts.get("strides")
    strides = dlpack.contiguous_strides(shape) if steps is None else _in_elements(steps, dtype.itemsize)
    type_name = dtype.name
    if type_name.startswith("void") or str(getattr(array, "dtype", "")) == "bfloat16":
        type_name = str(getattr(array, "dtype", type_name))
    index = 0
    if hasattr(array, "__dlpack_device__"):
        index = int(array.__dlpack_device__()[1])
    return ArrayInfo(library, Device("cuda", index), int(facts["data"][0]), shape, strides, type_name, dtype.itemsize)


def _in_elements(byte_strides: Any, itemsize: int) -> tuple[int, ...]:
    # A stride that is no multiple of the item cannot be expressed in elements; -1 is refused as non-unit.
    return tuple(int(s) // itemsize if s % itemsize == 0 else -1 for s in byte_strides)


def _from_dlpack_or_buffer(array: Any) -> np.ndarray[Any, Any]:
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return np.asarray(array)
