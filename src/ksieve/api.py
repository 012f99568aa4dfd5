"""The public functions `topk` and `plan`: signatures and documentation. `ksieve.dispatch` runs a call."""

from __future__ import annotations

import sys
from typing import Any, Literal, Unpack, overload

from ksieve import dispatch
from ksieve.core import arguments, problem
from ksieve.core.arguments import Backend, PlanlessKwargs, TopkKwargs
from ksieve.core.arrays import TransformedTensorError
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, refuse_at_exit, shown
from ksieve.core.options import PLAIN, Options, dtype_text
from ksieve.core.policy import SamplingPolicy
from ksieve.core.problem import Device, Problem
from ksieve.core.stats import Stats
from ksieve.planning import choose as planner
from ksieve.planning.devices import resolve_device
from ksieve.planning.plan import Plan


# By the flags of a call a checker knows how many arrays it returns. A plan may add some, and `values_out` or `raw_out`
# alone ask for theirs: such calls return Any.
@overload
def topk(
    scores: Any,
    lengths: Any = None,
    k: Any = None,
    *,
    return_values: Literal[True],
    values_out: Any = None,
    return_raw: Literal[True],
    raw_out: Any = None,
    return_stats: Literal[True],
    **options: Unpack[PlanlessKwargs],
) -> tuple[Any, Any, Any, Stats]: ...
@overload
def topk(
    scores: Any,
    lengths: Any = None,
    k: Any = None,
    *,
    return_values: Literal[True],
    values_out: Any = None,
    return_raw: Literal[True],
    raw_out: Any = None,
    return_stats: Literal[False] = False,
    **options: Unpack[PlanlessKwargs],
) -> tuple[Any, Any, Any]: ...
@overload
def topk(
    scores: Any,
    lengths: Any = None,
    k: Any = None,
    *,
    return_values: Literal[True],
    values_out: Any = None,
    return_raw: Literal[False] = False,
    return_stats: Literal[True],
    **options: Unpack[PlanlessKwargs],
) -> tuple[Any, Any, Stats]: ...
@overload
def topk(
    scores: Any,
    lengths: Any = None,
    k: Any = None,
    *,
    return_values: Literal[True],
    values_out: Any = None,
    return_raw: Literal[False] = False,
    return_stats: Literal[False] = False,
    **options: Unpack[PlanlessKwargs],
) -> tuple[Any, Any]: ...
@overload
def topk(
    scores: Any,
    lengths: Any = None,
    k: Any = None,
    *,
    return_values: Literal[False] = False,
    return_raw: Literal[True],
    raw_out: Any = None,
    return_stats: Literal[True],
    **options: Unpack[PlanlessKwargs],
) -> tuple[Any, Any, Stats]: ...
@overload
def topk(
    scores: Any,
    lengths: Any = None,
    k: Any = None,
    *,
    return_values: Literal[False] = False,
    return_raw: Literal[True],
    raw_out: Any = None,
    return_stats: Literal[False] = False,
    **options: Unpack[PlanlessKwargs],
) -> tuple[Any, Any]: ...
@overload
def topk(
    scores: Any,
    lengths: Any = None,
    k: Any = None,
    *,
    return_values: Literal[False] = False,
    return_raw: Literal[False] = False,
    return_stats: Literal[True],
    **options: Unpack[PlanlessKwargs],
) -> tuple[Any, Stats]: ...
@overload
def topk(
    scores: Any,
    lengths: Any = None,
    k: Any = None,
    *,
    plan: Plan | None = None,
    policy: SamplingPolicy | str | None = None,
    backend: Backend = "auto",
    out: Any = None,
    workspace: Any = None,
    num_rows: Any = None,
    return_stats: bool = False,
    **options: Unpack[TopkKwargs],
) -> Any: ...
def topk(
    scores: Any,
    lengths: Any = None,
    k: Any = None,
    *,
    plan: Plan | None = None,
    policy: SamplingPolicy | str | None = None,
    backend: Backend = "auto",
    out: Any = None,
    workspace: Any = None,
    num_rows: Any = None,
    return_stats: bool = False,
    **options: Unpack[TopkKwargs],
) -> Any:
    """Select the k best scores of every row, exactly: the largest, or the smallest.

    Parameters
    ----------
    scores : array, shape (..., width)
        float32, float16 or bfloat16; NumPy, PyTorch, CuPy or JAX, on CPU or CUDA. Rows run along the last dimension,
        whose stride is 1. The *leading shape* is that of all others, of any strides (at most two, when those that lie
        one behind another are merged), 0 included. Any base alignment. A NumPy uint16 array is read as bfloat16 bits.
    lengths : array of int32 or int64, of the leading shape, optional
        Number of valid scores at the start of each row, on the scores' device, clamped to [0, width] there. On CUDA
        it is never copied to the host. Default: `width` for every row.
    k : int, or array of int32 of the leading shape
        Slots per row, 0 to 2**20; with 0 the result is empty. May be omitted when `plan` is given. An array on the
        scores' device gives every row its own k, clamped to [0, max_k]; the remaining slots of the row are unused.
    plan : Plan, optional
        From `ksieve.plan`; chosen from the arguments when omitted. Options that the call omits are taken from the
        plan; options that it passes must equal the plan's.
    policy : SamplingPolicy or str, optional
        Sampling policy when no plan is given; ``"direct"`` never samples.
    backend : {"auto", "cpu", "cuda", "reference"}
        "auto" follows the scores' device. "reference" is the NumPy model: slow, for study.
    out : array of int32 or int64, of the leading shape and k, optional
        Receives the indices, on the scores' device; must not overlap an input or another output.
    workspace : Workspace or array of bytes, optional
        CUDA only: from ``plan.workspace()``, or device memory of at least ``plan.workspace_bytes`` bytes, whose first
        ``plan.workspace_zeroed`` bytes every call then zeroes on the stream. Use one per stream. Default: ksieve keeps
        one per device and stream.
    num_rows : int, or array of int32 of shape (1,) or (), optional
        Number of live rows, clamped to [0, rows]. The slots of later rows are filled with -1. An array is on the
        scores' device. If an int is passed, a CUDA call copies it to a new array.
    return_stats : bool
        Also return `Stats` (on CUDA this reads the statistics back, which synchronises).

    Other Parameters
    ----------------
    starts : array of int32 or int64, of the leading shape, optional
        Where each row's window begins, clamped to [0, width]. Its scores are ``[start, start + length)``.
    ends : array of int32 or int64, of the leading shape, optional
        In place of `lengths`: where each window ends, exclusive, clamped to [start, width].
    index_base : {"row", "start"}
        Whether indices count from the start of the row, so that ``scores[r, i]`` is the score, or of the window.
    next_n : int
        Consecutive rows of one request (multi-token prediction). `lengths` or `ends` then has one entry per request
        (shape ``(rows // next_n,)``, or the leading shape with its last dimension divided by next_n), and the window
        of row r is ``next_n - 1 - r % next_n`` scores shorter.
    max_k : int
        Slots per row where k is an array.
    page_table : array of int32, shape (requests, max_pages), optional
        Write ``table[request, i // page_size] * page_size + i % page_size`` in place of index i, or -1 where that
        entry lies outside the table or is negative.
    page_size : int
        A power of two, by default 1.
    row_to_request : array of int32, of the leading shape, optional
        The page table's request of each row; by default ``row // next_n``.
    offsets : array of int32, of the leading shape, optional
        Write ``i + offsets[row]`` in place of index i.
    positions : array of int32, of the scores' shape, optional
        A position for each score, which is written in place of its index i, before `page_table` or
        `offsets`, and by which equal scores and `sorted` go. A score whose position is negative is no part of the row.
        The others of a row must be distinct. So rows are merged that were gathered from several shards.
    block_table : array of int32, of the leading shape and n, optional
        In place of `positions`, the number b of the block of each ``g = width // n`` scores, whose positions
        are ``b * g`` and those that follow it; negative where there is none. So a second level selects positions of the
        blocks that a first one selected.
    counts_out : array of int32, of the leading shape, optional
        Receives how many slots of each row are used. While JAX traces, this argument, the two before it and the seven
        that follow are refused.
    fill : bool
        False, with `counts_out`: slots that are not used may hold anything. Rows of fewer entries than slots then cost
        the writing of those alone.
    block_size : int
        Select among blocks of this many adjacent scores, 1 to 256, each by its best score, and write the number of the
        block. `lengths`, `starts` and `ends` stay positions; the last block may be short, and the first where a window
        begins inside it. What is selected among are a row's *entries*: its blocks, or its scores.
    force_first, force_last : int
        So many entries at the beginning and at the end of each row are selected with any score.
    force : {"inside", "beside"}
        Whether forced entries count among the k, or come in addition.
    expand : bool or int
        Write all positions of each selected entry, in place of its index: True for those of a block, or the number of
        positions that each score stands for, 2 to 256. The outputs then have ``k * expand`` columns.
    tail : array of int32, of the shape of `lengths`, optional
        With `expand`, the rows' lengths in positions: entries that are not whole within them are not selected, and the
        positions after the last whole entry are written after the selection, in up to ``expand - 1`` more columns.
    return_values : bool
        Also return the selected scores, bit for bit; -inf in unused slots, or inf with ``largest=False``. With PyTorch
        they carry the gradient of the selected scores, to any order and in forward mode; `workspace` is then not used.
    values_out : array of the scores' dtype, of the leading shape and k, optional
        Receives the values, without a gradient: `GradientWarning` says so once where the scores have one.
    return_raw : bool
        Also return the indices before `page_table` or `offsets`.
    raw_out : array like `out`, optional
        Receives the raw indices.
    index_dtype : {"int32", "int64"}
        Dtype of new index arrays.
    sorted : bool or {"value", "index"}
        True or "value": best score first, NaN last, equal scores by index. "index": by ascending position. Unused
        slots come last.
    tie_break : {"low", "high"}, optional
        Select the lowest (or highest) positions among scores equal to the worst selected one. With ``sorted=True``
        equal scores are ordered the same way.
    deterministic, batch_invariant : bool
        The answer for a row depends on that row alone: the same bytes in every run, batch and plan. The default of
        `sorted` becomes "index" and that of `tie_break` "low".
    largest : bool
        Whether larger scores are better, or smaller ones.
    nan : {"last", "highest"}
        Place of NaN. "last": worse than every number, with either `largest`. "highest": NaN is the greatest of all
        scores, as in ``torch.topk``: first with `largest`, last without.
    overlap : bool
        CUDA, compute capability 9.0 and later: the kernel may start while the previous kernel of the stream drains
        (programmatic dependent launch). Ignored elsewhere.

    Returns
    -------
    indices : array of int32, of the leading shape and k
        Same library and device as `scores`. For a row of length L > k: k distinct positions below L, no
        unselected valid score better than a selected one, in no particular order. For L <= k: all L
        positions, then -1. With `expand`, ``force="beside"`` and `tail` there are more columns:
        ``(k + n) * expand``, for n forced entries beside k, and ``expand - 1`` for a tail.
    values, raw, stats
        Returned, in this order, with `return_values`, `return_raw` and `return_stats`; the result is then a tuple.

    Raises
    ------
    ArgumentError
        An argument cannot be used. Raised before any launch or write; the message names the argument, the value that
        it got and the values that it takes.
    WorkspaceError
        `workspace` is too small, misaligned, on another device, or was made for another plan.
    BackendError
        The backend cannot run here; the message names the remedy. In a CUDA graph capture also where a kernel is not
        loaded yet, or with ``return_stats=True``.

    Notes
    -----
    By default NaN ranks last; ``-0.0`` equals ``+0.0``. Without `tie_break` it is
    unspecified which of the scores tied at rank k are selected. See docs/reference/contract.md.

    With PyTorch the call works under ``torch.compile`` and inside ``torch.func`` (``grad``, ``vmap``, ``jvp``,
    ``functionalize``), which take no `policy`, `backend` or `return_stats`; ``torch.func`` takes no outputs either.
    ``vmap`` appends the batch to the rows where scores and vectors are all that is given, and otherwise selects one
    element after another.

    On CUDA the call enqueues kernels on the current stream of the scores' library and returns without waiting; with
    JAX arrays and with ``return_stats=True`` it waits for the result. Inside ``jax.jit`` and other transformations of
    JAX it becomes part of the program, where nothing waits and values carry a gradient. It can be captured in a CUDA
    graph after ``plan.prepare()`` or one call with the same plan outside the capture. PyTorch then allocates outputs
    and workspace from the graph's pool; with other libraries pass `out` and ``workspace=plan.workspace()``.

    Examples
    --------
    >>> import numpy as np, ksieve
    >>> scores = np.array([[5, 1, 7, 2], [4, 8, 6, 3]], dtype=np.float32)
    >>> ksieve.topk(scores, k=2, sorted=True).tolist()
    [[2, 0], [1, 2]]
    >>> ksieve.topk(scores, np.array([4, 1], dtype=np.int32), k=2, sorted=True).tolist()
    [[2, 0], [0, -1]]
    """
    if options:
        arguments.check_names(options)
    torch: Any = None
    if type(scores).__module__.partition(".")[0] == "torch":
        # Dynamo may trace this function, and walks through a table that it reads. Another thread may import meanwhile,
        # and change sys.modules: PyTorch 2.11 then fails.
        try:
            import torch as loaded
        except ImportError:
            refuse_at_exit()
            raise
        torch = loaded
    else:
        torch = sys.modules.get("torch")
    if torch is None or not torch.compiler.is_compiling() or not isinstance(scores, torch.Tensor):
        if "jax" in sys.modules and _traced_by_jax(scores, lengths, k, num_rows, out, *options.values()):
            from ksieve.frontends.jax import ops as jax_ops

            return jax_ops.traced(
                scores, lengths, k, plan=plan, policy=policy, backend=backend, out=out, workspace=workspace,
                num_rows=num_rows, return_stats=return_stats, keywords=options,
            )  # fmt: skip
        try:
            return dispatch.topk_eager(
                scores, lengths, k, plan, policy, backend, out, workspace, num_rows, return_stats, options
            )
        except TransformedTensorError:  # found by the checks, so that other calls need not look for one
            if not isinstance(scores, torch.Tensor):
                raise
    from ksieve.frontends.torch import ops as torch_ops

    if scores.dim() != 2 and torch.compiler.is_compiling():
        takes = "a matrix while tracing: scores.reshape(-1, scores.shape[-1])"
        torch_ops.refuse("scores", f"{scores.dim()} dimension(s)", takes)
    torch_ops.check_traceable(policy=policy, backend=backend, return_stats=return_stats)
    return torch_ops.traced(
        scores, lengths, k, plan=plan, out=out, workspace=workspace, num_rows=num_rows, keywords=options
    )


topk.__signature__ = arguments.explicit_signature(topk)  # type: ignore[attr-defined]


def plan(
    *,
    rows: int,
    width: int,
    k: int,
    pitch: int | None = None,
    dtype: Any = "float32",
    device: Any | DeviceInfo = "cpu",
    family: str | None = None,
    policy: SamplingPolicy | str | None = None,
    splits: int | None = None,
    options: Options = PLAIN,
) -> Plan:
    """Choose kernel family, launch geometry and workspace size from shape, dtype and device alone.

    No array is read and nothing is allocated or compiled; ``device="cuda"`` queries the driver once.

    Parameters
    ----------
    rows, width : int
        Largest shape of the score matrix; a call may pass fewer rows or a narrower matrix.
    k : int
        Slots per row.
    pitch : int, optional
        Distance between the starts of two rows, in scores; default `width`. 0: all rows are the same one.
    dtype : str or dtype
        "float32", "float16" or "bfloat16", or such a dtype of NumPy, PyTorch or JAX.
    device : str, torch.device or DeviceInfo
        "cpu", "cuda" or "cuda:1" of this machine; or a device that need not be present: the name of a GPU, "a100",
        "l40s", "rtx4090", "h20", "h100", "h200", "b200" or "rtx5090", or a description.
    family : str, optional
        Force a kernel family in place of the planner's choice.
    policy : SamplingPolicy or str, optional
        Force a sampling policy; ``"direct"`` never samples.
    splits : int, optional
        With ``family="stream_split"``: force how many CTAs share a row.
    options : Options
        Options of the calls that use the plan; with ``per_row_k``, `k` is the largest k of any row.

    Returns
    -------
    Plan
        Prints as a table; ``plan.reason`` states why this family was chosen.

    Raises
    ------
    ArgumentError
        If an argument is out of range or the family cannot run the shape.
    BackendError
        If `device` names a device that is absent or cannot be used.

    Examples
    --------
    >>> import ksieve
    >>> plan = ksieve.plan(rows=64, width=131_072, k=2048)
    >>> plan.family, plan.workspace_bytes
    ('cpu', 0)
    """
    refuse_at_exit()
    rows, width, pitch = problem.check_shape(rows, width, pitch)
    name = dtype_text(dtype)
    if not isinstance(name, str) or name not in problem.SCORE_DTYPES:
        raise ArgumentError("dtype", shown(name), f"one of {list(problem.SCORE_DTYPES)}")
    if isinstance(k, int) and not isinstance(k, bool) and k == 0:
        takes = f"an int from 1 to {problem.MAX_K}: ksieve.topk(..., k=0) needs no plan"
        raise ArgumentError("k", 0, takes)
    slots = problem.check_k(k)
    info = resolve_device(device) if isinstance(device, str) else device
    if not isinstance(info, DeviceInfo):
        info = dispatch.device_info(problem.parse_device(info))
    problem.check_entries(problem.check_options(options), slots, width)
    asked = Problem(
        rows,
        width,
        pitch,
        slots,
        name,
        Device(info.kind, info.index),
        options,
    )
    return planner.choose(asked, info, family=family, policy=policy, splits=splits)


def _traced_by_jax(*values: Any) -> bool:
    # While another thread imports JAX, the module exists without its contents.
    tracer = getattr(getattr(sys.modules["jax"], "core", None), "Tracer", None)
    return tracer is not None and any(isinstance(value, tracer) for value in values)
