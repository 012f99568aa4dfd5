"""The kernels' package: functions of `top_k` under its own name."""

from sgl_kernel.top_k import fast_topk_transform_fused, fast_topk_transform_ragged_fused, fast_topk_v2

__all__ = ["fast_topk_transform_fused", "fast_topk_transform_ragged_fused", "fast_topk_v2"]
