"""The kernels of `ksieve.distributed`: what a rank does on its GPU between two collectives.

Each is one launch with a CTA for each row. Nothing is allocated here and nothing is read back. So a CUDA graph
can capture a call once it has run outside of the capture.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ksieve.backends.cuda import arrays
from ksieve.backends.cuda.jit.spec import KernelSpec, architecture, bare_spec
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.backends.cuda.runtime.launch import Kernel, kernel_of
from ksieve.core.options import RANKED, Options, Order, Windows
from ksieve.core.ranking import RANKINGS, Ranking

SHARD = struct.Struct("=14Q12i")
"""`Shard` of kernels/distributed/composites.cuh: ids, values, best, samples, gathered, merged, below, ks, indices,
counts, sent_tag, flag (addresses); tag, words; rows, k, step, num_samples, room, world, process, position_bits, extent,
first, stripe, flags."""

HIGH_FIRST, OF_SHARD, GATHERED = 1, 2, 4
"""Flags of `SHARD`."""

TAG_WORDS = 2
"""Words of 8 bytes after the data that a rank sends: one that aligns the next rank's data to 16 bytes, and its tag."""

STEMS = ("distributed/best", "distributed/between", "distributed/select")
"""Their source files, in the order of a call."""

MOST_SLOTS = 4096
"""Most slots of a row, and most slots that a sum joins: composites of 8 bytes are put in order in shared memory."""

_FEWEST = 128
_RESIDENT = 1024  # threads of a multiprocessor, where rows are many: 64 registers each
_BYTES = 12
"""Of shared memory for each slot: a composite, and the count of a bucket."""


def sort_size(slots: int) -> int:
    """Return the elements that are put in order for this many slots: a power of two."""
    return max(_FEWEST, 1 << (slots - 1).bit_length())


def rank_kernel(
    stem: str, arch: str, *, slots: int, dtype: str, ranking: Ranking = "largest", few: bool = False
) -> KernelSpec:
    """Specialisation of one of `STEMS` for few or many rows of up to `slots` slots, of a dtype and a ranking.

    Threads have 8 elements each, or 4 where `few` rows leave multiprocessors to a single CTA.
    """
    size = sort_size(slots)
    threads = max(_FEWEST, size // (4 if few else 8))
    ctas = 1 if few else _RESIDENT // threads
    return bare_spec(
        stem, arch, dtype, ranking, threads=threads, ctas_per_sm=ctas, shared=_BYTES * size, RANKS_SORT=size
    )


def rank_kernels(arch: str, ks: Iterable[int], dtypes: Iterable[str]) -> Iterator[KernelSpec]:
    """Yield the specialisations of all calls with some k, for any number of ranks and any ranking.

    The plan's schedule, which depends on the number of ranks, decides how many slots are sorted beyond k.
    """
    sizes = {sort_size(k) << n for k in ks if k <= MOST_SLOTS for n in range(MOST_SLOTS.bit_length())}
    for size, dtype, ranking, stem, few in itertools.product(sorted(sizes), dtypes, RANKINGS, STEMS, (False, True)):
        if size <= MOST_SLOTS:
            yield rank_kernel(stem, arch, slots=size, dtype=dtype, ranking=ranking, few=few)


def selections(order: Order = "any") -> Iterator[Options]:
    """Yield the options of a rank's own selection: with and without windows, and of any ranking.

    Its slots need no order where these kernels follow; operations of PyTorch take them best first.
    """
    windows: tuple[Windows, ...] = ("none", "ends")
    for bounds, asked in itertools.product(windows, RANKED):
        yield replace(asked, windows=bounds, values=True, order=order, tie_break="low")


def launch(
    stem: str, shard: tuple[int, ...], *, slots: int, dtype: str, ranking: Ranking, index: int, stream: int
) -> None:
    """Enqueue one of `STEMS` on a stream of device `index`.

    `shard`: fields of `SHARD`. `slots`: most of a row, at most `MOST_SLOTS`. `dtype`: of the scores. Raises
    `BackendError` if the kernel has to be compiled or loaded while the stream is captured, or the driver refuses the
    launch.
    """
    if rows := shard[14]:
        _kernel(stem, rows, slots, dtype, ranking, index, stream).run(SHARD, shard, rows, stream)


def load(stem: str, *, rows: int, slots: int, dtype: str, ranking: Ranking, index: int) -> None:
    """Compile and load one of `STEMS`, so that its first launch does not."""
    stream = arrays.current_stream(arrays.ambient_library(), None, index)
    _kernel(stem, rows, slots, dtype, ranking, index, stream)


def _kernel(stem: str, rows: int, slots: int, dtype: str, ranking: Ranking, index: int, stream: int) -> Kernel:
    device = cuda_driver.get().device_info(index)
    few = rows <= device.sm_count
    spec = rank_kernel(stem, architecture(device.capability), slots=slots, dtype=dtype, ranking=ranking, few=few)
    return kernel_of(spec, index, SHARD.size, stream)
