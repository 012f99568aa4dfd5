"""Predictions of order statistics about tails and samples: formulas, no data.

Source: Siran Liu et al., "Sample-Guided Exact Top-K Selection for Long-Context Sparse Attention", Tencent; section
"Theoretical Basis". Ranks count from 1 at the largest score.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def exchangeable_square_error(q: Any, length: Any, samples: Any, requested: Any) -> Any:
    """Mean square of the complete-row rank of the q-th largest of a uniform sample, minus the rank requested.

    That rank has the mean ``q (L + 1) / (n + 1)`` and the variance
    ``q (n - q + 1) (L + 1) (L - n) / ((n + 1)^2 (n + 2))``. Arguments broadcast.
    """
    q, length, samples = (np.asarray(v, dtype=np.float64) for v in (q, length, samples))
    spread = q * (samples - q + 1) * (length + 1) * (length - samples)
    bias = q * (length + 1) / (samples + 1) - requested
    return spread / ((samples + 1) ** 2 * (samples + 2)) + bias**2


def underfill_probability(k: int, q: int, length: int, samples: int) -> float:
    """Probability that the q-th largest of a uniform sample ranks above k, so that a cutoff there admits too few.

    That is the chance of q or more of the row's ``k - 1`` best among `samples` drawn of `length`: a hypergeometric
    tail, summed exactly in logarithms.
    """
    better = k - 1

    def log_choose(n: int, r: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(r + 1) - math.lgamma(n - r + 1)

    total = log_choose(length, samples)
    most = min(better, samples)
    least = max(q, samples - (length - better))
    return math.fsum(
        math.exp(log_choose(better, x) + log_choose(length - better, samples - x) - total)
        for x in range(least, most + 1)
    )


def tail_quantile(k: int, gaps: Any, probability: float) -> F64:
    """Quantile of the retained tail C(eps), eps at least 1, over rows, where the score density is locally flat.

    Spacings of neighbouring order statistics are then independent exponentials (Renyi), so the adjacent gap, the unit
    of eps, scatters itself. Given the gap, scores beyond rank K + 1 are a Poisson count of mean ``(eps - 1) * gap /
    mean gap``. Over rows, ``C - K - 1`` is geometric with mean ``eps - 1``. Its mean is the paper's relation; its
    median, ``K + 0.69 eps``, lies lower, because most gaps are smaller than the mean one.
    """
    eps = np.maximum(np.asarray(gaps, dtype=np.float64), 1.0)
    with np.errstate(divide="ignore"):
        beyond = np.where(eps > 1, np.ceil(np.log1p(-probability) / np.log1p(-1 / eps)) - 1, 0.0)
    return np.asarray(k + 1 + np.maximum(beyond, 0.0), dtype=np.float64)
