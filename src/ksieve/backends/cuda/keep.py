"""The kernel of `ksieve.Running` (`kernels/running/keep.cu`): a push is one launch with a CTA for each row."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import replace

from ksieve.backends.cuda.jit.spec import KernelSpec, architecture, bare_spec
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.backends.cuda.runtime.launch import kernel_of
from ksieve.core.options import RANKED, Options, Order, TieBreak
from ksieve.core.ranking import Ranking
from ksieve.planning import memory

PUSH = struct.Struct("=10Qq6i")
"""`Push` of kernels/running/list.cuh: scores, starts, ends, num_rows, row_k, values, places, held, cutoffs,
cutoff_scores (addresses); pitch (elements); width, first, k, capacity, flags, and a reserved zero."""

TIES, HIGH_FIRST, RECOUNT, SETTLE, LONG_STARTS, LONG_ENDS = 1, 2, 4, 8, 16, 32
"""Flags of `PUSH`."""

STEM = "running/keep"
"""Its source file."""

MOST_SLOTS = 4096
"""Most slots of a row: shared memory has room to list the slots that a compaction empties."""

FEWEST = 2048
"""Slots of a list after the k best, at least: a small k has few compactions too."""

THREADS = 256

CTAS_PER_SM = 4
"""CTAs of a multiprocessor for which registers suffice, 64 for a thread. Each takes 25.7 KB of shared memory:
GPUs with 100 KB of it hold three."""


def capacity_of(k: int) -> int:
    """Return the slots of a row's list: whole vectors of 16 bytes."""
    return -(-(k + max(2 * k, FEWEST)) // 8) * 8


def keep_kernel(arch: str, dtype: str, ranking: Ranking = "largest") -> KernelSpec:
    """Specialisation for a dtype and a ranking; one serves every k and tie-break."""
    stages = 4
    shared = memory.HISTOGRAM_BYTES + 16 * stages * THREADS + memory.CANDIDATE_BYTES + memory.fixed_bytes(0, THREADS, 0)
    shared = -(-shared // 16) * 16
    return bare_spec(STEM, arch, dtype, ranking, threads=THREADS, ctas_per_sm=CTAS_PER_SM, shared=shared, STAGES=stages)


def selections() -> Iterator[Options]:
    """Yield the options of selections from lists: of merges, and of `finish` without a transform of positions."""
    ties: tuple[TieBreak, ...] = ("any", "low")
    orders: tuple[Order, ...] = ("any", "index", "value")
    for asked, tie_break, order, values in itertools.product(RANKED, ties, orders, (False, True)):
        yield replace(asked, positions=True, tie_break=tie_break, order=order, values=values)


def launch(push: tuple[int, ...], rows: int, *, dtype: str, ranking: Ranking, index: int, stream: int) -> None:
    """Enqueue the kernel on a stream of device `index`.

    `push`: fields of `PUSH`. `dtype`: of the scores. `index`: ordinal of the device. Raises `BackendError` if the
    kernel has to be compiled or loaded while the stream is captured, or the driver refuses the launch.
    """
    spec = keep_kernel(architecture(cuda_driver.get().device_info(index).capability), dtype, ranking)
    kernel = kernel_of(spec, index, PUSH.size, stream)
    if rows:
        kernel.run(PUSH, push, rows, stream)
