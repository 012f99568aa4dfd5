"""Plans for segments, of which a few may be far longer than most.

Launches are planned for the usual width, twice the mean length. They have to take longer segments too. CTAs that keep a
row on chip stream such a segment; warps list it for a second launch.
"""

from __future__ import annotations

from dataclasses import replace

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.core.policy import SamplingPolicy
from ksieve.core.problem import Problem
from ksieve.planning import choose_cuda, memory
from ksieve.planning.families import IN_REGISTERS, SHARED_ROWS
from ksieve.planning.plan import Plan
from ksieve.planning.switch_points import LISTED_WIDTH, WIDEST_BINNED

_BOUNDED = (*IN_REGISTERS, *SHARED_ROWS)
"""Families that take no row beyond a width."""


def choose(
    problem: Problem,
    device: DeviceInfo,
    family: str | None,
    policy: SamplingPolicy | str | None,
    splits: int | None,
    kept: bool,
) -> Plan:
    """Choose a CUDA plan of segments; see `planner.choose`."""
    asked = replace(problem, width=problem.usual)
    if family in _BOUNDED:
        got = f"{family!r} for segments that may have {problem.width} scores"
        raise ArgumentError("family", got, f"max_length= of at most {2 * asked.width} with it, or another family")
    plan = choose_cuda.choose(asked, device, family, policy, splits, kept)
    if plan.family == "register_warp":
        width = min(problem.width, LISTED_WIDTH)
        rest = replace(problem, width=width, options=replace(problem.options, mean_length=width))
        last = choose_cuda.choose(rest, device, "resident_block", None)
        reason = f"{plan.reason}, and lists longer ones for a second launch"
        plan = replace(last, bins=(replace(plan, bin=0),), bin=0, reason=reason)
    elif plan.family in _BOUNDED:
        family = "resident_block" if asked.width <= WIDEST_BINNED else "stream_split"
        reason = f"{problem.rows:,} segments of up to {asked.width:,} scores, among which longer ones may be"
        plan = replace(choose_cuda.choose(asked, device, family, None), reason=reason)
    if memory.entry_bytes(plan.family, problem.width, plan.threads) > memory.entry_bytes(
        plan.family, asked.width, plan.threads
    ):
        plan = replace(plan, columns=plan.columns * memory.NARROW_BYTES // memory.CANDIDATE_BYTES)
    return memory.with_workspace(replace(plan, problem=problem))
