"""Host-known facts of an array of any library: device, address, shape, strides and dtype.

No array library is imported. An array is recognised by its class, and read through its attributes, the CUDA array
interface or the DLPack protocol.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from ksieve.core.dtypes import SCORE_DTYPES, held
from ksieve.core.errors import ArgumentError, KsieveError, kind_of, shown

TAKES = "a NumPy, PyTorch, CuPy or JAX array"

UNEVEN = -(1 << 62)
"""Stride of a dimension whose byte stride is no multiple of the element's size."""

_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_CUDA_HOST = 1, 2, 3
_DLPACK_TYPES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class _DLTensor(ctypes.Structure):
    """Part of ``DLManagedTensor`` of ``dlpack.h``, which every producer returns when no version is requested."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class TransformedTensorError(ArgumentError):
    """An array is a tensor inside ``torch.func``. `ksieve.topk` then calls a PyTorch operator."""


@dataclass(frozen=True, slots=True)
class Device:
    """Device of an array: kind "cpu" or "cuda", and the ordinal."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU = Device("cpu")


class ArrayInfo(NamedTuple):
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
        """First byte and one past the last byte that indexing can touch."""
        if 0 in self.shape:
            return self.pointer, self.pointer
        first = last = 0
        for n, stride in zip(self.shape, self.strides, strict=True):
            if stride < 0:
                first += (n - 1) * stride
            else:
                last += (n - 1) * stride
        return self.pointer + first * self.itemsize, self.pointer + (last + 1) * self.itemsize


def library_of(array: Any) -> str:
    """Name the array library of an object: numpy, torch, cupy, jax, or other."""
    return _library_of(type(array))  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _library_of(kind: type) -> str:
    root = _root(kind)
    if root == "other":
        # A caller's subclass of an array class of one of these libraries.
        root = next((_root(base) for base in kind.__mro__ if base.__name__ in ("ndarray", "Tensor")), root)
    return root


def _root(kind: type) -> str:
    root = str(kind.__module__).partition(".")[0]
    return {"jaxlib": "jax"}.get(root, root) if root in ("numpy", "torch", "cupy", "jax", "jaxlib") else "other"


def inspect(array: Any, name: str) -> ArrayInfo:
    """Describe an array of any supported library.

    Raises `ArgumentError` if the object is no array, is on a device other than cpu and cuda, or has no memory that
    holds its elements.
    """
    try:
        return _described(array, name)
    except KsieveError:
        raise
    except Exception as error:
        # A foreign class may raise any exception from its shape or address.
        said = (str(error).splitlines() or [""])[0]
        got = f"{kind_of(array)}, which cannot be read ({type(error).__name__}: {shown(said)})"
        takes = f"{TAKES} outside of JAX's transformations" if "Tracer" in type(array).__name__ else TAKES
        raise ArgumentError(name, got, takes) from error


def _described(array: Any, name: str) -> ArrayInfo:
    library = library_of(array)
    if isinstance(array, np.ndarray):
        if hasattr(array, "mask"):
            raise ArgumentError(name, "a masked array, whose mask would be ignored", "a plain array")
        return _from_numpy(as_numpy(array), library)
    if library == "torch" and isinstance(array, sys.modules["torch"].Tensor):
        return _from_torch(array, name)
    if isinstance(array, type):
        raise ArgumentError(name, f"the class {array.__qualname__}", TAKES)
    if hasattr(array, "__cuda_array_interface__"):
        return _from_cuda_interface(array, library, name)
    if hasattr(array, "__dlpack__"):
        kind, index = array.__dlpack_device__()
        if int(kind) in (_DLPACK_CPU, _DLPACK_CUDA_HOST):
            return _from_numpy(as_numpy(array), library)
        if int(kind) == _DLPACK_CUDA:
            return ArrayInfo(library, Device("cuda", int(index)), *_from_dlpack(array))
        raise ArgumentError(name, f"an array on DLPack device {int(kind)}:{index}", "an array on cpu or cuda")
    takes = TAKES
    if isinstance(array, (list, tuple)):
        takes += f": np.array({name}) first"
    elif isinstance(array, (str, PathLike)):
        takes += ": np.load(path, mmap_mode='r') maps a .npy file"
    raise ArgumentError(name, kind_of(array), takes)


def is_array(value: Any, least: int = 1) -> bool:
    """Whether a value is an array, of any library, with at least so many dimensions."""
    if value is None or isinstance(value, (int, np.generic)):
        return False
    try:
        library = library_of(value)
        if library == "torch":
            # The shape of a nested or wrapped tensor may raise; `inspect` then reports the fault.
            tensor = sys.modules["torch"].Tensor
            return isinstance(value, tensor) and (type(value) is not tensor or value.is_nested or value.dim() >= least)
        shape = np.ndarray.view(value, np.ndarray).shape if isinstance(value, np.ndarray) else value.shape
        foreign = hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")
        return len(shape) >= least and not isinstance(value, type) and (library != "other" or foreign)
    except Exception:
        return False


def is_writable(array: Any, info: ArrayInfo) -> bool:
    """Whether an array can be written; PyTorch tensors always can."""
    if info.device.kind == "cpu":
        return bool(as_numpy(array).flags.writeable)
    if info.library == "torch" or not hasattr(array, "__cuda_array_interface__"):
        return True
    return not array.__cuda_array_interface__["data"][1]


def as_numpy(array: Any) -> np.ndarray[Any, Any]:
    """View a host array of any supported library as a plain NumPy array, without copying.

    bfloat16 becomes uint16 bits; a subclass such as np.matrix becomes a plain ndarray.
    """
    library = library_of(array)
    if library == "torch":
        array = plain_tensor(array).detach()
        name = str(array.dtype).removeprefix("torch.")
        if name not in SCORE_DTYPES or SCORE_DTYPES[name].held == name:
            return np.asarray(array.numpy())
        integers = getattr(sys.modules["torch"], f"int{8 * SCORE_DTYPES[name].size}")
        return np.asarray(array.view(integers).numpy()).view(held(name))
    view = array if isinstance(array, np.ndarray) else _from_dlpack_or_buffer(array)
    view = view if type(view) is np.ndarray else np.ndarray.view(view, np.ndarray)
    name = dtype_name(view.dtype)
    return view.view(held(name)) if name in SCORE_DTYPES else view


@lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Name of a NumPy dtype, cached: NumPy derives it in Python on every access."""
    return dtype.name if dtype.isnative else f"{dtype} (foreign byte order)"


def plain_tensor(tensor: Any) -> Any:
    """View an instance of a tensor subclass, such as a parameter, as a plain tensor with PyTorch's own methods."""
    torch = sys.modules["torch"]
    if type(tensor) is torch.Tensor:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def _from_torch(tensor: Any, name: str) -> ArrayInfo:
    torch = sys.modules["torch"]
    kind = type(tensor)
    if kind is not torch.Tensor:
        if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            got = f"{kind_of(tensor)}, a tensor whose class computes its elements (__torch_dispatch__)"
            raise ArgumentError(name, got, "a plain tensor, such as the one that it wraps")
        if hasattr(kind, "materialize"):
            raise ArgumentError(name, f"{kind_of(tensor)}, which has no shape yet", "a tensor with numbers")
        tensor = plain_tensor(tensor)
    if tensor.device.type not in ("cpu", "cuda"):
        raise ArgumentError(name, f"a torch tensor on {tensor.device}", "a tensor on cpu or cuda")
    if str(tensor.layout) != "torch.strided" or tensor.is_nested:
        layout = "nested rows" if tensor.is_nested else f"layout {tensor.layout}"
        raise ArgumentError(name, f"a torch tensor of {layout}", "a dense (strided) tensor")
    if tensor.is_neg() or tensor.is_conj():
        got = "a lazy view (its memory holds other numbers than its elements, as in z.conj().imag)"
        raise ArgumentError(name, got, "a tensor with numbers of its own: .resolve_neg().resolve_conj() first")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        got = "a tensor inside torch.func (vmap, grad, functionalize), which has no memory of its own"
        raise TransformedTensorError(name, got, "a plain tensor: call ksieve outside the transform, on the whole batch")
    device = Device(tensor.device.type, tensor.device.index or 0)
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape, strides, itemsize = tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()
    info = ArrayInfo("torch", device, tensor.data_ptr(), shape, strides, dtype, itemsize)
    storage = tensor.untyped_storage()
    base, size = storage.data_ptr(), storage.nbytes()
    first, end = info.span
    if first < end and not (base and base <= first and end <= base + size):
        got = f"a tensor of {end - first} bytes whose storage has {size if base else 'none'}"
        raise ArgumentError(
            name, got, "a tensor with memory: use it before its storage is freed or resized, or pass a .clone()"
        )
    return info


def _from_numpy(array: np.ndarray[Any, Any], library: str) -> ArrayInfo:
    dtype, pointer = array.dtype, array.__array_interface__["data"][0]
    strides = _in_elements(array.strides, dtype.itemsize)
    return ArrayInfo(library, CPU, pointer, array.shape, strides, dtype_name(dtype), dtype.itemsize)


def _from_cuda_interface(array: Any, library: str, name: str) -> ArrayInfo:
    facts = array.__cuda_array_interface__
    if facts.get("mask") is not None:
        raise ArgumentError(name, "a masked array, whose mask would be ignored", "a plain array")
    dtype = np.dtype(facts["typestr"])
    shape = tuple(int(n) for n in facts["shape"])
    steps = facts.get("strides")
    strides = _contiguous_strides(shape) if steps is None else _in_elements(steps, dtype.itemsize)
    type_name = dtype.name
    if type_name.startswith("void") or str(getattr(array, "dtype", "")) in SCORE_DTYPES:
        type_name = str(getattr(array, "dtype", type_name))
    index = 0
    if hasattr(array, "__dlpack_device__"):
        index = int(array.__dlpack_device__()[1])
    return ArrayInfo(library, Device("cuda", index), int(facts["data"][0]), shape, strides, type_name, dtype.itemsize)


def _from_dlpack(array: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], str, int]:
    """Read address, shape, strides in elements, dtype and itemsize from an array's capsule, which is not consumed.

    Some CUDA arrays, such as JAX's bfloat16, have no CUDA array interface. No stream is synchronised (``stream=-1``):
    only host memory is read.
    """
    capsule = array.__dlpack__(stream=-1)
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _DLTensor.from_address(get_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else _contiguous_strides(shape)
    name = _DLPACK_TYPES.get(tensor.code, f"code{tensor.code}:")
    dtype = "bool" if name == "bool" else f"{name}{tensor.bits}"
    if tensor.lanes != 1:
        dtype += f"x{tensor.lanes}"
    pointer = (tensor.data or 0) + tensor.byte_offset
    return pointer, shape, strides, dtype, tensor.bits * tensor.lanes // 8


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a C-contiguous array."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def _in_elements(byte_strides: Any, itemsize: int) -> tuple[int, ...]:
    return tuple([int(s) // itemsize if itemsize and s % itemsize == 0 else UNEVEN for s in byte_strides])


def _from_dlpack_or_buffer(array: Any) -> np.ndarray[Any, Any]:
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return np.asarray(array)


def check_jax_int64(name: str = "index_dtype") -> None:
    """Refuse int64 numbers that JAX would silently narrow to 32 bits."""
    import jax

    if not jax.config.jax_enable_x64:
        got = "'int64' while JAX's 64-bit types are off"
        raise ArgumentError(name, got, "jax.config.update('jax_enable_x64', True) first, or 'int32'")
