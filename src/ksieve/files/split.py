"""Work on a file of scores that the processes of ``torchrun`` share by rows, on one machine or several.

`select` is a streamed selection. Block b belongs to rank b % world. In each turn every rank selects one block, and the
first rank receives them all and passes them on in order: its sink gets what it gets from one process. Every rank reads
its own blocks of the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.errors import BackendError
from ksieve.core.stats import Stats
from ksieve.distributed.agreement import distributed, gather
from ksieve.files import stream
from ksieve.files.stream import BLOCK_BYTES, Sink, StreamResult


def launched() -> int:
    """Number of processes that ``torchrun`` started with this one; 1 without it."""
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if "RANK" in os.environ and size.isascii() and size.isdigit() and int(size) else 1


@contextmanager
def ranks() -> Iterator[tuple[int, int]]:
    """Join the processes of ``torchrun`` over gloo; yields rank and world, (0, 1) without ``torchrun``.

    Raises `BackendError` if PyTorch is not installed.
    """
    if launched() == 1:
        yield 0, 1
        return
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        raise BackendError("processes of torchrun meet through PyTorch: pip install 'ksieve[torch]'") from None
    ours = not dist.is_initialized()
    if ours:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        dist.init_process_group("gloo")
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        if ours:
            dist.destroy_process_group()


def collect(own: Any, rank: int, world: int) -> list[Any]:
    """Objects of all ranks in their order, on the first rank; none on others. Every rank must call it."""
    if world == 1:
        return [own]
    parts: list[Any] = [None] * world
    distributed().gather_object(own, None if rank else parts)
    return [] if rank else parts


@dataclass(frozen=True)
class _Share:
    """Blocks of one rank, as a source of its own."""

    source: Any
    rank: int
    world: int
    step: int

    @property
    def rows(self) -> int:
        """Rows of this rank's blocks."""
        return sum(end - begin for begin, end in self.blocks)

    @property
    def width(self) -> int:
        """Width of the whole source."""
        return int(self.source.width)

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """First and last row, exclusive, of each block in the whole source."""
        rows, turn = int(self.source.rows), self.step * self.world
        return [(begin, min(begin + self.step, rows)) for begin in range(self.rank * self.step, rows, turn)]

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Lengths of this rank's rows."""
        parts = [self.source.lengths[begin:end] for begin, end in self.blocks]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    @property
    def dtype(self) -> str:
        """Dtype of the whole source."""
        return str(self.source.dtype)

    @property
    def tiles(self) -> Callable[[int, int, int], Iterator[Any]] | None:
        """Tiles of one block, if the whole source is read by tiles."""
        tiles = getattr(self.source, "tiles", None)
        return None if tiles is None else lambda begin, end, most: tiles(*self._whole(begin, end), most)

    def rows_block(self, begin: int, end: int) -> Any:
        """Scores of one block: that of the whole source."""
        return self.source.rows_block(*self._whole(begin, end))

    def _whole(self, begin: int, end: int) -> tuple[int, int]:
        """Rows of a block in the whole source."""
        first = self.blocks[begin // self.step][0] if self.blocks else 0
        return first, first + end - begin


def select(
    source: Any,
    k: int,
    sink: Sink,
    *,
    rank: int,
    world: int,
    return_stats: bool = False,
    block_bytes: int = BLOCK_BYTES,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> StreamResult | None:
    """`ksieve.files.stream.select` by all ranks; every rank must call it.

    `source`, `k`, `sink`, `return_stats`, `block_bytes`, `progress`, `options`: as of `ksieve.files.stream.select`.
    `sink` and `progress` are called on the first rank alone. On the first rank it returns statistics of all rows, and
    the first rank's plan and times.
    """
    if world == 1:
        return stream.select(
            source, k, sink, return_stats=return_stats, block_bytes=block_bytes, progress=progress, **options
        )
    dist = distributed()
    step = stream.block_rows(source, block_bytes)
    share = _Share(source, rank, world, step)
    rows = int(source.rows)
    turns, done = -(-rows // (step * world)), 0

    def meet(indices: NDArray[np.int32]) -> None:
        """One turn: the first rank receives a block of every rank and passes them on in order."""
        nonlocal done
        import torch

        mine = torch.full((min(step, rows), k), -1, dtype=torch.int32)
        mine[: len(indices)] = torch.from_numpy(np.ascontiguousarray(indices))
        every = gather(dist, mine, world, None).numpy()
        for other in range(world):
            begin = (done * world + other) * step
            if rank == 0 and begin < rows:
                end = min(begin + step, rows)
                sink(begin, every[other, : end - begin])
                if progress is not None:
                    progress(end)
        done += 1

    result: StreamResult | None = None
    options |= {"return_stats": return_stats, "block_bytes": block_bytes}
    if share.blocks:
        result = stream.select(share, k, lambda begin, indices: meet(indices), **options)
    while done < turns:
        meet(np.zeros((0, k), np.int32))
    parts = collect(result.stats.raw if result is not None and result.stats is not None else None, rank, world)
    if rank:
        return None
    if result is None:  # no rows at all
        return stream.select(source, k, sink, **options)
    return replace(result, stats=_together(parts, share, rows)) if return_stats else result


def _together(parts: list[Any], share: _Share, rows: int) -> Stats:
    """Statistics of all rows, in their order."""
    raw = np.zeros((rows, parts[0].shape[1]), np.int32)
    for rank, part in enumerate(parts):
        at = 0
        for begin, end in replace(share, rank=rank).blocks:
            raw[begin:end] = part[at : at + end - begin]
            at += end - begin
    return Stats(raw)
