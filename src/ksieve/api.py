"""The public functions `topk`, `select` and `plan`: signatures and documentation. `ksieve.dispatch` runs a call."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ksieve import dispatch
from ksieve.core import arguments
from ksieve.core import call as calls
from ksieve.core.arguments import RANKED, WRITTEN, Ranked, Written
from ksieve.core.arrays import TransformedTensorError
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, refuse, refuse_at_exit
from ksieve.core.groups import flat
from ksieve.core.options import dtype_text
from ksieve.core.policy import SamplingPolicy
from ksieve.core.selection import Selection
from ksieve.planning import choose as planner
from ksieve.planning.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor


class TopkOptions(Ranked, total=False):
    """Keyword arguments of `topk`. None equals omission, as does False for `sorted` and `deterministic`."""

    num_rows: Any
    out: Any
    workspace: Any
    plan: Plan | None


class SelectOptions(TopkOptions, Written, total=False):
    """Keyword arguments of `select`. None equals omission."""

    stats: bool


@overload
def topk(
    scores: NDArray[Any], lengths: Any = None, k: Any = None, **options: Unpack[TopkOptions]
) -> NDArray[np.int32]: ...
@overload
def topk(scores: Tensor, lengths: Any = None, k: Any = None, **options: Unpack[TopkOptions]) -> Tensor: ...
@overload
def topk(  # type: ignore[overload-cannot-match, unused-ignore] # without PyTorch a Tensor is Any
    scores: Any, lengths: Any = None, k: Any = None, **options: Unpack[TopkOptions]
) -> Any: ...
def topk(scores: Any, lengths: Any = None, k: Any = None, **options: Unpack[TopkOptions]) -> Any:
    """Select the k best scores of every row, exactly: the largest, or the smallest.

    Parameters
    ----------
    scores : array, shape (..., width)
        float32, float16 or bfloat16; NumPy, PyTorch, CuPy or JAX, on CPU or CUDA. Rows run along the last dimension,
        whose stride is 1. All others, the *leading shape*, have any strides (at most two, after contiguous ones are
        merged), 0 included. Any base alignment. A NumPy uint16 array is read as bfloat16 bits.
    lengths : array of int32 or int64, of the leading shape, optional
        Number of valid scores at the start of each row, on the scores' device, clamped to [0, width] there. On CUDA
        it is never copied to the host. Default: `width` for every row.
    k : int, or array of int32 of the leading shape
        Slots per row, 0 to 2**20; with 0 the result is empty. May be omitted when `plan` is given. An array on the
        scores' device gives every row its own k, clamped to [0, max_k]; the remaining slots of the row are unused.
    max_k : int
        Slots per row where k is an array.
    bounds : RowBounds or Segments, optional
        Windows of the rows, and whether indices count from them; or the rows of flat scores, which have one dimension.
    blocks : Blocks, optional
        Select among blocks of scores, force some of them, or write all positions of what is selected.
    gathered : Positions or SelectedBlocks, optional
        Positions of scores that were gathered from elsewhere, which are written in place of indices. Not together with
        blocks of more than one score, or with windows whose indices count from their start.
    transform : PageTable or Offsets, optional
        Where indices point: into pages of each request, or an offset further.
    largest : bool
        Whether larger scores are better, or smaller ones.
    sorted : bool or {"value", "index"}
        True or "value": best score first, NaN last, equal scores by index. "index": by ascending position. Unused
        slots come last.
    tie_break : {"low", "high"}, optional
        Select the lowest (or highest) positions among scores equal to the worst selected one. With ``sorted=True``
        equal scores are ordered the same way.
    nan : {"last", "highest"}
        Place of NaN. "last": worse than every number, with either `largest`. "highest": NaN is the greatest of all
        scores, as in ``torch.topk``: first with `largest`, last without.
    deterministic : bool
        The answer for a row depends on that row alone: the same bytes in every run, batch and plan. `sorted` defaults
        to "index" and `tie_break` to "low".
    index_dtype : {"int32", "int64"}
        Dtype of new index arrays.
    num_rows : int, or array of int32 of shape (1,) or (), optional
        Number of live rows, clamped to [0, rows]. The slots of later rows are filled with -1. An array is on the
        scores' device. If an int is passed, a CUDA call copies it to a new array.
    out : array of int32 or int64, of the leading shape and k, optional
        Receives the indices, on the scores' device; must not overlap an input or another output.
    workspace : Workspace or array of bytes, optional
        CUDA only: from ``plan.workspace()``, or device memory of at least ``plan.workspace_bytes`` bytes, whose first
        ``plan.workspace_zeroed`` bytes every call then zeroes on the stream. Use one per stream. Default: ksieve keeps
        one per device and stream.
    plan : Plan, optional
        From `ksieve.plan`; chosen from the arguments when omitted. The call takes from the plan the options that it
        omits and that are no arrays. Options and arrays that it passes must be the plan's. A group is passed whole.
        False for `sorted` or `deterministic` equals omission.

    Returns
    -------
    indices : array of int32, of the leading shape and k
        Same library and device as `scores`. For a row of length L > k: k distinct positions below L, no unselected
        valid score better than a selected one, in no particular order. For L <= k: all L positions, then -1. With
        `blocks` there may be more columns: ``(k + n) * expand``, for n forced entries besides k, and ``expand - 1`` for
        a tail.

    Raises
    ------
    ArgumentError
        An argument cannot be used. Raised before any launch or write; the message names the argument, the value that
        it got and the values that it takes.
    WorkspaceError
        `workspace` is too small, misaligned, on another device, or was made for another plan.
    BackendError
        The backend cannot run here; the message names the remedy. In a CUDA graph capture also where a kernel is not
        loaded yet.

    See Also
    --------
    select : also returns scores, raw indices, counts or statistics.

    Notes
    -----
    By default NaN ranks last; ``-0.0`` equals ``+0.0``. Without `tie_break` it is
    unspecified which of the scores tied at rank k are selected. The contract says more.

    With PyTorch the call works under ``torch.compile`` and inside ``torch.func`` (``grad``, ``vmap``, ``jvp``,
    ``functionalize``), where ``torch.func`` takes no outputs. ``vmap`` appends the batch to the rows where scores and
    vectors are all that is given, and otherwise selects one element after another.

    On CUDA the call enqueues kernels on the current stream of the scores' library and returns without waiting. With JAX
    arrays it waits for the result. Inside ``jax.jit`` and other transformations of JAX it becomes part of the program,
    where nothing waits and values carry a gradient. It can be captured in a CUDA graph after ``plan.prepare()`` or one
    call with the same plan outside the capture. PyTorch then allocates outputs and workspace from the graph's pool;
    with other libraries pass `out` and ``workspace=plan.workspace()``.

    Examples
    --------
    >>> import numpy as np, ksieve
    >>> scores = np.array([[5, 1, 7, 2], [4, 8, 6, 3]], dtype=np.float32)
    >>> ksieve.topk(scores, k=2, sorted=True).tolist()
    [[2, 0], [1, 2]]
    >>> ksieve.topk(scores, np.array([4, 1], dtype=np.int32), k=2, sorted=True).tolist()
    [[2, 0], [0, -1]]
    """
    return _select(scores, lengths, k, options, _OF_TOPK).indices


@overload
def select(
    scores: NDArray[Any], lengths: Any = None, k: Any = None, **options: Unpack[SelectOptions]
) -> Selection[NDArray[np.int32]]: ...
@overload
def select(
    scores: Tensor, lengths: Any = None, k: Any = None, **options: Unpack[SelectOptions]
) -> Selection[Tensor]: ...
@overload
def select(  # type: ignore[overload-cannot-match, unused-ignore]
    scores: Any, lengths: Any = None, k: Any = None, **options: Unpack[SelectOptions]
) -> Selection[Any]: ...
def select(scores: Any, lengths: Any = None, k: Any = None, **options: Unpack[SelectOptions]) -> Selection[Any]:
    """Select the k best scores of every row as `ksieve.topk`, and return more than their indices.

    Parameters
    ----------
    values : bool, or array of the scores' dtype, of the shape of the indices
        Also return the selected scores, bit for bit; -inf in unused slots, or inf with ``largest=False``. With
        PyTorch they carry the gradient of the selected scores, to any order and in forward mode; `workspace` is then
        not used. An array receives the values, without a gradient: `GradientWarning` says so once where the scores
        have one.
    raw : bool, or array like `out`
        Also return the indices before `transform`.
    counts : bool, or array of int32, of the leading shape
        Also return how many slots of each row are used.
    stats : bool
        Also return `Stats`; on CUDA this waits for the result. Not in a traced program.
    fill : bool
        False, with `counts`: slots that are not used may hold anything. Rows of fewer entries than slots then cost
        the writing of those alone.
    scores, lengths, k, and others
        As of `ksieve.topk`, which describes errors, streams and graphs too.

    Returns
    -------
    Selection
        Named tuple ``(indices, values, raw, counts, stats)``, with None for what was not asked for.

    Examples
    --------
    >>> import numpy as np, ksieve
    >>> found = ksieve.select(np.array([[5, 1, 7, 2]], dtype=np.float32), k=2, sorted=True, values=True)
    >>> found.indices.tolist(), found.values.tolist()
    ([[2, 0]], [[7.0, 5.0]])
    """
    return _select(scores, lengths, k, options, _OF_SELECT)


_OF_TOPK = (*RANKED, "num_rows", "out", "workspace", "plan")
_OF_SELECT = (*_OF_TOPK, *WRITTEN, "stats")
_DEFAULTS = {"largest": True, "fill": True} | dict.fromkeys(("sorted", "deterministic", *WRITTEN[:3], "stats"), False)


def _explicit(function: Any, kinds: Any) -> None:
    """List every keyword in a function's signature: help() and editors show it."""
    found = signature(function)
    own = [p for p in found.parameters.values() if p.kind is not p.VAR_KEYWORD]
    hints = {name: getattr(hint, "__forward_arg__", hint) for name, hint in kinds.__annotations__.items()}
    more = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=hints[name]) for name in hints
    ]
    function.__signature__ = found.replace(parameters=[*own, *more])


_explicit(topk, TopkOptions)
_explicit(select, SelectOptions)


def _select(scores: Any, lengths: Any, k: Any, options: Mapping[str, Any], known: tuple[str, ...]) -> Selection[Any]:
    for name in options:
        if name not in known:
            function = "topk" if known is _OF_TOPK else "select"
            remedy = arguments.remedy_of(name, known)
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}: {remedy}")
    given = flat(options) if options else {}
    plan, out, workspace, num_rows = (
        given.pop("plan", None), given.pop("out", None), given.pop("workspace", None), given.pop("num_rows", None),
    )  # fmt: skip
    stats = given.pop("stats", False)
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
    tensors = torch is not None and isinstance(scores, torch.Tensor)
    if not tensors or not torch.compiler.is_compiling():
        if "jax" in sys.modules and traced_by_jax(scores, lengths, k, num_rows, out, *given.values()):
            from ksieve.frontends.jax import ops as jax_ops

            return jax_ops.traced(scores, lengths, k, plan, out, workspace, num_rows, given, stats=stats)
        run: Any = dispatch.select
        if tensors and given.get("values", False) is not False:
            from ksieve.frontends.torch import gradients

            run = gradients.select
        try:
            found: Selection[Any] = run(scores, lengths, k, plan, out, workspace, num_rows, given, stats=stats)
            return found
        except TransformedTensorError:  # found by the checks, so that other calls need not look for one
            if not tensors:
                raise
    from ksieve.frontends.torch import ops as torch_ops

    if scores.dim() != 2 and "indptr" not in given and torch.compiler.is_compiling():
        takes = "a matrix while tracing: scores.reshape(-1, scores.shape[-1])"
        refuse("scores", f"{scores.dim()} dimension(s)", takes)
    return torch_ops.traced(scores, lengths, k, plan, out, workspace, num_rows, given, stats=stats)


def plan(
    scores: Any = None,
    lengths: Any = None,
    k: Any = None,
    *,
    rows: int | None = None,
    width: int | None = None,
    pitch: int | None = None,
    dtype: Any = "float32",
    device: Any | DeviceInfo = "cpu",
    family: str | None = None,
    policy: SamplingPolicy | str | None = None,
    splits: int | None = None,
    overlap: bool = False,
    num_rows: Any = None,
    out: Any = None,
    values: Any = False,
    raw: Any = False,
    counts: Any = False,
    fill: bool = True,
    **options: Unpack[Ranked],
) -> Plan:
    """Choose kernel family, launch geometry and workspace size for calls of `ksieve.topk` and `ksieve.select`.

    The plan depends on shape, dtype, device and options alone: no score is read and nothing is allocated or compiled;
    ``device="cuda"`` queries the driver once. It is made of the arguments of a call, which are checked as there; or of
    `rows`, `width` and `k`, without arrays.

    Parameters
    ----------
    scores, lengths, k, num_rows, out, values, raw, counts, fill, and others
        As of `ksieve.select`. Without scores, an array is stated by True, or by the name of its dtype:
        ``lengths="int64"``, ``bounds=RowBounds(starts=True)``; with `max_k` the calls pass an array k.
    rows, width : int
        In place of scores: the largest shape of the matrix; a call may pass fewer rows or a narrower matrix.
    pitch : int, optional
        Distance between the starts of two rows, in scores; default `width`. 0: all rows are the same one. Of `Segments`
        `rows` counts these, and `width` the flat scores.
    dtype : str or dtype
        "float32", "float16" or "bfloat16", or such a dtype of NumPy, PyTorch or JAX.
    device : str, torch.device or DeviceInfo
        "cpu", "cuda" or "cuda:1" of this machine. Or a GPU that need not be present: "a100", "l40s", "rtx4090", "h20",
        "h100", "h200", "b200" or "rtx5090", or a description.
    family : str, optional
        Force a kernel family in place of the planner's choice.
    policy : SamplingPolicy or str, optional
        Force a sampling policy; ``"direct"`` never samples.
    splits : int, optional
        With ``family="stream_split"``: force how many CTAs share a row.
    overlap : bool
        CUDA, compute capability 9.0 and later: the kernel may start while the previous kernel of the stream drains
        (programmatic dependent launch). Ignored elsewhere.

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
    for name in options:
        if name not in RANKED:
            remedy = arguments.remedy_of(name, (*RANKED, *WRITTEN))
            raise TypeError(f"plan() got an unexpected keyword argument {name!r}: {remedy}")
    given = flat({**options, "values": values, "raw": raw, "counts": counts, "fill": fill, "overlap": overlap})
    if scores is not None:
        if rows is not None or width is not None:
            raise ArgumentError("rows" if width is None else "width", "an int with scores", "nothing with scores")
        asked = calls.parse(scores, lengths, k, out=out, num_rows=num_rows, given=given).problem
        info = dispatch.device_info(asked.device)
        return planner.choose(asked, info, family=family, policy=policy, splits=splits)
    per_row = given.get("max_k") is not None
    bounds = given.get("ends") if lengths is None else lengths
    stated = [None if array is True else dtype_text(getattr(array, "dtype", array)) for array in (bounds, out)]
    resolved = arguments.resolve(
        given, None, per_row_k=per_row, lengths=lengths is not None, length_dtype=stated[0], out_dtype=stated[1]
    )
    return dispatch.plan_of(
        rows=rows, width=width, k=given["max_k"] if per_row and k is None else k, pitch=pitch, dtype=dtype,
        device=device, options=resolved, family=family, policy=policy, splits=splits,
    )  # fmt: skip


def traced_by_jax(*values: Any) -> bool:
    """Whether JAX traces one of the values."""
    # While another thread imports JAX, the module exists without its contents.
    tracer = getattr(getattr(sys.modules.get("jax"), "core", None), "Tracer", None)
    return tracer is not None and any(isinstance(value, tracer) for value in values)
