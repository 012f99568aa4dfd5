"""SGLang's indexer functions, and DeepSelect's that ship with it, over `ksieve.topk`.

``fast_topk_v2`` and the two fused transforms replace those of ``sgl_kernel``, the ``topk_transform_*`` functions those
of the kernels for paged and ragged caches. The ``*kpool*`` functions select pools of positions: a row has a score for
each whole pool, and its positions that fill none, the tail, are always written (`expand` and `tail` of `ksieve.topk`).
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
from ksieve.adapters._select import from_start, require, select
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
_PAGED = {"lengths": "seq_lens", "page_table": "page_tables", "out": "out_page_indices"} | {"raw": "out_raw_indices"}
_SMALL = {"lengths": "seq_lens", "out": "out_page_indices"}
_BLOCKS = {"scores": "logits", "lengths": "seq_lens", "k": "topk_blocks", "force_last": "topk_blocks"}
_RAGGED = {"lengths": "seq_lens", "offsets": "out_offsets", "out": "out_indices", "starts": "row_starts"}

CANDIDATE_BLOCK = 8
"""Positions of a block of DeepSeek-V4.1's candidates."""

_KPOOL = {"scores": "score", "k": "topk", "expand": "kpool", "tail": "seq_lens", "starts": "row_starts"} | {
    "offsets": "topk_indices_offset", "row_to_request": "page_table_row_index"
}  # fmt: skip
_KPOOL_V2 = {"lengths": "pool_lens", "expand": "pool_size", "tail": "token_seq_lens", "offsets": "out_offsets"}
_KPOOL_RAGGED = _KPOOL_V2 | {"starts": "row_starts", "row_to_request": "page_table_row_index"}

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


def plan_topk_v2(seq_lens: Any, static_threshold: int = -1, *, out: Any = None) -> Any:
    """Return uninitialised metadata of SGLang's shape: ksieve plans on the host, from shapes alone.

    Parameters
    ----------
    seq_lens : Tensor of int32, shape (rows,)
        Only its shape and device are used.
    static_threshold : int
        Not used.
    out : Tensor of int32, shape (rows + 1, 2), optional
        Returned unchanged.

    Returns
    -------
    Tensor of int32, shape (rows + 1, 2)
        Not initialised; only the ``topk_transform_*_v2`` functions of this module accept it.
    """
    shape = (seq_lens.shape[0] + 1, 2)
    if out is None:
        return torch.empty(shape, dtype=torch.int32, device=seq_lens.device)
    require(tuple(out.shape) == shape, "out", f"shape {tuple(out.shape)}", f"shape {shape}")
    return out


def topk_transform_paged(
    scores: Any,
    seq_lens: Any,
    page_tables: Any,
    out_page_indices: Any,
    page_size: int,
    out_raw_indices: Any = None,
) -> None:
    """Select the best of ``scores[r, :seq_lens[r]]`` of every row, and look the positions up in its page table.

    Parameters
    ----------
    scores : Tensor, shape (rows, width)
    seq_lens : Tensor of int32, shape (rows,)
    page_tables : Tensor of int32, shape (rows, pages), or None
        Pages of row r. With None the positions themselves are written.
    out_page_indices : Tensor of int32, shape (rows, k)
        Receives ``page_tables[r, i // page_size] * page_size + i % page_size`` for every selected position i, in no
        particular order, then -1. Its width is k.
    page_size : int
        A power of two.
    out_raw_indices : Tensor of int32, shape (rows, k), optional
        Receives the positions themselves, slot for slot.
    """
    pages = {} if page_tables is None else {"page_table": page_tables, "page_size": page_size}
    select(_PAGED, scores, seq_lens, out_page_indices.shape[1], out=out_page_indices, raw=out_raw_indices, **pages)


def topk_transform_paged_v2(
    scores: Any,
    seq_lens: Any,
    page_tables: Any,
    out_page_indices: Any,
    page_size: int,
    metadata: Any,
    out_raw_indices: Any = None,
) -> None:
    """Do the same as `topk_transform_paged`; the plan in `metadata` is not used."""
    topk_transform_paged(scores, seq_lens, page_tables, out_page_indices, page_size, out_raw_indices)


def topk_transform_bf16_small(
    scores: Any, seq_lens: Any, page_table: Any, out_page_indices: Any, page_size: int
) -> None:
    """Do the same as `topk_transform_paged`, for rows of any dtype and width; `page_table` has a row for each."""
    pages = {"page_table": page_table, "page_size": page_size}
    select(_SMALL, scores, seq_lens, out_page_indices.shape[1], out=out_page_indices, **pages)


def topk_transform_ragged_v2(
    scores: Any, seq_lens: Any, *, out_offsets: Any, out_indices: Any, row_starts: Any = None
) -> None:
    """Select the best of ``scores[r, row_starts[r] : row_starts[r] + seq_lens[r]]``, and add the row's offset.

    Parameters
    ----------
    scores : Tensor, shape (rows, width)
        Never written to.
    seq_lens : Tensor of int32, shape (rows,)
    out_offsets : Tensor of int32, shape (rows,)
    out_indices : Tensor of int32, shape (rows, k)
        Receives positions relative to row_starts plus out_offsets, in no particular order, then -1. Its width is k.
    row_starts : Tensor of int32, shape (rows,), optional
        Default: windows start at 0.
    """
    windows = from_start(row_starts)
    select(_RAGGED, scores, seq_lens, out_indices.shape[1], out=out_indices, offsets=out_offsets, **windows)


def amax_topk_blocks(logits: Any, seq_lens: Any, nblocks: Any, topk_blocks: int, max_seq_len: int | None = None) -> Any:
    """Select the blocks of 8 positions with the best scores of every row, the newest block among them.

    In one launch and without the matrix of the blocks' best scores: `block_size` and `force_last` of `ksieve.topk`.

    Parameters
    ----------
    logits : Tensor, shape (rows, width)
        float32, float16 or bfloat16; never written to.
    seq_lens : Tensor of int32, shape (rows,)
        Positions of each row.
    nblocks : Tensor
        Not used: their blocks follow from `seq_lens`.
    topk_blocks : int
    max_seq_len : int, optional
        A bound of `seq_lens` that the host knows.

    Returns
    -------
    Tensor of int32, shape (rows, topk_blocks)
        Numbers of the blocks, in no particular order, then -1.
    """
    blocks = {"block_size": CANDIDATE_BLOCK, "force_last": 1}
    return select(_BLOCKS, logits, seq_lens, topk_blocks, longest=max_seq_len, **blocks).indices


def fast_kpool_topk_transform_fused(
    score: Any,
    lengths: Any,
    kpool: int,
    topk: int,
    page_table: Any = None,
    topk_indices_offset: Any = None,
    row_starts: Any = None,
    seq_lens: Any = None,
    page_table_row_index: Any = None,
) -> Any:
    """Select the best pools of every row, and write their positions, then the tail.

    Parameters
    ----------
    score : Tensor, shape (rows, width)
        One score a pool.
    lengths : Tensor of int32, shape (rows,)
        Pools of each row.
    kpool : int
        Positions of a pool: pool g stands for ``[g * kpool, (g + 1) * kpool)``.
    topk : int
        Positions to select, a multiple of kpool.
    page_table : Tensor of int32, shape (requests, positions), optional
        Looked up by the position; page size 1. Not together with `topk_indices_offset`.
    topk_indices_offset : Tensor of int32, shape (rows,), optional
        Added to every position.
    row_starts : Tensor of int32, shape (rows,), optional
        First score of each row; pools count from it. Default: 0.
    seq_lens : Tensor of int32, shape (rows,), optional
        Lengths in positions. With it the ``seq_lens % kpool`` positions after the last pool are written too.
    page_table_row_index : Tensor of int32, shape (rows,), optional
        Row of the page table; default: r.

    Returns
    -------
    Tensor of int32, shape (rows, topk), or with `seq_lens` (rows, topk + kpool - 1)
        Positions of the selected pools, side by side, the tail, then -1. A negative entry of the page table,
        or one outside it, gives -1.
    """
    if kpool < 1 or topk % kpool:
        raise ArgumentError("topk", topk, f"a multiple of kpool, {kpool}")
    return _pools(
        _KPOOL, score, lengths, topk // kpool, kpool, row_starts, seq_lens, page_table=page_table,
        offsets=topk_indices_offset, row_to_request=page_table_row_index,
    )  # fmt: skip


def topk_transform_kpool_v2(
    scores: Any,
    pool_lens: Any,
    out: Any,
    pool_size: int,
    metadata: Any,
    *,
    token_seq_lens: Any = None,
    page_table: Any = None,
    page_size: int = 1,
    out_offsets: Any = None,
) -> None:
    """Select the best pools of every row, and write their positions, then the tail; the windows start at 0.

    Parameters
    ----------
    metadata : Tensor
        Not used.
    scores, pool_lens, out, pool_size, token_seq_lens, page_table, page_size, out_offsets
        As for `topk_transform_kpool_ragged_v2`.
    """
    topk_transform_kpool_ragged_v2(
        scores, pool_lens, out, pool_size, token_seq_lens=token_seq_lens, page_table=page_table, page_size=page_size,
        out_offsets=out_offsets,
    )  # fmt: skip


def topk_transform_kpool_ragged_v2(
    scores: Any,
    pool_lens: Any,
    out: Any,
    pool_size: int,
    *,
    row_starts: Any = None,
    token_seq_lens: Any = None,
    page_table: Any = None,
    page_table_row_index: Any = None,
    page_size: int = 1,
    out_offsets: Any = None,
) -> None:
    """Select the best pools of every row's window, and write their positions, then the tail.

    Parameters
    ----------
    scores : Tensor, shape (rows, width)
        One score a pool. Never written to.
    pool_lens : Tensor of int32, shape (rows,)
    out : Tensor of int32, shape (rows, columns)
        Receives the positions of the selected pools, side by side, the tail, then -1. With `token_seq_lens` it has
        ``k * pool_size + pool_size - 1`` columns, else ``k * pool_size``, for the k pools that are selected.
    pool_size : int
        Positions of a pool.
    row_starts : Tensor of int32, shape (rows,), optional
        First score of each row; pools count from it.
    token_seq_lens : Tensor of int32, shape (rows,), optional
        Lengths in positions: ``token_seq_lens % pool_size`` positions after the last pool are the tail.
    page_table : Tensor of int32, shape (requests, pages), optional
        Positions are looked up, in pages of page_size. Not together with `out_offsets`.
    page_table_row_index : Tensor of int32, shape (rows,), optional
        Row of the page table; default: r.
    page_size : int
        A power of two.
    out_offsets : Tensor of int32, shape (rows,), optional
        Added to every position.
    """
    columns = out.shape[1] - (0 if token_seq_lens is None else pool_size - 1)
    require(pool_size >= 1, "pool_size", pool_size, "a positive int")
    if columns < 0 or columns % pool_size:
        takes = f"a multiple of pool_size, {pool_size}, and with token_seq_lens pool_size - 1 more"
        raise ArgumentError("out", f"{out.shape[1]} columns", takes)
    pages = {} if page_table is None else {"page_table": page_table, "page_size": page_size}
    _pools(
        _KPOOL_RAGGED, scores, pool_lens, columns // pool_size, pool_size, row_starts, token_seq_lens, out=out,
        offsets=out_offsets, row_to_request=page_table_row_index, **pages,
    )  # fmt: skip


def _pools(
    names: dict[str, str], scores: Any, lengths: Any, k: int, size: int, starts: Any, seq_lens: Any, **options: Any
) -> Any:
    options |= from_start(starts)
    if size > 1:
        options["expand"] = size
        if seq_lens is not None:
            # The tail begins after the last pool, also where a caller has fewer pools than its positions would fill.
            whole = lengths.clamp(0, scores.shape[1])
            options["tail"] = seq_lens.clamp(min=0).remainder_(size).add_(whole, alpha=size)
    return select(names, scores, lengths, k, **options).indices
