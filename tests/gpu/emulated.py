"""Host tensors as the emulated device's: the package takes them for CUDA arrays, and its kernels run on the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from cuda_fakes import FakeArray
from emulator import driver

DRIVER = driver.install(pytest.MonkeyPatch(), os.environ.get("KSIEVE_EMULATED_DEVICE", "h200"))


def on_device(value: Any) -> Any:
    """Tensors as the device's, also those of a call's arguments; anything else as it is."""
    if isinstance(value, Mapping):
        return {name: on_device(each) for name, each in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype != torch.bfloat16:
        return FakeArray(value.numpy())
    array = FakeArray(value.view(torch.int16).numpy().view("V2"))
    array.dtype = "bfloat16"  # which the array interface has no name for
    return array
