"""SGLang's functions for paged and ragged caches (``sglang.kernels.ops.attention.dsv4``)."""

from __future__ import annotations

from typing import Any

import torch

from ksieve.adapters._select import from_start, require, select

_PAGED = {"lengths": "seq_lens", "page_table": "page_tables", "out": "out_page_indices"} | {"raw": "out_raw_indices"}
_SMALL = {"lengths": "seq_lens", "out": "out_page_indices"}
_BLOCKS = {"scores": "logits", "lengths": "seq_lens", "k": "topk_blocks", "force_last": "topk_blocks"}
_RAGGED = {"lengths": "seq_lens", "offsets": "out_offsets", "out": "out_indices", "starts": "row_starts"}

CANDIDATE_BLOCK = 8
"""Positions of a block of DeepSeek-V4.1's candidates."""


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
