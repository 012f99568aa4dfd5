"""CPU backend: Numba kernels over rows, spread over threads; and the NumPy model by the same call."""

from __future__ import annotations

from typing import Any

from ksieve.backends.cpu.call import run
from ksieve.backends.cpu.runner import thread_count
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.planning.plan import Plan

__all__ = ["device_info", "make_workspace", "prepare", "run", "thread_count"]


def device_info(index: int = 0) -> DeviceInfo:
    """Return the properties of this machine's CPU, the only CPU device."""
    return DeviceInfo("cpu", threads=thread_count())


def prepare(plan: Plan) -> None:
    """Do nothing: Numba compiles on the first call, once per machine."""


def make_workspace(plan: Plan, buffer: Any = None) -> Any:
    """Refuse: see `Plan.workspace`."""
    raise ArgumentError("plan", f"a plan for {plan.problem.device}", "a plan for a CUDA device: no other needs one")
