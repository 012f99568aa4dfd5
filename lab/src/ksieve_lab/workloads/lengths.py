"""Valid lengths of serving-like and adversarial batches, one table for the command line, tests and benches.

Every maker is ``f(rows, width, *, seed=0, k=2048) -> int32 (rows,)`` and deterministic.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ksieve_lab.workloads.rowwise import row_generator

Lengths = NDArray[np.int32]


def full(rows: int, width: int, *, seed: int = 0, k: int = 2048) -> Lengths:
    """Every row valid throughout."""
    return np.full(rows, width, np.int32)


def causal(rows: int, width: int, *, seed: int = 0, k: int = 2048) -> Lengths:
    """The last rows of a causal prefill: row r of R sees width - R + 1 + r.

    Rows before the first key (only with more rows than keys) see nothing.
    """
    return np.maximum(np.arange(width - rows + 1, width + 1), 0).astype(np.int32)


def ragged(rows: int, width: int, *, seed: int = 0, k: int = 2048, low: float = 0.8, high: float = 1.0) -> Lengths:
    """A decode batch: uniform from 80 to 100 % of the width, or from `low` to `high` of it."""
    least, most = int(np.ceil(low * width)), int(high * width)
    return _rng(seed).integers(least, max(most, least) + 1, rows).astype(np.int32)


def uniform(rows: int, width: int, *, seed: int = 0, k: int = 2048) -> Lengths:
    """Uniform from 0 to the width."""
    return ragged(rows, width, seed=seed, low=0.0)


def adversarial(rows: int, width: int, *, seed: int = 0, k: int = 2048) -> Lengths:
    """0, negative, beyond the width, k - 1, k, k + 1 and both int32 extremes: each has broken a selector."""
    limits = np.iinfo(np.int32)
    cases = [0, width, -1, k, k - 1, k + 1, 1, width - 1, width + 1, 2 * k, limits.max, limits.min, -k, width // 2]
    return np.resize(np.clip(cases, limits.min, limits.max).astype(np.int32), rows)


def blocks(rows: int, width: int, *, seed: int = 0, k: int = 2048) -> Lengths:
    """Rows shorter than a block of 4, 8, 128 or 256, as long, and longer by one."""
    cases = [n + d for n in (4, 8, 128, 256) for d in (-3, -1, 0, 1)]
    return np.resize(np.clip([0, width, *cases, width - 1], 0, width).astype(np.int32), rows)


def _rng(seed: int) -> np.random.Generator:
    # The last of the row streams: no row number reaches it.
    return row_generator(seed, (1 << 64) - 1)


LENGTHS: dict[str, Callable[..., Lengths]] = {
    make.__name__: make for make in (full, causal, ragged, uniform, adversarial, blocks)
}
"""Makers of lengths by name."""
