"""What is known on the host of an array of any library: where it lives, its shape, strides and dtype.

No array library is imported: an array is recognised by what it is, and read through the attributes, the CUDA array
interface or the DLPack protocol that it offers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ksieve import dlpack
from ksieve.errors import ArgumentError

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
        if array.is_neg() or array.is_conj():
            got = "a lazy view (its memory holds other numbers than it shows, as in z.conj().imag)"
            raise ArgumentError(name, got, "a tensor with numbers of its own: .resolve_neg().resolve_conj() first")
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
    kind = f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
    raise ArgumentError(name, kind, "a NumPy, PyTorch, CuPy or JAX array")


def as_numpy(array: Any) -> np.ndarray[Any, Any]:
    """View a host array of any supported library as NumPy, without copying; bfloat16 comes as uint16 bits."""
    library = library_of(array)
    if library == "torch":
        if str(array.dtype) == "torch.bfloat16":
            import torch

            return np.asarray(array.detach().view(torch.int16).numpy()).view(np.uint16)
        return np.asarray(array.detach().numpy())
    view = array if isinstance(array, np.ndarray) else _from_dlpack_or_buffer(array)
    return view.view(np.uint16) if dtype_name(view.dtype) == "bfloat16" else view


@lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Name of a NumPy dtype; NumPy itself derives it anew, in Python, every time it is asked."""
    return dtype.name if dtype.isnative else f"{dtype} (foreign byte order)"


def _from_numpy(array: np.ndarray[Any, Any], library: str) -> ArrayInfo:
    itemsize = array.dtype.itemsize
    strides = _in_elements(array.strides, itemsize)
    pointer = array.__array_interface__["data"][0]
    dtype = dtype_name(array.dtype)
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
