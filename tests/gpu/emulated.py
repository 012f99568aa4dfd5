"""Host tensors as the emulated device's: the package takes them for CUDA arrays, and its kernels run on the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from emulator import driver

TYPES = {torch.bfloat16: "|V2", torch.float16: "<f2", torch.float32: "<f4", torch.int32: "<i4", torch.int64: "<i8",
         torch.uint8: "|u1"}  # fmt: skip

DRIVER = driver.install(pytest.MonkeyPatch(), os.environ.get("KSIEVE_EMULATED_DEVICE", "h200"))


class OnDevice:
    """A host tensor behind the CUDA array interface."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.dtype = str(tensor.dtype).removeprefix("torch.")
        self.shape = tuple(tensor.shape)
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "strides": tuple(step * tensor.itemsize for step in tensor.stride()),
            "typestr": TYPES[tensor.dtype],
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }

    def __dlpack__(self, **_: Any) -> object:
        raise AssertionError("the array interface suffices")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def on_device(value: Any) -> Any:
    """Tensors as the device's, also those of a call's arguments; anything else as it is."""
    if isinstance(value, Mapping):
        return {name: on_device(each) for name, each in value.items()}
    return OnDevice(value) if isinstance(value, torch.Tensor) else value
