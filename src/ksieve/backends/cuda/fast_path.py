"""The fast path of repeated calls: a plan that has run before, called with PyTorch tensors.

It repeats the checks of `ksieve.core.call.parse` in the form that is cheapest for tensors, and raises no
`ArgumentError` of its own: a call that fails a check takes the general path, which reports the fault. The arrays of
options are those of `ksieve.backends.cuda.fast_options`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ksieve.backends.cuda import arrays
from ksieve.backends.cuda.call import implicit_workspaces
from ksieve.backends.cuda.fast_options import covers, make_packer
from ksieve.backends.cuda.runtime import launch
from ksieve.backends.cuda.runtime.workspace import ALIGNMENT, Workspace
from ksieve.planning.plan import Plan

FastPath = Callable[[Any, Any, Any, Any, Any, Any, Any], Any]
"""Called with (scores, lengths, k, out, workspace, num_rows, keywords); returns the result of `ksieve.topk`, or None
without any effect."""


def make_fast_path(plan: Plan, names: Collection[str] = ()) -> FastPath | None:
    """Make the fast path of a plan that has a launcher; it refers to the plan. None if its options have none.

    It is a closure, because reading forty names is fastest from cells.

    Parameters
    ----------
    plan : Plan
    names : collection of str
        Keyword arguments of its calls that are arrays; none of them has others.
    """
    if not covers(plan.problem.options, names):
        return None
    import torch

    launcher = launch.launcher_of(plan, stats=False, stream=0)
    driver, context, enqueue = launcher.driver, launcher.context, launcher.launch
    is_capturing, fill_zero, activated = driver.is_capturing, driver.fill_zero, driver.activated
    planned_rows, planned_width, slots = plan.problem.rows, plan.problem.width, plan.problem.k
    index, needed, zeroed = plan.problem.device.index, plan.workspace_bytes, plan.workspace_zeroed
    tensor, int32, empty = torch.Tensor, torch.int32, torch.empty
    dtype = getattr(torch, plan.problem.dtype)
    itemsize = dtype.itemsize
    device = torch.device("cuda", max(index, 0))
    current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", arrays.torch_stream)
    options, extended = plan.problem.options, launcher.extended
    index_dtype, next_n, by_ends = getattr(torch, options.index_dtype), options.next_n, "ends" in names
    index_bytes = index_dtype.itemsize
    pack = make_packer(plan, names, device) if extended else None

    def call(scores: Any, lengths: Any, k: Any, out: Any, workspace: Any, num_rows: Any, keywords: Any = None) -> Any:
        if type(scores) is not tensor or (k is not None and k != slots) or scores.is_neg():
            return None
        lengths_at = live_at = out_at = out_end = 0
        if by_ends:
            if lengths is not None:
                return None
            lengths = keywords["ends"]
        try:
            # An object that is no tensor, or a sparse or wrapped one, raises here; the general path reports the fault.
            rows, width = scores.shape
            pitch, unit = scores.stride()
            scores_at = scores.data_ptr()
            if lengths is not None:
                lengths_at = lengths.data_ptr()
            if num_rows is not None:
                live_at = num_rows.data_ptr()
            if out is not None:
                out_at = out.data_ptr()
        except Exception:
            return None
        if (
            scores.dtype is not dtype
            or scores.get_device() != index
            or not 0 < rows <= planned_rows
            or width > planned_width
            or (unit != 1 and width > 1)
            or not scores_at
        ):
            return None
        if pitch < width:
            if rows > 1:
                return None
            pitch = width
        if lengths is not None and (
            type(lengths) is not tensor
            or lengths.dtype is not int32
            or lengths.is_neg()
            or lengths.get_device() != index
            or lengths.shape != (rows // next_n,)
            or not lengths.is_contiguous()
            or not lengths_at
        ):
            return None
        if num_rows is not None and (
            type(num_rows) is not tensor
            or num_rows.dtype is not int32
            or num_rows.is_neg()
            or num_rows.get_device() != index
            or num_rows.numel() != 1
            or num_rows.dim() > 1
            or not live_at
        ):
            return None
        if out is not None:
            if (
                type(out) is not tensor
                or out.dtype is not index_dtype
                or out.is_neg()
                or out.get_device() != index
                or out.shape != (rows, slots)
                or not out_at
            ):
                return None
            out_pitch, unit = out.stride()
            if (unit != 1 and slots > 1) or (out_pitch < slots and rows > 1):
                return None
            out_end = out_at + ((rows - 1) * out_pitch + slots) * index_bytes
            if out_at < scores_at + ((rows - 1) * pitch + width) * itemsize and scores_at < out_end:
                return None
            if lengths_at and out_at < lengths_at + 4 * rows and lengths_at < out_end:
                return None
            if live_at and out_at < live_at + 4 and live_at < out_end:
                return None
        fields: tuple[int, ...] = ()
        further: tuple[Any, ...] = ()
        if pack is not None:
            if rows % next_n:
                return None
            inputs = [(scores_at, scores_at + ((rows - 1) * pitch + width) * itemsize)]
            if lengths_at:
                inputs.append((lengths_at, lengths_at + 4 * (rows // next_n)))
            if live_at:
                inputs.append((live_at, live_at + 4))
            try:
                found = pack(keywords, scores, rows, inputs, [(out_at, out_end)] if out_at else [])
            except Exception:  # a wrapped tensor has no address
                return None
            if found is None:
                return None
            fields, further = found
        stream = current_stream(index)
        if type(workspace) is Workspace:
            if workspace.plan is not plan:
                return None
            memory = workspace.pointer
        elif workspace is not None:
            if type(workspace) is not tensor or workspace.get_device() != index:
                return None
            try:
                memory, usable = workspace.data_ptr(), workspace.is_contiguous()
            except RuntimeError:
                return None
            if workspace.is_neg() or workspace.is_conj() or not usable:
                return None
            if workspace.nbytes < needed or memory % ALIGNMENT or not memory:
                return None
            with activated(context):
                fill_zero(memory, zeroed, stream)
        elif not needed:
            memory = 0
        elif is_capturing(stream):
            return None
        else:
            workspace = implicit_workspaces.get(plan, stream, "torch")
            memory = workspace.pointer
        if out is None:
            out, out_pitch = empty((rows, slots), dtype=index_dtype, device=device), slots
            out_at = out.data_ptr()
        enqueue(scores_at, lengths_at, live_at, out_at, 0, memory, pitch, out_pitch, rows, width, stream, fields)
        return (out, *further) if further else out

    return call
