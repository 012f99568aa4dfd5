"""AITER's indexer functions, ``aiter.ops.topk.top_k_per_row_prefill`` and ``top_k_per_row_decode``.

They have the arguments, results and in-place outputs of AITER's, for code that is to run on CUDA or on the CPU too: on
AMD GPUs, where AITER itself runs, ksieve has no kernels, and `install` refuses there. In addition to AITER's functions
they take float16 and bfloat16 logits, any k, row stride and alignment, outputs that are part of a larger buffer, and
lengths of any value, which are clamped on the device. NaN is better than every number, as in AITER's kernels.
"""

from __future__ import annotations

from typing import Any

from ksieve.adapters._engine import Engine
from ksieve.adapters._rows import operands, part
from ksieve.adapters._select import first, require, select

__all__ = ["install", "top_k_per_row_decode", "top_k_per_row_prefill", "uninstall", "warm_up"]

_PREFILL = {"scores": "logits", "starts": "rowStarts", "ends": "rowEnds", "out": "indices", "values_out": "values"}
_DECODE = {"scores": "logits", "lengths": "seqLens", "out": "indices"}

_ENGINE = Engine("aiter")
install, uninstall, warm_up = _ENGINE.install, _ENGINE.uninstall, _ENGINE.warm_up


def top_k_per_row_prefill(
    logits: Any,
    rowStarts: Any,
    rowEnds: Any,
    indices: Any,
    values: Any,
    numRows: int,
    stride0: int,
    stride1: int,
    k: int = 2048,
    stable: bool = False,
) -> None:
    """Select the k best of ``logits[r, rowStarts[r]:rowEnds[r]]`` of every row.

    Parameters
    ----------
    logits : Tensor, shape (at least numRows, width)
    rowStarts, rowEnds : Tensor of int32, shape (at least numRows,)
        Window of each row; clamped to the row.
    indices : Tensor of int32, shape (at least numRows, at least k)
        Receives positions in the row, which rowStarts does not shift, in no particular order, then -1. Other rows and
        columns are left alone.
    values : Tensor of the logits' dtype, shape (at least numRows, at least k), or None
        Receives the selected logits, slot for slot, then 0, which costs a pass over them.
    numRows : int
    stride0, stride1 : int
        Strides of `logits`, in elements; stride1 must be 1.
    k : int
    stable : bool
        The lowest positions of equal logits are selected, and slots are in order of position.

    Raises
    ------
    ArgumentError
    """
    scores, out = operands(logits, indices, numRows, stride0, stride1, k)
    options: dict[str, Any] = {"deterministic": True} if stable else {}
    if values is not None:
        values = part(values, "values", numRows, k)
        options |= {"return_values": True, "values_out": values}
    starts, ends = first(rowStarts, numRows), first(rowEnds, numRows)
    select(_PREFILL, scores, None, k, starts=starts, ends=ends, nan="highest", out=out, **options)
    if values is not None:
        values.masked_fill_(out < 0, 0)


def top_k_per_row_decode(
    logits: Any,
    next_n: int,
    seqLens: Any,
    indices: Any,
    numRows: int,
    stride0: int,
    stride1: int,
    k: int = 2048,
    stable: bool = False,
) -> None:
    """Select the k best valid logits of every row of a decode step.

    Parameters
    ----------
    logits : Tensor, shape (at least numRows, width)
        Rows of one request follow each other: row r belongs to request ``r // next_n``.
    next_n : int
        Rows per request.
    seqLens : Tensor of int32, shape (at least numRows // next_n,)
        The request's length L, of which row r sees ``L - next_n + 1 + r % next_n``. A negative length counts as 0.
    indices : Tensor of int32, shape (at least numRows, at least k)
        Receives positions, in no particular order, then -1. Other rows and columns are left alone.
    numRows : int
    stride0, stride1 : int
        Strides of `logits`, in elements; stride1 must be 1.
    k : int
    stable : bool
        The lowest positions of equal logits are selected, and slots are in order of position.

    Raises
    ------
    ArgumentError
    """
    scores, out = operands(logits, indices, numRows, stride0, stride1, k)
    require(next_n >= 1 and numRows % next_n == 0, "next_n", next_n, f"a divisor of numRows, {numRows}")
    options: dict[str, Any] = {"deterministic": True} if stable else {}
    if next_n != 1:
        options["next_n"] = next_n
    select(_DECODE, scores, first(seqLens, numRows // next_n), k, nan="highest", out=out, **options)
