"""Scores of the GPU benches by name, and lengths by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ksieve.core.errors import ArgumentError
from ksieve.core.paths import unreadable
from ksieve.tuning.tasks import blocks, endpoint_structured

Fill = Callable[[Any, Any, int], None]
"""``fill(matrix, lengths, seed)`` writes scores into a matrix on its device, past the lengths too."""


def lengths_of(kind: str, rows: int, width: int, seed: int = 0, device: Any = "cuda") -> Any:
    """Valid lengths of a kind of `ksieve_lab.workloads.lengths`, or a number that all rows have; int32."""
    import torch

    from ksieve_lab.workloads.lengths import LENGTHS

    if kind.isdecimal():
        return torch.full((rows,), min(int(kind), width), dtype=torch.int32, device=device)
    check_lengths(kind)
    return torch.from_numpy(LENGTHS[kind](rows, width, seed=seed)).to(device)


def check_lengths(kind: str) -> None:
    """Refuse lengths that `lengths_of` does not make."""
    from ksieve_lab.workloads.lengths import LENGTHS

    if not kind.isdecimal() and kind not in LENGTHS:
        raise ArgumentError("lengths", repr(kind), f"one of {', '.join(LENGTHS)}, or a number")


def normal(matrix: Any, lengths: Any, seed: int = 0) -> None:
    """Fill a matrix with independent standard normal scores."""
    import torch

    generator = torch.Generator(device=matrix.device)
    generator.manual_seed(seed)
    for part in blocks(*matrix.shape):
        shape = matrix[part].shape
        matrix[part] = torch.randn(shape, device=matrix.device, generator=generator)


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


def source_of(text: str) -> Fill:
    """Where scores come from: "endpoint", "normal", or "factors:PATH" with a capture that holds an indexer's factors.

    Raises `ArgumentError` if the text is none of them, and `FileFormatError` if the file holds no factors.
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


class Factors:
    """Scores computed from an indexer's stored factors: ``key_scale * sum_j w_j * max(0, q_j . key)``.

    A row of the matrix is a query of the file, against its last keys. What the file is too small for is made of the
    same factors. Further rows pair a query with another one's weights. Columns past the last key start over at the
    first one with another query, so no score comes twice in a row.
    """

    TERMS = 1 << 28
    """Products per matrix product: bounds the temporaries to about 1 GB."""

    def __init__(self, path: str | Path) -> None:
        from safetensors.torch import load_file

        from ksieve.core.errors import FileFormatError
        from ksieve_lab.captures.format import Capture

        with Capture(path) as capture:
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
        # The file's last queries, for few rows: they see the most keys.
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
