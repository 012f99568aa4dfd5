"""Scores and lengths of the GPU suite: all value families stacked into one matrix, so that a launch meets them all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch

import cases
from ksieve_lab.workloads.producers import PRODUCERS

NAMES = [*(f"case:{name}" for name in cases.FAMILIES), *(f"producer:{name}" for name in PRODUCERS)]
"""Value families, one or more rows of each in every matrix, in this order."""

ITEM = {"float32": torch.int32, "float16": torch.int16, "bfloat16": torch.int16}
INFINITY = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}


@lru_cache(maxsize=24)
def stack(width: int, k: int, reps: int = 1, seed: int = 0) -> np.ndarray:
    """`reps` rows of every value family; float32 of shape (len(NAMES) * reps, width)."""
    out = np.empty((len(NAMES) * reps, width), np.float32)

    def fill(number: int) -> None:
        kind, _, name = NAMES[number].partition(":")
        first = number * reps
        part = out[first : first + reps].view(np.uint32)  # as integers: a float copy may quieten a NaN
        if kind == "case":
            part[...] = cases.scores_of(name, reps, width, k, seed=seed).view(np.uint32)
        else:
            part[...] = PRODUCERS[name](reps, width, seed=seed, first_row=first, k=k).view(np.uint32)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fill, range(len(NAMES))))
    return out


def narrow(scores: np.ndarray, dtype: str) -> np.ndarray:
    """Scores of a dtype as its bit patterns: int32 or int16."""
    if dtype == "float32":
        return scores.view(np.int32)
    if dtype == "float16":
        with np.errstate(over="ignore", invalid="ignore"):
            return scores.astype(np.float16).view(np.int16)
    return (scores.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.int16)


def place(
    bits: np.ndarray | torch.Tensor, dtype: str, device: str, *, offset: int = 0, padding: int = 0
) -> torch.Tensor:
    """Put a matrix of bit patterns on a device with a base `offset` and row `padding` in elements.

    Everything around the scores is +inf: a kernel that reads past a row selects it.
    """
    rows, width = bits.shape
    pitch = width + padding
    source = torch.from_numpy(bits) if isinstance(bits, np.ndarray) else bits
    buffer = torch.full((offset + rows * pitch + 16,), INFINITY[dtype], dtype=ITEM[dtype], device=device)
    target = buffer.as_strided((rows, width), (pitch, 1), offset)
    target.copy_(source)
    return target.view(getattr(torch, dtype))


def lengths_for(rows: int, width: int, k: int, seed: int = 0) -> np.ndarray:
    """Every kind of length in turn: full, ragged, most of the row, around the limits; int32."""
    rng = np.random.default_rng(rows * 7919 + width * 31 + k + seed)
    edges = [k, width + 1, -1, k + 1, 0, k - 1, 2**31 - 1, -(2**31), width - 1, 1, 4 * k, width // 2]
    kinds = np.stack(
        [
            np.full(rows, width),
            rng.integers(0, width + 1, rows),
            rng.integers(width * 4 // 5, width + 1, rows),
            np.resize(np.array(edges, dtype=np.int64), rows),
            np.full(rows, width - 3),
        ]
    )
    chosen = kinds[(np.arange(rows) + seed) % len(kinds), np.arange(rows)]
    return np.clip(chosen, -(2**31), 2**31 - 1).astype(np.int32)


_held: dict[tuple[object, ...], torch.Tensor] = {}


def on_device(width: int, k: int, reps: int, dtype: str, device: str) -> torch.Tensor:
    """Bit patterns of `stack` on the device, made once: the suite's distinct matrices take a few gigabytes."""
    key = (width, k, reps, dtype, device)
    if key not in _held:
        _held[key] = torch.from_numpy(narrow(stack(width, k, reps), dtype)).to(device)
    return _held[key]
