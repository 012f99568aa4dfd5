"""DeepSelect's functions, as SGLang ships them: ``topk`` and ``topk_page_transform``."""

from __future__ import annotations

from typing import Any

import torch

from ksieve.adapters._select import index_dtype, require, select

_NAMES = {"scores": "input", "k": "topk", "starts": "begin", "ends": "end", "lengths": "end"} | {
    "out": "output_idx", "offsets": "output_idx_offset", "index_dtype": "indices_type"
}  # fmt: skip


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
    abort_when_nan_found: bool = False,
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
    """
    require(hint is None, "hint", type(hint).__name__, "None")
    require(not (sorted and sorted_index), "sorted_index", True, "False together with sorted=True")
    dtype, order = index_dtype(indices_type, "indices_type", output_idx), "index" if sorted_index else None
    indices, values, *_ = select(
        _NAMES, input, None, topk, out=output_idx, index_dtype=dtype, starts=begin, ends=end,
        sorted="value" if sorted else order, offsets=output_idx_offset, values=return_value or None,
    )  # fmt: skip
    filled: list[tuple[Any, float]] = [(indices, idx_oob_fill_value)] if idx_oob_fill_value != -1 else []
    if return_value and value_oob_fill_value != float("-inf"):
        filled.append((values, value_oob_fill_value))
    if filled and (begin is not None or end is not None or topk > input.shape[1]):
        unused = indices < 0 if output_idx_offset is None else _unused_slots(input, topk, begin, end)
        for output, value in filled:
            output.masked_fill_(unused, value)
    return values, indices


def topk_page_transform(
    input: Any,  # noqa: A002
    topk: int,
    *,
    page_table: Any,
    page_size: int,
    end: Any = None,
    sorted_index: bool = False,
    output_idx: Any = None,
    idx_oob_fill_value: int = -1,
    abort_when_nan_found: bool = False,
) -> Any:
    """Select the topk best of ``input[r, :end[r]]`` of every row, and look the positions up in its page table.

    Parameters
    ----------
    input : Tensor, shape (rows, width)
    topk : int
    page_table : Tensor of int32, shape (rows, pages)
        Pages of row r; last stride 1.
    page_size : int
        A power of two.
    end : Tensor of int32, shape (rows,), optional
        Length of each row; default: the width.
    sorted_index : bool
        Lowest position first.
    output_idx : Tensor of int32, shape (rows, topk), optional
        Receives ``page_table[r, i // page_size] * page_size + i % page_size`` for every selected position i, and is
        returned.
    idx_oob_fill_value : int
        Value of unused slots; another than -1 costs a pass over the output where rows may be shorter than topk.
    abort_when_nan_found : bool
        Not used: NaN never aborts, it ranks below -inf.

    Returns
    -------
    Tensor of int32, shape (rows, topk)
    """
    order = "index" if sorted_index else None
    pages = {"page_table": page_table, "page_size": page_size}
    found = select(_NAMES, input, end, topk, out=output_idx, sorted=order, **pages).indices
    if idx_oob_fill_value != -1 and (end is not None or topk > input.shape[1]):
        found.masked_fill_(_unused_slots(input, topk, None, end), idx_oob_fill_value)
    return found


def _unused_slots(scores: Any, k: int, begin: Any, end: Any) -> Any:
    """Mask of unused slots, from the window lengths: with an offset, an output value cannot identify them."""
    rows, width = scores.shape
    slot = torch.arange(k, dtype=torch.int32, device=scores.device)
    if begin is None and end is None:
        return (slot >= width).expand(rows, k)
    stop = torch.full((rows,), width, dtype=torch.int32, device=scores.device) if end is None else end.clamp(0, width)
    length = stop if begin is None else (stop - begin.clamp(0, width)).clamp_(min=0)
    return slot >= length[:, None]
