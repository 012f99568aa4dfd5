"""Scores of the GPU benches, made on the device in place: a matrix of 34 GB takes a fraction of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ksieve.core.errors import ArgumentError
from ksieve.core.paths import unreadable

Fill = Callable[[Any, Any, int], None]
"""``fill(matrix, lengths, seed)`` writes scores into a matrix on its device, past the lengths too."""

CHUNK = 1 << 26
"""Scores made at a time: bounds the temporaries to about 1 GB."""

REACH = 0.04
SHARES = (0.57, 0.69)


def lengths_of(kind: str, rows: int, width: int, seed: int = 0, device: Any = "cuda") -> Any:
    """Valid lengths of a kind of `ksieve.lab.workloads.lengths`, or a number that all rows have; int32."""
    import torch

    from ksieve.lab.workloads.lengths import LENGTHS

    if kind.isdecimal():
        return torch.full((rows,), min(int(kind), width), dtype=torch.int32, device=device)
    check_lengths(kind)
    return torch.from_numpy(LENGTHS[kind](rows, width, seed=seed)).to(device)


def check_lengths(kind: str) -> None:
    """Refuse lengths that `lengths_of` does not make."""
    from ksieve.lab.workloads.lengths import LENGTHS

    if not kind.isdecimal() and kind not in LENGTHS:
        raise ArgumentError("lengths", repr(kind), f"one of {', '.join(LENGTHS)}, or a number")


def lengths_text(kind: str) -> str:
    """The same in words."""
    return f"lengths of {int(kind):,}" if kind.isdecimal() else f"{kind} lengths"


def source_of(text: str) -> Fill:
    """Where scores come from, by name.

    Parameters
    ----------
    text : str
        "endpoint", "normal", or "factors:PATH" with a capture that holds an indexer's factors.

    Raises
    ------
    ArgumentError
        If it is none of them.
    FileFormatError
        If the file holds no factors.
    """
    check_source(text)
    if text == "endpoint":
        return endpoint_structured
    return normal if text == "normal" else Factors(text.partition(":")[2]).fill


def check_source(text: str) -> None:
    """Refuse scores that `source_of` does not make, before a file is opened."""
    kind, _, path = text.partition(":")
    if text not in ("endpoint", "normal") and not (kind == "factors" and path):
        raise ArgumentError("scores", repr(text), "endpoint, normal or factors:PATH")
    if path and (fault := unreadable(Path(path))):
        raise ArgumentError("scores", f"{text!r} ({fault})", "factors:PATH of a capture")


def blocks(rows: int, width: int, chunk: int = CHUNK) -> Iterator[slice]:
    """Row ranges of at most `chunk` scores, at least one row each."""
    step = max(1, chunk // max(width, 1))
    for begin in range(0, rows, step):
        yield slice(begin, min(begin + step, rows))


def normal(matrix: Any, lengths: Any, seed: int = 0) -> None:
    """Fill a matrix with independent standard normal scores."""
    import torch

    generator = torch.Generator(device=matrix.device)
    generator.manual_seed(seed)
    for part in blocks(*matrix.shape):
        shape = matrix[part].shape
        matrix[part] = torch.randn(shape, device=matrix.device, generator=generator)


class Factors:
    """Scores computed from an indexer's stored factors: ``key_scale * sum_j w_j * max(0, q_j . key)``.

    A row of the matrix is a query of the file, against its last keys. What the file is too small for is made of the
    same factors: further rows pair a query with another one's weights, and columns past the last key start over at the
    first one with another query, so that no score comes twice in a row.
    """

    TERMS = 1 << 28
    """Products per matrix product: bounds the temporaries to about 1 GB."""

    def __init__(self, path: str | Path) -> None:
        from safetensors.torch import load_file

        from ksieve.captures.format import open_capture
        from ksieve.core.errors import FileFormatError

        with open_capture(path) as capture:
            if capture.kind != "factors":
                raise FileFormatError(f"{path}: holds scores, not an indexer's factors")
        tensors = load_file(path)
        self._q, self._w = tensors["q"].float(), tensors["w"].float()
        self._keys = tensors["k"].float()
        self._scale = tensors["k_scale"].float() if "k_scale" in tensors else self._keys.new_ones(len(self._keys))

    def fill(self, matrix: Any, lengths: Any, seed: int = 0) -> None:
        """Fill a matrix; another seed starts at another query."""
        import torch

        rows, width = matrix.shape
        device = matrix.device
        self._q, self._w, self._keys, self._scale = (t.to(device) for t in (self._q, self._w, self._keys, self._scale))
        (queries, heads, _), count = self._q.shape, len(self._keys)
        row = torch.arange(rows, device=device)
        # The file's last queries, for few rows: those that see the most keys.
        query = (queries - min(rows, queries) + row + seed * rows) % queries
        for tile, first in enumerate(range(0, width, count)):
            columns = slice(first, min(first + count, width))
            size = columns.stop - first
            last = slice(count - size, count)
            asked = (query + 257 * tile) % queries
            weight = self._w[(asked + 131 * (row // queries)) % queries]
            for part in blocks(rows, size * heads, self.TERMS):
                dots = self._q[asked[part]].flatten(0, 1) @ self._keys[last].T
                dots = dots.view(-1, heads, size).relu_().mul_(weight[part, :, None])
                matrix[part, columns] = dots.sum(1).mul_(self._scale[last])


def endpoint_structured(matrix: Any, lengths: Any, seed: int = 0) -> None:
    """Fill a matrix with rows whose first and last decile hold 52 to 74 % of the top scores.

    The law of `ksieve.lab.workloads.natural`: ``Exp(1) + log density(position)``, positions relative to each row's
    length.

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
    for part in blocks(rows, width):
        x = position / lengths[part, None].clamp(min=1)
        density = torch.exp(x.mul(-1 / REACH)) + torch.exp(x.clamp_(max=1.1).sub_(1).div_(REACH))
        noise = torch.empty_like(x).exponential_(generator=generator)
        matrix[part] = density.mul_(height[part]).log1p_().add_(noise)


def in_blocks(block: int) -> Fill:
    """Return a source whose rows are `endpoint_structured`, with a number added that the scores of a block share."""

    def fill(matrix: Any, lengths: Any, seed: int = 0) -> None:
        import torch

        endpoint_structured(matrix, lengths, seed)
        generator = torch.Generator(device=matrix.device)
        generator.manual_seed(seed + (1 << 32))
        rows, width = matrix.shape
        for part in blocks(rows, width):
            shape = (len(range(*part.indices(rows))), -(-width // block))
            height = torch.randn(shape, device=matrix.device, generator=generator)
            matrix[part] += height.repeat_interleave(block, 1)[:, :width]

    return fill
