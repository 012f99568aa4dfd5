"""Producers of indexer scores on a GPU, by name, and fp8 factors to feed them.

All of them compute, for query t and key s that it sees,

    score[t, s] = key_scale[s] * sum over heads h of weight[t, h] * max(0, q[t, h, :] . k[s, :])

with q and k in fp8 (e4m3). `ksieve_lab.captures.factors` states the same formula in float64. Tensor cores add in an
order and a width of their own, so scores agree closely, not bit for bit. A selection is exact for the scores that were
produced.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ksieve.core.errors import BackendError

HEADS, DIM = 64, 128
"""The DeepSeek lightning indexer's: 64 heads of 128 dimensions, one key per token."""

REACH = 0.04
"""Extent of the pull towards both ends of the context, in context lengths, as in `ksieve_lab.bench.scores`."""

PULL = 0.25
LEAN = 0.1
"""How much of a common direction the keys at the very ends and the queries hold, in units of their own spread. The
first and last decile of long rows then have 53 to 74 % of their best 0.8 %, as in published captures."""


@dataclass(frozen=True)
class Factors:
    """Factors of an indexer's scores; torch tensors on one device.

    `q`: float8_e4m3fn of shape (queries, heads, dim). `keys`: float8_e4m3fn of shape (keys, dim). `key_scale`: float32
    of shape (keys,). `weights`: float32 of shape (queries, heads). `lengths`: int32, how many keys each query sees.
    """

    q: Any
    keys: Any
    key_scale: Any
    weights: Any
    lengths: Any

    @property
    def operations(self) -> int:
        """Multiplications and additions of the dot products over the scores seen; reads the lengths back."""
        seen = int(self.lengths.long().clamp(0, self.keys.shape[0]).sum())
        return 2 * seen * int(self.q.shape[1] * self.q.shape[2])


Produce = Callable[[Factors, Any, bool], Any]
"""``produce(factors, buffer, masked) -> scores``: enqueues on the current stream; scores may be the buffer or not.
`masked` asks for -inf past every length."""


def installed(name: str) -> bool:
    """Whether the package of a producer can be imported; it has the producer's name."""
    return importlib.util.find_spec(name) is not None


def _triton() -> Produce:
    from ksieve_lab.chain.mqa_logits import mqa_logits

    def produce(f: Factors, buffer: Any, masked: bool) -> Any:
        return mqa_logits(f.q, f.keys, f.weights, f.lengths, key_scale=f.key_scale, out=buffer, masked=masked)

    return produce


def load_keep() -> Callable[[Factors, Any], None]:
    """Load the Triton producer, which keeps candidates (`ksieve.running.Candidates`) in place of writing a matrix."""
    if not installed("triton"):
        raise BackendError("the producer that keeps candidates needs the package triton, which is missing")
    from ksieve_lab.chain.mqa_logits import KEPT_TILE, mqa_candidates

    return lambda f, into: mqa_candidates(
        f.q, f.keys, f.weights, f.lengths, into, key_scale=f.key_scale, tile=KEPT_TILE
    )  # fmt: skip


def load_layer() -> tuple[Callable[[Factors, Any, bool], None], Callable[[Any, Any, Any, bool], None]]:
    """Load a decode layer's ``produce(factors, scores, overlap)`` and ``gather(cache, positions, out, overlap)``."""
    if not installed("triton"):
        raise BackendError("the kernels around a selection need the package triton, which is missing")
    from ksieve_lab.chain.gather import gather
    from ksieve_lab.chain.mqa_logits import Tile, mqa_logits

    def produce(f: Factors, scores: Any, overlap: bool) -> None:
        # About 512 programs, which fit an H100 at once, so that few queries fill it too.
        tile = Tile(stretch=max(256, len(f.q) * len(f.keys) // 1024 // 64 * 64))
        mqa_logits(f.q, f.keys, f.weights, f.lengths, key_scale=f.key_scale, out=scores, tile=tile, overlap=overlap)

    return produce, gather


def _deep_gemm() -> Produce:
    import deep_gemm  # type: ignore[import-not-found, unused-ignore]
    import torch

    def produce(f: Factors, buffer: Any, masked: bool) -> Any:
        start = torch.zeros_like(f.lengths)
        return deep_gemm.fp8_mqa_logits(
            f.q, (f.keys, f.key_scale), f.weights, start, f.lengths, clean_logits=masked
        )  # fmt: skip

    return produce


def load(name: str) -> Produce:
    """Load the producer "triton" or "deep_gemm"; raises `BackendError` where its package is missing."""
    if not installed(name):
        raise BackendError(f"the score producer needs the package {name}, which is missing")
    return {"triton": _triton, "deep_gemm": _deep_gemm}[name]()


def make_keys(count: int, dim: int = DIM, *, seed: int = 0, device: str = "cuda") -> tuple[Any, Any]:
    """Make fp8 keys (count, dim) whose ends lean towards the queries' common direction, and their float32 scales."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    x = (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / max(count, 1)
    pull = torch.exp(-x / REACH) + torch.exp((x - 1) / REACH)
    values = torch.randn(count, dim, device=device, generator=generator)
    values += PULL * pull[:, None] * _direction(dim, device)
    # Quantised per key as an indexer does: its largest magnitude becomes e4m3's largest, 448.
    scale = values.abs().amax(dim=1).clamp(min=1e-4) / 448
    return (values / scale[:, None]).to(torch.float8_e4m3fn), scale


def make_queries(
    keys: tuple[Any, Any], lengths: Any, heads: int = HEADS, *, seed: int = 0, device: str = "cuda"
) -> Factors:
    """Make queries with head weights for the keys and scales of `make_keys`; `lengths`: int32, a query each."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(seed + 1)
    count, dim = len(lengths), int(keys[0].shape[1])
    q = torch.empty(count, heads, dim, dtype=torch.float8_e4m3fn, device=device)
    step = max(1, (1 << 26) // (heads * dim))
    for begin in range(0, count, step):
        part = torch.randn(min(step, count - begin), heads, dim, device=device, generator=generator)
        q[begin : begin + step] = part.add_(LEAN * _direction(dim, device)).to(torch.float8_e4m3fn)
    weights = torch.rand(count, heads, device=device, generator=generator) / heads
    seen = torch.from_numpy(np.ascontiguousarray(lengths, dtype=np.int32)).to(device)
    return Factors(q, keys[0], keys[1], weights, seen)


def _direction(dim: int, device: str) -> Any:
    import torch

    # Ones alternating in sign: any fixed direction would do, this one needs no random numbers.
    return torch.arange(dim, device=device, dtype=torch.float32).remainder(2).mul(2).sub(1)


def rows_of(factors: Factors, begin: int, end: int) -> Factors:
    """Factors of some of the queries."""
    part = slice(begin, end)
    return replace(factors, q=factors.q[part], weights=factors.weights[part], lengths=factors.lengths[part])
