"""The late-bound door from a plan to the backend that runs it.

A plan is data and knows no backend, but `Plan.prepare` and `Plan.workspace` act on a device. They ask here for the
backend of a device's kind, which is imported then: ``import ksieve`` loads neither Numba nor CUDA.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

from ksieve.core.device import DeviceInfo

MODULES = {"cpu": "ksieve.backends.cpu", "cuda": "ksieve.backends.cuda"}
"""The module of each kind of device, which is a `Backend`."""


class Backend(Protocol):
    """What a module of `MODULES` offers."""

    def device_info(self, index: int) -> DeviceInfo:
        """Return the facts of a device that is present."""

    def prepare(self, plan: Any) -> None:
        """Compile and load what the plan needs."""

    def make_workspace(self, plan: Any, buffer: Any = None) -> Any:
        """Allocate or wrap the plan's workspace."""


def backend(kind: str) -> Backend:
    """Import the backend of a kind of device, ``"cpu"`` or ``"cuda"``."""
    return cast(Backend, importlib.import_module(MODULES[kind]))
