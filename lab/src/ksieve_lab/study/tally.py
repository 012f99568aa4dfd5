"""Distributions of realised ranks, collected without storing the ranks."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve_lab.study.views import UNUSABLE

MOST = 8
"""Ranks beyond this many k are counted but not resolved."""


def rank_text(rank: float | None) -> str:
    """A rank in units of k, as tables print it; None, which result files hold for infinity, is past `MOST`."""
    return f"over {MOST}" if rank is None or rank > MOST else f"{rank:.2f}"


_FIGURES = (
    "median", "p05", "p95", "bias", "rms", "reference_rms", "error_p95", "below_k", "unresolved",
)  # fmt: skip


class RankTally:
    """Counts of realised complete-row ranks around the one that was requested.

    Ranks are resolved exactly up to k = 2048, beyond it to k / 2048. Sums are exact, so that no order of rows, and no
    division of them among processes, changes a figure.
    """

    def __init__(self, k: int, requested: float) -> None:
        self.k, self.requested = k, requested
        self.per_k = min(k, 2048)
        self.histogram = np.zeros(MOST * self.per_k + 1, dtype=np.int64)
        self.square_error = Fraction()
        self.reference_square_error = Fraction()
        self.error = Fraction()
        self.below_k = 0
        self.unusable = 0

    @property
    def count(self) -> int:
        """Ranks counted."""
        return int(self.histogram.sum())

    def add(self, ranks: NDArray[np.int64], reference: Any = 0.0) -> None:
        """Count realised ranks, `UNUSABLE` ones apart, and add up the squared errors that a reference expects."""
        usable = ranks != UNUSABLE
        self.unusable += int((~usable).sum())
        found = ranks[usable]
        bins = np.minimum((found - 1) * self.per_k // self.k, self.histogram.size - 1)
        self.histogram += np.bincount(bins, minlength=self.histogram.size)
        errors = found - self.requested
        self.error += Fraction(float(errors.sum()))
        self.square_error += Fraction(float(np.square(errors).sum()))
        self.below_k += int((found < self.k).sum())
        self.reference_square_error += Fraction(float(np.broadcast_to(reference, ranks.shape)[usable].sum()))

    def merge(self, other: RankTally) -> None:
        """Add another tally of the same request."""
        if (other.k, other.requested) != (self.k, self.requested):
            raise ValueError(f"tallies of ({self.k}, {self.requested}) and ({other.k}, {other.requested}) do not add")
        for name in ("histogram", "square_error", "reference_square_error", "error", "below_k", "unusable"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def quantile(self, probability: float) -> float:
        """Least resolved rank, in units of k, that at least this share of ranks does not exceed; inf past `MOST`."""
        return self._quantile(self.histogram, probability, np.arange(1, self.histogram.size + 1) / self.per_k)

    def error_quantile(self, probability: float) -> float:
        """The same for the absolute error, rank minus request, in units of k."""
        errors = np.abs(np.arange(1, self.histogram.size + 1) / self.per_k - self.requested / self.k)
        order = np.argsort(errors[:-1], kind="stable")
        order = np.append(order, self.histogram.size - 1)  # unresolved ranks are the farthest
        return self._quantile(self.histogram[order], probability, errors[order])

    def summary(self) -> dict[str, Any]:
        """Return the tally as JSON-able figures, ranks in units of k."""
        count = self.count
        if not count:
            return {
                "requested": self.requested / self.k,
                "unusable": self.unusable,
                **dict.fromkeys(_FIGURES),
                "count": 0,
            }
        rms = float(self.square_error / count) ** 0.5 / self.k
        reference = float(self.reference_square_error / count) ** 0.5 / self.k
        return {
            "requested": self.requested / self.k,
            "count": count,
            "unusable": self.unusable,
            "median": self.quantile(0.5),
            "p05": self.quantile(0.05),
            "p95": self.quantile(0.95),
            "bias": float(self.error / count / self.k),
            "rms": rms,
            "reference_rms": reference or None,
            "error_p95": self.error_quantile(0.95),
            "below_k": self.below_k / count,
            "unresolved": int(self.histogram[-1]) / count,
        }

    def _quantile(self, counts: NDArray[np.int64], probability: float, values: NDArray[np.float64]) -> float:
        total = int(counts.sum())
        if not total:
            return float("nan")
        at = int(np.searchsorted(np.cumsum(counts), max(1, int(np.ceil(probability * total - 1e-9)))))
        return float("inf") if at == counts.size - 1 else float(values[at])
