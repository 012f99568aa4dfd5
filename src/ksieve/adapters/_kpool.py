"""SGLang's functions for scores of pools of positions (GLM): selected pools become their positions, then a tail.

A row has a score for each whole pool, and a length in positions. The positions that fill no pool are the tail, and are
always written. That is `expand` and `tail` of `ksieve.topk` (docs/guide/options.md).
"""

from __future__ import annotations

from typing import Any

from ksieve.adapters._select import from_start, require, select
from ksieve.core.errors import ArgumentError

_FAST = {"scores": "score", "k": "topk", "expand": "kpool", "tail": "seq_lens", "starts": "row_starts"} | {
    "offsets": "topk_indices_offset", "row_to_request": "page_table_row_index"
}  # fmt: skip
_V2 = {"lengths": "pool_lens", "expand": "pool_size", "tail": "token_seq_lens", "offsets": "out_offsets"}
_RAGGED = _V2 | {"starts": "row_starts", "row_to_request": "page_table_row_index"}


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
        _FAST, score, lengths, topk // kpool, kpool, row_starts, seq_lens, page_table=page_table,
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
        _RAGGED, scores, pool_lens, columns // pool_size, pool_size, row_starts, token_seq_lens, out=out,
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
