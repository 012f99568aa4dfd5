"""Effect of policies on rows: measured over every phase of some rows, weighted by cost, and predicted for others."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve import api
from ksieve.core.device import DEVICES
from ksieve.core.policy import LINES_64, QUADS_16, SamplingPolicy
from ksieve_lab.study.costs import DeviceCost
from ksieve_lab.study.intervals import NEVER, Estimate, estimate_mean, estimate_rate
from ksieve_lab.study.measure import KEPT
from ksieve_lab.study.ranked import RankedRow
from ksieve_lab.study.views import UNUSABLE, realised_ranks

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

MARGINS = (0.75, 3.0)
"""Requested ranks that are tried, in units of k."""

SLACK = 0.005
"""Relative cost below which policies count as equally cheap: under the model's own error."""

MOST_RANKS = 48
"""Sample ranks tried per view; more are thinned to equal spacing."""


def shapes() -> list[SamplingPolicy]:
    """Views that are tried: jittered lines with peaks, jittered quads, and the paper's regular single scores."""
    lines = [replace(LINES_64, name=f"lines-{s}", stride=s, sigmas=0.0, source="") for s in (32, 64, 128, 256)]
    quads = [replace(QUADS_16, name=f"quads-{s}", stride=s, sigmas=0.0, source="") for s in (16, 32, 64)]
    single = [SamplingPolicy(f"single-{s}", s) for s in (32, 64, 128, 256)]
    return lines + quads + single


def sample_ranks(view: SamplingPolicy, k: int) -> I64:
    """Sample ranks to try with a view."""
    least, most = (max(2, math.ceil(margin * k / view.stride)) for margin in MARGINS)
    return np.unique(np.linspace(least, most, min(MOST_RANKS, most - least + 1)).round().astype(np.int64))


def with_ranks(view: SamplingPolicy, k: int, primary: int, rescue: int | None) -> SamplingPolicy:
    """Give a view the margins that request these sample ranks at this k."""
    # A quarter below the rank, so that ceil() gives the rank for any rounding error.
    margin, rescue_margin = (None if q is None else round((q - 0.25) * view.stride / k, 6) for q in (primary, rescue))
    assert margin is not None
    policy = replace(view, margin=margin, rescue_margin=rescue_margin, sigmas=0.0, min_rank=min(primary, 16))
    assert (policy.primary_rank(k), policy.rescue_rank(k)) == (primary, rescue)
    return policy


@dataclass(frozen=True)
class Sample:
    """Rows that were calibrated on, and how many are to be predicted.

    `blocks`: which block of consecutive rows each belongs to. `following`: rows to predict, in blocks of the same size.
    `itemsize`: bytes of a score.
    """

    lengths: I64
    blocks: I64
    following: int
    itemsize: int = 4

    def rate(self, rows: F64) -> Estimate:
        """Estimate a rate from each row's probability."""
        return estimate_rate(rows, self.blocks, self.following)

    def mean(self, rows: F64, variances: F64) -> Estimate:
        """Estimate a mean from each row's expectation and its variance over phases."""
        return estimate_mean(rows, variances, self.blocks, self.following)


@dataclass
class Tried:
    """One view on all calibration rows: arrays of shape (rows, ranks), each a share or a mean over a row's phases.

    `underfill`: phases that admit fewer than k. `admitted`, `square`: scores admitted, and their square; those behind
    the kept ones count as the first. `direct`: phases whose view is too small, which sends the row direct. `overflow`:
    phases that admit more than the device's plan has room for; those rows are scanned once more.
    """

    view: SamplingPolicy
    ranks: I64
    underfill: F64
    admitted: F64
    square: F64
    direct: F64
    overflow: F64


@dataclass(frozen=True)
class Prediction:
    """Predicted effect of a policy on rows like those measured: an estimate of each of `QUANTITIES`, and the cost.

    `traffic` is as the paper counts it, without rescans. `overflow`: share of rows that the calibrated device scans
    once more for want of candidate storage. `row_ns`: cost of a row, rescans included.
    """

    policy: SamplingPolicy
    p_band: Estimate
    p_exact: Estimate
    traffic: Estimate
    admitted: Estimate
    overflow: float
    row_ns: float

    def plain(self) -> dict[str, Any]:
        """Return the prediction as JSON-able data."""
        return {
            "policy": self.policy.name,
            "stride": self.policy.stride,
            "margin": self.policy.margin,
            "rescue_margin": self.policy.rescue_margin,
            **{name: asdict(getattr(self, name)) for name in QUANTITIES},
            "overflow": self.overflow,
            "row_ns": self.row_ns,
        }


QUANTITIES = ("p_band", "p_exact", "traffic", "admitted")
"""Predicted and counted quantities: rates of band scans and of exact recovery, row scans, admitted scores / k."""


def capacities(view: SamplingPolicy, ranks: I64, k: int, width: int, cost: DeviceCost) -> I64:
    """Candidates that a plan of the device has room for, per sample rank; at most the scores that are ordered."""
    device = DEVICES.get(cost.name, "cpu" if cost.kind == "cpu" else DEVICES["h200"])
    plans = (
        api.plan(rows=4096, width=width, k=k, device=device, policy=with_ranks(view, k, int(q), None)) for q in ranks
    )
    return np.array([min(plan.capacity, KEPT * k) for plan in plans], dtype=np.int64)


def try_row(
    row: RankedRow, view: SamplingPolicy, ranks: I64, k: int, capacity: I64, row_id: int = 0
) -> tuple[F64, ...]:
    """Try a view on a row: per sample rank, the last five fields of `Tried`."""
    found = realised_ranks(row, view, [int(q) for q in ranks], beyond=False, row_id=row_id)
    usable = found != UNUSABLE
    admitted = np.minimum(np.where(usable, found, 0), KEPT * k + 1).astype(np.float64)
    share = np.maximum(usable.mean(axis=0), 1e-12)
    stored = admitted
    if view.boundary == "exact":
        # Scores that equal a boundary which the view saw more than once are counted, not stored. More of them than
        # one view leaves out between two of its scores are taken to be seen more than once.
        better = np.searchsorted(row.ranks, found, side="left")
        stored = np.where(found - better > view.stride, np.where(better >= k, better, 0), admitted)
    return (
        ((found < k) & usable).mean(axis=0) / share,
        admitted.mean(axis=0) / share,
        np.square(admitted).mean(axis=0) / share,
        1 - usable.mean(axis=0),
        ((stored > capacity) & usable).mean(axis=0) / share,
    )


def cheapest(tried: Tried, k: int, cost: DeviceCost, sample: Sample) -> Prediction | None:
    """Choose a view's sample ranks by the model, with failure rates at the upper end of their intervals.

    The upper end, because few rows cannot exclude an unseen event. Among ranks that cost the same within
    `SLACK`, the one with the fewest failures: a call is as slow as its slowest row.
    """
    usable = [int(i) for i in np.flatnonzero(tried.direct.max(axis=0) == 0)]
    if not usable:
        return None
    high = {i: sample.rate(tried.underfill[:, i]).high for i in usable}
    mean = {i: float(tried.admitted[:, i].mean()) for i in usable}
    spilled = {i: float(tried.overflow[:, i].mean()) for i in usable}
    length = float(sample.lengths.mean())
    options: list[tuple[float, float, float, int, int | None]] = []
    for i in usable:
        rescues: list[int | None] = [None]
        if tried.view.boundary == "coarse" or cost.rescues_exact:
            rescues += [j for j in usable if tried.ranks[j] >= tried.ranks[i] + 4]
        for j in rescues:
            p_band, p_exact = (high[i], high[j]) if j is not None else (0.0, high[i])
            scans = 1 + p_band + 2 * p_exact + spilled[i]
            admitted = mean[i] + p_band * (mean[j] if j is not None else 0.0)
            price = float(cost.row_ns(tried.view, length, admitted, scans, sample.itemsize))
            options.append((price, p_exact, p_band, i, j))
    least = min(price for price, *_ in options)
    _, _, _, i, j = min((o for o in options if o[0] <= least * (1 + SLACK)), key=lambda o: (2 * o[1] + o[2], o[0]))
    q1 = None if j is None else int(tried.ranks[j])
    return predict(tried, k, cost, sample, int(tried.ranks[i]), q1)


def predict(tried: Tried, k: int, cost: DeviceCost, sample: Sample, q0: int, q1: int | None) -> Prediction:
    """Predict rates, traffic and candidates of a view with these sample ranks."""
    i = int(np.flatnonzero(tried.ranks == q0)[0])
    first = tried.underfill[:, i]
    last = first if q1 is None else tried.underfill[:, int(np.flatnonzero(tried.ranks == q1)[0])]
    band = np.zeros_like(first) if q1 is None else first
    view = 1 / tried.view.stride
    traffic = 1 + view + band + 2 * last
    # Nested failures: of a row's phases, a share `last` costs 3 (or 2) more scans, a share `band - last` one more.
    squares = (band - last) * 1 + last * 9 if q1 is not None else last * 4
    variance = squares - (traffic - 1 - view) ** 2
    admitted = tried.admitted[:, i] / k
    spilled = tried.overflow[:, i]
    scanned = traffic - view + spilled
    policy = with_ranks(tried.view, k, q0, q1)
    prediction = Prediction(
        policy,
        sample.rate(band) if q1 is not None else NEVER,
        sample.rate(last),
        sample.mean(traffic, np.maximum(variance, 0)),
        sample.mean(admitted, np.maximum(tried.square[:, i] / k**2 - admitted**2, 0)),
        float(spilled.mean()),
        float(cost.row_ns(policy, sample.lengths, tried.admitted[:, i], scanned, sample.itemsize).mean()),
    )
    # Failures that were too rare to be seen may still come: traffic reaches as far as the rates do.
    band_rate, exact_rate, scans = prediction.p_band, prediction.p_exact, prediction.traffic
    reach = replace(
        scans,
        low=max(scans.low, 1 + view),
        high=max(scans.high, 1 + view + band_rate.high + 2 * exact_rate.high),
        next_low=max(scans.next_low, 1 + view),
        next_high=max(scans.next_high, 1 + view + band_rate.next_high + 2 * exact_rate.next_high),
    )
    return replace(prediction, traffic=reach)
