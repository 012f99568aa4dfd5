"""The plain-read floor: the best of several kernels that read the valid scores and do nothing with them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit.compile import Sources
from ksieve.backends.cuda.jit.spec import KernelSpec, architecture
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.backends.cuda.runtime import launch
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.tuning.timing import Contender

PER_ROW, DEALT, BULK = 0, 1, 2
"""Modes of floor.cu."""


@dataclass(frozen=True)
class ReadKernel:
    """One specialisation of floor.cu.

    `mode`: `PER_ROW`, `DEALT` or `BULK`. `unroll`: 16-byte loads in flight per thread, or shared buffers of a CTA
    (`BULK`). `chunk`: bytes that a CTA takes at a time. `ctas_per_sm`: resident CTAs; unused by `PER_ROW`.
    """

    name: str
    mode: int
    threads: int
    unroll: int
    chunk: int = 16_384
    ctas_per_sm: int = 0

    def spec(self, device: DeviceInfo) -> KernelSpec:
        """Specification of the kernel for a device."""
        defines = {
            "KSIEVE_MODE": self.mode,
            "KSIEVE_THREADS": self.threads,
            "KSIEVE_UNROLL": self.unroll,
            "KSIEVE_CHUNK": self.chunk,
            "KSIEVE_SHARED_BYTES": self.unroll * self.chunk if self.mode == BULK else 0,
        }
        return KernelSpec("floor", architecture(device.capability), tuple(defines.items()))


@cache
def sources() -> Sources:
    """The read kernels' text, with the headers of the package."""
    shipped, own = compiler.shipped_sources(), Path(__file__).with_name("floor.cu")
    return shipped.of(shipped.directory, {**dict(shipped.texts), own.name: own.read_text(encoding="utf-8")})


KERNELS = (
    ReadKernel("row, 512 x 8", PER_ROW, 512, 8),
    ReadKernel("row, 1024 x 4", PER_ROW, 1024, 4),
    ReadKernel("dealt, 256 x 8", DEALT, 256, 8, 256 * 8 * 16, 8),
    ReadKernel("dealt, 512 x 4", DEALT, 512, 4, 512 * 4 * 16, 4),
    ReadKernel("dealt, 1024 x 2", DEALT, 1024, 2, 1024 * 2 * 16, 2),
    ReadKernel("dealt, 256 x 2", DEALT, 256, 2, 256 * 2 * 16, 8),
    ReadKernel("bulk, 6 x 32K", BULK, 32, 6, 32_768, 1),
    ReadKernel("bulk, 6 x 16K", BULK, 32, 6, 16_384, 2),
    ReadKernel("bulk, 8 x 8K", BULK, 32, 8, 8192, 3),
    ReadKernel("bulk, 8 x 4K", BULK, 32, 8, 4096, 6),
)
"""Kernels whose best time is the floor: whole rows, chunks taken in turn, and bulk copies, in several sizes."""


def available(device: DeviceInfo) -> list[ReadKernel]:
    """Kernels that a device can run."""
    return [k for k in KERNELS if k.mode != BULK or device.capability >= (9, 0)]


_PARAMS = struct.Struct("=QQQqqii")
"""Addresses of scores, lengths and a sink; pitch in bytes, width, bytes of a score, rows."""


class Reader:
    """A read kernel ready to be launched on a matrix, on the current stream."""

    def __init__(self, kernel: ReadKernel, scores: Any, lengths: Any, device: DeviceInfo) -> None:
        rows, width = scores.shape
        pitch = scores.stride(0) * scores.element_size()
        if scores.data_ptr() % 16 or (pitch % 16 and rows > 1):
            got = f"address 0x{scores.data_ptr():x} and a pitch of {pitch} bytes"
            raise ArgumentError("scores", got, "rows that start at multiples of 16 bytes")
        driver, spec, index = cuda_driver.get(), kernel.spec(device), scores.device.index
        with driver.activated(driver.context(index)):  # compiled from sources of its own, then found by its name
            launch.function_of(spec, index, driver, _stream(), sources())
        self._kernel = launch.kernel_of(spec, index, _PARAMS.size, _stream())
        chunks = rows * -(-width * scores.element_size() // kernel.chunk)
        self._blocks = rows if kernel.mode == PER_ROW else min(chunks, device.sm_count * kernel.ctas_per_sm)
        sink = scores.new_zeros(1)
        self._alive = (scores, lengths, sink)
        self._params = (
            scores.data_ptr(), lengths.data_ptr() if lengths is not None else 0, sink.data_ptr(), pitch, width,
            scores.element_size(), rows,
        )  # fmt: skip

    def __call__(self) -> None:
        """Enqueue the read."""
        self._kernel.run(_PARAMS, self._params, self._blocks, _stream())


def _read(readers: list[Reader], i: int) -> None:
    readers[i]()


def _stream() -> int:
    import torch

    return int(torch.cuda.current_stream().cuda_stream)


def contenders(matrices: list[Any], lengths: Any, device: DeviceInfo) -> list[Contender]:
    """One contender per read kernel over the same input sets."""
    found = []
    for kernel in available(device):
        readers = [Reader(kernel, scores, lengths, device) for scores in matrices]
        found.append(Contender(kernel.name, partial(_read, readers)))
    return found
