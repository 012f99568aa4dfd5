"""Which selected positions a rank holds, by operations of PyTorch: nothing is sent, and nothing read back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, get_args

from ksieve.core import problem
from ksieve.core.errors import ArgumentError, kind_of, shown
from ksieve.core.groups import PageTable, flat
from ksieve.core.options import check_choice
from ksieve.core.table import INTEGERS
from ksieve.distributed import plans
from ksieve.distributed.layouts import Contiguous, Layout, check_layout, check_widths
from ksieve.distributed.plans import IndexBase


def owned(
    indices: Any,
    *,
    rank: int,
    widths: Sequence[int],
    layout: Layout = Contiguous(),  # noqa: B008
    index_base: IndexBase = "row",
    transform: PageTable | None = None,
    next_n: int = 1,
) -> tuple[Any, Any]:
    """Keep the selected positions that one rank holds, as `topk` with output "owned" returns them.

    For callers who gather pairs themselves: ``ksieve.topk(values, k=k, gathered=Positions(positions),
    tie_break="low")`` gives every rank the positions of all ranks, and this the rank's own.

    Parameters
    ----------
    indices : Tensor of int32 or int64, shape (rows, k)
        Global positions in any order, on CPU or CUDA. Negative ones, and those that no rank holds, are left out.
    rank : int
        Whose positions are kept.
    widths : sequence of int
        Scores in a row of every rank's shard, as ``layout.widths`` gives them.
    layout : Contiguous or Interleaved
    index_base : {"row", "shard"}
        Whether the positions returned count in the whole row, or in the rank's shard.
    transform : PageTable, optional
        The rank's own.
    next_n : int
        As in `ksieve.RowBounds`.

    Returns
    -------
    indices : Tensor of int32, shape (rows, k)
        Ascending, then -1.
    counts : Tensor of int32, shape (rows,)

    Raises
    ------
    ArgumentError

    Notes
    -----
    Without a process group. On CUDA it enqueues work on the current stream, and can be captured in a CUDA graph.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(indices, torch.Tensor):
        raise ArgumentError("indices", kind_of(indices), "a PyTorch tensor")
    info = problem.inspect(indices, "indices")
    if len(info.shape) != 2 or info.dtype not in INTEGERS:
        raise ArgumentError("indices", f"{info.dtype} of shape {info.shape}", "int32 or int64 of shape (rows, k)")
    shares = check_widths(widths, check_layout(layout))
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < len(shares):
        raise ArgumentError("rank", shown(rank), f"an int from 0 to {len(shares) - 1}, by widths")
    check_choice(index_base, "index_base", get_args(IndexBase))
    plans.check_rows_of_requests(next_n, info.shape[0])
    table, size, requests = members_of(transform)
    check_pages(info, table, size, requests)
    positions = indices.long()
    local = layout.below(positions, rank, shares)
    mine = (positions >= 0) & (layout.below(positions + 1, rank, shares) > local)
    found = ascending(torch, positions if index_base == "row" and table is None else local, mine)
    if table is not None:
        row = torch.arange(info.shape[0], device=indices.device)
        found = paged(torch, found.long(), table, size, request_of(row, requests, next_n))
    return found, mine.sum(1).int()


def members_of(transform: PageTable | None) -> tuple[Any, Any, Any]:
    """Table, page size and requests of a rank's page table; no table of None."""
    found = flat({"transform": transform})
    if "offsets" in found:
        raise ArgumentError("transform", "ksieve.Offsets", "a ksieve.PageTable of this rank")
    return found.get("page_table"), found.get("page_size", 1), found.get("row_to_request")


def ascending(torch: Any, positions: Any, used: Any) -> Any:
    """Used positions of each row as int32, ascending, then -1."""
    ordered = torch.sort(torch.where(used, positions, problem.MAX_SIZE).int(), 1).values
    return torch.where(ordered == problem.MAX_SIZE, -1, ordered)


def request_of(row: Any, row_to_request: Any, next_n: int) -> Any:
    """The page table's request of each row, int64."""
    return row // next_n if row_to_request is None else row_to_request.long()


def paged(torch: Any, local: Any, table: Any, size: int, request: Any, first: Any = None) -> Any:
    """Entries of the page table at positions, as int32; -1 where there is none, or a negative one.

    `first` has each row's entry of position 0.
    """
    requests, pages = table.shape
    if not requests or not pages:
        return torch.full_like(local, -1).int()
    page = local // size + (0 if first is None else first.long()[:, None])
    known = (local >= 0) & (page >= 0) & (page < pages) & ((request >= 0) & (request < requests))[:, None]
    entry = table[request.clamp(0, requests - 1)[:, None], page.clamp(0, pages - 1)].long()
    return torch.where(known & (entry >= 0), entry * size + local % size, -1).int()


def check_pages(rows_of: problem.ArrayInfo, table: Any, size: Any, requests: Any) -> None:
    """Check a page table and what belongs to it, for the rows and the device of an array."""
    if table is None:
        return
    problem.check_table(problem.inspect(table, "page_table"), rows_of.device)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or size & (size - 1) or size >= 1 << 31:
        raise ArgumentError("page_size", shown(size), "a power of two")
    if requests is not None:
        info = problem.inspect(requests, "row_to_request")
        problem.check_vector(info, "row_to_request", ((rows_of.shape[0],),), rows_of.device)
