"""SGLang: the indexer's functions of ``sgl_kernel``, and those of its kernels for paged and ragged caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frameworks.stand_ins import module, redirect
from ksieve.adapters import sglang

_WHEEL = ("fast_topk_v2", "fast_topk_transform_fused", "fast_topk_transform_ragged_fused")
_KERNELS = ("plan_topk_v2", "topk_transform_paged_v2", "topk_transform_ragged_v2")


def _nothing(*_: Any, **__: Any) -> None:
    """Tests register themselves for SGLang's continuous integration."""


def install(folder: Path, device: str) -> None:
    """Put packages ``sgl_kernel`` and ``sglang`` that have ksieve's functions alone."""
    module("sgl_kernel", **{name: redirect(f"sgl_kernel.{name}", getattr(sglang, name)) for name in _WHEEL})
    kernels = {name: redirect(f"sglang.{name}", getattr(sglang, name)) for name in _KERNELS}
    # Its name until the summer of 2026; the arguments are the same.
    kernels["topk_transform_512_v2"] = kernels["topk_transform_paged_v2"]
    # The catalog leaves out the tests of the cooperative kernel, whose module they are imported with.
    cooperative = {"_COOP_TOPK_MIN_FLOOR": 65_536, "_coop_topk_floor": None, "_coop_topk_workspace": None}
    module("sglang.kernels.ops.attention.dsv4.topk", **kernels, **cooperative)
    module("sglang.kernels.jit.utils", is_hip_runtime=lambda: False)
    module("sglang.srt.environ", envs=None)
    module("sglang.test.ci.ci_register", register_cuda_ci=_nothing, register_amd_ci=_nothing)
