"""Properties of a device, the input of the planner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ksieve.core.errors import ArgumentError, kind_of, shown
from ksieve.core.problem import MAX_SIZE, check_size


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Facts of a device that decisions may use; sizes in bytes. `ksieve.plan` checks them."""

    kind: str
    name: str = "cpu"
    index: int = 0
    capability: tuple[int, int] = (0, 0)
    sm_count: int = 0
    shared_per_sm: int = 0
    shared_per_block: int = 0
    l2_bytes: int = 0
    threads: int = 1


_RANGES: dict[str, tuple[int, int]] = {
    "index": (-1, 1 << 16),
    "sm_count": (0, 1 << 16),
    "shared_per_sm": (0, 1 << 30),
    "shared_per_block": (0, 1 << 30),
    "l2_bytes": (0, 1 << 40),
    "threads": (1, MAX_SIZE),
}
"""Least and most of each number: the most is above any existing device's, and far below an overflow."""

_LEAST_OF_GPUS = {"sm_count": 1, "shared_per_sm": 100 << 10, "shared_per_block": 99 << 10}
"""Least numbers of a GPU: all of compute capability 8.0 or later have this shared memory; plans rely on it."""


def check_device(device: DeviceInfo) -> DeviceInfo:
    """Check the facts of a device that a plan is made for, and return them with every number as an int.

    Raises `ArgumentError`, which names the field.
    """
    if not isinstance(device.kind, str) or device.kind not in ("cpu", "cuda"):
        raise ArgumentError("device.kind", shown(device.kind), "'cpu' or 'cuda'")
    if not isinstance(device.name, str):
        raise ArgumentError("device.name", kind_of(device.name), "a name")
    pair = device.capability
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ArgumentError("device.capability", shown(pair), "a tuple of two ints, such as (9, 0)")
    why = "no device has more"
    major, minor = (check_size(n, "device.capability", most=99, why=why) for n in pair)
    facts: dict[str, Any] = {"capability": (major, minor)}
    for name, (least, most) in _RANGES.items():
        least = _LEAST_OF_GPUS.get(name, least) if device.kind == "cuda" else least
        facts[name] = check_size(getattr(device, name), f"device.{name}", least, most, why)
    return replace(device, **facts)
