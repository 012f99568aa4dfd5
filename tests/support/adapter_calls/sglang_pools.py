"""SGLang's calls for pools of positions, and what its kernels write."""

from __future__ import annotations

import numpy as np

from adapter_calls.base import ROWS, Slots, buffer, case, lengths_of, of_rows, prefix, table_of, window
from ksieve.adapters import sglang

POOL, PAGE = 4, 16


def _inputs(rng, width, k, dtype):
    requests, positions = 5, (width + 1) * POOL
    arrays = of_rows(rng, width, k, dtype)
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


def _row(a, k, r, o):
    """Positions of whole pools side by side, in any order of pools, those of the tail, then -1."""
    offset, table, pages = int(a["offsets"][r]), a["table"][int(a["row"][r])], a["pages"][r]
    last = min(max(int(a["lengths"][r]), 0), a["scores"].shape[1]) * POOL

    def slots(name, find=prefix, tail=True, to=lambda i: i):
        if name not in o:
            return {}
        place = {first: n for n, first in enumerate(o[name][::POOL].tolist())}
        pools = sorted(find(a, r, k), key=lambda g: place.get(to(g * POOL), -1))
        own = [to(g * POOL + j) for g in pools for j in range(POOL)]
        left = [to(last + j) for j in range(max(int(a["seq_lens"][r]), 0) % POOL)] if tail else []
        return {name: Slots(own + left)}

    return (
        slots("plain", tail=False)
        | slots("tail", window)
        | slots("offsets", to=lambda i: i + offset)
        | slots("table", to=lambda i: int(table[i]))
        | slots("pages", to=lambda i: int(pages[i // PAGE]) * PAGE + i % PAGE)
        | slots("ragged", window, to=lambda i: i + offset)
    )


@case(_inputs, _row)
def sglang_fast_kpool(t, k):
    x, lengths, topk, tail = t["scores"], t["lengths"], k * POOL, t["seq_lens"]
    select = sglang.fast_kpool_topk_transform_fused
    return {
        "plain": select(x, lengths, POOL, topk),
        "tail": select(x, lengths, POOL, topk, seq_lens=tail, row_starts=t["starts"]),
        "offsets": select(x, lengths, POOL, topk, topk_indices_offset=t["offsets"], seq_lens=tail),
        "table": select(x, lengths, POOL, topk, page_table=t["table"], seq_lens=tail, page_table_row_index=t["row"]),
    }


@case(_inputs, _row)
def sglang_kpool_v2(t, k):
    x, lengths, out, tail = t["scores"], t["lengths"], t["out"].clone(), {"token_seq_lens": t["seq_lens"]}
    pages = {"page_table": t["pages"], "page_size": PAGE}
    sglang.topk_transform_kpool_v2(x, lengths, t["out"], POOL, None, **tail, **pages)
    sglang.topk_transform_kpool_ragged_v2(
        x, lengths, out, POOL, row_starts=t["starts"], out_offsets=t["offsets"], **tail
    )
    sglang.topk_transform_kpool_ragged_v2(x, lengths, t["whole"], POOL)
    return {"pages": t["out"], "ragged": out, "plain": t["whole"]}
