"""TensorRT-LLM's indexer operators, ``torch.ops.trtllm.indexer_topk_prefill`` and ``indexer_topk_decode``.

Both write into the caller's `indices`, return None, and run on PyTorch's current stream without waiting. A CUDA graph
can capture them once the kernel is loaded. Beyond TensorRT-LLM's operators they take any index_topk, logits of float16
and bfloat16, any row stride and alignment, and outputs inside a larger buffer. The device clamps lengths of any value.
NaN is better than every number, as in TensorRT-LLM's kernels.
"""

from __future__ import annotations

from typing import Any

from ksieve.adapters._select import decoding, part, select
from ksieve.adapters._switch import Engine

__all__ = ["indexer_topk_decode", "indexer_topk_prefill", "install", "uninstall", "warm_up"]

_PREFILL = {"scores": "logits", "starts": "row_starts", "ends": "row_ends", "out": "indices", "k": "index_topk"}
_DECODE = {"scores": "logits", "lengths": "seq_lens", "out": "indices", "k": "index_topk"}

_ENGINE = Engine("tensorrt_llm")
install, uninstall, warm_up = _ENGINE.install, _ENGINE.uninstall, _ENGINE.warm_up


def indexer_topk_prefill(logits: Any, row_starts: Any, row_ends: Any, indices: Any, index_topk: int = 2048) -> None:
    """Select the index_topk best of ``logits[r, row_starts[r]:row_ends[r]]`` of every row.

    Parameters
    ----------
    logits : Tensor, shape (rows, width)
    row_starts, row_ends : Tensor of int32, shape (rows,)
        Window of each row; clamped to the row.
    indices : Tensor of int32, shape (at least rows, at least index_topk)
        Receives positions relative to row_starts, in no particular order, then -1. Other rows and columns are left
        alone.
    index_topk : int
    """
    out = part(indices, "indices", logits.shape[0], index_topk)
    select(
        _PREFILL, logits, None, index_topk, starts=row_starts, ends=row_ends, index_base="start", nan="highest", out=out
    )


def indexer_topk_decode(
    logits: Any,
    seq_lens: Any,
    indices: Any,
    next_n: int,
    index_topk: int = 2048,
    pre_idx: Any = None,
    heuristic_scratch: Any = None,
    compress_ratio: int = 1,
    radix_aux_indices: Any = None,
    radix_aux_logits: Any = None,
) -> None:
    """Select the index_topk best valid logits of every row of a decode step.

    Parameters
    ----------
    logits : Tensor, shape (rows, width)
    seq_lens : Tensor of int32, shape (rows // next_n,)
        Row r of request ``q = r // next_n`` sees ``(seq_lens[q] - next_n + 1 + r % next_n) // compress_ratio`` logits.
        A negative length counts as 0.
    indices : Tensor of int32, shape (at least rows, at least index_topk)
        Receives positions, in no particular order, then -1. Other rows and columns are left alone.
    next_n : int
        Rows per request.
    index_topk : int
    pre_idx, heuristic_scratch, radix_aux_indices, radix_aux_logits : Tensor, optional
        Not used: ksieve needs no indices of the previous step, and keeps a workspace per stream.
    compress_ratio : int
        Tokens that a logit stands for. Another than 1 allocates small tensors of one entry per row.
    """
    rows = logits.shape[0]
    lengths, options = decoding(seq_lens, rows, next_n, compress_ratio)
    out = part(indices, "indices", rows, index_topk)
    select(_DECODE, logits, lengths, index_topk, nan="highest", out=out, **options)
