"""Exact Top-K selection over rows whose scores lie on several ranks, with ``torch.distributed``.

Importing this module imports no PyTorch; `topk` and `plan` do.
"""

from ksieve.distributed.fused import prepare
from ksieve.distributed.holding import owned
from ksieve.distributed.layouts import Contiguous, Interleaved
from ksieve.distributed.plans import ShardPlan, plan
from ksieve.distributed.ranks import topk
from ksieve.distributed.schedules import LINKS, Digits, Link, Pairs, Samples, Shape, choose

__all__ = [
    "LINKS",
    "Contiguous",
    "Digits",
    "Interleaved",
    "Link",
    "Pairs",
    "Samples",
    "Shape",
    "ShardPlan",
    "choose",
    "owned",
    "plan",
    "prepare",
    "topk",
]
