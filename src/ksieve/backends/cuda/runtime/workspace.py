"""Workspaces: the device memory that a plan needs, allocated here or supplied by the caller.

The first bytes of a workspace are counters that must be zero before its first use; kernels leave them zero. If no other
code writes to it, a workspace serves any number of calls, one after another on one stream.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

from ksieve.backends.cuda.jit.spec import STEMS
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.backends.cuda.runtime.driver import Driver
from ksieve.core import problem
from ksieve.core.errors import ArgumentError, WorkspaceError
from ksieve.planning import memory
from ksieve.planning.plan import Plan

ALIGNMENT = 256
"""Required alignment of a caller's workspace, in bytes."""


@dataclass(slots=True, eq=False, repr=False)
class Workspace:
    """Device memory for the calls of one plan, one at a time: use one per stream.

    `pointer`: device address; 0 when the plan needs no workspace. `owner`: object that keeps the memory alive.
    """

    plan: Plan
    pointer: int
    owner: Any

    @property
    def nbytes(self) -> int:
        """Bytes that the plan uses."""
        return self.plan.workspace_bytes

    def __repr__(self) -> str:
        return f"Workspace({self.nbytes} bytes on {self.plan.problem.device}, for {self.plan.family})"

    def covers(self, plan: Plan) -> bool:
        """Whether its size and its zeroed part suffice for a plan of the same layout."""
        made = self.plan
        return made.workspace_bytes >= plan.workspace_bytes and made.workspace_zeroed >= plan.workspace_zeroed

    def check(self, plan: Plan) -> None:
        """Refuse another plan, whose counters may overlap data of this plan."""
        if self.plan is plan or self.plan == plan:
            return
        if self.plan.problem.device != plan.problem.device:
            raise WorkspaceError("workspace", f"memory on {self.plan.problem.device}", str(plan.problem.device))
        raise WorkspaceError("workspace", f"one made for\n{self.plan}", f"one made by plan.workspace() of\n{plan}")


def make(plan: Plan, buffer: Any, stream: int, library: str) -> Workspace:
    """Allocate a plan's workspace from a library, or wrap the caller's bytes; every stream may use it on return.

    While `stream` is being captured, allocation and zeroing become nodes of the graph instead.

    Raises `ArgumentError` if the plan is not for a CUDA device. Raises `WorkspaceError` if the caller's memory is too
    small, misaligned, or on another device.
    """
    if plan.problem.device.kind != "cuda":
        raise ArgumentError("plan", f"a plan for {plan.problem.device}", "a plan for a CUDA device: no other needs one")
    driver = cuda_driver.get()
    with driver.activated(driver.context(plan.problem.device.index)):
        pointer, owner = allocate(plan, driver, library) if buffer is None else (pointer_of(plan, buffer), buffer)
        driver.fill_zero(pointer, plan.workspace_zeroed, stream)
        if not driver.is_capturing(stream):
            driver.synchronize(stream)
    return Workspace(plan, pointer, owner)


def allocate(plan: Plan, driver: Driver, library: str) -> tuple[int, Any]:
    """Allocate a plan's bytes, not zeroed, on the library's current stream; the device's context is current.

    The pools of PyTorch and CuPy reuse memory in stream order. So the owner may be dropped while work on the memory is
    enqueued. For other libraries the driver allocates it, and freeing waits for the device.
    """
    size, index = plan.workspace_bytes, plan.problem.device.index
    if not size:
        return 0, None
    if library == "torch":
        import torch

        owner = torch.empty(size, dtype=torch.uint8, device=f"cuda:{index}")
        return owner.data_ptr(), owner
    if library == "cupy":
        import cupy

        with cupy.cuda.Device(index):
            block = cupy.cuda.alloc(size)
        return int(block.ptr), block
    memory = DriverMemory(driver, size, driver.context(index))
    return memory.pointer, memory


def pointer_of(plan: Plan, buffer: Any) -> int:
    """Check the caller's memory for a plan and return its address."""
    info = problem.inspect(buffer, "workspace")
    dense, expected = True, 1
    for size, stride in zip(reversed(info.shape), reversed(info.strides), strict=True):
        dense, expected = dense and (size <= 1 or stride == expected), expected * size
    if not dense:
        raise WorkspaceError("workspace", f"strides {info.strides} for shape {info.shape}", "contiguous memory")
    if info.device != plan.problem.device:
        raise WorkspaceError("workspace", f"memory on {info.device}", f"memory on {plan.problem.device}")
    if expected * info.itemsize < plan.workspace_bytes:
        raise WorkspaceError("workspace", f"{expected * info.itemsize} bytes", f"at least {plan.workspace_bytes}")
    if info.pointer % ALIGNMENT and plan.workspace_bytes:
        raise WorkspaceError(
            "workspace", f"address 0x{info.pointer:x}", f"an address that is a multiple of {ALIGNMENT} bytes"
        )
    return info.pointer


class Cache:
    """Implicit workspaces: one per device, stream and memory layout, kept between calls.

    Calls on one stream run one after another, so that plans of one layout share a workspace. Kernel source, splits,
    capacity, sort space and the number of zeroed bytes determine the layout. A plan for fewer rows uses the first part
    of a larger plan's workspace.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int | str, ...], dict[int, Workspace]] = {}
        self._lock = threading.Lock()

    def by_stream(self, plan: Plan) -> dict[int, Workspace]:
        """Return the workspaces of a plan's device and layout, to read; some may be too small for the plan."""
        layout = (
            plan.problem.device.index, STEMS[plan.family], plan.splits, plan.capacity, plan.shared_capacity,
            memory.sort_slots(plan), plan.workspace_zeroed,
        )  # fmt: skip
        return self._held.setdefault(layout, {})

    def get(self, plan: Plan, stream: int, library: str) -> Workspace:
        """Return this stream's workspace, at least as large as a plan needs; `stream` is not being captured.

        Keep a reference until the launch is enqueued: another thread may replace the workspace by a larger one.
        """
        streams = self.by_stream(plan)
        held = streams.get(stream)
        if held is None or not held.covers(plan):
            with self._lock:
                held = streams.get(stream)
                if held is None or not held.covers(plan):
                    held = streams[stream] = make(plan, None, stream, library)
        return held


class DriverMemory:
    """Memory allocated by the driver; freed, which waits for the device, when the object is collected."""

    def __init__(self, driver: Driver, size: int, context: int) -> None:
        self.pointer = driver.allocate(size)
        # At exit the driver frees all memory, and may be unloaded before this runs.
        weakref.finalize(self, driver.free, self.pointer, context).atexit = False
