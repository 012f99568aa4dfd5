"""Scores of an indexer, computed from its stored factors, the same bits every time.

The formula of row t and key i, with heads j (DeepSeek-style lightning indexer)::

    score[t, i] = key_scale[i] * sum_j weights[t, j] * max(0, dot(q[t, j], keys[i]))

It is evaluated in float64 and rounded to float32 once, in this order: each dot product accumulates its
products in ascending dimension; the head sum starts at +0 and adds ``weights * max(0, dot)`` in ascending j;
the key's scale is applied last. Every product and every sum is rounded separately (no fused multiply-add).

A score therefore depends only on its own factors: not on the block of rows in which it is read, nor on the machine.
The summation order of a matrix product (BLAS) is unspecified. BLAS is used only where the order cannot change the
result: where all partial sums of a dot product are integer multiples of one power of two and small enough to be exact
in float64. `dot_is_exact` proves this from the factors; it always holds for int8 keys and float16 queries of up to 64
dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.errors import FileFormatError
from ksieve.core.keys import widen
from ksieve.core.problem import MAX_SIZE
from ksieve.files.arrays import Array, Tensor
from ksieve.files.scores import FLOATS

F64 = NDArray[np.float64]

FACTORS = frozenset({"q", "k", "w"})
"""Tensors that make a capture one of factors: queries, keys, and weights of the heads."""

KEY_TILE = 4096
"""Keys evaluated at a time."""

_DOTS_BYTES = 8 << 20
"""Working memory for the dot products of one tile; bounds how many rows share a tile."""


class Factors:
    """Factors in a file, as the matrix of their scores, which is computed where it is sliced."""

    ndim = 2

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self.path, self.tensors = path, tensors
        self.base = self.q = self._map("q", (*FLOATS,), ("rows", "heads", "dim"))
        rows, heads, dim = self.q.shape
        self.keys = self._map("k", ("I8", *FLOATS), ("width", dim))
        self.shape = rows, self.keys.shape[0]
        self.weights = self._map("w", ("F32",), (rows, heads))
        self.scale: Array | None = None
        if tensors["k"].dtype == "I8" or "k_scale" in tensors:
            self.scale = np.array(self._map("k_scale", ("F32",), (self.shape[1],)))
            if not (np.isfinite(self.scale) & (self.scale >= 0)).all():
                raise FileFormatError(f"{path}: tensor 'k_scale' holds a negative or non-finite scale")

    def __str__(self) -> str:
        _, heads, dim = self.q.shape
        return f"{heads} heads of {dim}; queries {self.tensors['q'].dtype}, keys {self.tensors['k'].dtype}"

    def __getitem__(self, at: tuple[Any, slice]) -> NDArray[np.float32]:
        """Compute the scores of any rows and a slice of columns."""
        rows, (first, last, _) = at[0], at[1].indices(self.shape[1])
        read = lambda i, j: _wide(self.keys[first + i : first + j])  # noqa: E731
        scale = None if self.scale is None else self.scale[first:last]
        return evaluate(_wide(self.q[rows]), self.weights[rows], max(last - first, 0), read, scale)

    def causal(self) -> NDArray[np.int32]:
        """Lengths of a file that holds none: a causal window's."""
        rows, width = self.shape
        if rows > width:
            raise FileFormatError(
                f"{self.path}: {rows} queries for {width} keys: a file without 'lengths' is a causal window, which has "
                "no more queries than keys"
            )
        return np.arange(width - rows + 1, width + 1, dtype=np.int32)

    def _map(self, name: str, dtypes: Sequence[str], shape: Sequence[int | str]) -> Array:
        """Map a tensor after a check of its dtype and shape; a string in `shape` stands for any size."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise FileFormatError(f"{self.path}: tensor {name!r} is missing; the file holds {sorted(self.tensors)}")
        if tensor.dtype not in dtypes:
            raise FileFormatError(f"{self.path}: tensor {name!r} has dtype {tensor.dtype}; takes {' or '.join(dtypes)}")
        wanted = tuple(got if isinstance(want, str) else want for got, want in zip(tensor.shape, shape, strict=False))
        if len(tensor.shape) != len(shape) or tensor.shape != wanted or max(tensor.shape) > MAX_SIZE:
            takes = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
            raise FileFormatError(
                f"{self.path}: tensor {name!r} has shape {tensor.shape}; takes ({takes}), and sizes up to {MAX_SIZE}"
            )
        return tensor.map()


def _wide(array: Array) -> Array:
    return widen(array) if array.dtype == np.uint16 else array


def evaluate(
    q: Array,
    weights: Array,
    width: int,
    read_keys: Callable[[int, int], Array],
    key_scale: Array | None,
) -> NDArray[np.float32]:
    """Evaluate a block of rows against all keys: float32 of shape (rows, width).

    `q`: float16 or float32 of shape (rows, heads, dim). `weights`: float32 of shape (rows, heads).
    ``read_keys(begin, end)`` gives keys of shape (end - begin, dim): int8, float16 or float32. `key_scale`: float32 of
    shape (width,); None is 1.
    """
    rows, heads, _ = q.shape
    out = np.empty((rows, width), dtype=np.float32)
    tile = max(1, min(KEY_TILE, width))
    step = max(1, _DOTS_BYTES // (8 * max(heads, 1) * tile))
    for r in range(0, rows, step):
        q_block = q[r : r + step].astype(np.float64)
        w_block = weights[r : r + step].astype(np.float64)
        q_grid = _grid(q[r : r + step])
        for i in range(0, width, tile):
            keys = read_keys(i, min(i + tile, width))
            exact = dot_is_exact(q_grid, _grid(keys), q.shape[2])
            dots = (_dots_any_order if exact else _dots_in_order)(q_block, keys.astype(np.float64))
            total = _weighted_sum(dots, w_block)
            if key_scale is not None:
                total *= key_scale[i : i + keys.shape[0]]
            with np.errstate(over="ignore"):
                out[r : r + step, i : i + keys.shape[0]] = total
    return out


Grid = tuple[int, float] | None
"""(e, m): every value is an integer multiple of 2**e and of magnitude at most m; None for non-finite values."""


def dot_is_exact(a: Grid, b: Grid, dim: int) -> bool:
    """Whether dot products of `dim` terms are exact in float64 in any order of summation.

    Every partial sum is a multiple of ``2**(ea + eb)`` and at most ``dim * ma * mb``; it is exact when that
    integer multiple fits the 53-bit significand.
    """
    if a is None or b is None:
        return False
    return dim * Fraction(a[1]) * Fraction(b[1]) <= Fraction(2) ** (53 + a[0] + b[0])


def _grid(x: Array) -> Grid:
    if x.dtype.kind == "i":
        return 0, float(1 << (8 * x.dtype.itemsize - 1))
    values = x.astype(np.float64).ravel()
    values = values[values != 0]
    if values.size == 0:
        return 0, 0.0
    if not np.isfinite(values).all():
        return None
    fraction, exponent = np.frexp(values)
    mantissa = np.ldexp(fraction, 24).astype(np.int64)  # exact: float32 and narrower have 24 bits
    lowest = np.frexp((mantissa & -mantissa).astype(np.float64))[1] - 1
    return int((exponent - 24 + lowest).min()), float(np.abs(values).max())


def _dots_any_order(q: F64, keys: F64) -> F64:
    rows, heads, dim = q.shape
    product: F64 = (q.reshape(rows * heads, dim) @ keys.T).reshape(rows, heads, keys.shape[0])
    return product


def _dots_in_order(q: F64, keys: F64) -> F64:
    dots = np.zeros((*q.shape[:2], keys.shape[0]))
    columns = np.ascontiguousarray(keys.T)
    # Infinities and NaN among the factors give infinities and NaN; overflow of float64 is out of their reach.
    with np.errstate(invalid="ignore"):
        for d in range(q.shape[2]):
            dots += q[:, :, d, None] * columns[d]
    return dots


def _weighted_sum(dots: F64, weights: F64) -> F64:
    np.maximum(dots, 0, out=dots)
    with np.errstate(invalid="ignore"):
        dots *= weights[:, :, None]
        total = np.zeros((dots.shape[0], dots.shape[2]))
        for j in range(dots.shape[1]):
            total += dots[:, j]
    return total
