"""One selection on CUDA, for arrays of any library: streams, workspaces, statistics."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ksieve.backends.cuda import arrays
from ksieve.backends.cuda.option_args import outputs, packed
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.backends.cuda.runtime import launch
from ksieve.backends.cuda.runtime import workspace as workspaces
from ksieve.backends.cuda.runtime.launch import WARM_UP
from ksieve.backends.cuda.runtime.workspace import Workspace
from ksieve.core import problem
from ksieve.core.call import Call
from ksieve.core.errors import BackendError
from ksieve.core.stats import STATS_COLUMNS, Stats
from ksieve.planning.plan import Plan

implicit_workspaces = workspaces.Cache()


def run(
    plan: Plan,
    call: Call,
    *,
    workspace: Any = None,
    return_stats: bool = False,
) -> Any:
    """Enqueue one selection, which the plan covers, on the current stream of the scores' library.

    Returns
    -------
    indices : array of the options' index dtype, shape (rows, k)
        `out`, or a new array of the scores' library.
    values, raw : array, shape (rows, k)
        Present if the plan's options include them; as `indices`.
    stats : Stats
        Only with ``return_stats=True``, which waits for the stream.

    Raises
    ------
    WorkspaceError
        If the workspace cannot serve the plan.
    BackendError
        If the kernel cannot be compiled or loaded; during a stream capture also if it is not loaded yet.
    """
    info, scores, out = call.scores, call.arrays["scores"], call.arrays.get("out")
    (rows, width), k, index = info.shape, plan.problem.k, plan.problem.device.index
    driver = cuda_driver.get()
    if isinstance(workspace, Workspace):
        workspace.check(plan)
    elif workspace is not None:
        workspaces.pointer_of(plan, workspace)
    options = plan.problem.options
    result = arrays.new(info.library, (rows, k), options.index_dtype, index) if out is None else out
    more = outputs(plan, call)
    results = (result, *more.values())
    if not rows:
        return _answer(results, Stats(np.zeros((0, len(STATS_COLUMNS)), np.int32)) if return_stats else None)
    target = problem.inspect(result, "out") if out is None else call.described["out"]
    stream = arrays.current_stream(info.library, scores, index)
    # The reported pitch of a single row is arbitrary and may be below the width.
    pitch, out_pitch = max(info.strides[0], width), max(target.strides[0], k)
    lengths_at, live_at = call.address("lengths"), call.address("num_rows")
    launcher = launch.launcher_of(plan, stats=return_stats, stream=stream)
    stats_memory = None
    with driver.activated(launcher.context):
        capturing = driver.is_capturing(stream)
        if return_stats:
            if capturing:
                raise BackendError("return_stats reads results back, which is not possible while a stream is captured")
            stats_memory = workspaces.DriverMemory(driver, rows * 4 * len(STATS_COLUMNS), launcher.context)
        memory, owner = _workspace_memory(plan, workspace, stream, capturing, info.library)
        # JAX, and the reads of this call, are not ordered after the kernel on its stream: wait here, also on errors.
        waits, handle = info.library == "jax" or stats_memory is not None, ctypes.c_void_p(stream)
        try:
            launcher.launch(
                info.pointer, lengths_at, live_at, target.pointer, stats_memory.pointer if stats_memory else 0, memory,
                pitch, out_pitch, rows, width, stream, packed(plan, call, more) if launcher.extended else (),
            )  # fmt: skip
        finally:
            code = driver.wait(handle) if waits else 0
        del owner
        driver.check(code, "waiting for a selection")
        if stats_memory is not None:
            live = rows
            if live_at:
                live = min(max(int.from_bytes(driver.read(live_at, 4), "little", signed=True), 0), rows)
            raw = np.frombuffer(driver.read(stats_memory.pointer, live * 4 * len(STATS_COLUMNS)), np.int32)
            return _answer(results, Stats(raw.reshape(live, len(STATS_COLUMNS))))
    return _answer(results, None)


def _answer(results: tuple[Any, ...], stats: Stats | None) -> Any:
    """Result of `ksieve.topk`: the indices, or a tuple of the indices and the further outputs."""
    if stats is not None:
        return (*results, stats)
    return results[0] if len(results) == 1 else results


def _workspace_memory(plan: Plan, workspace: Any, stream: int, capturing: bool, library: str) -> tuple[int, Any]:
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


def forget() -> None:
    """Drop all launchers and workspaces, as in a new process; for tests."""
    implicit_workspaces.clear()
    launch.forget()
