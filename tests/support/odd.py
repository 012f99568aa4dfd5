"""Odd arrays and odd scalars: what a caller, a framework or a file may hand over in place of a plain one."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


class Raising:
    """An array whose every fact raises."""

    @property
    def shape(self):
        raise RuntimeError("no shape")

    def __dlpack__(self, **_):
        raise RuntimeError("no capsule")

    def __dlpack_device__(self):
        return 1, 0


class NoDevice(Raising):
    shape = (4, 64)

    def __dlpack_device__(self):
        raise RuntimeError("no device")


class EmptyInterface:
    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}


class RaisingInterface:
    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("no interface")


class MaskedInterface:
    shape = (4, 64)
    __cuda_array_interface__: ClassVar[dict[str, Any]] = {
        "shape": (4, 64),
        "typestr": "<f4",
        "data": (4096, False),
        "version": 3,
        "mask": object(),
    }


class NoAttributes:
    def __getattr__(self, name):
        raise KeyError(name)


class Unfriendly:
    """A value that neither compares, prints, nor says whether it is true."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    def __repr__(self):
        raise RuntimeError("no text")

    def __bool__(self):
        raise RuntimeError("no truth")


class NumpySubclass(np.ndarray):
    def __getitem__(self, at):
        raise RuntimeError("no item")

    @property
    def shape(self):
        raise RuntimeError("no shape")


class Dispatching(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("no operation")


class FunctionSubclass(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("no function")


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner, policy):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, dispatch_sizes_strides_policy=policy
        )

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("no operation")


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def resized(t, nbytes, start=0):
    t = torch.cat([t.flatten()[:0].new_zeros(start), t.flatten()])[start:].reshape(t.shape)
    t.untyped_storage().resize_(nbytes)
    return t


def complexes(x):
    return torch.zeros(x.shape, dtype=torch.complex64)


def wide(x):
    return np.repeat(x, 2, axis=-1)[..., ::2]


T = torch.from_numpy
SAME: dict[str, Callable[[Any], Any]] = {
    "matrix": np.asmatrix,
    "function subclass": lambda x: T(x.copy()).as_subclass(FunctionSubclass),
    "parameter": lambda x: torch.nn.Parameter(T(x.copy()), requires_grad=False),
    "read-only": read_only,
    "tensor of read-only": lambda x: T(read_only(x)),
    "numpy subclass": lambda x: x.copy().view(NumpySubclass),
    "scalar array": lambda x: np.array(x.flat[0]),
    "scalar tensor": lambda x: T(x.copy()).flatten()[0],
    "wide": wide,
    "reversed": lambda x: x[..., ::-1],
    "broadcast": lambda x: np.broadcast_to(x.flat[0], x.shape),
    "expanded": lambda x: T(x.copy()).flatten()[:1].expand(x.shape),
}
"""Made of an array; where one is taken, its answer is that of the array itself, if they hold the same numbers."""

REFUSED: dict[str, Callable[[Any], Any]] = {
    "list": lambda x: x.tolist(),
    "str": lambda x: "x",
    "bytes": lambda x: b"abc",
    "dict": lambda x: {},
    "object": lambda x: object(),
    "float": lambda x: 2.5,
    "nan": lambda x: float("nan"),
    "numpy float": lambda x: np.float32(3),
    "objects": lambda x: x.astype(object),
    "strings": lambda x: x.astype(str),
    "empty strings": lambda x: np.zeros(x.shape, "S0"),
    "masked": np.ma.array,
    "structured": lambda x: np.zeros(x.shape, [("a", x.dtype)]),
    "records": lambda x: np.zeros(x.shape, [("a", "f4"), ("b", "i4")]).view(np.recarray),
    "dates": lambda x: np.zeros(x.shape, "M8[s]"),
    "spans": lambda x: np.zeros(x.shape, "m8[s]"),
    "complex": lambda x: x.astype(np.complex64),
    "void": lambda x: np.zeros(x.shape, "V4"),
    "bool": lambda x: x.astype(bool),
    "swapped": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "long double": lambda x: x.astype(np.longdouble),
    "five axes": lambda x: x.reshape((1, 1, 1, *x.shape)),
    "neg view": lambda x: torch._neg_view(T(x.copy())),
    "conj imag": lambda x: complexes(x).conj().imag,
    "conj": lambda x: complexes(x).conj(),
    "nested": lambda x: torch.nested.nested_tensor([T(x.copy()), T(x.copy())]),
    "jagged": lambda x: torch.nested.nested_tensor([T(x.copy())[:1], T(x.copy())], layout=torch.jagged),
    "fake": lambda x: FakeTensorMode().from_tensor(T(x.copy())),
    "meta": lambda x: T(x.copy()).to("meta"),
    "sparse": lambda x: T(x.copy()).to_sparse(),
    "quantized": lambda x: torch.quantize_per_tensor(torch.zeros(x.shape), 0.1, 0, torch.qint32),
    "float8": lambda x: torch.zeros(x.shape).to(torch.float8_e4m3fn),
    "zero tensor": lambda x: torch._efficientzerotensor(x.shape, dtype=T(x.copy()).dtype),
    "dispatching": lambda x: torch.Tensor._make_subclass(Dispatching, T(x.copy())),
    "wrapper": lambda x: Wrapper(T(x.copy()), "strides"),
    "wrapper of sizes": lambda x: Wrapper(T(x.copy()), "sizes"),
    "uninitialized": lambda x: torch.nn.parameter.UninitializedParameter(),
    "freed": lambda x: resized(T(x.copy()), 0),
    "freed view": lambda x: resized(T(x.copy()), 0, 3),
    "short": lambda x: resized(T(x.copy()), x.nbytes // 2),
    "storage": lambda x: T(x.copy()).untyped_storage(),
    "raising": lambda x: Raising(),
    "no device": lambda x: NoDevice(),
    "empty interface": lambda x: EmptyInterface(),
    "raising interface": lambda x: RaisingInterface(),
    "masked interface": lambda x: MaskedInterface(),
    "no attributes": lambda x: NoAttributes(),
    "unfriendly": lambda x: Unfriendly(),
    "memoryview": lambda x: memoryview(x),
    "array.array": lambda x: array.array("f", [1, 2]),
    "numpy class": lambda x: np.ndarray,
    "torch class": lambda x: torch.Tensor,
    "dtype": lambda x: np.dtype("f4"),
    "module": lambda x: torch,
}
"""Made of an array, and never one whose numbers can be used: an error names the argument."""

SCALARS: dict[str, Any] = {
    "str": "x", "empty": "", "bytes": b"x", "list": [1], "tuple": (1, 2), "dict": {}, "set": {1},
    "vector": np.zeros(3), "matrix": np.zeros((2, 2)), "tensor": torch.zeros(3), "scalar array": np.array(3),
    "scalar tensor": torch.tensor(3), "float": 2.5, "nan": float("nan"), "inf": float("inf"), "minus": -1, "zero": 0,
    "2**31": 2**31, "2**62": 2**62, "2**70": 2**70, "5,000 digits": 10**5000, "-5,000 digits": -(10**5000),
    "numpy float": np.float32(4), "numpy bool": np.True_, "numpy uint64": np.uint64(2**64 - 1), "complex": 1j,
    "object": object(), "unfriendly": Unfriendly(), "class": object, "function": len, "lone surrogate": "\ud800",
    "escape": "\x1b[2J", "nul": "a\0b", "no attributes": NoAttributes(),
}  # fmt: skip
"""Values that no scalar argument of another type than theirs takes."""
