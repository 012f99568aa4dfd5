"""What several engines ask of rows: parts of larger buffers, and the lengths of the rows of a request."""

from __future__ import annotations

from typing import Any

import torch

from ksieve.core.errors import ArgumentError


def operands(logits: Any, indices: Any, rows: int, stride0: int, stride1: int, k: int) -> tuple[Any, Any]:
    """Return the rows of the scores and of the output that a call uses. On the hot path: formats no text but errors."""
    if logits.dim() != 2 or (held := logits.shape[0]) < rows:
        raise ArgumentError("logits", f"shape {tuple(logits.shape)}", f"{rows} rows")
    if stride1 != 1:
        raise ArgumentError("stride1", stride1, "1: the logits of a row are contiguous")
    if rows > 1 and stride0 != logits.stride(0):
        raise ArgumentError("stride0", stride0, f"{logits.stride(0)}, that of logits")
    return logits if held == rows else logits[:rows], part(indices, "indices", rows, k)


def part(output: Any, name: str, rows: int, k: int) -> Any:
    """Return the first rows and columns of an output: the tensor itself if it has no others."""
    shape = output.shape
    if len(shape) != 2 or shape[0] < rows:
        raise ArgumentError(name, f"shape {tuple(shape)}", f"{rows} rows")
    if shape[1] < k:
        raise ArgumentError(name, f"{shape[1]} columns", f"at least {k} columns")
    return output if shape == (rows, k) else output[:rows, :k]


def compressed(seq_lens: Any, next_n: int, ratio: int) -> Any:
    """Each row's length in logits, each of which stands for `ratio` tokens; request lengths count tokens."""
    lengths = seq_lens.clamp(min=0)  # negative lengths must not wrap below
    if next_n > 1:
        seen = torch.arange(1 - next_n, 1, dtype=torch.int32, device=seq_lens.device)
        lengths = (lengths[:, None] + seen).reshape(-1)
    return torch.div(lengths, ratio, rounding_mode="floor")
