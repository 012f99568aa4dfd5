"""SGLang's indexer functions, and DeepSelect's ``topk`` that ships with it, over `ksieve.topk`.

``fast_topk_v2`` and the two fused transforms replace those of ``sgl_kernel``; the ``topk_transform_*_v2`` functions
replace those of the JIT kernel for paged and ragged caches. In addition to SGLang's functions they take any topk,
float16 and bfloat16 scores, any row stride and alignment, and negative lengths (which count as 0), and never write to
the scores. A call runs on PyTorch's current stream without waiting, and can be captured in a CUDA graph once the kernel
is loaded.

`install` leaves ``plan_topk_v2`` SGLang's, because kernels that are not replaced read its plan, and
``--dsa-topk-backend torch`` PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch

from ksieve.adapters._engine import Engine
from ksieve.adapters._select import require, select

__all__ = [
    "fast_topk_transform_fused",
    "fast_topk_transform_ragged_fused",
    "fast_topk_v2",
    "install",
    "plan_topk_v2",
    "topk",
    "topk_transform_paged_v2",
    "topk_transform_ragged_v2",
    "uninstall",
    "warm_up",
]

_FAST = {"scores": "score", "k": "topk", "starts": "row_starts", "page_table": "page_table_size_1"} | {
    "offsets": "topk_indices_offset"
}
_PAGED = {"lengths": "seq_lens", "page_table": "page_tables", "out": "out_page_indices"} | {
    "raw_out": "out_raw_indices"
}
_RAGGED = {"lengths": "seq_lens", "offsets": "out_offsets", "out": "out_indices", "starts": "row_starts"}
_DEEPSELECT = {"scores": "input", "k": "topk", "starts": "begin", "ends": "end", "lengths": "end"} | {
    "out": "output_idx", "offsets": "output_idx_offset", "index_dtype": "indices_type"
}  # fmt: skip


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

    Raises
    ------
    ArgumentError
    """
    if row_starts is None:
        return select(_FAST, score, lengths, topk)
    return select(_FAST, score, lengths, topk, starts=row_starts, index_base="start")


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

    Raises
    ------
    ArgumentError
    """
    rows, requests = score.shape[0], page_table_size_1.shape[0]
    entries = cu_seqlens_q.shape[0]
    require(entries == requests + 1, "cu_seqlens_q", f"{entries} entries", f"{requests + 1}, one more than requests")
    options: dict[str, Any] = {"page_table": page_table_size_1}
    if row_starts is not None:
        options |= {"starts": row_starts, "index_base": "start"}
    if row_starts is not None or rows != requests:
        options["row_to_request"] = _request_of_each_row(cu_seqlens_q, rows)
    return select(_FAST, score, lengths, topk, **options)


def _request_of_each_row(cu_seqlens_q: Any, rows: int) -> Any:
    row = torch.arange(rows, dtype=cu_seqlens_q.dtype, device=cu_seqlens_q.device)
    # Find the last boundary at or before the row: empty requests share a boundary, and the row belongs to the last.
    return torch.searchsorted(cu_seqlens_q, row, right=True, out_int32=True).sub_(1)


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

    Raises
    ------
    ArgumentError
    """
    if row_starts is None:
        return select(_FAST, score, lengths, topk, offsets=topk_indices_offset)
    return select(_FAST, score, lengths, topk, offsets=topk_indices_offset, starts=row_starts, index_base="start")


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

    Raises
    ------
    ArgumentError
    """
    shape = (seq_lens.shape[0] + 1, 2)
    if out is None:
        return torch.empty(shape, dtype=torch.int32, device=seq_lens.device)
    require(tuple(out.shape) == shape, "out", f"shape {tuple(out.shape)}", f"shape {shape}")
    return out


def topk_transform_paged_v2(
    scores: Any,
    seq_lens: Any,
    page_tables: Any,
    out_page_indices: Any,
    page_size: int,
    metadata: Any,
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
    metadata : Tensor
        Not used.
    out_raw_indices : Tensor of int32, shape (rows, k), optional
        Receives the positions themselves, slot for slot.

    Raises
    ------
    ArgumentError
    """
    options: dict[str, Any] = {"out": out_page_indices}
    if page_tables is not None:
        options |= {"page_table": page_tables, "page_size": page_size}
    if out_raw_indices is not None:
        options |= {"return_raw": True, "raw_out": out_raw_indices}
    select(_PAGED, scores, seq_lens, out_page_indices.shape[1], **options)


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

    Raises
    ------
    ArgumentError
    """
    options: dict[str, Any] = {"offsets": out_offsets, "out": out_indices}
    if row_starts is not None:
        options |= {"starts": row_starts, "index_base": "start"}
    select(_RAGGED, scores, seq_lens, out_indices.shape[1], **options)


def topk(
    input: Any,  # noqa: A002
    topk: int,
    *,
    sorted: bool = False,  # noqa: A002
    begin: Any = None,
    end: Any = None,
    indices_type: Any = torch.int32,
    sorted_index: bool = False,
    hint: Any = None,
    output_idx: Any = None,
    output_idx_offset: Any = None,
    idx_oob_fill_value: int = 2147483647,
    value_oob_fill_value: float = float("-inf"),
    return_value: bool = False,
    abort_when_nan_found: bool = True,
) -> tuple[Any, Any]:
    """Select as DeepSelect's ``topk`` does: the topk best of ``input[r, begin[r]:end[r]]`` of every row.

    Parameters
    ----------
    input : Tensor, shape (rows, width)
    topk : int
    sorted : bool
        Best score first. Not together with `sorted_index`.
    begin, end : Tensor of int32, shape (rows,), optional
        Window of each row, clamped to it. DeepSelect itself takes no `begin`.
    indices_type : torch.dtype
        torch.int32 or torch.int64.
    sorted_index : bool
        Lowest position first.
    hint : None
        DeepSelect takes none either.
    output_idx : Tensor of `indices_type`, shape (rows, topk), optional
        Receives the positions, and is returned.
    output_idx_offset : Tensor of int32, shape (rows,), optional
        Added to every position, not to the fill value.
    idx_oob_fill_value, value_oob_fill_value : int, float
        Value of unused slots. A value other than -1 or -inf costs a pass over the output where rows may be shorter
        than topk.
    return_value : bool
        Also return the selected scores.
    abort_when_nan_found : bool
        Not used: NaN never aborts, it ranks below -inf.

    Returns
    -------
    values : Tensor of the input's dtype, shape (rows, topk), or None
    indices : Tensor of `indices_type`, shape (rows, topk)
        Positions in the row, which `begin` does not shift.

    Raises
    ------
    ArgumentError
    """
    require(hint is None, "hint", type(hint).__name__, "None")
    require(not (sorted and sorted_index), "sorted_index", True, "False together with sorted=True")
    require(indices_type in (torch.int32, torch.int64), "indices_type", indices_type, "torch.int32 or torch.int64")
    options: dict[str, Any] = {"index_dtype": "int32" if indices_type is torch.int32 else "int64"}
    if output_idx is not None:
        require(output_idx.dtype is indices_type, "output_idx", f"dtype {output_idx.dtype}", f"{indices_type}")
        options["out"] = output_idx
    if begin is not None:
        options["starts"] = begin
    if end is not None:
        options["ends"] = end
    if sorted or sorted_index:
        options["sorted"] = "value" if sorted else "index"
    if output_idx_offset is not None:
        options["offsets"] = output_idx_offset
    if return_value:
        options["return_values"] = True
    result = select(_DEEPSELECT, input, None, topk, **options)
    indices, values = result if return_value else (result, None)
    filled: list[tuple[Any, float]] = [(indices, idx_oob_fill_value)] if idx_oob_fill_value != -1 else []
    if return_value and value_oob_fill_value != float("-inf"):
        filled.append((values, value_oob_fill_value))
    if filled and (begin is not None or end is not None or topk > input.shape[1]):
        unused = _unused_slots(input, topk, begin, end)
        for output, value in filled:
            output.masked_fill_(unused, value)
    return values, indices


def _unused_slots(scores: Any, k: int, begin: Any, end: Any) -> Any:
    """Mask of unused slots, from the window lengths: with an offset, an output value cannot identify them."""
    rows, width = scores.shape
    slot = torch.arange(k, dtype=torch.int32, device=scores.device)
    if begin is None and end is None:
        return (slot >= width).expand(rows, k)
    stop = torch.full((rows,), width, dtype=torch.int32, device=scores.device) if end is None else end.clamp(0, width)
    length = stop if begin is None else (stop - begin.clamp(0, width)).clamp_(min=0)
    return slot >= length[:, None]
