"""Reading a DLPack capsule: the address, shape and dtype of an array without another interface.

Some CUDA arrays, such as JAX's bfloat16, have no CUDA array interface. The layout is structure ``DLManagedTensor`` of
``dlpack.h``; every producer returns it when no version is requested.
"""

from __future__ import annotations

import ctypes
from typing import Any

_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class _DLTensor(ctypes.Structure):
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


def describe(array: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], str, int]:
    """Read address, shape, strides in elements, dtype and itemsize from an array's capsule, which is not consumed.

    No stream is synchronised (``stream=-1``): only host memory is read.
    """
    capsule = array.__dlpack__(stream=-1)
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _DLTensor.from_address(get_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else contiguous_strides(shape)
    name = _CODES.get(tensor.code, f"code{tensor.code}:")
    dtype = "bool" if name == "bool" else f"{name}{tensor.bits}"
    if tensor.lanes != 1:
        dtype += f"x{tensor.lanes}"
    pointer = (tensor.data or 0) + tensor.byte_offset
    return pointer, shape, strides, dtype, tensor.bits * tensor.lanes // 8


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a C-contiguous array."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)
