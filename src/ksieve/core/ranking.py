"""Rankings: which scores are better, as a map of scores to scores.

The selection has one order: larger scores first, ``-0.0`` equal to ``+0.0``, NaN last (`ksieve.core.keys`). Every other
ranking maps each score to another one of its dtype, its *ranked score*. This order of the ranked scores is the wanted
order. The map is one to one, but for the two zeros and the NaNs, which are equal in every order. Kernels apply it where
they load a score to compare it; values are written from the scores themselves.

* ``"largest"``: the score itself.
* ``"smallest"``: the negated score. NaN stays NaN, and last.
* ``"nan_first"``: NaN becomes +inf, and every number the next lower one, so that -inf becomes NaN.

The CUDA mirror is ``kernels/common/ranking.cuh``, the CPU kernels' is `ksieve.backends.cpu.converting`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ksieve.core.dtypes import SCORE_DTYPES, canonical

Ranking = Literal["largest", "smallest", "nan_first"]

RANKINGS: tuple[Ranking, ...] = ("largest", "smallest", "nan_first")
"""All rankings; kernels know each by its number in this tuple."""


def ranked(scores: Any, ranking: Ranking) -> NDArray[Any]:
    """Return the ranked score of each score.

    `scores` (ndarray of float32, float16, bfloat16 (``ml_dtypes``) or uint16): any shape. Unsigned 16-bit integers are
    bfloat16 bits. `ranking`: {"largest", "smallest", "nan_first"}. The result has the same shape and dtype; for
    "largest" it is the input array itself.
    """
    x: NDArray[Any] = np.asarray(scores)
    if ranking == "largest":
        return x
    # Floats are never compared: in a flush-to-zero mode a thread treats subnormals as zero.
    bits: NDArray[Any] = np.array(x, order="C", ndmin=1).view(np.dtype(f"u{x.itemsize}")).reshape(x.shape)
    sign, one = bits.dtype.type(1 << (8 * x.itemsize - 1)), bits.dtype.type(1)
    if ranking == "smallest":
        found = bits ^ sign
    else:
        size, infinity = bits & (sign - one), bits.dtype.type(SCORE_DTYPES[canonical(x.dtype.name)].infinity)
        found = np.where((bits & sign) == 0, bits - one, bits + one)  # for numbers other than zero
        found = np.where(size == 0, sign | one, np.where(size > infinity, infinity, found))
    result: NDArray[Any] = found.view(x.dtype)
    return result
