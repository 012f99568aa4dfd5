"""The CPU in place of a CUDA device, for tests that name "cuda" whatever they run on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

PROPERTIES = SimpleNamespace(
    name="CPU", multi_processor_count=132, shared_memory_per_block_optin=232_448,
    shared_memory_per_multiprocessor=233_472, major=9, minor=0,
)  # fmt: skip
"""An H100's, since tests choose shapes by them."""


def _on_cpu(value: Any) -> Any:
    if isinstance(value, str) and value.split(":")[0] == "cuda":
        return "cpu"
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


class _CpuForCuda(TorchFunctionMode):
    """Every function of PyTorch gets the CPU where it is given a CUDA device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0].clone()
        return func(*map(_on_cpu, args), **{name: _on_cpu(value) for name, value in (kwargs or {}).items()})


class _Stream:
    """A stream that orders nothing: on the CPU calls return when they are done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, _: Any) -> None:
        pass


def _no_graph(*_: Any, **__: Any) -> Any:
    pytest.skip("CUDA graphs need a CUDA device")


def use_cpu() -> None:
    """Let PyTorch in this process take the CPU for a CUDA device."""
    _CpuForCuda().__enter__()
    default = torch.set_default_device

    class Generator(torch.Generator):
        def __new__(cls, device: Any = "cpu") -> Generator:
            return super().__new__(cls, _on_cpu(device))

    def nothing(*_: Any, **__: Any) -> None:
        pass

    torch.set_default_device = lambda device: default(_on_cpu(device))
    torch.Generator = Generator
    torch.accelerator.synchronize = nothing
    in_place = {
        "is_available": lambda: True, "manual_seed": nothing, "synchronize": nothing, "empty_cache": nothing,
        "Stream": _Stream, "stream": lambda stream: stream, "current_stream": _Stream, "set_stream": nothing,
        "CUDAGraph": _no_graph, "graph": _no_graph, "current_device": lambda: 0,
        "mem_get_info": lambda *_: (1 << 30, 1 << 30), "get_device_properties": lambda *_: PROPERTIES,
        "get_device_capability": lambda *_: (PROPERTIES.major, PROPERTIES.minor),
    }  # fmt: skip
    for name, value in in_place.items():
        setattr(torch.cuda, name, value)
