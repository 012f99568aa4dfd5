"""The late-bound door from a plan to the backend that runs it.

A plan is data and refers to no backend. `Plan.prepare`, `Plan.workspace` and every call get the backend from here, and
it is imported at that moment: ``import ksieve`` loads neither Numba nor CUDA.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Protocol, cast

from ksieve.core.device import DeviceInfo
from ksieve.core.selection import Selection


class Backend(Protocol):
    """Functions of the packages `ksieve.backends.cpu` and `ksieve.backends.cuda`."""

    def device_info(self, index: int) -> DeviceInfo:
        """Return the facts of a device that is present."""

    def prepare(self, plan: Any) -> None:
        """Compile and load what the plan needs."""

    def make_workspace(self, plan: Any, buffer: Any = None) -> Any:
        """Allocate or wrap the plan's workspace."""

    def run(self, plan: Any, call: Any, *, workspace: Any, stats: bool, **how: bool) -> Selection[Any]:
        """Run a `Call` that the plan covers; `how`: on the CPU whether by the NumPy `model`."""

    def make_fast_path(self, plan: Any, call: Any, names: Any, given: Any, result: Any) -> Any:
        """Prepare the fast path of repeated calls with PyTorch tensors, or return None ("cuda" only)."""


@cache
def backend(kind: str) -> Backend:
    """Import the backend of a kind of device."""
    return cast(Backend, importlib.import_module(f"ksieve.backends.{kind}"))
