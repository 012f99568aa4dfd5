"""Score families that resemble real scores; `ksieve_lab.workloads.rowwise` defines their common interface."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ksieve.core.errors import ArgumentError
from ksieve_lab.workloads.rowwise import F32, Producer


def _random_normal(rng: np.random.Generator, width: int, row: int, k: int) -> F32:
    """Independent standard normal scores: position-exchangeable, ties improbable."""
    return rng.standard_normal(width, dtype=np.float32)


def _endpoint_structured(
    rng: np.random.Generator,
    width: int,
    row: int,
    k: int,
    *,
    share: tuple[float, float] = (0.57, 0.69),
    reach: float = 0.04,
) -> NDArray[np.float64]:
    """Sink and recency: the first and last decile of positions hold 52 to 74 % of the top k.

    The paper measures that share on captured rows at K = 2048 (section on proposal quality). Scores are ``Exp(1) + log
    density(position)``. With an exponential tail, a region's share of the top k is its share of the density, for k up
    to an eighth of the width.

    `share`: range of the rows' expected share; the realised one scatters by about 0.01 at k = 2048. `reach`: decay
    length of the two ends, in units of the width.
    """
    if width < 10:  # too narrow for deciles
        return rng.standard_exponential(width)
    target = rng.uniform(*share)
    x = (np.arange(width) + 0.5) / width
    bump = _ends(width, reach)
    ends = float(bump[(x < 0.1) | (x >= 0.9)].sum()) / width
    if not 0.2 <= target < ends / bump.mean():
        takes = f"a range from 0.2 to {ends / bump.mean():.3f}, which a reach of {reach} allows"
        raise ArgumentError("share", share, takes)
    # density = 1 + a * bump, with a solved from (0.2 + a * ends) / (1 + a * mean(bump)) = target
    a = (target - 0.2) / (ends - target * float(bump.mean()))
    return rng.standard_exponential(width) + np.log1p(a * bump)


def _smooth_structured(
    rng: np.random.Generator, width: int, row: int, k: int, *, reach: int = 128, alike: float = 0.8, lift: float = 0.55
) -> NDArray[np.float64]:
    """Sink and recency, and neighbours alike: a regular view ranks these better than independent positions.

    Normal scores, of whose variance `alike` decays over `reach` positions (first-order autoregression), plus `lift`
    times the log of a density raised at both ends. At k = 2048 of 131,072 and the defaults the end deciles hold about
    63 % of the top k. The RMS rank error of regular views lies 10 to 28 % below the exchangeable one. The paper
    measures the same on its captures; independent scores of the same density show no such gain. A view of whole lines
    loses by the same clumps: it sees them wholly or not at all.

    `reach`: positions over which likeness decays by 1/e, at least 1. `alike`: share of the variance that neighbours
    have in common, 0 to 1. `lift`: height of the ends.
    """
    if reach < 1 or not 0 <= alike <= 1:
        raise ArgumentError("reach, alike", f"{reach}, {alike}", "a reach of at least 1 and a share from 0 to 1")
    noise = rng.standard_normal((2, width))
    if width < 10:  # too narrow for deciles
        short: NDArray[np.float64] = noise[0]
        return short
    decay = np.exp(-1 / reach)
    angle = 2 * np.pi * np.arange(width // 2 + 1) / width
    gain = np.sqrt((1 - decay**2) / (1 + decay**2 - 2 * decay * np.cos(angle)))
    shared = np.fft.irfft(np.fft.rfft(noise[0]) * gain, width)
    raised = lift * np.log1p(10 * _ends(width))
    scores: NDArray[np.float64] = np.sqrt(alike) * shared + np.sqrt(1 - alike) * noise[1] + raised
    return scores


def _relu_plateau(rng: np.random.Generator, width: int, row: int, k: int, *, positive: float = 0.5) -> F32:
    """ReLU scores: `positive` * k scores above zero, all others exactly 0, so rank k lies among the zeros.

    With `positive` from 1 on, the boundary lies above the plateau.
    """
    scores = rng.standard_normal(width, dtype=np.float32)
    count = min(int(positive * k), width)
    if count == width:
        return np.abs(scores)
    threshold = np.partition(scores, width - count - 1)[width - count - 1]
    plateau: F32 = np.maximum(scores - threshold, np.float32(0))
    return plateau


def _heavy_tailed(rng: np.random.Generator, width: int, row: int, k: int) -> NDArray[np.float64]:
    """Cauchy scores: a few are larger than float16 can hold, the bulk spans a few octaves."""
    return np.clip(rng.standard_cauchy(width), -1e38, 1e38)


def _v41_blocks(
    rng: np.random.Generator, width: int, row: int, k: int, *, block: int = 8, alike: float = 0.5
) -> NDArray[np.float64]:
    """Rows as DeepSeek-V4.1 takes blocks of: sink and recency, and scores of a block of 8 alike.

    Normal scores, raised at both ends as in `smooth_structured`.

    `block`: adjacent scores that are alike. `alike`: share of the variance that they have in common, 0 to 1.
    """
    shared, own = _of_blocks(rng.standard_normal, width, block), rng.standard_normal(width)
    raised = 0.55 * np.log1p(10 * _ends(width))
    scores: NDArray[np.float64] = np.sqrt(alike) * shared + np.sqrt(1 - alike) * own + raised
    return scores


def _glm_pools(rng: np.random.Generator, width: int, row: int, k: int, *, pool: int = 4) -> NDArray[np.float64]:
    """Rows as GLM-5.3 and Qwen3.8 score them: one score for each pool of 4 positions, the positive part of a mean.

    Each is the mean of `pool` scores of `smooth_structured`. A sum of ReLUs is never negative: many are zero.
    """
    scores = _smooth_structured(rng, pool * width, row, k)
    means: NDArray[np.float64] = np.maximum(scores.reshape(width, pool).mean(1), 0)
    return means


def _msa_blocks(
    rng: np.random.Generator, width: int, row: int, k: int, *, block: int = 128, needles: float = 0.02
) -> NDArray[np.float64]:
    """Rows as MiniMax-M3 takes blocks of 128 of: few of its scores decide a block, sink and own block are raised.

    Normal scores, of which a few are raised by a height of their block, exponential of mean 2. The first (sink) and the
    last (own) block are raised by 4.

    `block`: adjacent scores of a block. `needles`: share of the scores that are raised.
    """
    height = 2 * _of_blocks(rng.standard_exponential, width, block)
    scores: NDArray[np.float64] = rng.standard_normal(width) + height * (rng.random(width) < needles)
    for end in (slice(block), slice((width - 1) // block * block, None)):
        scores[end] += 4
    return scores


def _of_blocks(draw: Callable[[int], NDArray[np.float64]], width: int, block: int) -> NDArray[np.float64]:
    """Draw a number for each block, and give it to each of its scores."""
    if block < 1:
        raise ArgumentError("block", block, "an int of at least 1")
    return np.repeat(draw(-(-width // block)), block)[:width]


def _ends(width: int, reach: float = 0.04) -> NDArray[np.float64]:
    """Density that falls from 1 at both ends of a row, by 1/e over `reach` of its width."""
    x = (np.arange(width) + 0.5) / width
    ends: NDArray[np.float64] = np.exp(-x / reach) + np.exp((x - 1) / reach)
    return ends


NATURAL = tuple(
    Producer(make_row)
    for make_row in (
        _random_normal, _endpoint_structured, _smooth_structured, _relu_plateau, _heavy_tailed, _v41_blocks, _glm_pools,
        _msa_blocks,
    )
)  # fmt: skip
"""Producers that resemble the rows of a serving system."""
