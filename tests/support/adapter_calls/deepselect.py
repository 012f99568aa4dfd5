"""DeepSelect's calls, and what its documentation says of them."""

from __future__ import annotations

import numpy as np
import torch

from adapter_calls.base import (
    ROWS,
    best,
    buffer,
    case,
    lengths_of,
    same,
    same_in_order,
    scores_of,
    table_of,
    windows_of,
)
from ksieve.adapters import sglang

FILL = 2147483647


def _deepselect_inputs(rng, width, k, dtype):
    starts, ends = windows_of(rng, ROWS, width)
    return {
        "input": scores_of(rng, ROWS, width, dtype), "begin": starts, "end": lengths_of(rng, ROWS, width, k),
        "end_of_window": ends, "offset": rng.integers(-3 * width, 10**6, ROWS).astype(np.int32),
        "out": buffer(ROWS, k, np.int64),
    }  # fmt: skip


@case(_deepselect_inputs, ("float32", "bfloat16"))
class deepselect:  # noqa: N801
    @staticmethod
    def call(t, k):
        none, indices = sglang.topk(t["input"], k, end=t["end"])
        assert none is None
        _, offset = sglang.topk(t["input"], k, end=t["end"], output_idx_offset=t["offset"])
        _, vllm_style = sglang.topk(t["input"], k, end=t["end"], idx_oob_fill_value=-1)
        return {"indices": indices, "offset": offset, "vllm": vllm_style}

    @staticmethod
    def check(a, k, o):
        assert o["indices"].dtype == np.int32
        for r in range(ROWS):
            found = best(a["input"][r], 0, int(a["end"][r]), k)
            same(o["indices"][r], found, FILL)
            same(o["offset"][r], [i + int(a["offset"][r]) for i in found], FILL)
            same(o["vllm"][r], found)


@case(_deepselect_inputs)
class deepselect_sorted_values:  # noqa: N801
    @staticmethod
    def call(t, k):
        values, indices = sglang.topk(
            t["input"], k, sorted=True, end=t["end"], indices_type=torch.int64, output_idx=t["out"], return_value=True,
            value_oob_fill_value=-7.0,
        )  # fmt: skip
        assert indices is t["out"]
        return {"values": values, "indices": indices}

    @staticmethod
    def check(a, k, o):
        assert o["indices"].dtype == np.int64
        for r in range(ROWS):
            found = best(a["input"][r], 0, int(a["end"][r]), k)
            found.sort(key=lambda i: -a["input"][r, i])
            same_in_order(o["indices"][r], found, FILL)
            same_in_order(o["values"][r], a["input"][r, found].tolist(), -7)


@case(_deepselect_inputs)
class deepselect_sorted_index_of_a_window:  # noqa: N801
    @staticmethod
    def call(t, k):
        _, indices = sglang.topk(t["input"], k, begin=t["begin"], end=t["end_of_window"], sorted_index=True)
        return {"indices": indices}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            start = int(a["begin"][r])
            found = best(a["input"][r], start, int(a["end_of_window"][r]), k)
            same_in_order(o["indices"][r], [start + i for i in found], FILL)


@case(lambda rng, width, k, dtype: {"input": scores_of(rng, ROWS, k - 5, dtype)})
class deepselect_more_slots_than_scores:  # noqa: N801
    @staticmethod
    def call(t, k):
        values, indices = sglang.topk(t["input"], k, return_value=True)
        return {"values": values, "indices": indices}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            same(o["indices"][r], list(range(k - 5)), FILL)
            assert (o["values"][r, : k - 5] == a["input"][r, o["indices"][r, : k - 5]]).all()
            assert (o["values"][r, k - 5 :] == -np.inf).all()


PAGE = 16


def _pages_inputs(rng, width, k, dtype):
    return {
        "input": scores_of(rng, ROWS, width, dtype), "end": lengths_of(rng, ROWS, width, k),
        "table": table_of(rng, ROWS, -(-width // PAGE)), "out": buffer(ROWS, k),
    }  # fmt: skip


@case(_pages_inputs, ("float32", "bfloat16"))
class deepselect_page_transform:  # noqa: N801
    @staticmethod
    def call(t, k):
        x, pages = t["input"], {"page_table": t["table"], "page_size": PAGE}
        out = sglang.topk_page_transform(x, k, **pages, end=t["end"], output_idx=t["out"])
        assert out is t["out"]
        ordered = sglang.topk_page_transform(x, k, **pages, end=t["end"], sorted_index=True, idx_oob_fill_value=FILL)
        return {"out": out, "ordered": ordered, "whole": sglang.topk_page_transform(x, k, **pages)}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            for name, end in (("out", int(a["end"][r])), ("ordered", int(a["end"][r])), ("whole", 1 << 40)):
                found = best(a["input"][r], 0, end, k)
                pages = [int(a["table"][r, i // PAGE]) * PAGE + i % PAGE for i in found]
                if name == "ordered":
                    same_in_order(o[name][r], pages, FILL)
                else:
                    same(o[name][r], pages)
