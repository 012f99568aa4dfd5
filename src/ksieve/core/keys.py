"""Ordered keys: the integers that every backend compares instead of scores.

Two monotone maps, both *descending* (a better score has a smaller key):

* `order_key`: float32 -> uint32, total order of the contract. ``-0.0`` and ``+0.0`` share a key and every
  NaN has the largest one, so NaN ranks below ``-inf``.
* `coarse_bin`: float32 -> 0..2047, the leading 11 bits of the same construction over the float16 projection, rounded to
  nearest. (Siran Liu et al., "Sample-Guided Exact Top-K Selection for Long-Context Sparse Attention", Tencent; section
  "Phase 1: Coarse Boundary Localization").

`BIN_CUTOFF_KEY` ties them together: ``coarse_bin(x) <= b`` exactly when
``order_key(x) <= BIN_CUTOFF_KEY[b]``, so that a scan admits a coarse prefix with one float32 comparison.
The CUDA mirror is ``kernels/common/keys.cuh``.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]
_Key = TypeVar("_Key", np.int32, np.uint32)

COARSE_BINS = 2048
"""Bins of the coarse key: 11 bits of the 16-bit projected key."""

DIGIT_BITS = (11, 11, 10)
"""Widths of the three exact digits of `order_key`, most significant first."""

DIGIT_SHIFTS = (21, 10, 0)
"""Right shift that brings each digit of `order_key` to bit 0."""

NAN_KEY = 0xFFFFFFFF
"""Key shared by every NaN: the worst."""

_FLIP32 = np.uint32(0x7FFFFFFF)
_FLIP16 = np.int16(0x7FFF)


def widen(scores: Any) -> F32:
    """Widen scores to float32 exactly; unsigned 16-bit integers are read as bfloat16 bits.

    `scores`: ndarray of float32, float16, bfloat16 (``ml_dtypes``) or uint16. The result has the same shape; the input
    array itself if it is float32.
    """
    x = np.asarray(scores)
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return x.astype(np.float32, copy=False)


def order_key(scores: Any) -> U32:
    """Return the descending 32-bit ordered key of each score.

    `scores`: any shape. Narrower floats are widened first, which is exact. The result has the same shape; ``a > b`` as
    scores if and only if ``key(a) < key(b)``.
    """
    bits = _bits(scores)
    size = bits & _SIZE
    keys = (bits ^ (~(bits >> _SIGN) & _SIZE)).view(np.uint32)  # flips all bits but the sign of numbers without one
    keys = np.where(size == 0, _FLIP32, keys)
    return _with_nan(keys, size, NAN_KEY)


NAN_LEVEL = -(1 << 31)
"""Level of every NaN: the lowest."""


def level(scores: Any) -> NDArray[np.int32]:
    """Return int32 levels, ordered as the scores: the bits without the sign, negated for a negative number."""
    bits = _bits(scores)
    size, sign = bits & _SIZE, bits >> _SIGN
    return _with_nan((size ^ sign) - sign, size, NAN_LEVEL)


_SIZE = np.int32(0x7FFFFFFF)
"""Float32 bits without the sign."""
_SIGN = np.int32(31)
_INFINITY = np.int32(0x7F800000)


def _bits(scores: Any) -> NDArray[np.int32]:
    """Float32 bits. Floats are never compared: in a flush-to-zero mode a thread treats subnormals as zero."""
    x = np.asarray(scores, dtype=np.float32)
    return np.ascontiguousarray(x).view(np.int32).reshape(x.shape)


def _with_nan(found: NDArray[_Key], size: NDArray[np.int32], value: int) -> NDArray[_Key]:
    is_nan = size > _INFINITY
    return np.where(is_nan, found.dtype.type(value), found) if np.any(is_nan) else found


def score_of_key(keys: Any) -> F32:
    """Invert `order_key` (zeros come back as ``+0.0``, `NAN_KEY` as NaN)."""
    k = np.asarray(keys, dtype=np.uint32)
    bits = np.where(k >> np.uint32(31) != 0, k, k ^ _FLIP32).astype(np.uint32)
    return bits.view(np.float32)


def coarse_bin(scores: Any) -> NDArray[np.int32]:
    """Return the 11-bit coarse bin (0 best, 2047 worst) of each score's float16 projection."""
    return (half_key(scores) >> np.uint16(5)).astype(np.int32)


def half_key(scores: Any) -> NDArray[np.uint16]:
    """Return the descending 16-bit ordered key of each score's nearest float16, as `order_key` does of float32."""
    bits = _bits(scores)
    x = np.where(bits == NAN_LEVEL, np.int32(0), bits).view(np.float32)  # -0.0 becomes +0.0
    with np.errstate(over="ignore", invalid="ignore"):
        half = x.astype(np.float16)  # a number that rounds to zero keeps its sign, in any flush-to-zero mode
    bits16 = half.view(np.int16)
    key = (bits16 ^ (~(bits16 >> np.int16(15)) & _FLIP16)).view(np.uint16)
    return np.where(np.isnan(x), np.uint16(0xFFFF), key)


def digit(keys: Any, round_index: int) -> NDArray[np.int32]:
    """Return digit `round_index` (0, 1 or 2) of ordered keys: 11, 11 and 10 bits wide."""
    k = np.asarray(keys, dtype=np.uint32)
    mask = np.uint32((1 << DIGIT_BITS[round_index]) - 1)
    return ((k >> np.uint32(DIGIT_SHIFTS[round_index])) & mask).astype(np.int32)


def _bin_cutoff_keys() -> U32:
    """Largest ordered key of each coarse bin's prefix, from the float16 rounding rule alone.

    The worst float16 of a positive bin has an even mantissa, of a negative bin an odd one. The float32 midpoint towards
    the next worse float16 ties to even. So it belongs to the positive bin, but not to the negative one.
    """
    key16 = np.arange(COARSE_BINS) << 5 | 31  # the worst of each bin
    positive, negative = key16 <= 0x7FFF, (key16 > 0x7FFF) & (key16 < 0xFC00)
    half = np.where(positive, 0x7FFF - key16, key16)
    tie = _midpoint(half, np.where(positive, np.maximum(half - 1, 0), np.minimum(half + 1, 0xFC00)))
    tie[negative] = np.nextafter(tie[negative], np.float32(np.inf))
    tie[~positive & ~negative] = -np.inf  # the bin of -inf, and the empty bins after it
    cutoff = order_key(tie)
    cutoff[key16 < 0x3FF] = 0  # better than +inf: no score maps here
    cutoff[-1] = NAN_KEY
    return cutoff


def _midpoint(half_a: NDArray[np.int64], half_b: NDArray[np.int64]) -> F32:
    """Float32 halfway between adjacent float16 bit patterns; infinity counts as 65536."""

    def value(half: NDArray[np.int64]) -> NDArray[np.float64]:
        v = half.astype(np.uint16).view(np.float16).astype(np.float64)
        return np.where(np.isnan(v), 0, np.where(np.isinf(v), np.copysign(65536.0, v), v))

    return ((value(half_a) + value(half_b)) / 2).astype(np.float32)


BIN_CUTOFF_KEY: U32 = _bin_cutoff_keys()
"""Inclusive cutoff of each coarse bin as an ordered key; shape (2048,), non-decreasing."""
