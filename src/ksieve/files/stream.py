"""Selection over a source of scores that need not fit in memory: block by block, through `ksieve.topk`."""

from __future__ import annotations

import ctypes
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ksieve import api, dispatch
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.installation import require_torch
from ksieve.core.policy import SamplingPolicy
from ksieve.core.stats import STATS_COLUMNS, Stats
from ksieve.dispatch import Backend
from ksieve.planning.plan import Plan
from ksieve.running.running import Running

BLOCK_BYTES = 256 << 20
"""Default bound on the score bytes in memory at a time."""

MOST_ROWS = 32
"""Rows of a block of tiles: a tile has millions of columns, so that reads are long, and `Running` has short lists."""

Ranges = Sequence[tuple[int, int]]
"""First and last row, exclusive, of each block."""

Sink = Callable[[int, NDArray[np.int32]], None]
"""Receives the first row number and the indices of each block."""


@dataclass(frozen=True)
class StreamResult:
    """Plan, statistics and times of a streamed selection.

    `plan`: plan of one block; every block but the last has `plan.problem.rows` rows. `stats`: statistics of all rows,
    with ``return_stats=True``. `read_seconds`, `select_seconds`: wall time spent fetching blocks from the source, and
    inside the selection calls.
    """

    plan: Plan
    stats: Stats | None
    read_seconds: float
    select_seconds: float


def choose_backend() -> Literal["cpu", "cuda"]:
    """Pick "cuda" where a driver and PyTorch with a GPU are present, else "cpu"; cheap without a driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "cpu"
    if importlib.util.find_spec("torch") is None:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def select(
    source: Any,
    k: int,
    sink: Sink,
    *,
    backend: Backend = "auto",
    policy: SamplingPolicy | str | None = None,
    return_stats: bool = False,
    block_bytes: int = BLOCK_BYTES,
    ranges: Ranges | None = None,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> StreamResult:
    """Select the top k of every row of a source and pass the indices to `sink`, block by block.

    `source`: a score file, or another object with ``rows``, ``width``, ``lengths`` and ``rows_block(begin, end)``,
    whose blocks are host arrays. One with ``tiles``, as `ksieve.files.scores.JoinedColumns`, is read by tiles of
    columns, without a policy or statistics. `sink`: called as ``sink(first_row, indices)`` with int32 indices of shape
    (block rows, k). `backend`: "auto" is `choose_backend`, or "cpu" for a source with ``tiles``. `return_stats`: also
    collect statistics. Sample positions depend on the row number within a block. `block_bytes`: bound on the score
    bytes in memory at a time; a block has at least one row. `ranges`: first and last row, exclusive, of some of the
    blocks that `block_bytes` makes; default: all. `progress`: called with the number of rows done: with 0 once the
    kernels are compiled, then after every block. `options`: of `ksieve.topk`, without arrays; by tiles those of
    `ksieve.Running`, and `sorted`. Raises what `ksieve.topk` does.
    """
    if backend == "reference" and by_tiles(source):
        raise ArgumentError("backend", "'reference' with tiles of columns", "'auto', 'cpu' or 'cuda'")
    chosen = backend if backend != "auto" else "cpu" if by_tiles(source) else choose_backend()
    to_device, to_host = _movers(chosen)
    rows, width, running = int(source.rows), int(source.width), None
    if by_tiles(source):
        return_stats, order = False, options.pop("sorted", None)
        width = max(1, min(width, max(k, block_bytes // (4 * MOST_ROWS))))
    raw = np.zeros((rows if return_stats else 0, len(STATS_COLUMNS)), np.int32)
    plan: Plan | None = None
    read_seconds = select_seconds = 0.0
    for begin, end in ranges or blocks_of(source, block_bytes):
        if by_tiles(source):
            running = Running(end - begin, k, width, dtype=source.dtype, device=chosen, **options)
            if plan is None:
                plan = api.plan(rows=end - begin, width=width, k=k, dtype=source.dtype, device=chosen, **options)
                if progress is not None:
                    progress(0)
        start = time.perf_counter()
        for first, host, ends in _parts(source, begin, end, width):
            scores, lengths = to_device(host), to_device(ends)
            read_seconds += time.perf_counter() - start
            if plan is None:
                plan = api.plan(scores, lengths, k, policy=policy, **options)
                if end > begin and chosen != "reference":
                    # The first row compiles the kernels, so that the measured time excludes that.
                    dispatch.select(scores[:1], lengths[:1], None, plan, backend=chosen, stats=return_stats)
                if progress is not None:
                    progress(0)
            start = time.perf_counter()
            if running is None:
                answer = dispatch.select(scores, lengths, None, plan, backend=chosen, stats=return_stats)
            else:
                running.push(scores, first, lengths)
            select_seconds += time.perf_counter() - start
            start = time.perf_counter()
        # The copy to the host counts as selection time, because it waits for the kernels.
        indices = to_host(running.finish(sorted=order) if running is not None else answer.indices)
        select_seconds += time.perf_counter() - start
        if return_stats:
            raw[begin:end] = answer.stats.raw
        sink(begin, indices)
        if progress is not None:
            progress(end)
    assert plan is not None
    return StreamResult(plan, Stats(raw) if return_stats else None, read_seconds, select_seconds)


def blocks_of(source: Any, block_bytes: int = BLOCK_BYTES, rank: int = 0, world: int = 1) -> Ranges:
    """Blocks of a source, or every `world`-th of them; of a source without rows an empty one.

    A block has as many float32 rows as fit `block_bytes`, if possible a multiple of the sampling strides.
    """
    rows, step = int(source.rows), max(1, block_bytes // max(4 * int(source.width), 1))
    if by_tiles(source):
        step = MOST_ROWS
    elif step >= 128:
        step -= step % 128
    return [(begin, min(begin + step, rows)) for begin in range(rank * step, max(rows, 1), step * world)]


def by_tiles(source: Any) -> bool:
    """Whether a source is read by tiles of columns."""
    return getattr(source, "tiles", None) is not None


def _parts(source: Any, begin: int, end: int, most: int) -> Iterator[tuple[int, Any, NDArray[np.int32]]]:
    """A block in tiles of at most `most` columns, or as one: first column, scores, and where valid ones end."""
    if by_tiles(source):
        yield from source.tiles(begin, end, most)
    else:
        yield 0, source.rows_block(begin, end), np.ascontiguousarray(source.lengths[begin:end], dtype=np.int32)


def _movers(backend: str) -> tuple[Callable[[Any], Any], Callable[[Any], NDArray[np.int32]]]:
    """Functions that copy a host array to the backend's device, and its indices back to the host."""
    if backend != "cuda":
        return (lambda array: array), (lambda indices: np.asarray(indices))
    torch = require_torch("the cuda backend moves scores to the GPU with PyTorch")
    if not torch.cuda.is_available():
        raise BackendError("the cuda backend needs a CUDA GPU, and PyTorch sees none; use the cpu backend")

    def to_device(array: Any) -> Any:
        host = torch.from_numpy(np.require(array, requirements=["C", "W"]))  # PyTorch warns of maps that are read-only
        return (host.view(torch.bfloat16) if host.dtype is torch.uint16 else host).cuda()

    return to_device, lambda indices: np.asarray(indices.cpu())
