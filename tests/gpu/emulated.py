"""Host tensors as the emulated device's: the package takes them for CUDA arrays, and its kernels run on the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from cuda_fakes import FakeArray
from emulator import driver
from ksieve.core.arrays import as_numpy

DRIVER = driver.install(pytest.MonkeyPatch(), os.environ.get("KSIEVE_EMULATED_DEVICE", "h200"))


def on_device(value: Any) -> Any:
    """Tensors as the device's, also those of a call's arguments; anything else as it is."""
    if isinstance(value, Mapping):
        return {name: on_device(each) for name, each in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    host, name = as_numpy(value), str(value.dtype).removeprefix("torch.")
    if host.dtype.name == name:
        return FakeArray(host)
    array = FakeArray(host.view(f"V{host.itemsize}"))
    array.dtype = name  # which the array interface has no name for
    return array
