"""FlashInfer's top-k functions under the package's name."""

from . import topk
from .topk import TopKTieBreak, top_k, top_k_page_table_transform, top_k_ragged_transform
from .topk_varlen.topk_varlen import top_k_varlen

__all__ = [
    "TopKTieBreak", "top_k", "top_k_page_table_transform", "top_k_ragged_transform", "top_k_varlen", "topk",
]  # fmt: skip
