"""Rounding of scores to narrower dtypes; `ksieve.core.keys.widen` is the inverse."""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError
from ksieve.core.keys import widen

Array = np.ndarray[Any, Any]


def narrow(scores: Array, dtype: str) -> Array:
    """Round scores to a score dtype, to nearest even; overflow gives infinity, NaN stays NaN.

    `scores` are of float64, float32, float16, or bits of bfloat16 as uint16, which the result has too. float64 goes to
    bfloat16 through float32. Raises `ArgumentError` for a dtype that scores cannot have.
    """
    if dtype not in SCORE_DTYPES:
        raise ArgumentError("dtype", repr(dtype), f"one of {list(SCORE_DTYPES)}")
    x = widen(scores) if scores.dtype == np.uint16 else scores
    with np.errstate(over="ignore"):
        if dtype != "bfloat16":
            return x.astype(dtype, copy=False)
        single = np.ascontiguousarray(x, dtype=np.float32)
    bits = single.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    # Rounding up could carry a NaN's payload into the sign bit; a NaN keeps its sign and becomes quiet instead.
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(single), quiet, rounded).astype(np.uint16)
