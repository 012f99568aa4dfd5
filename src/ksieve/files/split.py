"""Work on a file of scores that the processes of ``torchrun`` share by rows, on one machine or several.

`select` is a streamed selection. Block b belongs to rank b % world. In each turn every rank selects one block. The
first rank receives them all and passes them on in order, so its sink gets what one process gives. Every rank reads its
own blocks of the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.installation import require_torch
from ksieve.distributed.agreement import distributed
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
    torch = require_torch("processes of torchrun meet through PyTorch")
    dist = torch.distributed
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
    options |= {"return_stats": return_stats, "block_bytes": block_bytes}
    if world == 1:
        return stream.select(source, k, sink, progress=progress, **options)
    if not source.rows:
        return None if rank else stream.select(source, k, sink, **options)
    every = [stream.blocks_of(source, block_bytes, other, world) for other in range(world)]
    done = 0

    def meet(indices: NDArray[np.int32] | None = None) -> None:
        """One turn: the first rank receives a block of every rank, if it has one, and passes them on in order."""
        nonlocal done
        for blocks, found in zip(every, collect(indices, rank, world), strict=False):
            if found is not None:
                sink(blocks[done][0], found)
                if progress is not None:
                    progress(blocks[done][1])
        done += 1

    result: StreamResult | None = None
    if every[rank]:
        result = stream.select(source, k, lambda begin, indices: meet(indices), ranges=every[rank], **options)
    while done < len(every[0]):
        meet()
    stats = None if result is None else result.stats
    parts = collect([] if stats is None else [stats.raw[begin:end] for begin, end in every[rank]], rank, world)
    if rank:
        return None
    if stats is not None:
        for blocks, part in zip(every, parts, strict=True):
            for (begin, end), found in zip(blocks, part, strict=True):
                stats.raw[begin:end] = found
    return result
