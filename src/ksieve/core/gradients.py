"""Gradients of the values of a selection, for PyTorch.

The positions are selected without a gradient, and the values are gathered from the scores there by PyTorch's own
operators. So one expression serves eager calls, ``torch.compile`` and ``torch.func``, backward, forward and to any
order: the gradient of a value belongs to the score that was selected, and unused slots have none.

Only calls that need a gradient do so; the others return the values that the kernels write. Importing this module
imports PyTorch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.autograd import forward_ad

from ksieve.core.options import Options


def recorded(tensor: Any) -> bool:
    """Whether operations on a tensor are recorded for a backward pass."""
    return bool(tensor.requires_grad and torch.is_grad_enabled())


def wanted(scores: Any) -> bool:
    """Whether values of these scores carry a gradient: a backward one, or the tangent of forward mode."""
    return recorded(scores) or forward_ad.unpack_dual(scores).tangent is not None


def positions_only(options: Options) -> Options:
    """Options of the call that selects the positions: without values, with raw indices where they differ."""
    return replace(options, values=False, raw=options.raw or options.transform != "none")


def gather(scores: Any, raw: Any, fill: float, starts: Any = None) -> Any:
    """Values at raw indices, as a differentiable function of the scores.

    Parameters
    ----------
    scores : Tensor, shape (..., width)
    raw : Tensor of int32 or int64, shape (..., k)
        As with ``return_raw=True``: -1 in unused slots.
    fill : float
        Value of unused slots, `Options.fill`.
    starts : Tensor of int32, one per row, optional
        Those of the call, if raw indices count from them.

    Returns
    -------
    Tensor of the scores' dtype, shape (..., k)
        The scores, bit for bit.
    """
    width = scores.shape[-1]
    position = raw.long()
    if starts is not None:
        position = position + starts.long().clamp(0, width).reshape(*raw.shape[:-1], 1)
    if width == 0:
        scores = torch.nn.functional.pad(scores, (0, 1))  # an unused slot too is gathered from somewhere
    used = raw >= 0
    found = scores.gather(-1, torch.where(used, position, 0))
    return torch.where(used, found, fill)
