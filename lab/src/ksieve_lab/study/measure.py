"""The paper's observations, measured on captures: one pass over the chosen rows, in bounded memory.

Every quantity is an exact order statistic of the stored scores. What is kept of a row is a few dozen numbers; rank
distributions are gathered in histograms (`tally`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.device import DeviceInfo
from ksieve.core.policy import POLICIES, SamplingPolicy
from ksieve.core.text import printable
from ksieve.files import split
from ksieve_lab.captures.format import Capture
from ksieve_lab.study import theory
from ksieve_lab.study.ranked import RankedRow, ranked_rows
from ksieve_lab.study.rows import LEAST_LENGTH
from ksieve_lab.study.tally import RankTally
from ksieve_lab.study.verdict import Judged, plans_of, verdict
from ksieve_lab.study.views import phases_of, realised_ranks, regular_view, statistics_sizes

STRIDES = (16, 32, 64, 128, 256)
"""One score in so many is read: the paper's five fractions."""

REQUESTS = (1.0, 1.25, 1.5, 1.75, 2.0)
"""Requested complete-row ranks in units of k: the paper's five."""

CENTRE = 1.5
"""The request that distributions are shown at."""

GROUPS = (1, 4, 8, 32)
"""Adjacent scores per sampled group, compared at equal numbers of samples."""

GAPS = (*(float(m * 10**e) for e in range(4) for m in (1, 1.5, 2, 3, 5, 7)), 10_000.0)
"""Boundary errors eps, in adjacent gaps: four orders of magnitude."""

RUNS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Lengths of contiguous runs of boundary positions."""

KEPT = 8
"""Scores ordered per row, in units of k."""


@dataclass
class CaptureStudy:
    """Measurements of one capture; see `results` for the figures."""

    name: str
    title: str
    rows: int
    eligible: int
    lengths: list[int]
    width: int
    dtype: str
    k: int
    tail: list[NDArray[np.int64]] = field(default_factory=list)
    tied: int = 0
    studied: int = 0
    shares: list[NDArray[np.float64]] = field(default_factory=list)
    ranks: dict[tuple[int, float], RankTally] = field(default_factory=dict)
    groups: dict[tuple[int, int], RankTally] = field(default_factory=dict)
    plans: list[Judged] = field(default_factory=list)
    dispersion: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    runs: list[NDArray[np.float64]] = field(default_factory=list)
    runs_expected: list[NDArray[np.float64]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for stride in STRIDES:
            for request in REQUESTS:
                self.ranks[stride, request] = RankTally(self.k, request * self.k)
        for stride in (64, 128):
            for group in GROUPS:
                self.groups[stride, group] = RankTally(self.k, CENTRE * self.k)

    def merge(self, other: CaptureStudy) -> None:
        """Add the rows of the same capture that follow these."""
        for name in ("tail", "shares", "runs", "runs_expected", "tied", "studied"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for key, values in other.dispersion.items():
            self.dispersion.setdefault(key, []).extend(values)
        pairs = [(self.ranks[key], other.ranks[key]) for key in self.ranks]
        for mine, theirs in (*pairs, *((self.groups[key], other.groups[key]) for key in self.groups)):
            mine.merge(theirs)
        for judged, of_others in zip(self.plans, other.plans, strict=True):
            judged.merge(of_others)

    def results(self) -> dict[str, Any]:
        """Return all figures as JSON-able data; counts and ranks in units of k unless named otherwise."""
        lengths = np.array(self.lengths)
        found = {judged.name: judged.results() for judged in self.plans}
        own, policies = self.plans[0].results(), [found[name] for name in POLICIES if "count" in found[name]]
        chosen = self.plans[0].plan
        return {
            "name": self.name,
            "title": self.title,
            "rows": self.rows,
            "eligible": self.eligible,
            "studied": self.studied,
            "width": self.width,
            "dtype": self.dtype,
            "lengths": {"least": lengths.min(), "median": float(np.median(lengths)), "most": lengths.max()},
            "verdict": verdict(own, policies),
            "plan": {"device": chosen.device.name, "family": chosen.family, "held": chosen.resident_width,
                     "capacity": chosen.capacity, **own},
            "tail": self._tail_results(),
            "deciles": self._decile_results(),
            "ranks": [
                {"stride": s, **tally.summary(),
                 "exchangeable_below_k": exchangeable_underfill(self.k, s, r, int(np.median(lengths)))}
                for (s, r), tally in self.ranks.items()
            ],
            "groups": [
                {"stride": s, "group": g, **tally.summary()} for (s, g), tally in self.groups.items()
            ],
            "policies": policies,
            "regions": {
                "dispersion": [
                    {"stride": s, "group": g, **_spread(np.array(values))}
                    for (s, g), values in self.dispersion.items()
                ],
                "rows": len(self.runs),
                "runs": {
                    "at_least": RUNS,
                    "share": _mean(self.runs),
                    "exchangeable": _mean(self.runs_expected),
                },
            },
        }  # fmt: skip

    def _tail_results(self) -> dict[str, Any]:
        found: dict[str, Any] = {"gaps": GAPS, "rows": len(self.tail), "tied": self.tied}
        predicted = {
            "mean": 1 + np.array(GAPS) / self.k,  # the paper's local approximation, C(eps) = K + eps
            **{name: theory.tail_quantile(self.k, GAPS, p) / self.k for name, p in _QUANTILES},
        }
        if self.tail:
            counts = np.array(self.tail) / self.k
            found |= {"mean": counts.mean(axis=0), "most": counts.max(axis=0)}
            found |= {name: np.quantile(counts, p, axis=0) for name, p in _QUANTILES}
        return found | {"predicted": predicted}

    def _decile_results(self) -> dict[str, Any]:
        if not self.shares:
            return {"rows": 0}
        shares = np.array(self.shares)
        ends = shares[:, 0] + shares[:, -1]
        return {
            "rows": len(shares),
            "mean": shares.mean(axis=0),
            **{name: np.quantile(shares, p, axis=0) for name, p in _QUANTILES},
            "ends": {"mean": ends.mean(), **_spread(ends)},
        }


_QUANTILES = (("p05", 0.05), ("median", 0.5), ("p95", 0.95))


def _mean(rows: list[NDArray[np.float64]]) -> NDArray[np.float64] | None:
    return np.mean(rows, axis=0) if rows else None


def _spread(values: NDArray[np.float64]) -> dict[str, float]:
    return {name: float(np.quantile(values, p)) for name, p in _QUANTILES}


@lru_cache(maxsize=256)
def exchangeable_underfill(k: int, stride: int, request: float, length: int) -> float:
    """Share of phases whose boundary would admit fewer than k if positions were exchangeable."""
    samples = max(length // stride, 1)
    q = math.ceil(request * k / stride)
    return theory.underfill_probability(k, q, length, samples) if q <= samples else float("nan")


def study_capture(
    capture: Capture,
    k: int,
    chosen: NDArray[np.int64],
    *,
    device: str = "cpu",
    plan_for: str | DeviceInfo = "cpu",
    progress: Callable[[int], None] | None = None,
    rank: int = 0,
    world: int = 1,
) -> CaptureStudy | None:
    """Measure one capture, all ranks together: each must call it, and the first has the figures of one process.

    `chosen`: numbers of the rows to study. `device`: "cpu" or "cuda", where rows are ranked. `plan_for`: device whose
    plan is judged, as `ksieve.plan` takes it. `progress` is called with the number of rows done. `rank`, `world`: of
    the processes that share the rows (`ksieve.files.split`).
    """
    lengths = capture.clamped()
    eligible = int(np.count_nonzero(lengths >= LEAST_LENGTH * k))
    title = capture.metadata.get("title", "")
    found = CaptureStudy(
        printable(capture.path.stem), title, capture.rows, eligible, lengths[chosen].tolist(),
        capture.width, capture.dtype, k, plans=[Judged.of(plan) for plan in plans_of(capture, k, plan_for)],
    )  # fmt: skip
    own = chosen[chosen.size * rank // world : chosen.size * (rank + 1) // world]
    for number, row in zip(own, ranked_rows(capture, own, KEPT * k, device), strict=True):
        study_row(row, found, int(number))
        if progress is not None:
            progress(found.studied * chosen.size // own.size)  # the ranks advance alike
    parts = split.collect(found, rank, world)
    for part in parts[1:]:
        found.merge(part)
    return None if rank else found


def study_row(row: RankedRow, found: CaptureStudy, number: int) -> None:
    """Add the figures of a row, given its number in the capture, to the measurements."""
    found.studied += 1
    if _tail(row, found):
        _views(row, found)
    if row.ranks[found.k - 1] == found.k:  # with a tie at rank k the set of top positions is not unique
        found.shares.append(np.bincount(row.order[: found.k] * 10 // row.length, minlength=10) / found.k)
    _regions(row, found)
    for judged in found.plans:
        judged.add(row, number)


def _tail(row: RankedRow, found: CaptureStudy) -> bool:
    """Observation 1: C(eps) of one row. Rows tied at rank k have no gap to count in, and no rank: False for them."""
    k = found.k
    with np.errstate(invalid="ignore"):  # infinities and NaN
        values = row.scores[row.order[k - 1 : k + 1]].astype(np.float64)
        gap = values[0] - values[1]
    if not (np.isfinite(gap) and gap > 0):
        found.tied += 1
        return False
    found.tail.append(row.count_at_least(values[0] - np.array(GAPS) * gap))
    return True


def _views(row: RankedRow, found: CaptureStudy) -> None:
    """Observation 2: where every phase's boundary falls in the complete row."""
    k = found.k

    def count(view: SamplingPolicy, tallies: Mapping[float, RankTally]) -> None:
        wanted = [math.ceil(request * k / view.stride) for request in tallies]
        ranks, sizes = realised_ranks(row, view, wanted), statistics_sizes(row.length, view)
        for i, (request, tally) in enumerate(tallies.items()):
            q = wanted[i]
            expected = theory.exchangeable_square_error(q, row.length, np.maximum(sizes, q), request * k)
            tally.add(ranks[:, i], expected)

    for stride in STRIDES:
        count(regular_view(stride), {request: found.ranks[stride, request] for request in REQUESTS})
    for (stride, group), tally in found.groups.items():
        count(SamplingPolicy("", stride, group=group, boundary="exact", min_rank=1), {CENTRE: tally})


def _regions(row: RankedRow, found: CaptureStudy) -> None:
    """How evenly the boundary region falls on the phases, and the contiguous runs in it."""
    length, size = row.length, math.ceil(CENTRE * found.k)
    if row.ranks[size - 1] != size:
        return
    region = np.sort(row.order[:size])
    share = region.size / length
    for stride, group in [(s, 1) for s in STRIDES] + [(s, 32) for s in (64, 128)]:
        view = SamplingPolicy("", stride, group=group, boundary="exact", min_rank=1)
        counts = np.bincount(phases_of(region, view), minlength=stride)
        sizes = statistics_sizes(length, view)
        expected = (sizes * share * (1 - share) * (length - sizes) / (length - 1)).sum()
        if expected:
            ratio = float(np.square(counts - sizes * share).sum() / expected)
            found.dispersion.setdefault((stride, group), []).append(ratio)
    ends = np.flatnonzero(np.diff(region) != 1)
    runs = np.diff(np.concatenate([[-1], ends, [region.size - 1]]))
    at_least = np.array(RUNS)
    found.runs.append(np.array([runs[runs >= r].sum() for r in RUNS]) / region.size)
    # A position of the region lies in a run of r or more with this probability, were all positions independent.
    found.runs_expected.append(share ** (at_least - 1.0) * (at_least - (at_least - 1) * share))


def pooled_ranks(studies: Sequence[CaptureStudy]) -> list[dict[str, Any]]:
    """Rank figures of the regular views over all captures together, as the paper pools its three."""
    out = []
    for (stride, request), first in studies[0].ranks.items():
        total = RankTally(first.k, first.requested)
        for study in studies:
            total.merge(study.ranks[stride, request])
        out.append({"stride": stride, **total.summary()})
    return out
