"""Holds functions of `topk` under its own name."""

from .topk import plan_topk_v2, topk_transform_paged, topk_transform_paged_v2, topk_transform_ragged_v2

__all__ = ["plan_topk_v2", "topk_transform_paged", "topk_transform_paged_v2", "topk_transform_ragged_v2"]
