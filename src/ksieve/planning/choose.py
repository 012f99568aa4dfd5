"""The planner: from host-known facts to a `Plan`, with its reason as text.

No device is accessed. The same facts always give the same plan.
"""

from __future__ import annotations

from dataclasses import replace

from ksieve.core import arguments
from ksieve.core.device import DeviceInfo, check_device
from ksieve.core.errors import ArgumentError, shown
from ksieve.core.policy import SamplingPolicy
from ksieve.core.problem import Problem
from ksieve.planning import choose_cpu, choose_cuda, memory
from ksieve.planning.families import IN_REGISTERS, SHARED_ROWS
from ksieve.planning.plan import Plan
from ksieve.planning.switch_points import LISTED_WIDTH, WIDEST_BINNED

_BOUNDED = (*IN_REGISTERS, *SHARED_ROWS)
"""Families that take no row beyond a width."""


def check_covers(plan: Plan, asked: Problem) -> None:
    """Refuse a call that the plan does not cover: it may be smaller than planned, never larger.

    Raises `ArgumentError`, which names the plan's limit that the call exceeds.
    """
    made = plan.problem
    if asked.options is not made.options and (differing := arguments.difference(asked.options, made.options)):
        raise ArgumentError("plan", *differing)
    for name in ("rows", "width"):
        if getattr(asked, name) > getattr(made, name):
            raise ArgumentError("plan", f"{name} {getattr(asked, name)}", f"at most the planned {getattr(made, name)}")
    for name in ("dtype", "device"):
        if getattr(asked, name) != getattr(made, name):
            raise ArgumentError("plan", f"scores of {name} {getattr(asked, name)}", f"{name} {getattr(made, name)}")


def choose(
    problem: Problem,
    device: DeviceInfo,
    *,
    family: str | None = None,
    policy: SamplingPolicy | str | None = None,
    splits: int | None = None,
    kept: bool = True,
) -> Plan:
    """Choose a plan for a problem on a device.

    `family`, `policy`: forced ones; the policy ``"direct"`` forces the direct-exact route. `splits`: forced number of
    CTAs per row, of the CUDA family "stream_split" only. `kept`: whether the workspace is kept between calls, so that
    it is zeroed once, as one from `Plan.workspace` is. If not, as in a captured graph, every call may have to zero it.

    Raises `ArgumentError` if the device has no such family, the family cannot run the shape, or a device fact is out of
    range.
    """
    device = check_device(device)
    if device.kind == "cpu":
        if splits is not None:
            raise ArgumentError("splits", shown(splits), "nothing on a CPU device")
        return choose_cpu.choose(problem, device, family, policy)
    on_cuda = _of_segments if problem.usual < problem.width else choose_cuda.choose
    return on_cuda(problem, device, family, policy, splits, kept)


def _of_segments(
    problem: Problem,
    device: DeviceInfo,
    family: str | None,
    policy: SamplingPolicy | str | None,
    splits: int | None,
    kept: bool,
) -> Plan:
    """Choose a CUDA plan of segments, of which a few may be far longer than most.

    Launches are planned for the usual width, twice the mean length. They have to take longer segments too. CTAs that
    keep a row on chip stream such a segment; warps list it for a second launch.
    """
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
