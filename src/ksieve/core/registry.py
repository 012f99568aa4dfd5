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

MODULES = {"cpu": "ksieve.backends.cpu", "cuda": "ksieve.backends.cuda", "reference": "ksieve.backends.reference"}
"""The module of each backend. Those of "cpu" and "cuda" serve that kind of device; "reference" is the NumPy model."""


class Backend(Protocol):
    """Functions that every module of `MODULES` has."""

    def device_info(self, index: int) -> DeviceInfo:
        """Return the facts of a device that is present."""

    def prepare(self, plan: Any) -> None:
        """Compile and load what the plan needs."""

    def make_workspace(self, plan: Any, buffer: Any = None) -> Any:
        """Allocate or wrap the plan's workspace."""

    def run(self, plan: Any, call: Any, *, workspace: Any = None, stats: bool = False) -> Selection[Any]:
        """Run a `Call` that the plan covers."""

    def make_fast_path(self, plan: Any, call: Any, names: Any, given: Any, result: Any) -> Any:
        """Prepare the fast path of repeated calls with PyTorch tensors, or return None ("cuda" only)."""


@cache
def backend(kind: str) -> Backend:
    """Import a backend of `MODULES`."""
    return cast(Backend, importlib.import_module(MODULES[kind]))
