"""Shared helpers of the adapters: a call of `ksieve.topk` whose errors name the framework's arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ksieve import dispatch
from ksieve.core import call as calls
from ksieve.core.arrays import TransformedTensorError
from ksieve.core.errors import ArgumentError
from ksieve.core.selection import Selection

_TIE_BREAKS = (None, "low", "high")
"""`tie_break` of FlashInfer's numbers 0 (none), 1 (smaller indices) and 2 (larger indices)."""

_FEWEST_COLUMNS = 1024
"""For which a call is planned where all rows are shorter."""

_MOST_WHOLE = 4096
_whole: set[Any] = set()
"""Calls whose kernels for all columns are loaded."""

observer: Callable[[Any, Any, Any, Any, Any, dict[str, Any]], None] | None = None
"""Sees every selection while an engine's operators are replaced (`ksieve.adapters._tally`): its key, scores, lengths,
k, out and options."""


class Declined(Exception):  # noqa: N818 - no error
    """Raised by an adapter whose call is the engine's to serve, because its user named a kernel of the engine."""


def select(
    names: Mapping[str, str],
    scores: Any,
    lengths: Any = None,
    k: Any = None,
    *,
    out: Any = None,
    longest: int | None = None,
    **options: Any,
) -> Selection[Any]:
    """Call `ksieve.select`; an error names the argument as the framework does.

    `names`: maps names of the table of options to arguments of the framework's function. `options`: by those names;
    None equals omission. `longest`: a bound of `lengths` that the host knows. The call is then planned for it, and not
    for a matrix as wide as the longest row that the engine takes: see `columns_of`. Not with windows that begin
    elsewhere.
    """
    options = {name: value for name, value in options.items() if value is not None}
    try:
        if longest is not None and (columns := columns_of(scores, longest)):
            if scores.is_cuda:
                _prepare_whole(names, scores, lengths, k, out, options)
            scores = scores[:, :columns]
        if torch.compiler.is_compiling():
            return _traced(scores, lengths, k, out, options)
        # What `ksieve.select` does for tensors, without what it does for other callers.
        key = dispatch.call_key(scores, lengths, k, None, out, None, None, options)
        if observer is not None:
            observer(key, scores, lengths, k, out, options)
        try:
            return dispatch.select(scores, lengths, k, None, out, None, None, options, key=key)
        except TransformedTensorError:
            return _traced(scores, lengths, k, out, options)
    except ArgumentError as error:
        if error.argument not in names:
            raise
        raise type(error)(names[error.argument], error.got, error.takes) from None


def _traced(scores: Any, lengths: Any, k: Any, out: Any, options: dict[str, Any]) -> Selection[Any]:
    from ksieve.frontends.torch.ops import traced

    return traced(scores, lengths, k, None, out, None, None, options, stats=False)


def from_start(starts: Any) -> dict[str, Any]:
    """Options of windows that begin at `starts`, from which indices count; none where that is None."""
    return {} if starts is None else {"starts": starts, "index_base": "start"}


def columns_of(scores: Any, longest: int) -> int:
    """Return how many columns hold rows of a known greatest length; 0 where all have to be looked at.

    The number is rounded up, to eight in an octave, so that few plans arise. A length above it counts as that many, as
    one above the width always does. Captured and traced calls keep all columns: rows of a replay may be longer.
    """
    if torch.compiler.is_compiling() or not 0 < (longest := operator.index(longest)) < (width := scores.shape[1]):
        return 0
    step = max(_FEWEST_COLUMNS, 1 << (longest.bit_length() - 1)) >> 3
    columns = max(-(-longest // step) * step, _FEWEST_COLUMNS)
    if columns >= width or (scores.is_cuda and torch.cuda.is_current_stream_capturing()):
        return 0
    return columns


def _prepare_whole(
    names: Mapping[str, str], scores: Any, lengths: Any, k: Any, out: Any, options: Mapping[str, Any]
) -> None:
    """Load the kernels of a call on all columns, once: engines warm up with short rows what they capture next."""
    key = (id(names), scores.shape, scores.dtype, scores.get_device(), k, options.get("next_n"))
    if key in _whole:
        return
    asked = calls.parse(scores, lengths, k, out=out, given=options).problem
    if asked.rows and asked.k:
        dispatch.choose(asked).prepare()
    if len(_whole) >= _MOST_WHOLE:
        _whole.clear()
    _whole.add(key)


def index_dtype(dtype: Any, name: str, out: Any) -> str:
    """Name of the dtype of indices, which DeepSelect's argument `name` says; `out` must have it."""
    require(dtype in (torch.int32, torch.int64), name, dtype, "torch.int32 or torch.int64")
    if out is not None and out.dtype is not dtype:
        raise ArgumentError("output_idx", f"dtype {out.dtype}", f"{dtype}")
    return "int32" if dtype is torch.int32 else "int64"


def first(tensor: Any, count: int) -> Any:
    """Return the first `count` entries: the tensor itself if it has no more, since a slice costs microseconds."""
    return tensor if tensor.shape[0] == count else tensor[:count]


def operands(logits: Any, indices: Any, rows: int, stride0: int, stride1: int, k: int) -> tuple[Any, Any]:
    """Return the rows of the scores and of the output that a call uses. On the hot path: formats no text but errors."""
    if logits.dim() != 2 or (held := logits.shape[0]) < rows:
        raise ArgumentError("logits", f"shape {tuple(logits.shape)}", f"{rows} rows")
    if stride1 != 1:
        raise ArgumentError("stride1", stride1, "1: the logits of a row are contiguous")
    if rows > 1 and stride0 != logits.stride(0):
        raise ArgumentError("stride0", stride0, f"{logits.stride(0)}, that of logits")
    return logits if held == rows else logits[:rows], part(indices, "indices", rows, k)


def part(output: Any, name: str, rows: int, k: int) -> Any:
    """Return the first rows and columns of an output: the tensor itself if it has no others."""
    shape = output.shape
    if len(shape) != 2 or shape[0] < rows:
        raise ArgumentError(name, f"shape {tuple(shape)}", f"{rows} rows")
    if shape[1] < k:
        raise ArgumentError(name, f"{shape[1]} columns", f"at least {k} columns")
    return output if shape == (rows, k) else output[:rows, :k]


def decoding(seq_lens: Any, rows: int, next_n: int, ratio: int) -> tuple[Any, dict[str, Any]]:
    """Lengths of a decode step, and the options that go with them.

    `seq_lens`: tokens of each request. Row r sees ``next_n - 1 - r % next_n`` fewer. `ratio`: tokens that each logit
    stands for.
    """
    require(next_n >= 1, "next_n", next_n, "a positive int")
    require(ratio >= 1, "compress_ratio", ratio, "a positive int")
    if (requests := seq_lens.shape[0]) * next_n != rows:
        raise ArgumentError("seq_lens", f"{requests} entries", f"{rows} rows of logits / next_n {next_n} entries")
    if ratio == 1:
        return seq_lens, {} if next_n == 1 else {"next_n": next_n}
    lengths = seq_lens.clamp(min=0)  # negative lengths must not wrap below
    if next_n > 1:
        seen = torch.arange(1 - next_n, 1, dtype=torch.int32, device=seq_lens.device)
        lengths = (lengths[:, None] + seen).reshape(-1)
    return torch.div(lengths, ratio, rounding_mode="floor"), {}


def require(good: bool, name: str, got: object, takes: str) -> None:
    """Raise `ArgumentError` unless a condition holds."""
    if not good:
        raise ArgumentError(name, got, takes)


def tie_break_of(number: Any) -> str | None:
    """Translate FlashInfer's number (or ``TopKTieBreak``) into `tie_break` of `ksieve.topk`."""
    value = int(number)
    require(0 <= value < len(_TIE_BREAKS), "tie_break", number, "0 (none), 1 (smaller indices) or 2 (larger indices)")
    return _TIE_BREAKS[value]
