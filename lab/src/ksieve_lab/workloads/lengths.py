"""Valid lengths of serving-like and adversarial batches, one table for the command line, tests and benches.

Every maker is ``f(rows, width, *, seed=0, k=2048) -> int32 (rows,)`` and deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve_lab.workloads.rowwise import row_generator

Lengths = NDArray[np.int32]


def full(rows: int, width: int, *, seed: int = 0, k: int = 2048) -> Lengths:
    """Every row valid throughout."""
    return np.full(rows, width, np.int32)


def causal(rows: int, width: int, *, seed: int = 0, k: int = 2048) -> Lengths:
    """The last `rows` queries of a causal prefill over `width` keys: row r sees ``width - rows + 1 + r``.

    Rows before the first key (only with more rows than keys) see nothing.
    """
    return np.maximum(np.arange(width - rows + 1, width + 1), 0).astype(np.int32)


def ragged(rows: int, width: int, *, seed: int = 0, k: int = 2048, low: float = 0.8, high: float = 1.0) -> Lengths:
    """A decode batch: lengths uniform between `low` and `high` of the width."""
    least, most = int(np.ceil(low * width)), int(high * width)
    return _rng(seed).integers(least, max(most, least) + 1, rows).astype(np.int32)


def uniform(rows: int, width: int, *, seed: int = 0, k: int = 2048) -> Lengths:
    """Lengths uniform from 0 to the width."""
    return ragged(rows, width, seed=seed, low=0.0)


def adversarial(rows: int, width: int, *, seed: int = 0, k: int = 2048) -> Lengths:
    """Every length that has broken a selector, in turn: around 0, k and the width, and both int32 extremes."""
    limits = np.iinfo(np.int32)
    cases = [0, width, -1, k, k - 1, k + 1, 1, width - 1, width + 1, 2 * k, limits.max, limits.min, -k, width // 2]
    return np.resize(np.clip(cases, limits.min, limits.max).astype(np.int32), rows)


def blocks(rows: int, width: int, *, seed: int = 0, k: int = 2048) -> Lengths:
    """Lengths below, at and just above a block of 4, 8, 128 and 256 scores, and the width, in turn."""
    cases = [n + d for n in (4, 8, 128, 256) for d in (-3, -1, 0, 1)]
    return np.resize(np.clip([0, width, *cases, width - 1], 0, width).astype(np.int32), rows)


def _rng(seed: int) -> np.random.Generator:
    # The last of the row streams: no row number reaches it.
    return row_generator(seed, (1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class LengthMaker:
    """A named way to give rows valid lengths."""

    name: str
    description: str
    make: Callable[..., Lengths]

    def __call__(self, rows: int, width: int, **options: Any) -> Lengths:
        """Make the lengths of `rows` rows: int32 of shape (rows,)."""
        return self.make(rows, width, **options)


LENGTHS: dict[str, LengthMaker] = {
    maker.name: maker
    for maker in (
        LengthMaker("full", "every row valid throughout", full),
        LengthMaker("causal", "the last rows of a causal prefill: row r of R sees width - R + 1 + r", causal),
        LengthMaker("ragged", "a decode batch: uniform from 80 to 100 % of the width", ragged),
        LengthMaker("uniform", "uniform from 0 to the width", uniform),
        LengthMaker(
            "adversarial", "0, negative, beyond the width, k - 1, k, k + 1 and both int32 extremes", adversarial
        ),
        LengthMaker("blocks", "rows shorter than a block of 4, 8, 128 or 256, as long, and longer by one", blocks),
    )
}
"""Length makers by name."""
