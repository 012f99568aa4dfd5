"""The operators of the engines that ksieve replaces, as data: where each lies, its signature, and what it writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Operator:
    """One function, operator or method of an engine: an `attribute` of an object.

    `owner`: ``module:path`` of that object. `adapter`: ``module.function`` of `ksieve.adapters` that takes its place.
    `schemas`: of an operator of PyTorch, those that the adapter takes, as `ksieve.adapters._signatures.signature_of`
    writes them. Other functions have the adapter's own signature, or its first arguments. `writes`: arguments that the
    engine's own operator writes to. `answer`: where the indices are: an argument, a place in the returned tuple, or
    None for the returned tensor itself. `module`: whose import brings the operator; default: that of `owner`. `fill`:
    argument with the value of unused slots, and its default; None: they hold -1.
    """

    owner: str
    attribute: str
    adapter: str
    schemas: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    answer: str | int | None = None
    module: str = ""
    fill: tuple[str, int] | None = None

    @property
    def name(self) -> str:
        """Its full name, by which it is logged and counted."""
        return f"{self.owner.rstrip(':').replace(':', '.')}.{self.attribute}"

    @property
    def source(self) -> str:
        """The module whose import brings it."""
        return self.module or self.owner.partition(":")[0]


def _vllm(attribute: str, signature: str, output: str) -> Operator:
    return Operator(
        "torch:ops._C", attribute, f"vllm.{attribute}", (signature,), (output,), output, module="vllm._custom_ops"
    )


_ROWS = "Tensor indices, int numRows, int stride0, int stride1, int topK"
_FLAT = "Tensor logits, Tensor lengths, Tensor output, Tensor workspace, int k, int max_seq_len"
_INDEXER = "vllm.model_executor.layers.indexer_topk:"

VLLM = (
    Operator(
        f"{_INDEXER}SparseIndexerTopk", "forward", "vllm._sparse_indexer_topk", writes=("topk_indices",),
        answer="topk_indices",
    ),
    _vllm("top_k_per_row_prefill", f"Tensor logits, Tensor rowStarts, Tensor rowEnds, {_ROWS}", "indices"),
    _vllm("top_k_per_row_decode", f"Tensor logits, int next_n, Tensor seq_lens, {_ROWS}", "indices"),
    _vllm("persistent_topk", _FLAT, "output"),
    _vllm("cooperative_topk", _FLAT, "output"),
    Operator(_INDEXER, "deep_select_topk", "vllm.deep_select_topk", writes=("output_idx",)),
)  # fmt: skip


def _flashinfer(module: str, attribute: str, **more: Any) -> Operator:
    return Operator(f"flashinfer.{module}:", attribute, f"flashinfer.{attribute}", **more)


FLASHINFER = (
    _flashinfer("topk", "top_k", answer=1),
    _flashinfer("topk", "top_k_page_table_transform", writes=("out", "out_raw_indices")),
    _flashinfer("topk", "top_k_ragged_transform"),
    _flashinfer("topk_varlen.topk_varlen", "top_k_varlen", writes=("out_indices", "out_values"), answer=0),
    _flashinfer("msa_ops.sparse_topk_select", "msa_topk_select", writes=("output",)),
)


def _sglang(module: str, attribute: str, adapter: str = "", **more: Any) -> Operator:
    owner = f"sglang.kernels.ops.attention.{module}:"
    return Operator(owner, attribute, f"sglang.{adapter or attribute}", **more)


_PAGED: dict[str, Any] = {"writes": ("out_page_indices", "out_raw_indices"), "answer": "out_page_indices"}
_V1 = "topk_transform_512"
"""Name of `topk_transform_paged`, and with ``_v2`` of the other, until the summer of 2026."""

SGLANG = (
    *(
        Operator("sgl_kernel:", name, f"sglang.{name}")
        for name in ("fast_topk_v2", "fast_topk_transform_fused", "fast_topk_transform_ragged_fused")
    ),
    _sglang("fast_topk", "fast_topk", "fast_topk_v2"),
    *(_sglang("dsv4.topk", name, "topk_transform_paged", **_PAGED) for name in ("topk_transform_paged", _V1)),
    *(
        _sglang("dsv4.topk", name, "topk_transform_paged_v2", **_PAGED)
        for name in ("topk_transform_paged_v2", f"{_V1}_v2")
    ),
    _sglang("dsv4.topk", "topk_transform_bf16_small", writes=("out_page_indices",), answer="out_page_indices"),
    _sglang("dsv4.topk", "topk_transform_ragged_v2", writes=("scores", "out_indices"), answer="out_indices"),
    _sglang("dsv4.topk", "topk_transform_kpool_v2", writes=("out",), answer="out"),
    _sglang("dsv4.topk", "topk_transform_kpool_ragged_v2", writes=("scores", "out"), answer="out"),
    _sglang("dsv4.candidate_blocks", "amax_topk_blocks"),
    _sglang("dsa.kpool_topk_transform", "fast_kpool_topk_transform_fused"),
    _sglang("deep_select", "topk_page_transform", writes=("output_idx",), fill=("idx_oob_fill_value", -1)),
    _sglang("deep_select", "topk", writes=("output_idx",), answer=1, fill=("idx_oob_fill_value", 2147483647)),
)

_PREFILL = "Tensor logits, Tensor row_starts, Tensor row_ends, Tensor indices, int index_topk"
_DECODE = "Tensor logits, Tensor seq_lens, Tensor indices, int next_n, int index_topk"
_HINTED = f"{_DECODE}, Optional[Tensor] pre_idx, Optional[Tensor] heuristic_scratch"
_COMPRESSED = "int compress_ratio, Optional[Tensor] radix_aux_indices, Optional[Tensor] radix_aux_logits"

TENSORRT_LLM = tuple(
    Operator("torch:ops.trtllm", name, f"tensorrt_llm.{name}", signatures, ("indices",), "indices", "tensorrt_llm")
    for name, signatures in (
        ("indexer_topk_prefill", (_PREFILL,)),
        ("indexer_topk_decode", (f"{_HINTED}, {_COMPRESSED}", _HINTED, _DECODE)),
    )
)

OPERATORS: dict[str, tuple[Operator, ...]] = {
    "vllm": VLLM + FLASHINFER,
    "sglang": SGLANG + FLASHINFER,
    "flashinfer": FLASHINFER,
    "tensorrt_llm": TENSORRT_LLM,
}
"""The operators that each engine calls. SGLang's ``plan_topk_v2`` stays: kernels that are not here read its plan."""

HOMES = {
    "vllm": ("vllm",),
    "sglang": ("sglang", "sgl_kernel"),
    "flashinfer": ("flashinfer",),
    "tensorrt_llm": ("tensorrt_llm",),
}
"""Top-level packages of each engine. Any of their modules may hold a replaced function under another name."""

DISTRIBUTIONS = {
    "vllm": ("vllm", "flashinfer-python"),
    "sglang": ("sglang", "sglang-kernel", "flashinfer-python"),
    "flashinfer": ("flashinfer-python",),
    "tensorrt_llm": ("tensorrt-llm",),
}
"""Distributions whose versions are named where the signatures of an engine are."""

SWITCHES = {
    "vllm": ("KSIEVE_VLLM", "vllm.general_plugins", "VLLM_PLUGINS"),
    "sglang": ("KSIEVE_SGLANG", "sglang.srt.plugins", "SGLANG_PLUGINS"),
}
"""How an engine is switched: ksieve's variable, the engine's group of entry points, and its variable that names the
ones to load. Without the last it loads all."""
