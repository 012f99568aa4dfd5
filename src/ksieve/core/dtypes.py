"""The table of score dtypes: all that the host has to know of one, but its order (`ksieve.core.keys`).

The CUDA mirror is ``kernels/common/dtypes.cuh``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

import numpy as np


class Dtype(StrEnum):
    """A dtype that scores may have; named as in PyTorch, JAX and ``ml_dtypes``.

    `number`: in kernels. `size`: bytes of a score. `infinity`: bits of +inf. `held`: name of NumPy's dtype of such
    arrays; where NumPy has none, of the unsigned integers that hold their bits. `safetensors`, `xla`: its name in
    these files, and its number in XLA.
    """

    float32 = "float32", 0, 4, 0x7F80_0000, "float32", "F32", 11
    float16 = "float16", 1, 2, 0x7C00, "float16", "F16", 10
    bfloat16 = "bfloat16", 2, 2, 0x7F80, "uint16", "BF16", 16

    def __new__(cls, name: str, number: int, size: int, infinity: int, held: str, safetensors: str, xla: int) -> Self:
        """Make a member from a line of the table."""
        dtype = str.__new__(cls, name)
        dtype._value_ = name
        dtype.number, dtype.size, dtype.infinity = number, size, infinity
        dtype.held, dtype.safetensors, dtype.xla = held, safetensors, xla
        return dtype

    number: int
    size: int
    infinity: int
    held: str
    safetensors: str
    xla: int


SCORE_DTYPES = Dtype.__members__
"""All of them, by name."""

_NAMES = {dtype.held: name for name, dtype in SCORE_DTYPES.items()}


def canonical(name: str) -> str:
    """Name of the score dtype that arrays of a NumPy dtype hold; the given name if they hold none."""
    return _NAMES.get(name, name)


def held(name: str) -> np.dtype[Any]:
    """NumPy dtype of host arrays of a dtype, which need not be one of scores."""
    return np.dtype(SCORE_DTYPES[name].held if name in SCORE_DTYPES else name)
