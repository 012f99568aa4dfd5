"""FlashInfer: its top-k functions, and the little of its utilities that the tests of results read."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import torch

from frameworks.stand_ins import module, redirect
from ksieve.adapters import flashinfer

_NAMES = ("top_k", "topk", "top_k_page_table_transform", "top_k_ragged_transform", "top_k_varlen")

_CAPABILITY = (10, 0)
"""The one that FlashInfer's tests want for some of its backends; ksieve's functions have no such limit."""


class TopKTieBreak(enum.IntEnum):
    """FlashInfer's numbers."""

    NONE = 0
    SMALL = 1
    LARGE = 2


def _clusters(
    logits: Any, top_k: int, output_values: bool = False, out_dtype: Any = torch.int32, pdl: bool = False
) -> tuple[Any, Any]:
    """FlashInfer's function of one backend, by the public one that calls it."""
    values, indices = flashinfer.top_k(logits, top_k)
    return indices.to(out_dtype), values if output_values else None


def _clusters_page_table(logits: Any, seq_lens: Any, src_page_table: Any, top_k: int, pdl: bool = False) -> Any:
    return flashinfer.top_k_page_table_transform(logits, src_page_table, seq_lens, top_k)


def _clusters_ragged(logits: Any, seq_lens: Any, offsets: Any, top_k: int, pdl: bool = False) -> Any:
    return flashinfer.top_k_ragged_transform(logits, offsets, seq_lens, top_k)


def install(folder: Path, device: str) -> None:
    """Put a package ``flashinfer`` that has ksieve's functions alone."""
    functions: dict[str, Any] = {name: redirect(f"flashinfer.{name}", getattr(flashinfer, name)) for name in _NAMES}
    functions["top_k_varlen"].is_backend_supported = lambda *_: True
    clusters = {
        "topk_clusters_exact": _clusters,
        "topk_clusters_page_table_transform": _clusters_page_table,
        "topk_clusters_ragged_transform": _clusters_ragged,
    }
    counted = {name: redirect(f"flashinfer.topk.{name}", function) for name, function in clusters.items()}
    module("flashinfer", TopKTieBreak=TopKTieBreak, **functions)
    module("flashinfer.topk", can_implement_filtered_topk=lambda: True, **functions, **counted)
    module(
        "flashinfer.utils", get_compute_capability=lambda _: _CAPABILITY, _cache_buf={},
        get_device_sm_count=lambda _: 132, get_shared_bytes_per_block_optin=lambda _: 232_448,
        is_sm12x_supported=lambda _: True,
    )  # fmt: skip
    msa = redirect("flashinfer.msa_ops.msa_topk_select", flashinfer.msa_topk_select)
    module("flashinfer.msa_ops", msa_topk_select=msa)
    module("flashinfer.cute_dsl.utils", is_cute_dsl_available=lambda: True)
    module("flashinfer.topk_varlen.kernels.config", GvrTopKLBConfig=None)
    # Tests assert of shapes they have chosen that FlashInfer splits the rows over CTAs.
    module("flashinfer.topk_varlen.topk_varlen", _radix_get_chunk_config=lambda *_: (2, 0))
