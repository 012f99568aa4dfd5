"""fp8 multi-query logits, the score producer of a lightning indexer, as a Triton kernel.

    score[t, s] = key_scale[s] * sum over heads h of weight[t, h] * max(0, q[t, h, :] . k[s, :])

One program owns a few queries and a stretch of keys. Its queries, all heads of them, stay in shared memory; key tiles
stream past. Keys are the rows and (query, head) pairs the columns of each matrix product, so the sum over heads runs
along a row. On tensor cores a row's columns lie in four lanes of one warp, and the sum costs two shuffles. Tiles past
the last key that any of the program's queries may see are skipped; scores past a query's own length are not written.
(Same orientation as DeepGEMM's fp8_mqa_logits, described in its sources; nothing is taken from it.)

Triton is imported when this module is; nothing else in ksieve imports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ksieve.running.candidates import Candidates
from ksieve.running.triton_epilogue import keep


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _mqa_logits(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, weight_ptr, scale_ptr, length_ptr, score_ptr,
    queries, keys, score_pitch, stretch,
    cutoff_ptr, counts_ptr, positions_ptr, capacity,
    HEADS: tl.constexpr, DIM: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    SCALED: tl.constexpr, MASKED: tl.constexpr, LISTED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:  # the kernel before may have written the queries; the kernel after waits by itself
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # Neighbouring programs share a stretch of keys, so that its tiles come from L2.
    group = tl.program_id(0)
    begin = tl.program_id(1) * stretch
    t = group * QUERIES + tl.arange(0, QUERIES)
    live = t < queries
    length = tl.load(length_ptr + t, mask=live, other=0)
    length = tl.minimum(tl.maximum(length, 0), keys)
    end = tl.minimum(begin + stretch, keys)
    if not MASKED:
        end = tl.minimum(end, tl.max(length, axis=0))
    if begin < end:
        column = tl.arange(0, QUERIES * HEADS)
        head_live = group * QUERIES + column // HEADS < queries
        first_head = group.to(tl.int64) * (QUERIES * HEADS)
        d = tl.arange(0, DIM)
        q_at = (first_head + column)[None, :] * DIM + d[:, None]
        q = tl.load(q_ptr + q_at, mask=head_live[None, :], other=0.0)
        weight = tl.load(weight_ptr + first_head + column, mask=head_live, other=0.0)
        row_at = t.to(tl.int64) * score_pitch
        if LISTED:
            # One score a thread, where heads were summed in four: a score is kept once, and by its thread alone.
            flat = tl.arange(0, KEYS * QUERIES)
            row = group * QUERIES + flat % QUERIES
            cutoff = tl.load(cutoff_ptr + row, mask=row < queries, other=0.0)
            stop = tl.minimum(tl.load(length_ptr + row, mask=row < queries, other=0), end)
        for first in tl.range(begin, end, KEYS, num_stages=STAGES):
            s = first + tl.arange(0, KEYS)
            k = tl.load(k_ptr + s.to(tl.int64)[:, None] * DIM + d[None, :], mask=(s < keys)[:, None], other=0.0)
            dots = tl.dot(k, q, out_dtype=tl.float32)
            parts = tl.maximum(dots, 0.0) * weight[None, :]
            score = tl.sum(tl.reshape(parts, (KEYS, QUERIES, HEADS)), axis=2)
            if SCALED:
                score *= tl.load(scale_ptr + s, mask=s < keys, other=0.0)[:, None]
            seen = s[:, None] < length[None, :]
            if LISTED:
                position = first + flat // QUERIES
                keep(
                    tl.reshape(score, (KEYS * QUERIES,)), position < stop, row, position, cutoff,
                    counts_ptr, score_ptr, positions_ptr, score_pitch, capacity,
                )  # fmt: skip
            else:
                if MASKED:
                    score = tl.where(seen, score, float("-inf"))
                    seen = (s < keys)[:, None] & live[None, :]
                tl.store(score_ptr + row_at[None, :] + s[:, None], score, mask=seen)


@dataclass(frozen=True, slots=True)
class Tile:
    """Shape of the kernel's work: data, so that a bench can sweep it.

    `queries` of a program: times heads, the columns of a matrix product. `keys` of a tile: its rows, a multiple of 64.
    `warps` of a program; `stages`: key tiles in flight. `stretch`: keys of a program, a multiple of `keys`; 0: all.
    """

    queries: int = 2
    keys: int = 64
    warps: int = 4
    stages: int = 4
    stretch: int = 0


TILE = Tile()
"""Default launch shape of the kernel. At 64 heads of 128 dimensions, four programs fit an H100's multiprocessor: the
head sums of one run during the products of another."""

KEPT_TILE = Tile(stretch=16_384)
"""Shape of a launch that keeps candidates: in a second pass few rows are left, and one program each would be slow."""


def mqa_logits(
    q: Any,
    keys: Any,
    weights: Any,
    lengths: Any,
    *,
    key_scale: Any = None,
    out: Any = None,
    masked: bool = False,
    tile: Tile = TILE,
    overlap: bool = False,
) -> Any:
    """Score every key for every query; enqueued on the current stream, capturable.

    `q`: float8_e4m3fn of shape (queries, heads, dim); heads and dim are powers of two, dim at least 32. `keys`:
    float8_e4m3fn of shape (keys, dim), shared by all heads. `weights`: float32 of shape (queries, heads). All three are
    contiguous. `lengths`: int32, the keys that each query sees from position 0, clamped to [0, keys] on the device.
    `key_scale`: float32 of shape (keys,), by default 1. `out`: float32 of shape (queries, keys), of last stride 1, by
    default a new matrix whose rows start at multiples of 16 bytes. Scores past a query's length are not written, or are
    -inf where `masked`, for selectors that know no lengths. `overlap`: a programmatic dependent launch (compute
    capability 9.0, Triton 3.3), which lets the next kernel start at once. Returns `out`.
    """
    if out is None:
        queries, count = len(q), len(keys)
        out = torch.empty(queries, -(-count // 4) * 4, dtype=torch.float32, device=q.device)[:, :count]
    _launch(q, keys, weights, lengths, key_scale, out, None, masked, tile, overlap)
    return out


def mqa_candidates(
    q: Any, keys: Any, weights: Any, lengths: Any, into: Candidates, *, key_scale: Any = None, tile: Tile = TILE
) -> None:
    """Score every key for every query, and keep what `into` asks for in place of writing a matrix.

    Arguments are as of `mqa_logits`; `into` has a row for each query and float32 scores, and larger ones are better.
    """
    _launch(q, keys, weights, lengths, key_scale, into.scores, into, False, tile)


def _launch(
    q: Any, keys: Any, weights: Any, lengths: Any, key_scale: Any, out: Any, into: Candidates | None, masked: bool,
    tile: Tile, overlap: bool = False,
) -> None:  # fmt: skip
    (queries, heads, dim), count = q.shape, len(keys)
    if not queries or not count:
        return
    lists = (None, None, None, 0) if into is None else (into.cutoff, into.counts, into.positions, into.capacity)
    stretch = tile.stretch or -(-count // tile.keys) * tile.keys
    grid = (triton.cdiv(queries, tile.queries), triton.cdiv(count, stretch))
    _mqa_logits[grid](
        q, keys, weights, key_scale, lengths, out, queries, count, out.stride(0), stretch, *lists,
        HEADS=heads, DIM=dim, QUERIES=tile.queries, KEYS=tile.keys, STAGES=tile.stages,
        SCALED=key_scale is not None, MASKED=masked, LISTED=into is not None, OVERLAP=overlap, num_warps=tile.warps,
        **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
