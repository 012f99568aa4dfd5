"""Whether sampling holds on a capture: the effect of the plan of its calls, and of every named policy, on its rows.

Rates are taken over every phase of a policy's sample positions. Counts that do not depend on the phase, such as scans
for want of candidate storage, come from the model (`ksieve.model.reference`). It runs each row as the plan would.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from ksieve import api
from ksieve.core.device import DeviceInfo
from ksieve.core.policy import LINES_64, POLICIES
from ksieve.core.stats import Route
from ksieve.model import reference
from ksieve.planning import length_bins
from ksieve.planning.plan import Plan
from ksieve_lab.captures.format import Capture
from ksieve_lab.read_counts import KEPT_SCANS, ROUTE_SCANS
from ksieve_lab.study.ranked import RankedRow
from ksieve_lab.study.tally import RankTally
from ksieve_lab.study.views import UNUSABLE, realised_ranks, statistics_sizes

HOLDS = 0.05
"""Scans of a row beyond the first and the view, on average, up to which sampling holds: one row in twenty once more."""

YES, NO = "yes", "no"

_SUMS = ("phases", "band", "recovered", "direct", "scanned_twice", "rescans", "view", "scans", "rows")

_SEED = 0
"""Of the CPU backend's guesses (`ksieve.model.guess`): which one matters to one row in hundreds of thousands."""


def least_length(k: int) -> int:
    """Least length of a row that a named sampling policy reads by a sample; shorter ones are read directly."""

    def sampled(length: int) -> bool:
        return any(p.usable(int(statistics_sizes(length, p).max()), k) for p in POLICIES.values())

    most = 1
    while not sampled(most):
        most *= 2
    return bisect.bisect_left(range(most), True, key=sampled)


def plans_of(capture: Capture, k: int, device: str | DeviceInfo = "cpu") -> list[Plan]:
    """Plans to judge for a capture's rows: the one that a call would get, then one for every other named policy."""
    shape: dict[str, Any] = {"rows": capture.rows, "width": capture.width, "k": k, "dtype": capture.dtype}
    own = api.plan(**shape, device=device)
    others = (policy for policy in POLICIES.values() if policy != own.policy)
    return [own, *(api.plan(**shape, device=own.device, policy=policy) for policy in others)]


@dataclass
class Judged:
    """Effect of one plan, of the statistics build (`length_bins.stats_plan`), summed over the rows studied.

    `tally`: scores that the primary boundary admits, over all phases; None without a policy. `phases` in all, and those
    that scan the rescue `band`, end `recovered`, are too small and go `direct`, and are therefore `scanned_twice`. Of
    the model, exact sums over rows: `rescans` for want of candidate storage, complete `scans`, and the `view`, sampled
    scores in units of the row.
    """

    plan: Plan
    tally: RankTally | None
    phases: int = 0
    band: int = 0
    recovered: int = 0
    direct: int = 0
    scanned_twice: int = 0
    rescans: int = 0
    view: Fraction = field(default_factory=Fraction)
    scans: int = 0
    rows: int = 0

    @classmethod
    def of(cls, plan: Plan) -> Judged:
        """Begin with no row."""
        policy, k = plan.policy, plan.problem.k
        tally = RankTally(k, float(policy.primary_rank(k) * policy.stride)) if policy else None
        return cls(length_bins.stats_plan(plan) if plan.device.kind == "cuda" else plan, tally)

    @property
    def name(self) -> str:
        """Name of the plan's policy."""
        return self.plan.policy.name if self.plan.policy else "direct"

    def add(self, row: RankedRow, row_id: int) -> None:
        """Add a row; `row_id` is its number in the capture, which determines its sample positions."""
        plan, policy, k = self.plan, self.plan.policy, self.plan.problem.k
        on_cpu = plan.family == "cpu"
        model: dict[str, Any] = (
            {"seed": _SEED} if on_cpu else {"resident_width": plan.resident_width, "splits": plan.splits}
        )
        _, trace = reference.select_row(row.scores, k, row_id=row_id, policy=policy, capacity=plan.capacity, **model)
        once = on_cpu or row.length <= plan.resident_width
        self.rows += 1
        self.scans += trace.scans
        least = KEPT_SCANS[trace.route] if on_cpu else ROUTE_SCANS[trace.route] - (trace.route == Route.DIRECT and once)
        self.rescans += max(trace.scans - least, 0)
        self.view += Fraction(trace.sampled / row.length)  # of a float: a power of two in the denominator
        if policy is None or self.tally is None:
            return
        sizes, which = np.unique(statistics_sizes(row.length, policy, row_id), return_inverse=True)
        usable = np.array([policy.usable(int(size), k) for size in sizes])[which]
        rescue = policy.rescue_rank(k)
        wanted = [policy.primary_rank(k), *([rescue] if rescue is not None else [])]
        ranks = np.where(usable[:, None], realised_ranks(row, policy, wanted, row_id=row_id), UNUSABLE)
        self.tally.add(ranks[:, 0])
        self.phases += usable.size
        self.direct += int((~usable).sum())
        self.scanned_twice += 0 if once else int((~usable).sum())
        short = (ranks < k) & usable[:, None]
        self.band += int(short[:, 0].sum()) if rescue is not None else 0
        self.recovered += int(short[:, -1].sum())

    def merge(self, other: Judged) -> None:
        """Add other rows of the same plan."""
        if other.plan != self.plan:
            raise ValueError(f"rows of {self.name} and {other.name} do not add")
        if self.tally is not None and other.tally is not None:
            self.tally.merge(other.tally)
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def results(self) -> dict[str, Any]:
        """Return the figures as JSON-able data: shares of phases, ranks in units of k, scans in units of the row."""
        view, rescans = float(self.view / self.rows), self.rescans / self.rows
        found: dict[str, Any] = {"name": self.name, "view": view, "rescans": rescans}
        if self.tally is None:
            again = self.scans / self.rows - 1
            return found | {"traffic": 1 + again, "holds": again <= HOLDS}
        band, recovered, direct, twice = (
            n / self.phases for n in (self.band, self.recovered, self.direct, self.scanned_twice)
        )
        again = rescans + band + (1 if self.plan.family == "cpu" else 2) * recovered + twice
        return found | {
            **self.tally.summary(),
            "p_band": band,
            "p_exact": recovered,
            "direct": direct,
            "traffic": 1 + view + again,
            "holds": again <= HOLDS and direct <= HOLDS,
        }


def verdict(own: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Answer for one capture, from `Judged.results` of its plan and of every named policy.

    ``answer``: "yes" if the plan's own policy holds, "with NAME only" if another one does, else "no"; ``with``: that
    NAME.
    """
    return _answer(bool(own["holds"]), [p["name"] for p in policies if p["holds"] and p["name"] != own["name"]])


def overall(captures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Answer for several captures together: the policies that hold on all."""
    holding = [{p["name"] for p in c["policies"] if p["holds"]} for c in captures]
    names = [name for name in POLICIES if all(name in held for held in holding)]
    return _answer(all(c["plan"]["holds"] for c in captures), names)


def _answer(holds: bool, others: Sequence[str]) -> dict[str, Any]:
    if holds:
        return {"answer": YES, "with": None}
    if not others:
        return {"answer": NO, "with": None}
    name = LINES_64.name if LINES_64.name in others else others[0]
    return {"answer": f"with {name} only", "with": name}
