"""Properties of a device, the input of the planner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Facts of a device that decisions may use; sizes in bytes."""

    kind: str
    name: str = "cpu"
    index: int = 0
    capability: tuple[int, int] = (0, 0)
    sm_count: int = 0
    shared_per_sm: int = 0
    shared_per_block: int = 0
    l2_bytes: int = 0
    threads: int = 1


CPU = DeviceInfo("cpu")
