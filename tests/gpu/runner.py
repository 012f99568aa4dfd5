"""What calls of the suite need: the device, outputs between guard bytes, dirty workspaces, `ksieve.verify`.

With `HOST` (environment KSIEVE_GPU_EMULATED=1) the kernels run on the CPU (`emulator`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from conftest import cuda_devices

from flat_calls import verified
from gpu import HOST
from gpu.variants import Variant
from ksieve.backends.cuda import device_info
from ksieve.core.device import DEVICES
from ksieve.planning.plan import Plan

DEVICE = "cpu" if HOST else "cuda"
PLANNED_FOR = device_info(0) if cuda_devices() and not HOST else DEVICES["h200"]
"""Facts of the device whose launch shapes are tested."""
POISON, BYTE = 0x7F7F7F7F, 0x7F
"""What is in outputs before a call, and each of its bytes."""

GUARD = 256
"""Bytes before and behind an output."""

JUDGED_BYTES = 1 << 30
"""Bytes of scores that are judged at a time."""

if HOST:
    from gpu.emulated import on_device
else:

    def on_device(value: Any) -> Any:
        """What the package is given for a tensor, or for a call's arguments: themselves."""
        return value


@dataclass
class Guarded:
    """An output of any dtype inside guard bytes."""

    out: torch.Tensor
    memory: torch.Tensor
    inside: torch.Tensor

    @classmethod
    def make(cls, rows: int, k: int, dtype: torch.dtype = torch.int32, padding: int = 0, guard: int = GUARD) -> Guarded:
        size, pitch = dtype.itemsize, k + padding
        memory = torch.full((2 * guard + rows * pitch * size,), BYTE, dtype=torch.uint8, device=DEVICE)
        body = memory[guard : guard + rows * pitch * size].view(dtype).view(rows, pitch)
        inside = torch.zeros(rows, pitch * size, dtype=torch.bool, device=DEVICE)
        inside[:, : k * size] = True
        edge = torch.zeros(guard, dtype=torch.bool, device=DEVICE)
        return cls(body[:, :k], memory, torch.cat([edge, inside.reshape(-1), edge]))

    def poison(self) -> None:
        self.memory.fill_(BYTE)

    def intact(self) -> bool:
        """Whether nothing outside the slots was written."""
        return bool(((self.memory == BYTE) | self.inside).all())


def dirty_workspace(plan: Plan) -> object:
    """A workspace on memory that was full of garbage."""
    size, slack = max(plan.workspace_bytes, 1), 256 if HOST else 0  # host memory is aligned to less
    dirt = torch.full((size + slack,), 0xAB, dtype=torch.uint8, device=DEVICE)
    return plan.workspace(on_device(dirt[-dirt.data_ptr() % 256 :] if slack else dirt))


def captured(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of a call, which is made once before for its kernels, and what the call in the graph returns."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        return graph, call()


def to_numpy(scores: torch.Tensor) -> np.ndarray:
    """Host copy that the model reads; bfloat16 as uint16 bits."""
    host = scores.contiguous().cpu()
    return host.view(torch.uint16).numpy() if host.dtype == torch.bfloat16 else host.numpy()


def refuted(scores: torch.Tensor, lengths: Any, indices: torch.Tensor, k: Any = None, **call: Any) -> list[str]:
    """What `ksieve.verify` says of an answer that is not exact."""
    verdict = verified(scores, lengths, indices, k=k, block_bytes=JUDGED_BYTES, **call)
    return [] if verdict else [str(verdict)]


def plan_for(variant: Variant, scores: torch.Tensor, k: int, **changes) -> Plan:
    """A variant's plan for a matrix that is there."""
    rows, width = scores.shape
    dtype = str(scores.dtype).removeprefix("torch.")
    pitch = max(scores.stride(0), width)
    return variant.plan(rows, width, k, pitch=pitch, dtype=dtype, **changes)
