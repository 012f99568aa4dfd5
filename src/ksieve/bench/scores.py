"""Scores of the GPU benches, made on the device in place: a matrix of 34 GB takes a fraction of a second."""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.errors import ArgumentError

CHUNK = 1 << 26
"""Scores made at a time: bounds the temporaries to about 1 GB."""

REACH = 0.04
SHARES = (0.57, 0.69)


def lengths_of(kind: str, rows: int, width: int, seed: int = 0, device: str = "cuda") -> Any:
    """Valid lengths of a kind of `ksieve.workloads.lengths`; int32."""
    import torch

    from ksieve.workloads.lengths import LENGTHS

    if kind not in LENGTHS:
        raise ArgumentError("lengths", repr(kind), f"one of {', '.join(LENGTHS)}")
    return torch.from_numpy(LENGTHS[kind](rows, width, seed=seed)).to(device)


def endpoint_structured(matrix: Any, lengths: Any, seed: int = 0) -> None:
    """Fill a matrix with rows whose first and last decile hold 52 to 74 % of the top scores.

    The law of `ksieve.workloads.natural`: ``Exp(1) + log density(position)``, positions relative to each row's length.

    Parameters
    ----------
    matrix : torch.Tensor, float, shape (rows, width)
        Filled in place, past the lengths too.
    lengths : torch.Tensor of int32, shape (rows,)
    """
    import torch

    rows, width = matrix.shape
    generator = torch.Generator(device=matrix.device)
    generator.manual_seed(seed)
    grid = (np.arange(4096) + 0.5) / 4096
    bump = np.exp(-grid / REACH) + np.exp((grid - 1) / REACH)
    ends, mean = float(bump[(grid < 0.1) | (grid >= 0.9)].sum()) / grid.size, float(bump.mean())
    target = torch.empty(rows, 1, device=matrix.device).uniform_(*SHARES, generator=generator)
    # density = 1 + height * bump, its share within the two deciles being the target
    height = (target - 0.2) / (ends - target * mean)
    position = torch.arange(width, device=matrix.device, dtype=torch.float32) + 0.5
    step = max(1, CHUNK // max(width, 1))
    for begin in range(0, rows, step):
        part = slice(begin, min(begin + step, rows))
        x = position / lengths[part, None].clamp(min=1)
        density = torch.exp(x.mul(-1 / REACH)) + torch.exp(x.clamp_(max=1.1).sub_(1).div_(REACH))
        noise = torch.empty_like(x).exponential_(generator=generator)
        matrix[part] = density.mul_(height[part]).log1p_().add_(noise)


def end_share(scores: Any, lengths: Any, indices: Any) -> float:
    """Mean share of the selected positions that lie in the first or last decile of their rows."""
    valid = lengths[:, None].float()
    place = (indices.float() + 0.5) / valid
    chosen = indices >= 0
    ends = ((place < 0.1) | (place >= 0.9)) & chosen
    return float(ends.sum() / chosen.sum().clamp(min=1))
