"""The public calls: `topk` and `plan`. They say what a call takes; `ksieve.dispatch` runs it."""

from __future__ import annotations

import sys
from typing import Any, Unpack

from ksieve import dispatch
from ksieve.core import arguments, problem
from ksieve.core.arguments import Keywords
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, kind_of, shown
from ksieve.core.options import PLAIN, Options, dtype_text
from ksieve.core.policy import SamplingPolicy
from ksieve.core.problem import Device, Problem
from ksieve.dispatch import Backend
from ksieve.planning import choose as planner
from ksieve.planning.plan import Plan


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
    **options: Unpack[Keywords],
) -> Any:
    """Select the k largest scores of every row, exactly.

    Parameters
    ----------
    scores : array, shape (rows, width)
        float32, float16 or bfloat16; NumPy, PyTorch, CuPy or JAX, on CPU or CUDA. Last stride 1, any row
        pitch of at least width, any base alignment. A NumPy uint16 array is read as bfloat16 bits.
    lengths : array of int32, shape (rows,), optional
        Valid prefix of each row, on the scores' device; never read back to the host. Below 0 counts as 0,
        above width as width. Default: every row is valid throughout.
    k : int, or array of int32 of shape (rows,)
        Slots per row, 1 to 2**20. May be omitted when `plan` is given. An array on the scores' device gives every
        row its own k, clamped to [0, max_k]; slots past it are unused.
    plan : Plan, optional
        From `ksieve.plan`; made from the arguments when omitted. Options that the call leaves open are the plan's;
        others must agree with them.
    policy : SamplingPolicy or str, optional
        Sampling policy when no plan is given; ``"direct"`` never samples.
    backend : {"auto", "cpu", "cuda", "reference"}
        "auto" follows the scores' device. "reference" is the NumPy model: slow, for study.
    out : array of int32 or int64, shape (rows, k), optional
        Receives the result, on the scores' device; must not overlap an input or another output.
    workspace : Workspace or array of bytes, optional
        CUDA only: from ``plan.workspace()``, or the caller's own bytes, whose leading part is then zeroed on the
        stream with every call. One per stream. Default: one is kept per device and stream.
    num_rows : array of int32, shape (1,) or (), optional
        Live row count, on the scores' device, clamped to [0, rows]; rows from it on are filled with -1.
    return_stats : bool
        Also return `Stats` (on CUDA this reads the statistics back, which synchronises).

    Other Parameters
    ----------------
    starts : array of int32, shape (rows,), optional
        Where each row's window begins, clamped to [0, width]. Its scores are ``[start, start + length)``.
    ends : array of int32, shape (rows,), optional
        In place of `lengths`: where each window ends, exclusive, clamped to [start, width].
    index_base : {"row", "start"}
        Whether indices count from the start of the row, so that ``scores[r, i]`` is the score, or of the window.
    next_n : int
        Consecutive rows of one request (multi-token prediction). `lengths` or `ends` then has one entry per request,
        and row r sees ``next_n - 1 - r % next_n`` scores less.
    max_k : int
        Slots per row where k is an array.
    page_table : array of int32, shape (requests, max_pages), optional
        Write ``table[request, i // page_size] * page_size + i % page_size`` in place of index i; -1 for an entry
        that the table does not have.
    page_size : int
        A power of two, by default 1.
    row_to_request : array of int32, shape (rows,), optional
        The page table's request of each row; by default ``row // next_n``.
    offsets : array of int32, shape (rows,), optional
        Write ``i + offsets[row]`` in place of index i.
    return_values : bool
        Also return the selected scores, bit for bit; -inf in unused slots. No gradient flows through them: where one
        is being recorded, `GradientWarning` says so once. ``scores.gather(1, indices.clamp(min=0).long())`` has one.
    values_out : array of the scores' dtype, shape (rows, k), optional
        Receives them.
    return_raw : bool
        Also return the indices before `page_table` or `offsets`.
    raw_out : array like `out`, optional
        Receives them.
    index_dtype : {"int32", "int64"}
        Of new arrays of indices.
    sorted : bool or {"value", "index"}
        True or "value": best score first, NaN last, equal scores by index. "index": by ascending position. Unused
        slots come last. For k up to 16384, as are the next three.
    tie_break : {"low", "high"}, optional
        Select the lowest (or highest) positions among scores equal to the worst selected one; ``sorted=True`` then
        orders all equal scores so.
    deterministic, batch_invariant : bool
        The answer for a row depends on that row alone: the same bytes in every run, batch and plan. The default of
        `sorted` becomes "index" and that of `tie_break` "low".
    overlap : bool
        CUDA, compute capability 9.0 and later: let the kernel start while the stream's previous one drains
        (programmatic dependent launch).

    Returns
    -------
    indices : array of int32, shape (rows, k)
        Same library and device as `scores`. For a row of length L > k: k distinct positions below L, no
        unselected valid score greater than a selected one, in no particular order. For L <= k: all L
        positions, then -1.
    values, raw, stats
        What `return_values`, `return_raw` and `return_stats` ask for, in this order; the result is then a tuple.

    Raises
    ------
    ArgumentError
        Before anything is launched or written; the message names the argument, what it got and what it takes.
    BackendError
        The backend cannot run here; the message names the remedy.

    Notes
    -----
    NaN ranks below -inf; ``-0.0`` equals ``+0.0``. Which of several scores tied at rank k are returned is
    unspecified without `tie_break`. See docs/reference/contract.md.

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
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling() and isinstance(scores, torch.Tensor):
        from ksieve import torch_ops

        torch_ops.check_traceable(policy=policy, backend=backend, return_stats=return_stats)
        return torch_ops.traced(
            scores, lengths, k, plan=plan, out=out, workspace=workspace, num_rows=num_rows, keywords=options
        )
    return dispatch.topk_eager(
        scores, lengths, k, plan, policy, backend, out, workspace, num_rows, return_stats, options
    )


topk.__signature__ = arguments.written_out(topk)  # type: ignore[attr-defined]


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
    """Fix kernel family, launch geometry and workspace from host-known facts alone.

    Parameters
    ----------
    rows, width : int
        Capacity of the score matrix; a call may bring fewer rows or a narrower matrix.
    k : int
        Slots per row.
    pitch : int, optional
        Scores from one row to the next; default `width`.
    dtype : str or dtype
        "float32", "float16" or "bfloat16", or such a dtype of NumPy, PyTorch or JAX.
    device : str, torch.device or DeviceInfo
        "cpu", "cuda", "cuda:1", or the facts of a device that need not be present.
    family : str, optional
        Force a kernel family.
    policy : SamplingPolicy or str, optional
        Force a sampling policy; ``"direct"`` never samples.
    splits : int, optional
        With ``family="split_sampled"``: force how many CTAs share a row.
    options : Options
        What its calls ask for beyond the plain selection; `k` is then the largest k of any row.

    Returns
    -------
    Plan
        Printable; ``plan.reason`` says in words why it is what it is.

    Raises
    ------
    ArgumentError
        If an argument is out of range or the family cannot run the shape.

    Examples
    --------
    >>> import ksieve
    >>> plan = ksieve.plan(rows=64, width=131_072, k=2048)
    >>> plan.family, plan.workspace_bytes
    ('cpu', 0)
    """
    rows, width, pitch = problem.check_shape(rows, width, pitch)
    name = dtype_text(dtype)
    if not isinstance(name, str) or name not in problem.SCORE_DTYPES:
        raise ArgumentError("dtype", shown(name), f"one of {list(problem.SCORE_DTYPES)}")
    info = device if isinstance(device, DeviceInfo) else dispatch.device_info(_parse_device(device))
    asked = Problem(
        rows,
        width,
        pitch,
        problem.check_k(k),
        name,
        Device(info.kind, info.index),
        problem.check_options(options, problem.check_k(k)),
    )
    return planner.choose(asked, info, family=family, policy=policy, splits=splits)


def _parse_device(device: Any) -> Device:
    # A torch.device prints as its name.
    text = str(device) if kind_of(device) == "torch.device" else device
    kind, _, index = text.partition(":") if isinstance(text, str) else ("", "", "")
    if kind not in ("cpu", "cuda") or (index and not (index.isascii() and index.isdigit() and len(index) < 10)):
        raise ArgumentError("device", shown(device), "'cpu', 'cuda' or 'cuda:<ordinal>'")
    return Device(kind, int(index or 0))
