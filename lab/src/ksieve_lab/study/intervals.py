"""Confidence in rates that were measured on rows which are not independent.

Neighbouring rows of a capture come from neighbouring tokens, so rows are taken in blocks, and what scatters between
blocks counts. Each row brings a probability, the share of its phases; service draws one phase.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

LEVEL = 0.95
"""Probability that an interval is meant to cover."""

MOST_TRIALS = 64
"""Independent trials that one row is worth at most, however alike rows happened to come out."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over rows, its confidence interval, and its prediction interval.

    `next_low`, `next_high`: where the mean of the announced number of further rows, one phase each, should fall.
    """

    value: float
    low: float
    high: float
    next_low: float
    next_high: float


NEVER = Estimate(0.0, 0.0, 0.0, 0.0, 0.0)
"""Rate of an impossible event."""


def wilson(rate: float, count: float) -> tuple[float, float]:
    """Wilson's interval of a rate seen in `count` independent trials (which need not be a whole number).

    Never empty at rates of 0 and 1, which is where failures of a good policy lie.
    """
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def estimate_rate(rows: F64, blocks: NDArray[np.int64], following: int) -> Estimate:
    """Estimate a rate from each row's probability and block, and predict that of `following` rows, in blocks alike."""
    rate = float(rows.mean())
    between, count = _between_blocks(rows, blocks)
    spread = rate * (1 - rate)
    # Where nothing happened every row counts as one trial; else as many as explain the scatter between blocks.
    trials = min(spread * count / between, MOST_TRIALS * rows.size) if spread and between else float(rows.size)
    other = between / max(count * following / rows.size, 1)
    return Estimate(rate, *wilson(rate, trials), *_following_rate(rate, trials, other, following))


def _following_rate(rate: float, trials: float, other: float, following: int) -> tuple[float, float]:
    """Predict the realised rate of further rows.

    Their own rate is a gamma variable: what `trials` left open (Jeffreys' posterior), and the variance `other` of
    their blocks. Their failures are Poisson counts of it, so together a negative binomial.
    """
    mean = (trials * rate + 0.5) / trials
    variance = mean / trials + other
    expected, size = mean * following, mean * mean / variance
    counts = np.arange(math.ceil(expected + 12 * math.sqrt(expected + (following**2) * variance)) + 30)
    ratios = np.log((counts[:-1] + size) / (counts[:-1] + 1)) + math.log(expected / (size + expected))
    start = size * math.log(size / (size + expected))
    cumulative = np.cumsum(np.exp(start + np.concatenate([[0.0], np.cumsum(ratios)])))
    low, high = (int(np.searchsorted(cumulative, p)) for p in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return low / following, min(high / following, 1.0)


def estimate_mean(rows: F64, variances: F64, blocks: NDArray[np.int64], following: int) -> Estimate:
    """Estimate a mean from each row's expectation and its variance over phases; arguments as for a rate."""
    mean = float(rows.mean())
    between, count = _between_blocks(rows, blocks)
    own = between / count
    other = between / max(count * following / rows.size, 1) + float(variances.mean()) / following
    t = _student(count - 1)
    near, far = t * math.sqrt(own), t * math.sqrt(own + other)
    return Estimate(mean, mean - near, mean + near, mean - far, mean + far)


def _between_blocks(rows: F64, blocks: NDArray[np.int64]) -> tuple[float, int]:
    """Variance of block means, and the number of blocks."""
    _, label = np.unique(blocks, return_inverse=True)
    sizes = np.bincount(label)
    means = np.bincount(label, weights=rows) / sizes
    # Blocks of unlike size count by it.
    weights = sizes / sizes.mean()
    spread = float((weights * (means - rows.mean()) ** 2).sum() / max(sizes.size - 1, 1))
    return spread, int(sizes.size)


def _student(freedom: int) -> float:
    """Quantile of Student's t, by the Cornish-Fisher expansion (within 1 % from 4 degrees of freedom on)."""
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    n = max(freedom, 1)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3
