"""vLLM's sparse-indexer operators: ``torch.ops._C.top_k_per_row_prefill`` and its siblings, over `ksieve.topk`.

All write into the caller's `indices` or `output`, return None, and run on PyTorch's current stream without waiting. A
CUDA graph can capture them once the kernel is loaded. Beyond vLLM's operators they take float16 and bfloat16 logits,
any topK, any row stride and alignment, and outputs inside a wider buffer. The device clamps lengths of any value. NaN
is better than every number, as in vLLM's operators; `deep_select_topk` ranks it below -inf.

vLLM's own option ``--sparse-indexer-topk-backend`` still chooses after `install`: ``auto``, its default, is ksieve, and
a backend that is named stays vLLM's own. With ``VLLM_BATCH_INVARIANT=1``, vLLM's own switch, the answer of a row does
not depend on the batch, its order included (`deterministic` of `ksieve.topk`).
"""

from __future__ import annotations

import os
from typing import Any

import torch

from ksieve.adapters._select import Declined, first, index_dtype, operands, part, select
from ksieve.adapters._switch import Engine
from ksieve.core.errors import ArgumentError

__all__ = [
    "cooperative_topk",
    "deep_select_topk",
    "install",
    "persistent_topk",
    "top_k_per_row_decode",
    "top_k_per_row_prefill",
    "uninstall",
    "warm_up",
]

_PREFILL = {"scores": "logits", "starts": "rowStarts", "ends": "rowEnds", "out": "indices", "k": "topK"}
_DECODE = {"scores": "logits", "lengths": "seq_lens", "out": "indices", "k": "topK"}
_FLAT = {"scores": "logits", "out": "output"}
_DEEP_SELECT = {"scores": "input", "lengths": "end", "k": "topk", "out": "output_idx", "index_dtype": "indices_dtype"}


_INVARIANT: dict[str, Any] = (
    {"deterministic": True} if os.environ.get("VLLM_BATCH_INVARIANT", "0").strip() not in ("", "0") else {}
)
"""Options of every selection. vLLM, too, reads its variable once."""

_ENGINE = Engine("vllm")
install, uninstall, warm_up = _ENGINE.install, _ENGINE.uninstall, _ENGINE.warm_up


def top_k_per_row_prefill(
    logits: Any, rowStarts: Any, rowEnds: Any, indices: Any, numRows: int, stride0: int, stride1: int, topK: int
) -> None:
    """Select the topK best of ``logits[r, rowStarts[r]:rowEnds[r]]`` of every row.

    Parameters
    ----------
    logits : Tensor, shape (at least numRows, width)
    rowStarts, rowEnds : Tensor of int32, shape (at least numRows,)
        Window of each row; clamped to the row.
    indices : Tensor of int32, shape (at least numRows, at least topK)
        Receives positions relative to rowStarts, in no particular order, then -1. Rows from numRows on and columns from
        topK on are not written.
    numRows : int
    stride0, stride1 : int
        Strides of `logits`, in elements; stride1 must be 1.
    topK : int
    """
    scores, out = operands(logits, indices, numRows, stride0, stride1, topK)
    starts, ends = first(rowStarts, numRows), first(rowEnds, numRows)
    select(
        _PREFILL, scores, None, topK, starts=starts, ends=ends, index_base="start", nan="highest", out=out, **_INVARIANT
    )


def top_k_per_row_decode(
    logits: Any, next_n: int, seq_lens: Any, indices: Any, numRows: int, stride0: int, stride1: int, topK: int
) -> None:
    """Select the topK best valid logits of every row of a decode step.

    Parameters
    ----------
    logits : Tensor, shape (at least numRows, width)
        Rows of one request follow each other: row r belongs to request ``r // next_n``.
    next_n : int
        Rows per request.
    seq_lens : Tensor of int32
        Of shape (numRows // next_n,) or (numRows // next_n, 1): the request's length L, of which row r sees
        ``L - next_n + 1 + r % next_n``. Of shape (numRows // next_n, next_n): each row's own length.
        A negative length counts as 0.
    indices : Tensor of int32, shape (at least numRows, at least topK)
        Receives positions, in no particular order, then -1. Other rows and columns are left alone.
    numRows : int
    stride0, stride1 : int
        Strides of `logits`, in elements; stride1 must be 1.
    topK : int
    """
    scores, out = operands(logits, indices, numRows, stride0, stride1, topK)
    _decode(scores, numRows, next_n, seq_lens, out, topK, None)


def _decode(scores: Any, rows: int, next_n: int, seq_lens: Any, out: Any, topK: int, longest: int | None) -> None:
    """`top_k_per_row_decode` of as many rows as scores and output have; `longest` bounds the lengths."""
    if next_n < 1 or rows % next_n:
        raise ArgumentError("next_n", next_n, f"a divisor of numRows, {rows}")
    if seq_lens.dim() == 2 and seq_lens.shape[1] == next_n:
        # Every row has its own length: next_n has no further meaning.
        lengths, next_n = seq_lens.reshape(-1), 1
    else:
        lengths = seq_lens.reshape(-1) if seq_lens.dim() == 2 else seq_lens
    lengths = first(lengths, rows // next_n)
    rows_each = None if next_n == 1 else next_n
    select(_DECODE, scores, lengths, topK, longest=longest, next_n=rows_each, nan="highest", out=out, **_INVARIANT)


def persistent_topk(logits: Any, lengths: Any, output: Any, workspace: Any, k: int, max_seq_len: int) -> None:
    """Select the k best of ``logits[r, :lengths[r]]`` of every row.

    Parameters
    ----------
    logits : Tensor, shape (rows, width)
    lengths : Tensor of int32
        One per row, in any shape of `rows` entries; a negative one counts as 0.
    output : Tensor of int32, shape (at least rows, at least k)
        Receives positions, in no particular order, then -1. Other rows and columns are left alone.
    workspace : Tensor
        Not used: ksieve keeps a workspace per stream.
    k : int
        Any k, not only 512, 1024 and 2048.
    max_seq_len : int
        Bound of the lengths, for which the call is planned, but in the capture of a CUDA graph. A greater length counts
        as that bound, rounded up by at most an eighth, or to 1,024; below 1 it is not used.
    """
    rows = logits.shape[0]
    if lengths.numel() != rows:
        raise ArgumentError("lengths", f"{lengths.numel()} entries", f"one per row of logits, {rows}")
    flat = lengths if lengths.dim() == 1 else lengths.reshape(-1)
    output = part(output, "output", rows, k)
    select(_FLAT, logits, flat, k, longest=max_seq_len, nan="highest", out=output, **_INVARIANT)


def cooperative_topk(logits: Any, lengths: Any, output: Any, workspace: Any, k: int, max_seq_len: int) -> None:
    """Do the same as `persistent_topk`, under the name of vLLM's cluster kernel; any number of rows."""
    persistent_topk(logits, lengths, output, workspace, k, max_seq_len)


def deep_select_topk(
    input: Any,  # noqa: A002
    topk: int,
    end: Any = None,
    output_idx: Any = None,
    indices_dtype: Any = torch.int32,
) -> Any:
    """Select the topk best of ``input[r, :end[r]]`` of every row, in place of vLLM's DeepSelect.

    Parameters
    ----------
    input : Tensor, shape (rows, width)
    topk : int
    end : Tensor of int32, shape (rows,), optional
        Length of each row; default: the width.
    output_idx : Tensor of `indices_dtype`, shape (at least rows, at least topk), optional
        Receives positions, in no particular order, then -1, and is returned. Other rows and columns are left alone.
    indices_dtype : torch.dtype
        torch.int32 or torch.int64.

    Returns
    -------
    Tensor of `indices_dtype`
        `output_idx`, or a new tensor of shape (rows, topk).
    """
    dtype = index_dtype(indices_dtype, "indices_dtype", output_idx)
    options = _INVARIANT if dtype == "int32" else {"index_dtype": dtype, **_INVARIANT}
    out = None if output_idx is None else part(output_idx, "output_idx", input.shape[0], topk)
    found = select(_DEEP_SELECT, input, end, topk, out=out, **options).indices
    return found if output_idx is None else output_idx


def _sparse_indexer_topk(
    self: Any, logits: Any, seq_lens: Any, next_n: int, topk_indices: Any, topk_tokens: int, max_seq_len: int
) -> None:
    """``SparseIndexerTopk.forward`` of vLLM: its decode step, where the user has not named a kernel of vLLM."""
    if getattr(self, "_backend", None) != "auto":
        raise Declined
    rows, (stride0, stride1) = logits.shape[0], logits.stride()
    scores, out = operands(logits, topk_indices, rows, stride0, stride1, topk_tokens)
    if next_n > 1 and seq_lens.numel() == rows:
        # Each row's own length, as vLLM's other kernels of this step read them.
        seq_lens, next_n = seq_lens.reshape(-1), 1
    _decode(scores, rows, next_n, seq_lens, out, topk_tokens, max_seq_len)
