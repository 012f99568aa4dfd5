"""AITER's calls, and what its kernels write: positions count from the start of the row."""

from __future__ import annotations

import numpy as np

from adapter_calls.base import (
    POISON,
    ROWS,
    best,
    buffer,
    case,
    lengths_of,
    same,
    same_in_order,
    scores_of,
    windows_of,
)
from ksieve.adapters import aiter  # noqa: A004


def _prefill_inputs(rng, width, k, dtype):
    starts, ends = windows_of(rng, ROWS + 1, width)
    return {
        "logits": scores_of(rng, ROWS, width, dtype), "starts": starts, "ends": ends, "out": buffer(ROWS + 1, k),
        "values": np.full((ROWS + 1, k), 99, np.float32),
    }  # fmt: skip


@case(_prefill_inputs)
class aiter_prefill:  # noqa: N801
    @staticmethod
    def call(t, k):
        x, stable = t["logits"], t["out"].clone()
        rows = (t["starts"], t["ends"])
        aiter.top_k_per_row_prefill(x, *rows, t["out"], t["values"], ROWS, *x.stride(), k=k)
        aiter.top_k_per_row_prefill(x, *rows, stable, None, ROWS, *x.stride(), k, stable=True)
        return {"out": t["out"], "values": t["values"], "stable": stable}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            start = int(a["starts"][r])
            found = [start + i for i in best(a["logits"][r], start, int(a["ends"][r]), k)]
            same(o["out"][r], found)
            same_in_order(o["stable"][r], found)
            assert (o["values"][r, : len(found)] == a["logits"][r, o["out"][r, : len(found)]]).all()
            assert (o["values"][r, len(found) :] == 0).all()
        assert (o["out"][ROWS] == POISON).all() and (o["values"][ROWS] == 99).all()


def _decode_inputs(rng, width, k, dtype):
    seq_lens = lengths_of(rng, ROWS // 2, width, k)
    return {"logits": scores_of(rng, ROWS, width, dtype), "seq_lens": seq_lens, "out": buffer(ROWS, k)}


@case(_decode_inputs)
class aiter_decode:  # noqa: N801
    @staticmethod
    def call(t, k):
        x, one = t["logits"], t["out"].clone()
        aiter.top_k_per_row_decode(x, 2, t["seq_lens"], t["out"], ROWS, *x.stride(), k=k)
        aiter.top_k_per_row_decode(x, 1, t["seq_lens"], one, ROWS // 2, *x.stride(), k=k, stable=True)
        return {"out": t["out"], "one": one[: ROWS // 2]}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            same(o["out"][r], best(a["logits"][r], 0, max(0, int(a["seq_lens"][r // 2]) - 1 + r % 2), k))
        for r in range(ROWS // 2):
            same_in_order(o["one"][r], best(a["logits"][r], 0, max(0, int(a["seq_lens"][r])), k))
