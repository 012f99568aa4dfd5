"""Properties of a device, the input of the planner, and those of known GPUs."""

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


_KIB = 1024
_SHARED_KIB = {(8, 0): (164, 163), (8, 9): (100, 99), (9, 0): (228, 227), (10, 0): (228, 227), (12, 0): (100, 99)}
"""Shared memory in KiB per multiprocessor and per opted-in block, by compute capability (CUDA C++ Programming Guide,
table "Technical Specifications per Compute Capability")."""


def _gpu(name: str, capability: tuple[int, int], sm_count: int, l2_mib: int) -> DeviceInfo:
    per_sm, per_block = _SHARED_KIB[capability]
    return DeviceInfo(
        "cuda",
        name=name,
        capability=capability,
        sm_count=sm_count,
        shared_per_sm=per_sm * _KIB,
        shared_per_block=per_block * _KIB,
        l2_bytes=l2_mib * _KIB * _KIB,
    )


DEVICES: dict[str, DeviceInfo] = {
    "a100": _gpu("NVIDIA A100", (8, 0), 108, 40),
    "l40s": _gpu("NVIDIA L40S", (8, 9), 142, 96),
    "rtx4090": _gpu("NVIDIA GeForce RTX 4090", (8, 9), 128, 72),
    "h20": _gpu("NVIDIA H20", (9, 0), 78, 60),
    "h100": _gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 50),
    "h200": _gpu("NVIDIA H200", (9, 0), 132, 50),
    "b200": _gpu("NVIDIA B200", (10, 0), 148, 126),
    "rtx5090": _gpu("NVIDIA GeForce RTX 5090", (12, 0), 170, 96),
}
"""GPUs for which plans can be made by name, also on a machine without them.

Multiprocessor counts and L2 sizes: NVIDIA's architecture white papers. A device that is present reports its own
(`ksieve.plan(device="cuda")`). L2 bytes may differ by a few per cent.
"""


def resolve_device(name: str) -> str | DeviceInfo:
    """Turn a name into a device's properties; ``"cpu"``, ``"cuda"`` and ``"cuda:<ordinal>"`` are returned unchanged.

    Raises `ArgumentError` if the name is neither a device of this machine nor in `DEVICES`.
    """
    key = name.lower()
    if key in DEVICES:
        return DEVICES[key]
    if key.partition(":")[0] in ("cpu", "cuda"):
        return key
    raise ArgumentError("device", shown(name), f"cpu, cuda, cuda:<ordinal> or one of {', '.join(DEVICES)}")
