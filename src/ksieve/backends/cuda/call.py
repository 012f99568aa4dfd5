"""One selection on CUDA, for arrays of any library: streams, workspaces, statistics."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ksieve.backends.cuda import arrays
from ksieve.backends.cuda.packing import launched, outputs
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.backends.cuda.runtime import launch
from ksieve.backends.cuda.runtime import workspace as workspaces
from ksieve.backends.cuda.runtime.launch import WARM_UP
from ksieve.backends.cuda.runtime.workspace import Workspace
from ksieve.core import problem
from ksieve.core.call import OUTPUTS, Call
from ksieve.core.errors import BackendError
from ksieve.core.leading import of_numbers
from ksieve.core.selection import Selection
from ksieve.core.stats import STATS_COLUMNS, Stats
from ksieve.planning import length_bins
from ksieve.planning.plan import Plan

_NO_STATS = "stats=True reads results back, which is not possible while a stream is captured"

implicit_workspaces = workspaces.Cache()


def run(plan: Plan, call: Call, *, workspace: Any = None, stats: bool = False) -> Selection[Any]:
    """Enqueue one selection, which the plan covers, on the current stream of the scores' library.

    The arrays of the answer are the caller's, or new ones of the scores' library. With `stats` the call waits for the
    stream.

    Raises `WorkspaceError` if the workspace cannot serve the plan. Raises `BackendError` if the kernel cannot be
    compiled or loaded; during a stream capture also if it is not loaded yet.
    """
    info, scores = call.scores, call.arrays["scores"]
    rows, index = call.problem.rows, plan.problem.device.index
    driver = cuda_driver.get()
    if isinstance(workspace, Workspace):
        workspace.check(plan)
    elif workspace is not None:
        workspaces.pointer_of(plan, workspace)
    results = outputs(plan, call)
    live_at, counted = call.address("num_rows"), None
    if not rows or not call.problem.columns:
        _clear_counts(driver, call, results, index)
        return answered(results, _no_stats(driver, call, index) if stats else None)
    stream = arrays.current_stream(info.library, scores, index)
    if call.live < rows:
        counted = arrays.new(info.library, (1,), "int32", index, "num_rows", call.live)
        live_at = problem.inspect(counted, "num_rows").pointer
    launcher = launch.launcher_of(plan, stats=stats, stream=stream, leading=call.strided)
    stats_memory = None
    with driver.activated(launcher.context):
        capturing = driver.is_capturing(stream)
        if stats:
            if capturing:
                raise BackendError(_NO_STATS)
            stats_memory = workspaces.DriverMemory(driver, rows * 4 * len(STATS_COLUMNS), launcher.context)
        used = plan
        if stats and plan.problem.options.block_size > 1:  # made by another family, which needs more
            used, workspace = length_bins.stats_plan(plan), None
        memory, owner = workspace_memory(used, workspace, stream, capturing, info.library)
        # JAX, and the reads of this call, are not ordered after the kernel on its stream: wait here, also on errors.
        waits, handle = info.library == "jax" or stats_memory is not None, ctypes.c_void_p(stream)
        try:
            stats_at = stats_memory.pointer if stats_memory else 0
            launcher.launch(launched(launcher, plan, call, results, live_at, stats_at, memory), stream)
        finally:
            code = driver.wait(handle) if waits else 0
        del owner, counted
        driver.check(code, "waiting for a selection")
        if stats_memory is not None:
            live = _live_rows(driver, call)
            raw = np.frombuffer(driver.read(stats_memory.pointer, live * 4 * len(STATS_COLUMNS)), np.int32)
            return answered(results, Stats(raw.reshape(live, len(STATS_COLUMNS))))
    return answered(results)


def answered(results: dict[str, Any], stats: Stats | None = None) -> Selection[Any]:
    """Answer of a call whose arrays have the names of their arguments."""
    return Selection._make([*map(results.get, OUTPUTS), stats])


def _clear_counts(driver: Any, call: Call, results: dict[str, Any], index: int) -> None:
    """Zero the counts of a call that launches nothing."""
    if "counts" in results and call.problem.rows:
        counts = of_numbers(problem.inspect(results["counts"], "counts"), "counts", filled=True)
        stream = arrays.current_stream(call.scores.library, call.arrays["scores"], index)
        with driver.activated(driver.context(index)):
            if len(counts.shape) == 1:
                driver.fill_zero(counts.pointer, 4 * call.problem.rows, stream)
                return
            (outer, inner), (far, near) = counts.shape, counts.strides
            for at in (i * far + j * near for i in range(outer) for j in range(inner)):
                driver.fill_zero(counts.pointer + 4 * at, 4, stream)


def _no_stats(driver: Any, call: Call, index: int) -> Stats:
    """Statistics of a call that launches nothing; a live row count on the device is read in stream order."""
    if not call.address("num_rows") or not call.problem.rows:
        return Stats.without_slots(call.live)
    stream = arrays.current_stream(call.scores.library, call.arrays["scores"], index)
    with driver.activated(driver.context(index)):
        if driver.is_capturing(stream):
            raise BackendError(_NO_STATS)
        driver.synchronize(stream)
        return Stats.without_slots(_live_rows(driver, call))


def _live_rows(driver: Any, call: Call) -> int:
    """Number of live rows of a call, read from the device where it is an array there."""
    address = call.address("num_rows")
    if not address:
        return call.live
    return min(max(int.from_bytes(driver.read(address, 4), "little", signed=True), 0), call.problem.rows)


def workspace_memory(plan: Plan, workspace: Any, stream: int, capturing: bool, library: str) -> tuple[int, Any]:
    """Return the address of a workspace whose first bytes are zero when the kernel starts, and its owner."""
    if isinstance(workspace, Workspace):
        return workspace.pointer, workspace
    if not plan.workspace_bytes:
        return 0, None
    driver = cuda_driver.get()
    if workspace is None and not capturing:
        held = implicit_workspaces.get(plan, stream, library)
        return held.pointer, held
    if workspace is not None:
        pointer, owner = workspaces.pointer_of(plan, workspace), workspace
    elif library == "torch":
        # PyTorch allocates from the graph's pool here: the memory must not stay in ksieve's cache.
        pointer, owner = workspaces.allocate(plan, driver, library)
    else:
        raise BackendError(
            "a workspace has to be allocated while a stream is being captured: pass workspace=plan.workspace(), made "
            f"outside the capture ({WARM_UP})"
        )
    driver.fill_zero(pointer, plan.workspace_zeroed, stream)
    return pointer, owner
