"""The planner: from host-known facts to a `Plan`, with its reason as text.

No device is accessed. The same facts always give the same plan.
"""

from __future__ import annotations

from ksieve.core import arguments
from ksieve.core.device import DeviceInfo, check_device
from ksieve.core.errors import ArgumentError, shown
from ksieve.core.policy import SamplingPolicy
from ksieve.core.problem import Problem
from ksieve.planning import choose_cpu, choose_cuda, segments
from ksieve.planning.plan import Plan


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
    on_cuda = segments.choose if problem.usual < problem.width else choose_cuda.choose
    return on_cuda(problem, device, family, policy, splits, kept)
