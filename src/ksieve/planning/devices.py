"""Properties of known GPUs, so that a plan can be made and read on a machine without them.

Shared-memory sizes per compute capability: CUDA C++ Programming Guide, table "Technical Specifications per Compute
Capability". Multiprocessor counts and L2 sizes: NVIDIA's architecture white papers. A device that is present reports
its own (`ksieve.plan(device="cuda")`). L2 bytes may differ by a few per cent.
"""

from __future__ import annotations

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, shown

_KIB = 1024
_SHARED_KIB = {(8, 0): (164, 163), (8, 9): (100, 99), (9, 0): (228, 227), (10, 0): (228, 227), (12, 0): (100, 99)}
"""Shared memory in KiB per multiprocessor and per opted-in block, by compute capability."""


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
    "h100": _gpu("NVIDIA H100 SXM", (9, 0), 132, 50),
    "h200": _gpu("NVIDIA H200", (9, 0), 132, 50),
    "b200": _gpu("NVIDIA B200", (10, 0), 148, 126),
    "rtx5090": _gpu("NVIDIA GeForce RTX 5090", (12, 0), 170, 96),
}
"""GPUs for which plans can be made by name."""


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
