"""A score producer in Triton that keeps candidates in place of a matrix, and the calls around it.

    python examples/triton_producer.py        # needs PyTorch and Triton

The scores are dot products of queries and keys. The answer is compared with the selection from the whole matrix.
Without a CUDA GPU, the example runs small in Triton's interpreter: set TRITON_INTERPRET=1. Without PyTorch or Triton,
it says so and ends.
"""

from __future__ import annotations

import os

try:
    import torch
    import triton
    import triton.language as tl
except ModuleNotFoundError as error:
    if __name__ != "__main__" or error.name not in ("torch", "triton"):
        raise
    print(f"skipped: {error.name} is not installed (pip install {error.name})")
    raise SystemExit(0) from None

import ksieve
from ksieve.running import Candidates
from ksieve.running.triton_epilogue import keep


# [producer]
@triton.jit
def kernel(
    query_ptr, key_ptr, length_ptr, rows, keys, score_ptr, pitch, cutoff_ptr, counts_ptr, positions_ptr, capacity,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """One program scores KEYS keys for ROWS queries."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    position = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    d = tl.arange(0, DIM)
    query = tl.load(query_ptr + row[None, :] * DIM + d[:, None], mask=(row < rows)[None, :], other=0.0)
    key = tl.load(key_ptr + position[:, None] * DIM + d[None, :], mask=(position < keys)[:, None], other=0.0)
    score = tl.dot(key, query)  # (KEYS, ROWS), float32
    length = tl.minimum(tl.load(length_ptr + row, mask=row < rows, other=0), keys)
    valid = position[:, None] < length[None, :]
    if LISTED:
        cutoff = tl.load(cutoff_ptr + row, mask=row < rows, other=0)
        keep(
            score, valid, row[None, :], position[:, None], cutoff[None, :],
            counts_ptr, score_ptr, positions_ptr, pitch, capacity,
        )  # fmt: skip
    else:
        tl.store(score_ptr + row.to(tl.int64)[None, :] * pitch + position[:, None], score, mask=valid)


def produce(queries, keys, lengths, into):
    """Write the scores to a matrix, or keep the best of them in the lists of a Candidates."""
    listed = isinstance(into, Candidates)
    scores = into.scores if listed else into
    lists = (into.cutoff, into.counts, into.positions, into.capacity) if listed else (None, None, None, 0)
    (rows, dim), width = queries.shape, len(keys)
    grid = triton.cdiv(rows, 16), triton.cdiv(width, 64)
    kernel[grid](queries, keys, lengths, rows, width, scores, scores.stride(0), *lists, 16, 64, dim, listed)


def select(queries, keys, lengths, k, tile):
    """Positions of the k best keys of each query; exact for the scores produced. Nothing is read back."""
    rows, width = len(queries), len(keys)
    running = ksieve.Running(rows, k, tile, dtype=torch.float32, device=queries.device, deterministic=True)
    candidates = Candidates(running, width)
    samples = torch.empty(rows, len(candidates.columns), device=queries.device)
    sampled = torch.searchsorted(candidates.columns, lengths, out_int32=True)
    produce(queries, keys.index_select(0, candidates.columns), sampled, samples)
    candidates.propose(samples, lengths)
    for _ in range(2):  # most rows are decided by the first pass
        produce(queries, keys, candidates.left, candidates)
        candidates.certify()
    scores = torch.empty(rows, tile, device=queries.device)
    for first in range(0, width, tile):  # rows that no list decided; the others have length 0
        part = keys[first : first + tile]
        produce(queries, part, candidates.left - first, scores)
        running.push(scores[:, : len(part)], first, candidates.left)
    return running.finish()


# [end]
def check(device: str, rows: int, width: int, k: int, tile: int) -> None:
    """Compare with the selection from the matrix, on rows that lists decide and on one that they cannot."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(rows, 64, generator=generator).half().to(device)
    queries[1] = 0  # all its scores are equal: more candidates than any list holds
    keys = torch.randn(width, 64, generator=generator).half().to(device)
    lengths = torch.randint(0, width + 1, (rows,), dtype=torch.int32, generator=generator).to(device)
    lengths[:2] = width
    found = select(queries, keys, lengths, k, tile)
    scores = torch.empty(rows, width, device=device)
    produce(queries, keys, lengths, scores)
    if not torch.equal(found, ksieve.topk(scores, lengths, k=k, deterministic=True)):
        raise SystemExit("the answer is not that of the matrix")
    print(f"{rows} rows of {width:,} scores, k = {k}: the answer is that of the matrix")


if __name__ == "__main__":
    if torch.cuda.is_available():
        check("cuda", 512, 1 << 17, 2048, 16_384)
    elif os.environ.get("TRITON_INTERPRET") == "1":
        check("cpu", 20, 10_000, 60, 3000)
    else:
        print("skipped: PyTorch sees no CUDA GPU here; TRITON_INTERPRET=1 runs it small on the CPU")
