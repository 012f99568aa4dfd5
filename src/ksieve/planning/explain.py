"""The plans that were possible for a shape on a CUDA device, and what speaks for and against each.

Reads follow the paper's accounting: how often a row is read from memory. No time is predicted from them: at few rows
latency decides, and reading lines costs more than their share of the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.core.problem import Problem
from ksieve.planning import choose as planner
from ksieve.planning import shapes, tuned
from ksieve.planning.families import SHARED_ROWS
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import Geometry
from ksieve.planning.switch_points import WARP_ROWS


@dataclass(frozen=True, slots=True)
class Considered:
    """One kernel family for a shape.

    `launch`: threads, CTAs for each multiprocessor and for each row; empty if the family is refused. `waves`: CTAs
    launched CTAs over CTAs that run at once. `reads`: times that a row is read from memory; 0 if the family is refused.
    `verdict`: why it is chosen, or why it is not.
    """

    family: str
    launch: str
    waves: float
    reads: float
    verdict: str


def considered(problem: Problem, device: DeviceInfo) -> list[Considered]:
    """Return every family of a CUDA device for a problem, the chosen one first.

    Raises `ArgumentError` if the device is none of CUDA.
    """
    if device.kind != "cuda":
        raise ArgumentError(
            "--explain", "a plan for the CPU", "--device with a GPU, such as h200: the CPU has one family"
        )
    chosen = planner.choose(problem, device)
    found = [_of(chosen, f"chosen: {chosen.reason}")]
    for family in shapes.families():
        if family == chosen.family:
            continue
        try:
            plan = planner.choose(problem, device, family=family)
        except ArgumentError as error:
            found.append(Considered(family, "", 0.0, 0.0, f"refused: {error.takes.removeprefix('another family: ')}"))
            continue
        found.append(_of(plan, _against(plan, chosen)))
    return found


def _of(plan: Plan, verdict: str) -> Considered:
    per_row = f", {plan.splits} a row" if plan.splits > 1 else ""
    launch = f"{plan.threads} x {plan.ctas_per_sm}{per_row}"
    waves = plan.ctas / (plan.device.sm_count * plan.ctas_per_sm)
    return Considered(plan.family, launch, waves, reads(plan), verdict)


def reads(plan: Plan) -> float:
    """Return how often a row of the planned width is read, if the sample's threshold holds."""
    if plan.policy is not None:
        return 1 + plan.splits / plan.policy.stride
    blocks = plan.problem.options.block_size > 1  # pooled as they are read
    return 1.0 if blocks or plan.problem.width <= plan.resident_width else 2.0


def _against(plan: Plan, chosen: Plan) -> str:
    """Why another plan was preferred: a measured limit, or more reads."""
    own, best = reads(plan), reads(chosen)
    limit = _limit(plan)
    if limit:
        return f"launch shape for {limit} rows"
    if own > best + 1e-9:
        return f"reads a row {own:.3g} times, not {best:.3g}"
    return f"{chosen.family} was faster where the shapes were measured"


def _limit(plan: Plan) -> str:
    """Rows that the plan's launch shape is for, in words, if the problem has others."""
    entry, rows = entry_of(plan), plan.problem.rows
    if plan.family == "register_warp":
        least = WARP_ROWS * plan.device.sm_count
        return f"{least:,} or more" if rows < least else ""
    if entry is None:
        return ""
    if entry.most_rows and rows > entry.most_rows:
        return f"up to {entry.most_rows:,}"
    return f"{entry.fewest_rows:,} or more" if rows < entry.fewest_rows else ""


def entry_of(plan: Plan) -> Geometry | None:
    """Entry that decided the plan's launch shape; None if it is the family's usual shape."""
    known, problem = tuned.shapes_of(plan.device, plan.problem.dtype), plan.problem
    per_row = plan.splits if plan.family in SHARED_ROWS else 1
    same = [
        g
        for g in known.of_family(plan.family, plan.device)
        if (g.resident_width, g.threads, g.ctas_per_row) == (plan.resident_width, plan.threads, per_row)
        and (problem.options.lean or not g.plain)
    ]
    return next((g for g in same if g.suits(problem.rows, problem.width)), same[0] if same else None)
