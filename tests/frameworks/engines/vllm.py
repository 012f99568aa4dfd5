"""vLLM: operators of ``torch.ops._C`` and ``torch.ops.deep_select``, under the dispatcher that vLLM's source has."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from frameworks.stand_ins import module, redirect
from ksieve.adapters import flashinfer, sglang, vllm

_CAPABILITY = 100
"""Of the platform, as vLLM counts: so high that tests of DeepSelect run. ksieve has no such limit."""


class _Platform:
    def is_cuda(self) -> bool:
        return True

    def is_rocm(self) -> bool:
        return False

    def has_device_capability(self, number: Any) -> bool:
        return _number(number) <= _CAPABILITY

    def is_device_capability_family(self, number: Any) -> bool:
        return _number(number) // 10 == _CAPABILITY // 10


def _number(capability: Any) -> int:
    return capability[0] * 10 + capability[1] if isinstance(capability, tuple) else capability


class _Config:
    """The one setting that the dispatcher reads."""

    current: _Config

    def __init__(self, kernel_config: dict[str, Any]) -> None:
        self.kernel_config = SimpleNamespace(**kernel_config)


@contextlib.contextmanager
def _set_config(config: _Config) -> Iterator[None]:
    _Config.current = config
    yield


def _seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def _deep_select(
    scores: Any, k: int, begin: Any, end: Any, by_value: bool, by_index: bool, values: Any, indices: Any, offsets: Any,
    index_fill: int, value_fill: float, return_value: bool, abort: bool,
) -> None:  # fmt: skip
    """DeepSelect's operator, whose outputs may have more rows and columns than it writes."""
    assert values is None and not return_value
    sglang.topk(
        scores, k, begin=begin, end=end, sorted=by_value, sorted_index=by_index, indices_type=indices.dtype,
        output_idx=indices[: scores.shape[0], :k], output_idx_offset=offsets, idx_oob_fill_value=index_fill,
        value_oob_fill_value=value_fill, abort_when_nan_found=abort,
    )  # fmt: skip


def install(folder: Path, device: str) -> None:
    """Put stand-ins for what vLLM's tests and its dispatcher import, and ksieve under its operators."""
    module("vllm", path=str(folder / "vllm"))
    module("vllm.model_executor", path=str(folder / "vllm" / "model_executor"))
    module("vllm.model_executor.layers", path=str(folder / "vllm" / "model_executor" / "layers"))
    module("vllm.platforms", current_platform=_Platform())
    module("vllm.utils.torch_utils", set_random_seed=_seed)
    module("vllm.utils.flashinfer", has_flashinfer=lambda: True)
    module(
        "vllm.config", VllmConfig=_Config, set_current_vllm_config=_set_config,
        get_current_vllm_config=lambda: _Config.current,
    )  # fmt: skip
    workspaces = SimpleNamespace(
        get_simultaneous=lambda *specs: [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in specs]
    )
    module("vllm.v1.worker.workspace", current_workspace_manager=lambda: workspaces)
    module("vllm._deepselect_C")
    for name in ("top_k_per_row_prefill", "top_k_per_row_decode", "persistent_topk", "cooperative_topk"):
        setattr(torch.ops._C, name, redirect(f"torch.ops._C.{name}", getattr(vllm, name)))
    module(
        "vllm._custom_ops",
        top_k_per_row_prefill=torch.ops._C.top_k_per_row_prefill,
        top_k_per_row_decode=torch.ops._C.top_k_per_row_decode,
    )
    torch.ops.deep_select.topk = redirect("torch.ops.deep_select.topk", _deep_select)
    torch.ops.deep_select.get_alignment_requirement = lambda: (1024, 32)
    module(
        "flashinfer.topk",
        top_k_ragged_transform=redirect("flashinfer.topk.top_k_ragged_transform", flashinfer.top_k_ragged_transform),
    )


@pytest.fixture
def workspace_init() -> None:
    """vLLM's fixture sets up what `get_simultaneous` allocates from; here it allocates anew."""
