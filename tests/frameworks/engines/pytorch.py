"""PyTorch: ``torch.topk`` and ``Tensor.topk`` become `ksieve.torch.topk`."""

from __future__ import annotations

import importlib.util
import os
import threading
import unittest
from pathlib import Path
from typing import Any

import torch

import ksieve.torch
from frameworks.stand_ins import module, redirect

_INSIDE = threading.local()


def install(folder: Path, device: str) -> None:
    """Replace both functions. Calls from inside ksieve reach PyTorch's own, which serve what ksieve does not select."""
    os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = device
    # PyTorch's TestCase derives from this package's, for expected output in source files, which no test here has.
    if importlib.util.find_spec("expecttest") is None:
        module("expecttest", TestCase=unittest.TestCase, ACCEPT=False)
    own, own_method = torch.topk, torch.Tensor.topk
    ours = redirect("torch.topk", ksieve.torch.topk)

    def replaced(original: Any) -> Any:
        def topk(*args: Any, **kwargs: Any) -> Any:
            if getattr(_INSIDE, "call", False):
                return original(*args, **kwargs)
            _INSIDE.call = True
            try:
                return ours(*args, **kwargs)
            finally:
                _INSIDE.call = False

        return topk

    torch.topk = replaced(own)
    torch.Tensor.topk = replaced(own_method)
