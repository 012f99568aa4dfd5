"""SGLang's indexer functions, and DeepSelect's that ship with it, over `ksieve.topk`.

``fast_topk_v2`` and the two fused transforms replace those of ``sgl_kernel``, the ``topk_transform_*`` functions those
of the kernels for paged and ragged caches. The ``*kpool*`` functions select pools of positions, and
``amax_topk_blocks`` selects blocks. Beyond SGLang's functions they take any topk, float16 and bfloat16 scores, any row
stride and alignment, and negative lengths, which count as 0. They never write to the scores. A call runs on PyTorch's
current stream without waiting, and can be captured in a CUDA graph once the kernel is loaded.

`install` leaves ``plan_topk_v2`` SGLang's, because kernels that are not replaced read its plan, and
``--dsa-topk-backend torch`` PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch

from ksieve.adapters._deep_select import topk, topk_page_transform
from ksieve.adapters._dsv4 import (
    amax_topk_blocks,
    plan_topk_v2,
    topk_transform_bf16_small,
    topk_transform_paged,
    topk_transform_paged_v2,
    topk_transform_ragged_v2,
)
from ksieve.adapters._kpool import (
    fast_kpool_topk_transform_fused,
    topk_transform_kpool_ragged_v2,
    topk_transform_kpool_v2,
)
from ksieve.adapters._select import from_start, select
from ksieve.adapters._switch import Engine
from ksieve.core.errors import ArgumentError

__all__ = [
    "amax_topk_blocks",
    "fast_kpool_topk_transform_fused",
    "fast_topk_transform_fused",
    "fast_topk_transform_ragged_fused",
    "fast_topk_v2",
    "install",
    "plan_topk_v2",
    "topk",
    "topk_page_transform",
    "topk_transform_bf16_small",
    "topk_transform_kpool_ragged_v2",
    "topk_transform_kpool_v2",
    "topk_transform_paged",
    "topk_transform_paged_v2",
    "topk_transform_ragged_v2",
    "uninstall",
    "warm_up",
]

_FAST = {"scores": "score", "k": "topk", "starts": "row_starts", "page_table": "page_table_size_1"} | {
    "offsets": "topk_indices_offset"
}

_ENGINE = Engine("sglang")
install, uninstall, warm_up = _ENGINE.install, _ENGINE.uninstall, _ENGINE.warm_up


def fast_topk_v2(score: Any, lengths: Any, topk: int, row_starts: Any = None) -> Any:
    """Select the topk best of ``score[r, row_starts[r] : row_starts[r] + lengths[r]]`` of every row.

    Parameters
    ----------
    score : Tensor, shape (rows, width)
    lengths : Tensor of int32, shape (rows,)
    topk : int
        Any, not only 2048.
    row_starts : Tensor of int32, shape (rows,), optional
        Default: windows start at 0.

    Returns
    -------
    Tensor of int32, shape (rows, topk)
        Positions relative to row_starts, in no particular order, then -1.
    """
    return select(_FAST, score, lengths, topk, **from_start(row_starts)).indices


def fast_topk_transform_fused(
    score: Any, lengths: Any, page_table_size_1: Any, cu_seqlens_q: Any, topk: int, row_starts: Any = None
) -> Any:
    """Select as `fast_topk_v2` does, and look the positions up in the request's page table of page size 1.

    Parameters
    ----------
    score, lengths, topk, row_starts
        As for `fast_topk_v2`.
    page_table_size_1 : Tensor of int32, shape (requests, tokens)
        Last stride 1. Indexed by the position relative to row_starts.
    cu_seqlens_q : Tensor of int32, shape (requests + 1,)
        Rows cu_seqlens_q[q] to cu_seqlens_q[q + 1] - 1 belong to request q. Not read with one row per request and
        without row_starts (decode), as in SGLang; otherwise two small tensors of one entry per row are allocated.

    Returns
    -------
    Tensor of int32, shape (rows, topk)
        Entries of the page table, in no particular order, then -1. A row that belongs to no request holds -1.
    """
    rows, requests = score.shape[0], page_table_size_1.shape[0]
    if (entries := cu_seqlens_q.shape[0]) != requests + 1:
        raise ArgumentError("cu_seqlens_q", f"{entries} entries", f"{requests + 1}, one more than requests")
    request = None
    if row_starts is not None or rows != requests:
        row = torch.arange(rows, dtype=cu_seqlens_q.dtype, device=cu_seqlens_q.device)
        # Find the last boundary at or before the row: empty requests share a boundary, and the row belongs to the last.
        request = torch.searchsorted(cu_seqlens_q, row, right=True, out_int32=True).sub_(1)
    pages = {"page_table": page_table_size_1, "row_to_request": request}
    return select(_FAST, score, lengths, topk, **pages, **from_start(row_starts)).indices


def fast_topk_transform_ragged_fused(
    score: Any, lengths: Any, topk_indices_offset: Any, topk: int, row_starts: Any = None
) -> Any:
    """Select as `fast_topk_v2` does, and add the row's offset to every position.

    Parameters
    ----------
    score, lengths, topk, row_starts
        As for `fast_topk_v2`.
    topk_indices_offset : Tensor of int32, shape (rows,)

    Returns
    -------
    Tensor of int32, shape (rows, topk)
        Positions relative to row_starts plus the offset, in no particular order, then -1.
    """
    return select(_FAST, score, lengths, topk, offsets=topk_indices_offset, **from_start(row_starts)).indices
