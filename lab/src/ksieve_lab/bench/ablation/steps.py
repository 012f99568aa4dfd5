"""Margin, stride, rescue and proposal over terminal scheduler steps: the same scores for every variant, call by call.

Step latency is the sum of per-call medians, and rates are over all rows of the step, as in the paper. Two views are
swept: the paper's (single scores, coarse boundary), and ksieve's (whole 128-byte lines, the best of each four adjacent
scores, exact boundary). The latter is exact without a rescue, and has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ksieve.core.policy import LINES_128, PAPER_128, SamplingPolicy
from ksieve.core.stats import Route, Stats
from ksieve_lab.bench.machines import Choice, Machine
from ksieve_lab.bench.runner import Settings
from ksieve_lab.traces.serving import Invocation

MARGINS = (1.0, 1.25, 1.5, 1.75, 2.0)
STRIDES = (16, 32, 64, 128, 256)
STRIDE, MARGIN = 128, 1.5
"""Stride and margin of the paper's policy, each fixed while the other one is swept."""

LINE_STRIDES = (32, 64, 128, 256)
"""Denser views by lines have more statistics than a CTA can rank."""

PLANNED, DIRECT, RESCUED = "ksieve", "exact proposal", "with rescue"
FAMILY = "stream"
WAVE = 256
"""Rows of the wave that measures recovery: two whole periods of the view, at most one wave of CTAs."""

SAMPLED = (Route.CERTIFIED, Route.RESCUED, Route.RECOVERED, Route.RECOVERED_AFTER_BAND)


def paper_policy(stride: int, margin: float) -> SamplingPolicy:
    """The paper's view with another stride or margin, without rescue and without a least sample rank."""
    return SamplingPolicy(f"paper s={stride} rho={margin:g}", stride, margin=margin, min_rank=1)


def lines_policy(stride: int, margin: float) -> SamplingPolicy:
    """The view by lines; its margin alone decides."""
    return replace(
        LINES_128, name=f"lines s={stride} rho={margin:g}", stride=stride, margin=margin, sigmas=0, min_rank=1
    )


def choices_of(parts: Iterable[str]) -> dict[str, Choice]:
    """Return every variant that some of the parts need, by name."""
    wanted = set(parts)
    found: dict[str, Choice] = {PLANNED: (None, None)}

    def add(policy: SamplingPolicy) -> None:
        found[policy.name] = (FAMILY, policy)

    if "margin" in wanted:
        for margin in MARGINS:
            add(paper_policy(STRIDE, margin))
            add(lines_policy(STRIDE, margin))
    if "stride" in wanted:
        for stride in STRIDES:
            add(paper_policy(stride, MARGIN))
        for stride in LINE_STRIDES:
            add(lines_policy(stride, MARGIN))
    if wanted & {"rescue", "proposal"}:
        add(paper_policy(STRIDE, MARGIN))
    if "rescue" in wanted:
        found[RESCUED] = (FAMILY, replace(PAPER_128, min_rank=1))
    if "proposal" in wanted:
        found[DIRECT] = ("stream_unsampled", "direct")
    return found


@dataclass
class Tally:
    """Clock readings and statistics of a variant, call by call."""

    times: list[dict[str, Any]] = field(default_factory=list)
    stats: list[Stats] = field(default_factory=list)

    @property
    def error(self) -> str | None:
        """Why the first call that failed did."""
        return next(filter(None, (facts.get("error") or facts.get("unsupported") for facts in self.times)), None)

    def facts(self, calls: int, floor_us: float) -> dict[str, Any]:
        """For a result file; no latency of a variant that failed or was inexact anywhere.

        Rates are over sampled rows: others have no boundary to miss.
        """
        spent = math.fsum(facts.get("median_us", 0.0) for facts in self.times)
        exact = all(facts.get("exact") is True for facts in self.times)
        good = exact and self.error is None and spent > 0
        route = np.concatenate([stats.route for stats in self.stats] or [np.zeros(0, int)])
        admitted = np.concatenate([stats.admitted0 for stats in self.stats] or [np.zeros(0, int)])
        sampled = np.isin(route, SAMPLED)
        rows = int(sampled.sum())
        missed, recovered = (float(100 * np.isin(route[sampled], SAMPLED[first:]).mean()) if rows else None
                             for first in (1, 2))  # fmt: skip
        return {
            "exact": exact, "error": self.error, "step_ms": spent / 1e3 if good else None,
            "of_floor": floor_us / spent if good else None, "sampled_rows": rows, "primary_missed_percent": missed,
            "recovery_percent": recovered, "admitted_mean": float(admitted[sampled].mean()) if rows else None,
            "calls": calls,
        }  # fmt: skip


def run_step(
    machine: Machine, calls: Sequence[Invocation], parts: Sequence[str], settings: Settings, advance: Callable[[], None]
) -> dict[str, Any]:
    """Time every variant on every call of a step.

    Returns ``variants`` by name, ``peers`` by name, ``floor_ms``, and ``wave`` with the latency of recovery, if asked
    for.
    """
    choices, k, rounds = choices_of(parts), settings.k, settings.rounds
    tallies = {name: Tally() for name in choices}
    others: dict[str, Tally] = {}
    floor_us = 0.0
    wave = _Wave(machine, max(c.width for c in calls)) if "rescue" in parts else None
    for number, call in enumerate(calls):
        seed = settings.seed + 1000 * number
        scores, lengths = machine.scores(call.rows, call.width, call.lengths(), settings.scores, seed)
        timed = machine.time(scores, lengths, k, choices, rounds, settings.peers)
        floor_us += timed["floor_us"]
        for name, facts in timed["selectors"].items():
            (tallies[name] if name in tallies else others.setdefault(name, Tally())).times.append(facts)
        for name, choice in choices.items():
            if tallies[name].error is None:
                tallies[name].stats.append(machine.stats(scores, lengths, k, choice))
        if wave is not None:
            wave.collect(scores, lengths, call.lengths(), k, choices)
        del scores
        advance()
    done: dict[str, Any] = {
        "calls": [[c.rows, c.width] for c in calls],
        "floor_ms": floor_us / 1e3,
        "variants": {name: tally.facts(len(calls), floor_us) for name, tally in tallies.items()},
        "peers": {name: tally.facts(len(calls), floor_us) for name, tally in others.items()},
    }
    if wave is not None:
        done["wave"] = wave.measure(k, rounds)
    return done


class _Wave:
    """Rows that missed their primary boundary, gathered to be timed together and alone.

    A row's view starts at a phase that its number fixes, so a row keeps its number modulo the stride. The same rows are
    timed under three policies: with rescue, without it (exact recovery), and with a margin that certifies them at once.
    The latency of a recovery path is its time minus the third's.
    """

    def __init__(self, machine: Machine, width: int) -> None:
        self._machine = machine
        self._width = width
        self._matrix: Any = None
        self._valid = np.zeros(WAVE, np.int32)
        self._sure = replace(paper_policy(STRIDE, 2.0), name="certified at once")

    def collect(self, scores: Any, lengths: Any, valid: Any, k: int, choices: dict[str, Choice]) -> None:
        """Take the rows of a call that the rescue boundary resolves, as long as their places are free."""
        if self._valid.all():
            return
        stats = self._machine.stats(scores, lengths, k, choices[RESCUED])
        for row in np.flatnonzero(stats.route == Route.RESCUED):
            free = [at for at in range(int(row) % STRIDE, WAVE, STRIDE) if not self._valid[at]]
            if free:
                if self._matrix is None:
                    self._matrix = self._machine.blank(WAVE, self._width)
                self._matrix[free[0]] = scores[int(row)]
                self._valid[free[0]] = valid[row]

    def measure(self, k: int, rounds: int) -> dict[str, Any] | None:
        """Time the wave; None without affected rows."""
        if self._matrix is None:
            return None
        choices: dict[str, Choice] = {
            "certified": (FAMILY, self._sure),
            "rescue": (FAMILY, replace(PAPER_128, min_rank=1)),
            "recovery": (FAMILY, paper_policy(STRIDE, MARGIN)),
        }
        routes = {"certified": Route.CERTIFIED, "rescue": Route.RESCUED, "recovery": Route.RECOVERED}
        # Only rows that take the intended route under every policy: other rows would blur the difference.
        keep = self._valid > 0
        for name, choice in choices.items():
            stats = self._machine.stats(self._matrix, self._machine.lengths(self._valid), k, choice)
            keep &= stats.route == routes[name]
        valid = np.where(keep, self._valid, 0).astype(np.int32)
        if not keep.any():
            return None
        timed = self._machine.time(self._matrix, self._machine.lengths(valid), k, choices, 3 * rounds, [])
        us = {name: facts.get("median_us") for name, facts in timed["selectors"].items()}
        exact = all(facts.get("exact") is True for facts in timed["selectors"].values())
        if None in us.values() or not exact:
            return {"rows": int(keep.sum()), "exact": exact, "error": "a variant failed or was inexact"}
        added = {f"{name}_us": us[name] - us["certified"] for name in ("rescue", "recovery")}
        return {"rows": int(keep.sum()), "exact": exact} | added
