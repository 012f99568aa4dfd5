"""SGLang's calls for pools of positions, and what its kernels write."""

from __future__ import annotations

import numpy as np

from adapter_calls.base import ROWS, best, buffer, case, ends_of, lengths_of, ragged_inputs, table_of
from ksieve.adapters import sglang

POOL, PAGE = 4, 16


def _inputs(rng, width, k, dtype):
    requests, positions = 5, (width + 1) * POOL
    arrays = ragged_inputs(rng, width, k, dtype)
    # Also lengths that are not those of the pools: the tail then begins behind the pools all the same.
    seq_lens = np.clip(arrays["lengths"], 0, width) * POOL + rng.integers(0, POOL, ROWS)
    seq_lens[:2] = lengths_of(rng, 2, width, k)
    return arrays | {
        "seq_lens": seq_lens.astype(np.int32),
        "table": table_of(rng, requests, positions),
        "pages": table_of(rng, ROWS, -(-positions // PAGE)),
        "row": rng.integers(0, requests, ROWS).astype(np.int32),
        "out": buffer(ROWS, k * POOL + POOL - 1),
        "whole": buffer(ROWS, k * POOL),
    }


def _check(a, r, slots, k, *, windows, tail, to=lambda i: i):
    """Positions of whole pools side by side, those of the tail, then -1."""
    start, end = ends_of(a, r) if windows else (0, int(a["lengths"][r]))
    found = best(a["score"][r], start, end, k)
    last = min(max(int(a["lengths"][r]), 0), a["score"].shape[1]) * POOL
    expected = sorted([to(g * POOL + j) for j in range(POOL)] for g in found)
    used = len(found) * POOL
    assert sorted(slots[:used].reshape(-1, POOL).tolist()) == expected
    left = [to(last + j) for j in range(max(int(a["seq_lens"][r]), 0) % POOL)] if tail else []
    assert slots[used:].tolist() == left + [-1] * (len(slots) - used - len(left))


@case(_inputs)
class sglang_fast_kpool:  # noqa: N801
    @staticmethod
    def call(t, k):
        x, lengths, topk, tail = t["score"], t["lengths"], k * POOL, t["seq_lens"]
        select = sglang.fast_kpool_topk_transform_fused
        return {
            "plain": select(x, lengths, POOL, topk),
            "tail": select(x, lengths, POOL, topk, seq_lens=tail, row_starts=t["starts"]),
            "offsets": select(x, lengths, POOL, topk, topk_indices_offset=t["offsets"], seq_lens=tail),
            "pages": select(
                x, lengths, POOL, topk, page_table=t["table"], seq_lens=tail, page_table_row_index=t["row"]
            ),
        }

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            _check(a, r, o["plain"][r], k, windows=False, tail=False)
            _check(a, r, o["tail"][r], k, windows=True, tail=True)
            offset, pages = int(a["offsets"][r]), a["table"][int(a["row"][r])]
            _check(a, r, o["offsets"][r], k, windows=False, tail=True, to=lambda i, by=offset: i + by)
            _check(a, r, o["pages"][r], k, windows=False, tail=True, to=lambda i, of=pages: int(of[i]))


@case(_inputs)
class sglang_kpool_v2:  # noqa: N801
    @staticmethod
    def call(t, k):
        x, lengths, out = t["score"], t["lengths"], t["out"].clone()
        pages = {"page_table": t["pages"], "page_size": PAGE}
        sglang.topk_transform_kpool_v2(x, lengths, t["out"], POOL, None, token_seq_lens=t["seq_lens"], **pages)
        sglang.topk_transform_kpool_ragged_v2(
            x, lengths, out, POOL, row_starts=t["starts"], token_seq_lens=t["seq_lens"], out_offsets=t["offsets"]
        )
        sglang.topk_transform_kpool_ragged_v2(x, lengths, t["whole"], POOL)
        return {"pages": t["out"], "ragged": out, "whole": t["whole"]}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            offset, pages = int(a["offsets"][r]), a["pages"][r]
            paged = lambda i, of=pages: int(of[i // PAGE]) * PAGE + i % PAGE  # noqa: E731
            _check(a, r, o["pages"][r], k, windows=False, tail=True, to=paged)
            _check(a, r, o["ragged"][r], k, windows=True, tail=True, to=lambda i, by=offset: i + by)
            _check(a, r, o["whole"][r], k, windows=False, tail=False)
