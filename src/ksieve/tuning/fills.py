"""Scores and lengths made on the device in place: a matrix of 34 GB takes a fraction of a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

CHUNK = 1 << 26
"""Scores made at a time: bounds the temporaries to about 1 GB."""

REACH = 0.04
SHARES = (0.57, 0.69)


def blocks(rows: int, width: int, chunk: int = CHUNK) -> Iterator[slice]:
    """Row ranges of at most `chunk` scores, at least one row each."""
    step = max(1, chunk // max(width, 1))
    for begin in range(0, rows, step):
        yield slice(begin, min(begin + step, rows))


def ragged(rows: int, width: int, seed: int = 0) -> Any:
    """Return int32 lengths of a decode batch on the CPU, uniform between 0.8 and 1.0 of the width."""
    import torch

    generator = torch.Generator()
    generator.manual_seed(seed)
    least = -(-4 * width // 5)
    return torch.randint(least, max(width, least) + 1, (rows,), dtype=torch.int32, generator=generator)


def endpoint_structured(matrix: Any, lengths: Any, seed: int = 0) -> None:
    """Fill a matrix with rows whose first and last decile hold 52 to 74 % of the top scores.

    The law of `ksieve_lab.workloads.natural`: ``Exp(1) + log density(position)``, positions relative to each row's
    length.

    `matrix` (torch.Tensor, float, shape (rows, width)): filled in place, past the lengths too. `lengths`: torch.Tensor
    of int32, shape (rows,).
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
    for part in blocks(rows, width):
        x = position / lengths[part, None].clamp(min=1)
        density = torch.exp(x.mul(-1 / REACH)) + torch.exp(x.clamp_(max=1.1).sub_(1).div_(REACH))
        noise = torch.empty_like(x).exponential_(generator=generator)
        matrix[part] = density.mul_(height[part]).log1p_().add_(noise)
