"""One selection on CUDA: `run` for any arrays, and `attempt`, the short way for PyTorch tensors.

`attempt` repeats the checks of `problem.check_selection` in the form that is cheapest for tensors. It never
reports an error: whatever it does not recognise as right goes to the general way, which says what is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve import problem
from ksieve.backends.cuda import arrays, launch
from ksieve.backends.cuda import driver as cuda_driver
from ksieve.backends.cuda import workspace as workspaces
from ksieve.backends.cuda.launch import WARM_UP, Launcher
from ksieve.backends.cuda.workspace import Workspace
from ksieve.errors import BackendError
from ksieve.planner import Plan
from ksieve.stats import STATS_COLUMNS, Stats

implicit_workspaces = workspaces.Cache()


def run(
    plan: Plan,
    scores: Any,
    lengths: Any,
    *,
    out: Any = None,
    workspace: Any = None,
    num_rows: Any = None,
    return_stats: bool = False,
) -> Any:
    """Enqueue one selection on the scores' current stream; arguments are checked and covered by the plan.

    Returns
    -------
    indices : array of int32, shape (rows, k)
        `out`, or a new array of the scores' library.
    stats : Stats
        Only with ``return_stats=True``, which waits for the stream.

    Raises
    ------
    WorkspaceError
        If the workspace cannot serve the plan.
    BackendError
        If the kernel is not available, or cannot become so during a stream capture.
    """
    info = problem.inspect(scores, "scores")
    (rows, width), k, index = info.shape, plan.problem.k, plan.problem.device.index
    driver = cuda_driver.get()
    if isinstance(workspace, Workspace):
        workspace.check(plan)
    elif workspace is not None:
        workspaces.pointer_of(plan, workspace)
    result = arrays.new_int32(info.library, (rows, k), index) if out is None else out
    if not rows:
        return (result, Stats(np.zeros((0, len(STATS_COLUMNS)), np.int32))) if return_stats else result
    target = problem.inspect(result, "out")
    stream = arrays.current_stream(info.library, scores, index)
    # One row has no next one: whatever pitch its array reports must not be mistaken for a short one.
    pitch, out_pitch = max(info.strides[0], width), max(target.strides[0], k)
    lengths_at = problem.inspect(lengths, "lengths").pointer if lengths is not None else 0
    live_at = problem.inspect(num_rows, "num_rows").pointer if num_rows is not None else 0
    launcher = launch.launcher_of(plan, stats=return_stats, stream=stream)
    stats_memory = None
    with driver.activated(launcher.context):
        capturing = driver.is_capturing(stream)
        if return_stats:
            if capturing:
                raise BackendError("return_stats reads results back, which a stream that is being captured forbids")
            stats_memory = workspaces.DriverMemory(driver, rows * 4 * len(STATS_COLUMNS), launcher.context)
        memory, owner = _workspace_memory(plan, workspace, stream, capturing, info.library)
        launcher.launch(
            info.pointer, lengths_at, live_at, target.pointer, stats_memory.pointer if stats_memory else 0, memory,
            pitch, out_pitch, rows, width, stream,
        )  # fmt: skip
        del owner
        if info.library == "jax" or stats_memory is not None:
            driver.synchronize(stream)
        if stats_memory is not None:
            live = rows
            if live_at:
                live = min(max(int.from_bytes(driver.read(live_at, 4), "little", signed=True), 0), rows)
            raw = np.frombuffer(driver.read(stats_memory.pointer, live * 4 * len(STATS_COLUMNS)), np.int32)
            return result, Stats(raw.reshape(live, len(STATS_COLUMNS)))
    if info.library == "torch":
        _remember(TorchCall(plan, launcher))
    return result


def _workspace_memory(plan: Plan, workspace: Any, stream: int, capturing: bool, library: str) -> tuple[int, Any]:
    """Address of memory whose leading bytes are zero when the kernel starts, and what keeps it alive."""
    if isinstance(workspace, Workspace):
        return workspace.pointer, workspace
    if not plan.workspace_bytes:
        return 0, None
    driver = cuda_driver.get()
    if workspace is None and not capturing:
        held = implicit_workspaces.get(plan, stream)
        return held.pointer, held
    if workspace is not None:
        pointer, owner = workspaces.pointer_of(plan, workspace), workspace
    elif library == "torch":
        # PyTorch allocates from the graph's own pool here: the memory must not outlive this call in our cache.
        pointer, owner = workspaces.allocate(plan, driver)
    else:
        raise BackendError(
            "a workspace has to be allocated while a stream is being captured: pass workspace=plan.workspace(), made "
            f"outside the capture ({WARM_UP})"
        )
    driver.fill_zero(pointer, plan.workspace_zeroed, stream)
    return pointer, owner


class TorchCall:
    """A plan's short way for PyTorch tensors: cheap checks, one launch, nothing else."""

    __slots__ = (
        "_context",
        "_device",
        "_dtype",
        "_empty",
        "_index",
        "_int32",
        "_is_capturing",
        "_itemsize",
        "_k",
        "_launch",
        "_needs_workspace",
        "_rows",
        "_stream",
        "_tensor",
        "_width",
        "plan",
    )

    def __init__(self, plan: Plan, launcher: Launcher) -> None:
        import torch

        asked = plan.problem
        self.plan = plan
        self._rows, self._width, self._k, self._index = asked.rows, asked.width, asked.k, asked.device.index
        self._dtype = getattr(torch, asked.dtype)
        self._itemsize = self._dtype.itemsize
        self._tensor, self._int32, self._empty = torch.Tensor, torch.int32, torch.empty
        self._device = torch.device("cuda", max(self._index, 0))
        self._stream = getattr(torch._C, "_cuda_getCurrentRawStream", arrays.torch_stream)
        self._launch = launcher.launch
        self._is_capturing = launcher.driver.is_capturing
        self._needs_workspace = plan.workspace_bytes > 0

    def __call__(self, scores: Any, lengths: Any, k: Any, out: Any, workspace: Any, num_rows: Any) -> Any:
        """Enqueue the selection and return its indices, or return None without having done anything."""
        tensor, index, slots = self._tensor, self._index, self._k
        if type(scores) is not tensor or (k is not None and k != slots):
            return None
        try:
            # A sparse or wrapped tensor raises here; the general way names what is wrong with it.
            rows, width = scores.shape
            pitch, unit = scores.stride()
            base = scores.data_ptr()
        except (RuntimeError, ValueError):
            return None
        if (
            scores.dtype is not self._dtype
            or scores.get_device() != index
            or not 0 < rows <= self._rows
            or width > self._width
            or (unit != 1 and width > 1)
        ):
            return None
        if pitch < width:
            if rows > 1:
                return None
            pitch = width
        lengths_at = live_at = 0
        if lengths is not None:
            if not self._is_vector(lengths, rows) or lengths.shape != (rows,):
                return None
            lengths_at = lengths.data_ptr()
        if num_rows is not None:
            if not self._is_vector(num_rows, 1) or num_rows.dim() > 1:
                return None
            live_at = num_rows.data_ptr()
        if out is not None:
            if type(out) is not tensor or out.dtype is not self._int32 or out.get_device() != index:
                return None
            if out.shape != (rows, slots):
                return None
            out_pitch, unit = out.stride()
            if (unit != 1 and slots > 1) or (out_pitch < slots and rows > 1):
                return None
            out_at = out.data_ptr()
            out_end = out_at + ((rows - 1) * out_pitch + slots) * 4
            if out_at < base + ((rows - 1) * pitch + width) * self._itemsize and base < out_end:
                return None
            if out_at < lengths_at + 4 * rows and lengths_at < out_end and lengths_at:
                return None
        stream = self._stream(index)
        if type(workspace) is Workspace:
            if workspace.plan is not self.plan:
                return None
            memory = workspace.pointer
        elif workspace is not None:
            return None
        elif self._needs_workspace:
            if self._is_capturing(stream):
                return None
            workspace = implicit_workspaces.get(self.plan, stream)
            memory = workspace.pointer
        else:
            memory = 0
        if out is None:
            out, out_pitch = self._empty((rows, slots), dtype=self._int32, device=self._device), slots
            out_at = out.data_ptr()
        self._launch(base, lengths_at, live_at, out_at, 0, memory, pitch, out_pitch, rows, width, stream)
        return out

    def _is_vector(self, vector: Any, size: int) -> bool:
        return (
            type(vector) is self._tensor
            and vector.dtype is self._int32
            and vector.get_device() == self._index
            and vector.numel() == size
            and vector.is_contiguous()
        )


# Keyed by id(plan), which the entry's own reference to the plan keeps from being reused: hashing a plan's fifty
# fields on every call would cost as much as the launch.
_ready: dict[int, TorchCall] = {}
_recent: dict[Any, Plan] = {}
_MOST = 4096


def attempt(
    plan: Plan | None, scores: Any, lengths: Any, k: Any, policy: Any, out: Any, workspace: Any, num_rows: Any
) -> Any:
    """Run a call whose plan has run before on PyTorch tensors; None when it has to go the general way."""
    if plan is None:
        plan = recall(scores, k, policy)
        if plan is None:
            return None
    elif policy is not None:
        return None
    ready = _ready.get(id(plan))
    if ready is None or ready.plan is not plan:
        return None
    return ready(scores, lengths, k, out, workspace, num_rows)


def recall(scores: Any, k: Any, policy: Any) -> Plan | None:
    """Return the plan that an equal call without a plan was given before, if it is known."""
    try:
        return _recent.get((scores.shape, scores.stride(), scores.dtype, scores.get_device(), k, policy))
    except (AttributeError, RuntimeError, TypeError):
        return None


def remember_choice(scores: Any, k: Any, policy: Any, plan: Plan) -> None:
    """Keep the plan chosen for a call that brought none, for `recall`; PyTorch tensors only."""
    if problem.library_of(scores) == "torch":
        if len(_recent) >= _MOST:
            _recent.clear()
        _recent[scores.shape, scores.stride(), scores.dtype, scores.get_device(), k, policy] = plan


def _remember(ready: TorchCall) -> None:
    if len(_ready) >= _MOST:
        _ready.clear()
    _ready[id(ready.plan)] = ready


def forget() -> None:
    """Drop everything prepared, as in a new process; for tests."""
    _ready.clear()
    _recent.clear()
    implicit_workspaces.clear()
    launch.forget()
