"""Workspaces: the device memory that a plan needs, allocated here or brought by the caller.

A workspace's leading bytes are counters that must be zero before its first use; kernels leave them zero. So an
undisturbed workspace serves any number of calls, one after another on one stream.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from ksieve.backends.cuda.jit.spec import STEMS
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.backends.cuda.runtime.driver import Driver
from ksieve.core import problem
from ksieve.core.errors import ArgumentError, WorkspaceError
from ksieve.planning import memory
from ksieve.planning.plan import Plan

ALIGNMENT = 256
"""Bytes that the address of a caller's workspace must be a multiple of."""


class Workspace:
    """Device memory bound to one plan. Serves one call at a time: use one per stream.

    Attributes
    ----------
    plan : Plan
    pointer : int
        Device address; 0 when the plan needs no workspace.
    owner : object
        What keeps the memory alive.
    """

    __slots__ = ("owner", "plan", "pointer")

    def __init__(self, plan: Plan, pointer: int, owner: Any) -> None:
        self.plan = plan
        self.pointer = pointer
        self.owner = owner

    @property
    def nbytes(self) -> int:
        """Bytes that the plan uses."""
        return self.plan.workspace_bytes

    def __repr__(self) -> str:
        return f"Workspace({self.nbytes} bytes on {self.plan.problem.device}, for {self.plan.family})"

    def covers(self, plan: Plan) -> bool:
        """Whether it is large enough, and zeroed far enough, for a plan of the same layout."""
        made = self.plan
        return made.workspace_bytes >= plan.workspace_bytes and made.workspace_zeroed >= plan.workspace_zeroed

    def check(self, plan: Plan) -> None:
        """Refuse to serve another plan: its counters may lie where this one's data did.

        Raises
        ------
        WorkspaceError
        """
        if self.plan is plan or self.plan == plan:
            return
        if self.plan.problem.device != plan.problem.device:
            raise WorkspaceError("workspace", f"memory on {self.plan.problem.device}", str(plan.problem.device))
        raise WorkspaceError("workspace", f"one made for\n{self.plan}", f"one made by plan.workspace() of\n{plan}")


def make(plan: Plan, buffer: Any, stream: int, library: str) -> Workspace:
    """Allocate a plan's workspace from a library, or wrap the caller's bytes; ready on every stream on return.

    While `stream` is being captured, allocation and zeroing become part of the graph instead.

    Raises
    ------
    ArgumentError
        If the plan is not for a CUDA device.
    WorkspaceError
        If the caller's bytes are too few, misaligned, or elsewhere.
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

    PyTorch's and CuPy's pools reuse memory in the order of that stream, so that the owner may be dropped while
    work on it is still enqueued. Other libraries get memory from the driver, which waits when it is freed.
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
    """Address of caller-owned bytes, once they are known to serve a plan.

    Raises
    ------
    WorkspaceError
    """
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

    Calls on one stream run one after another, so plans of one layout share: kernel source, splits, capacity, room to
    sort and the bytes that must be zero fix where every counter lies, and a plan for fewer rows uses the leading part
    of a larger one's.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int | str, ...], Workspace] = {}
        self._lock = threading.Lock()

    def get(self, plan: Plan, stream: int, library: str) -> Workspace:
        """Return this stream's workspace, at least as large as a plan needs; `stream` is not being captured.

        Hold the result until the launch is enqueued: another thread may replace it by a larger one meanwhile.
        """
        key = (
            plan.problem.device.index, stream, STEMS[plan.family], plan.splits, plan.capacity, plan.shared_capacity,
            memory.sort_slots(plan), plan.workspace_zeroed,
        )  # fmt: skip
        held = self._held.get(key)
        if held is None or not held.covers(plan):
            with self._lock:
                held = self._held.get(key)
                if held is None or not held.covers(plan):
                    held = self._held[key] = make(plan, None, stream, library)
        return held

    def clear(self) -> None:
        """Give all implicit workspaces back."""
        with self._lock:
            self._held.clear()


class DriverMemory:
    """Memory from the driver itself, freed (which waits for the device) when dropped."""

    def __init__(self, driver: Driver, size: int, context: int) -> None:
        self.pointer = driver.allocate(size)
        # At exit the driver frees everything itself, and may be gone before this is called.
        weakref.finalize(self, driver.free, self.pointer, context).atexit = False
