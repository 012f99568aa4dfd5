"""FlashInfer's top-k functions over `ksieve.topk`.

Beyond FlashInfer's functions they take any row stride and alignment and lengths of any value. They write int64 indices
from the kernel, and give the same result on every GPU. A call runs on PyTorch's current stream without waiting, and can
be captured in a CUDA graph once the kernel is loaded; `dsa_graph_safe` is ignored.
"""

from __future__ import annotations

from typing import Any

import torch

from ksieve.adapters._select import decoding, from_start, require, select, tie_break_of
from ksieve.adapters._switch import Engine
from ksieve.distributed.holding import paged

__all__ = [
    "install",
    "msa_topk_select",
    "top_k",
    "top_k_page_table_transform",
    "top_k_ragged_transform",
    "top_k_varlen",
    "topk",
    "uninstall",
    "warm_up",
]

_NAMES = {"scores": "input", "starts": "row_starts", "row_to_request": "row_to_batch"} | {
    "page_table": "src_page_table", "raw": "out_raw_indices"
}  # fmt: skip
_VARLEN = {"scores": "logits", "lengths": "seq_lens", "k": "top_k", "starts": "row_starts"} | {
    "out": "out_indices", "values": "out_values"
}  # fmt: skip
_MSA = {"scores": "max_score", "k": "topk", "lengths": "num_valid_pages", "out": "output"} | {
    "force_first": "force_begin_blocks", "force_last": "force_end_blocks"
}  # fmt: skip


_ENGINE = Engine("flashinfer")
install, uninstall, warm_up = _ENGINE.install, _ENGINE.uninstall, _ENGINE.warm_up


def top_k(
    input: Any,  # noqa: A002
    k: int,
    sorted: bool = False,  # noqa: A002
    deterministic: bool = False,
    tie_break: int = 0,
    dsa_graph_safe: bool = False,
) -> tuple[Any, Any]:
    """Select the k largest of every row; a replacement of ``torch.topk`` along the last dimension.

    Parameters
    ----------
    input : Tensor, shape (rows, width)
        float32, float16 or bfloat16.
    k : int
        If k exceeds the width, the remaining slots hold index -1 and value -inf.
    sorted : bool
        Best score first.
    deterministic : bool
        The answer of a row, order included, depends on the row alone. Without `tie_break`, ties are broken to smaller
        indices.
    tie_break : int
        Among scores equal to the worst selected one, 0 selects any, 1 smaller indices, 2 larger indices.
    dsa_graph_safe : bool
        Not used.

    Returns
    -------
    values : Tensor of the input's dtype, shape (rows, k)
    indices : Tensor of int64, shape (rows, k)
    """
    options, order = _order(deterministic, tie_break), "value" if sorted else None
    found = select(_NAMES, input, None, k, values=True, index_dtype="int64", sorted=order, **options)
    return found.values, found.indices


topk = top_k


def top_k_page_table_transform(
    input: Any,  # noqa: A002
    src_page_table: Any,
    lengths: Any,
    k: int,
    row_to_batch: Any = None,
    deterministic: bool = False,
    tie_break: int = 0,
    dsa_graph_safe: bool = False,
    row_starts: Any = None,
    page_table_row_starts: Any = None,
    *,
    page_size: int = 1,
    out: Any = None,
    out_raw_indices: Any = None,
) -> Any:
    """Select the k best of every row's window, and look the positions up in a page table.

    With i the position relative to row_starts, a slot holds ``entry * page_size + i % page_size``, where the entry is
    ``src_page_table[b, page_table_row_starts[r] + i // page_size]`` and b is ``row_to_batch[r]``, or r.

    Parameters
    ----------
    input : Tensor, shape (rows, width)
    src_page_table : Tensor of int32, shape (batch, entries)
        Last stride 1.
    lengths : Tensor of int32, shape (rows,)
    k : int
    row_to_batch : Tensor of int32, shape (rows,), optional
    deterministic, tie_break
        As for `top_k`; the slots of a row are then ordered by position.
    dsa_graph_safe : bool
        Not used.
    row_starts : Tensor of int32, shape (rows,), optional
        Windows are ``[row_starts[r], row_starts[r] + lengths[r])``, clamped to the row. Default: they start at 0.
    page_table_row_starts : Tensor of int32, shape (rows,), optional
        First entry of each row in the page table. Default: `row_starts`, which requires page_size 1. If it is not
        `row_starts` itself, or with `row_starts` and `out_raw_indices`, the lookup is not the kernel's epilogue, but a
        few PyTorch operations.
    page_size : int
        A power of two.
    out : Tensor of int32, shape (rows, k), optional
    out_raw_indices : Tensor of int32, shape (rows, k), optional
        Receives the positions relative to row_starts, slot for slot.

    Returns
    -------
    Tensor of int32, shape (rows, k)
        `out`, or a new tensor; in no particular order, then -1. A negative entry of the page table, or
        one outside it, gives -1.
    """
    require(
        page_size == 1 or row_starts is None or page_table_row_starts is not None,
        "page_table_row_starts",
        None,
        "the entries at which rows start: with page_size > 1 row_starts counts other units",
    )
    options = _order(deterministic, tie_break)
    shared = page_table_row_starts is None or page_table_row_starts is row_starts
    if row_starts is not None and not (shared and page_size == 1 and out_raw_indices is None):
        shared = False
    if shared:
        options |= {"page_table": src_page_table, "page_size": page_size}
        # The entries count from the start of the row, as indices of base "row" do.
        return select(
            _NAMES, input, lengths, k, out=out, starts=row_starts, row_to_request=row_to_batch, raw=out_raw_indices,
            **options,
        ).indices  # fmt: skip
    raw = select(_NAMES, input, lengths, k, out=out_raw_indices, **from_start(row_starts), **options).indices
    entries_start = row_starts if page_table_row_starts is None else page_table_row_starts
    rows = torch.arange(raw.shape[0], device=raw.device) if row_to_batch is None else row_to_batch.long()
    found = paged(torch, raw.long(), src_page_table, page_size, rows, entries_start)
    if out is None:
        return found
    require(
        out.dtype is torch.int32 and tuple(out.shape) == tuple(found.shape),
        "out",
        f"{out.dtype} of shape {tuple(out.shape)}",
        f"torch.int32 of shape {tuple(found.shape)}",
    )
    return out.copy_(found)


def top_k_ragged_transform(
    input: Any,  # noqa: A002
    offsets: Any,
    lengths: Any,
    k: int,
    deterministic: bool = False,
    tie_break: int = 0,
    dsa_graph_safe: bool = False,
    row_starts: Any = None,
) -> Any:
    """Select the k best of every row's window, and add the row's offset to every position.

    Parameters
    ----------
    input : Tensor, shape (rows, width)
    offsets : Tensor of int32, shape (rows,)
    lengths, k, deterministic, tie_break, dsa_graph_safe, row_starts
        As for `top_k_page_table_transform`.

    Returns
    -------
    Tensor of int32, shape (rows, k)
        Positions relative to row_starts plus the offset, in no particular order, then -1.
    """
    options = _order(deterministic, tie_break) | from_start(row_starts)
    return select(_NAMES, input, lengths, k, offsets=offsets, **options).indices


def top_k_varlen(
    logits: Any,
    seq_lens: Any,
    top_k: int,
    pre_idx: Any = None,
    compress_ratio: int = 1,
    next_n: int = 1,
    return_values: bool = False,
    out_indices: Any = None,
    out_values: Any = None,
    backend: str = "auto",
    load_balance: bool = True,
    workspace: Any = None,
    row_starts: Any = None,
    max_seq_len: int | None = None,
    absolute_indices: bool = False,
    *,
    skip_check: bool = False,
) -> tuple[Any, Any]:
    """Select the top_k best valid logits of every row of a decode step, or of a prefill's windows.

    Parameters
    ----------
    logits : Tensor, shape (rows, width)
    seq_lens : Tensor of int32, shape (rows // next_n,)
        Row r of request ``q = r // next_n`` sees ``(seq_lens[q] - next_n + 1 + r % next_n) // compress_ratio`` logits.
        With `row_starts` the length of each row's window.
    top_k : int
    pre_idx : Tensor, optional
        Not used: ksieve needs no indices of the previous step.
    compress_ratio : int
        A ratio other than 1 allocates small tensors of one entry per row.
    next_n : int
    return_values : bool
    out_indices : Tensor of int32, shape (rows, top_k) or (rows * top_k,), optional
        What is returned is of shape (rows, top_k), and is a view of a flat one.
    out_values : Tensor of the logits' dtype, shape (rows, top_k) or (rows * top_k,), optional
        Only with ``return_values=True``.
    backend : str
        Any. ``"radix_cutlass"`` decides what values unused slots hold, and costs a pass over them.
    load_balance, workspace, skip_check
        Not used: ksieve plans by itself, keeps a workspace per stream, and always checks.
    row_starts : Tensor of int32, shape (rows,), optional
        Windows are ``[row_starts[r], row_starts[r] + seq_lens[r])``; only with next_n and compress_ratio 1.
    max_seq_len : int, optional
        Not used: windows longer than that are selected from like others.
    absolute_indices : bool
        Positions count from the start of the row, and not of the window.

    Returns
    -------
    indices : Tensor of int32, shape (rows, top_k)
        In no particular order, then -1.
    values : Tensor, shape (rows, top_k), or None
        The selected logits, then -inf, or 0 with ``backend="radix_cutlass"``, as FlashInfer's backends write.
    """
    rows = logits.shape[0]
    seq_lens, options = decoding(seq_lens, rows, next_n, compress_ratio)
    if row_starts is not None:
        require(next_n == 1, "next_n", next_n, "1 with row_starts")
        require(compress_ratio == 1, "compress_ratio", compress_ratio, "1 with row_starts")
        options |= {"starts": row_starts, "index_base": "row" if absolute_indices else "start"}
    else:
        require(not absolute_indices, "absolute_indices", True, "False without row_starts")
    out_indices, out_values = _rows_of(out_indices, rows, top_k), _rows_of(out_values, rows, top_k)
    if not return_values:
        return select(_VARLEN, logits, seq_lens, top_k, out=out_indices, **options).indices, None
    wanted = True if out_values is None else out_values
    indices, values, *_ = select(_VARLEN, logits, seq_lens, top_k, out=out_indices, values=wanted, **options)
    if backend == "radix_cutlass":
        values.masked_fill_(indices < 0, 0)
    return indices, values


def _rows_of(flat: Any, rows: int, k: int) -> Any:
    """View a flat output as rows; others are checked where they are used."""
    if flat is None or flat.dim() != 1 or flat.numel() != rows * k:
        return flat
    return flat.view(rows, k)


def msa_topk_select(
    max_score: Any,
    topk: int,
    num_valid_pages: Any = None,
    output: Any = None,
    force_begin_blocks: int = 0,
    force_end_blocks: int = 0,
) -> Any:
    """Select the topk best blocks of every token and head, by their scores, the first and last ones with any score.

    The scores are transposed into a copy: there a row's lie heads and tokens apart.

    Parameters
    ----------
    max_score : Tensor, shape (heads, blocks, tokens)
    topk : int
    num_valid_pages : int, or Tensor of int32, shape (tokens,), optional
        Number of valid blocks of all tokens, or of each one; default: all blocks.
    output : Tensor of int32, shape (tokens, heads, topk), optional
        Contiguous; receives the numbers of the blocks, and is returned.
    force_begin_blocks, force_end_blocks : int
        Blocks at either end that are selected in any case, together at most topk.

    Returns
    -------
    Tensor of int32, shape (tokens, heads, topk)
        Block numbers, ascending, then -1.
    """
    require(max_score.dim() == 3, "max_score", f"shape {tuple(max_score.shape)}", "shape (heads, blocks, tokens)")
    heads, blocks, tokens = max_score.shape
    scores, lengths = max_score.permute(2, 0, 1).contiguous().view(tokens * heads, blocks), None
    if isinstance(num_valid_pages, torch.Tensor):
        shape = tuple(num_valid_pages.shape)
        require(shape == (tokens,), "num_valid_pages", f"shape {shape}", f"shape {(tokens,)}")
        lengths = num_valid_pages[:, None].expand(tokens, heads).reshape(-1)
    elif num_valid_pages is not None:
        require(0 < num_valid_pages <= blocks, "num_valid_pages", num_valid_pages, f"an int from 1 to {blocks}")
        scores = scores[:, :num_valid_pages]
    out = None
    if output is not None:
        shape = tuple(output.shape)
        good = shape == (tokens, heads, topk) and output.is_contiguous()
        require(good, "output", f"shape {shape}", f"shape {(tokens, heads, topk)}, contiguous")
        out = output.view(tokens * heads, topk)
    forced = {"force_first": force_begin_blocks or None, "force_last": force_end_blocks or None}
    found = select(_MSA, scores, lengths, topk, out=out, sorted="index", **forced).indices
    return found.view(tokens, heads, topk) if output is None else output


def _order(deterministic: bool, tie_break: Any) -> dict[str, Any]:
    return {"tie_break": tie_break_of(tie_break), "deterministic": deterministic or None}
