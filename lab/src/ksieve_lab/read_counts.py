"""Score-row traffic: the reads that each route should make, compared with those in the statistics.

Source: Siran Liu et al., "Sample-Guided Exact Top-K Selection for Long-Context Sparse Attention", Tencent; table
"Score-row traffic before frontier-only FP32 refinement". Its expected-traffic formula is ``E[R_eq] = 1 + 1/s + p_band +
2 p_exact``, where R_eq is scores read from a row over its valid length. With P segments per row each rereads the view,
so 1/s becomes P/s. The CPU backend recovers with one scan instead of two, because it guesses a cutoff
(`ksieve.model.guess`): 2 p_exact becomes p_exact.

The formula holds row by row for every sampled route. So the mean over rows must equal the prediction from the measured
p_band and p_exact, but for two terms in `Traffic`. A view holds a whole number of scores (`rounding`), and a frontier
beyond a backend's candidate storage is scanned again (`rescans`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.errors import ArgumentError
from ksieve.core.policy import SamplingPolicy
from ksieve.core.stats import Route, Stats

ROUTE_SCANS: dict[Route, int] = {
    Route.SHORT: 0,
    Route.CERTIFIED: 1,
    Route.RESCUED: 2,
    Route.RECOVERED: 3,
    Route.RECOVERED_AFTER_BAND: 4,
    Route.DIRECT: 2,
}
"""Complete traversals of a row per route, before the view and before any rescan of an overfull frontier."""

KEPT_SCANS: dict[Route, int] = ROUTE_SCANS | {
    Route.RECOVERED: 2,
    Route.RECOVERED_AFTER_BAND: 3,
    Route.DIRECT: 1,
}
"""The same on the CPU backend; a rescue boundary that equals the primary one takes no scan there."""

MAX_RESCANS = 3
"""A frontier can overflow once per exact digit; the CPU backend makes three guesses."""

_SCANS, _KEPT = (np.array([of[route] for route in Route], dtype=np.int64) for of in (ROUTE_SCANS, KEPT_SCANS))
_SAMPLED_ROUTES = (Route.CERTIFIED, Route.RESCUED, Route.RECOVERED, Route.RECOVERED_AFTER_BAND)


def expected_traffic(stride: int, p_band: float, p_exact: float, *, splits: int = 1, family: str = "") -> float:
    """Return E[R_eq] of the sampled route from the probabilities of a band scan and of exact recovery."""
    return 1 + splits / stride + p_band + (1 if family == "cpu" else 2) * p_exact


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of the sampled rows of a call, and whether the paper's accounting explains every row.

    `rows`: those that took a sampled route; the figures are over these alone. `p_band`, `p_exact`: shares of them that
    attempted the rescue band, and that ended in exact coarse recovery. `predicted`: ``1 + P/s + p_band + 2 p_exact``,
    or on the CPU ``1 + 1/s + p_band + p_exact``, in row scans. `realised`: mean over rows of scores read over valid
    length, rescans included. `rounding`: mean of view size over valid length, less P/s. `rescans`: mean complete
    traversals per row for frontiers beyond the candidate storage, or on the CPU for tie-breaks and guesses that
    admitted too few. `mismatched`: rows, of any route, whose reads are not their route's plus 0 to 3 rescans, or 4 of
    rows cut into segments.
    """

    rows: int
    p_band: float
    p_exact: float
    predicted: float
    realised: float
    rounding: float
    rescans: float
    mismatched: tuple[int, ...]

    @property
    def ok(self) -> bool:
        """Whether every row's reads are explained by its route."""
        return not self.mismatched


def check_traffic(
    stats: Stats,
    lengths: Any,
    policy: SamplingPolicy | None,
    *,
    splits: int = 1,
    resident_width: int = 0,
    family: str = "",
) -> Traffic:
    """Compare the traffic in statistics with the paper's table and formula.

    `stats` are of one call, which `policy` made; `lengths` are clamped to the width. `splits`: segments per row. Rows
    of at most `resident_width` stay on chip in the direct-exact route and are read once. `family`: kernel family of the
    plan; "cpu" reads as `KEPT_SCANS` says. ``realised == predicted + rounding + rescans`` but for floating-point error,
    whenever the result is ``ok``.
    """
    valid = np.asarray(lengths, dtype=np.int64)
    if valid.shape != (len(stats),):
        raise ArgumentError("lengths", f"shape {valid.shape}", f"shape ({len(stats)},), one length per row of stats")
    if valid.size and valid.min() < 0:
        raise ArgumentError("lengths", int(valid.min()), "lengths clamped to [0, width]")
    sampled = np.isin(stats.route, _SAMPLED_ROUTES)
    if policy is None and sampled.any():
        raise ArgumentError("policy", None, f"the policy of row {int(np.argmax(sampled))}, which was sampled")
    scans: NDArray[np.int64] = _SCANS[stats.route] - ((stats.route == Route.DIRECT) & (valid <= resident_width))
    if family == "cpu":
        scans = _KEPT[stats.route] - ((stats.route == Route.RECOVERED_AFTER_BAND) & (stats.tau0 == stats.tau1))
    view = np.zeros_like(valid)
    if policy is not None:
        view[sampled] = [policy.view(int(r), int(valid[r])).size * splits for r in np.flatnonzero(sampled)]
    reads = stats.score_reads(valid)
    excess = reads - view - scans * valid
    rescans = np.where(valid > 0, excess // np.maximum(valid, 1), 0)
    most = MAX_RESCANS + (splits > 1)  # segments whose candidates do not fit together are scanned as a row
    explained = (excess == rescans * valid) & (rescans >= 0) & (rescans <= most)
    mismatched = tuple(int(r) for r in np.flatnonzero(~explained))
    count = int(sampled.sum())
    if policy is None or not count:
        return Traffic(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, mismatched)
    route, length = stats.route[sampled], valid[sampled]
    p_band = float(np.isin(route, (Route.RESCUED, Route.RECOVERED_AFTER_BAND)).mean())
    p_exact = float(np.isin(route, (Route.RECOVERED, Route.RECOVERED_AFTER_BAND)).mean())
    return Traffic(
        count,
        p_band,
        p_exact,
        expected_traffic(policy.stride, p_band, p_exact, splits=splits, family=family),
        float((reads[sampled] / length).mean()),
        float((stats.sampled[sampled] / length).mean()) - splits / policy.stride,
        float(rescans[sampled].mean()),
        mismatched,
    )
