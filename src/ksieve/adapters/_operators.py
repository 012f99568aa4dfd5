"""The operators of the engines that ksieve replaces, as data: where each lies, its signature, and what it writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operator:
    """One function, operator or method of an engine.

    Attributes
    ----------
    owner : str
        ``module:path`` of the object that has it as an attribute.
    attribute : str
    adapter : str
        ``module.function`` of `ksieve.adapters` that takes its place.
    signatures : tuple of str
        Those that the adapter takes, as `ksieve.adapters._signatures.signature_of` writes them.
    writes : tuple of str
        Arguments that the engine's own operator writes to.
    answer : str, int or None
        Where the indices are: an argument, a place in the returned tuple, or the returned tensor itself.
    module : str
        Module whose import brings the operator; default: that of `owner`.
    fill : tuple of str and int, or None
        Argument with the value of unused slots, and its default; None: they hold -1.
    """

    owner: str
    attribute: str
    adapter: str
    signatures: tuple[str, ...]
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

VLLM = (
    Operator(
        "vllm.model_executor.layers.indexer_topk:SparseIndexerTopk",
        "forward",
        "vllm._sparse_indexer_topk",
        ("self, logits, seq_lens, next_n, topk_indices, topk_tokens, max_seq_len",),
        ("topk_indices",),
        "topk_indices",
    ),
    _vllm("top_k_per_row_prefill", f"Tensor logits, Tensor rowStarts, Tensor rowEnds, {_ROWS}", "indices"),
    _vllm("top_k_per_row_decode", f"Tensor logits, int next_n, Tensor seq_lens, {_ROWS}", "indices"),
    _vllm("persistent_topk", _FLAT, "output"),
    _vllm("cooperative_topk", _FLAT, "output"),
    Operator(
        "vllm.model_executor.layers.indexer_topk:",
        "deep_select_topk",
        "vllm.deep_select_topk",
        ("input, topk, end=None, output_idx=None, indices_dtype=torch.int32",),
        ("output_idx",),
    ),
)

_ORDER = "deterministic=False, tie_break=0, dsa_graph_safe=False"
_PAGES_OF = f"input, src_page_table, lengths, k, row_to_batch=None, {_ORDER}, row_starts=None"
_VARLEN = (
    "logits, seq_lens, top_k, pre_idx=None, compress_ratio=1, next_n=1, return_values=False, out_indices=None, "
    "out_values=None, backend='auto', load_balance=True, workspace=None"
)

FLASHINFER = (
    Operator(
        "flashinfer.topk:", "top_k", "flashinfer.top_k", (f"input, k, sorted=False, {_ORDER}",), answer=1
    ),
    Operator(
        "flashinfer.topk:",
        "top_k_page_table_transform",
        "flashinfer.top_k_page_table_transform",
        (f"{_PAGES_OF}, page_table_row_starts=None, *, page_size=1, out=None, out_raw_indices=None", _PAGES_OF),
        ("out", "out_raw_indices"),
    ),
    Operator(
        "flashinfer.topk:",
        "top_k_ragged_transform",
        "flashinfer.top_k_ragged_transform",
        (f"input, offsets, lengths, k, {_ORDER}, row_starts=None",),
    ),
    Operator(
        "flashinfer.topk_varlen.topk_varlen:",
        "top_k_varlen",
        "flashinfer.top_k_varlen",
        (f"{_VARLEN}, row_starts=None, max_seq_len=None, absolute_indices=False", _VARLEN),
        ("out_indices", "out_values"),
        0,
    ),
    Operator(
        "flashinfer.msa_ops.sparse_topk_select:",
        "msa_topk_select",
        "flashinfer.msa_topk_select",
        ("max_score, topk, num_valid_pages=None, output=None, force_begin_blocks=0, force_end_blocks=0",),
        ("output",),
    ),
)  # fmt: skip

_SGLANG_KERNELS = "sglang.kernels.ops.attention"
_DSV4 = f"{_SGLANG_KERNELS}.dsv4.topk"
_PAGES = "scores, seq_lens, page_tables, out_page_indices, page_size"
_RAW = "out_raw_indices=None"
_V1 = "topk_transform_512"
"""Name of `topk_transform_paged`, and with ``_v2`` of the other, until the summer of 2026."""


def _paged(attribute: str, adapter: str, signatures: tuple[str, ...]) -> Operator:
    writes = ("out_page_indices", "out_raw_indices")
    return Operator(f"{_DSV4}:", attribute, f"sglang.{adapter}", signatures, writes, "out_page_indices")


SGLANG = (
    *(
        Operator("sgl_kernel:", name, f"sglang.{name}", (signature,))
        for name, signature in (
            ("fast_topk_v2", "score, lengths, topk, row_starts=None"),
            ("fast_topk_transform_fused", "score, lengths, page_table_size_1, cu_seqlens_q, topk, row_starts=None"),
            ("fast_topk_transform_ragged_fused", "score, lengths, topk_indices_offset, topk, row_starts=None"),
        )
    ),
    Operator(
        f"{_SGLANG_KERNELS}.fast_topk:", "fast_topk", "sglang.fast_topk_v2", ("score, lengths, topk, row_starts=None",)
    ),
    *(_paged(name, "topk_transform_paged", (f"{_PAGES}, {_RAW}",)) for name in ("topk_transform_paged", _V1)),
    *(
        _paged(name, "topk_transform_paged_v2", (f"{_PAGES}, metadata, {_RAW}", f"{_PAGES}, metadata"))
        for name in ("topk_transform_paged_v2", f"{_V1}_v2")
    ),
    Operator(
        f"{_DSV4}:",
        "topk_transform_bf16_small",
        "sglang.topk_transform_bf16_small",
        ("scores, seq_lens, page_table, out_page_indices, page_size",),
        ("out_page_indices",),
        "out_page_indices",
    ),
    Operator(
        f"{_DSV4}:",
        "topk_transform_ragged_v2",
        "sglang.topk_transform_ragged_v2",
        ("scores, seq_lens, *, out_offsets, out_indices, row_starts=None",),
        ("scores", "out_indices"),
        "out_indices",
    ),
    Operator(
        f"{_DSV4}:",
        "topk_transform_kpool_v2",
        "sglang.topk_transform_kpool_v2",
        (
            "scores, pool_lens, out, pool_size, metadata, *, token_seq_lens=None, page_table=None, page_size=1, "
            "out_offsets=None",
        ),
        ("out",),
        "out",
    ),
    Operator(
        f"{_DSV4}:",
        "topk_transform_kpool_ragged_v2",
        "sglang.topk_transform_kpool_ragged_v2",
        (
            "scores, pool_lens, out, pool_size, *, row_starts=None, token_seq_lens=None, page_table=None, "
            "page_table_row_index=None, page_size=1, out_offsets=None",
        ),
        ("scores", "out"),
        "out",
    ),
    Operator(
        f"{_SGLANG_KERNELS}.dsv4.candidate_blocks:",
        "amax_topk_blocks",
        "sglang.amax_topk_blocks",
        ("logits, seq_lens, nblocks, topk_blocks, max_seq_len=None",),
    ),
    Operator(
        f"{_SGLANG_KERNELS}.dsa.kpool_topk_transform:",
        "fast_kpool_topk_transform_fused",
        "sglang.fast_kpool_topk_transform_fused",
        (
            "score, lengths, kpool, topk, page_table=None, topk_indices_offset=None, row_starts=None, seq_lens=None, "
            "page_table_row_index=None",
        ),
    ),
    Operator(
        f"{_SGLANG_KERNELS}.deep_select:",
        "topk_page_transform",
        "sglang.topk_page_transform",
        tuple(
            "input, topk, *, page_table, page_size, end=None, sorted_index=False, output_idx=None, "
            f"idx_oob_fill_value=-1, abort_when_nan_found={default}"
            for default in (False, True)
        ),
        ("output_idx",),
        fill=("idx_oob_fill_value", -1),
    ),
    Operator(
        f"{_SGLANG_KERNELS}.deep_select:",
        "topk",
        "sglang.topk",
        tuple(
            "input, topk, *, sorted=False, begin=None, end=None, indices_type=torch.int32, sorted_index=False, "
            "hint=None, output_idx=None, output_idx_offset=None, idx_oob_fill_value=2147483647, "
            f"value_oob_fill_value=-inf, return_value=False, abort_when_nan_found={default}"
            for default in (False, True)
        ),
        ("output_idx",),
        1,
        fill=("idx_oob_fill_value", 2147483647),
    ),
)

_DECODE = "Tensor logits, Tensor seq_lens, Tensor indices, int next_n, int index_topk"
_HINTED = f"{_DECODE}, Optional[Tensor] pre_idx, Optional[Tensor] heuristic_scratch"

TENSORRT_LLM = tuple(
    Operator("torch:ops.trtllm", name, f"tensorrt_llm.{name}", signatures, ("indices",), "indices", "tensorrt_llm")
    for name, signatures in (
        (
            "indexer_topk_prefill",
            ("Tensor logits, Tensor row_starts, Tensor row_ends, Tensor indices, int index_topk",),
        ),
        (
            "indexer_topk_decode",
            (
                f"{_HINTED}, int compress_ratio, Optional[Tensor] radix_aux_indices, Optional[Tensor] radix_aux_logits",
                _HINTED,
                _DECODE,
            ),
        ),
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
"""The variable that switches ksieve on in an engine, the group of entry points that the engine loads, and the variable
of the engine that names those of them that it loads, separated by commas; without it, all."""
