"""Producers of synthetic scores, each made from a function of one row.

Every producer is ``f(rows, width, *, seed=0, first_row=0, k=2048, **options) -> float32 (rows, width)``. Row r is
a function of ``(seed, first_row + r)``, the width and the options alone, so a matrix can be made in blocks.
`k` is the K at which some families (plateaus, ties) place their boundary. Any shape works, down to zero rows or scores;
in very short rows a family may lack its characteristic feature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core import problem
from ksieve.core.errors import ArgumentError

F32 = NDArray[np.float32]


def row_generator(seed: int, row: int) -> np.random.Generator:
    """Random generator of one row: a Philox stream keyed by (seed, row)."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, row], dtype=np.uint64)))


def line_of(make: Callable[..., Any]) -> str:
    """First line of a function's documentation, for listings."""
    return (make.__doc__ or "").partition("\n")[0].rstrip(".")


@dataclass(frozen=True, slots=True)
class Producer:
    """A family of synthetic scores, made by ``make_row(rng, width, row, k, **options) -> (width,)``.

    The function's name and the first line of its documentation are the producer's. `adversarial` says whether the
    family is designed to break selectors, not to resemble real scores.
    """

    make_row: Callable[..., Any]
    adversarial: bool = False

    @property
    def name(self) -> str:
        """Name in tables and on the command line."""
        return self.make_row.__name__.lstrip("_")

    @property
    def description(self) -> str:
        """One line for listings."""
        return line_of(self.make_row)

    def __call__(
        self, rows: int, width: int, *, seed: int = 0, first_row: int = 0, k: int = 2048, **options: Any
    ) -> F32:
        """Make the scores of rows ``first_row`` to ``first_row + rows``: float32 of shape (rows, width)."""
        for name, value in (("rows", rows), ("width", width), ("seed", seed), ("first_row", first_row), ("k", k)):
            if not problem.is_int(value) or not 0 <= value < 1 << 63:
                raise ArgumentError(name, repr(value), "an int from 0 to 2**63 - 1")
        parameters = inspect.signature(self.make_row).parameters.values()
        own = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
        for name in options.keys() - set(own):
            raise ArgumentError("options", name, " or ".join(own) if own else "nothing for this producer")
        out = np.empty((rows, width), dtype=np.float32)
        for r in range(rows):
            out[r] = self.make_row(row_generator(seed, first_row + r), int(width), first_row + r, int(k), **options)
        return out
