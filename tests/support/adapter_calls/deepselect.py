"""DeepSelect's calls, and what its documentation says of them."""

from __future__ import annotations

import numpy as np
import torch

from adapter_calls.base import ROWS, Slots, best, buffer, case, of_rows, prefix, scores_of, table_of, values_of
from ksieve.adapters import sglang

FILL = 2147483647


def _any(a, k, r, o):
    found = prefix(a, r, k)
    offset = [i + int(a["offsets"][r]) for i in found]
    return {"indices": Slots(found, FILL, False), "offset": Slots(offset, FILL, False), "vllm": found}


@case(of_rows, _any, "float32", "bfloat16")
def deepselect(t, k):
    x, end = t["scores"], t["lengths"]
    none, indices = sglang.topk(x, k, end=end)
    assert none is None and indices.dtype is torch.int32
    _, offset = sglang.topk(x, k, end=end, output_idx_offset=t["offsets"])
    _, vllm_style = sglang.topk(x, k, end=end, idx_oob_fill_value=-1)
    return {"indices": indices, "offset": offset, "vllm": vllm_style}


def _by_value(a, k, r, o):
    found = sorted(prefix(a, r, k), key=lambda i: -a["scores"][r, i])
    return {"values": values_of(a, r, o["indices"], found, -7), "indices": Slots(found, FILL)}


@case(lambda rng, width, k, dtype: of_rows(rng, width, k, dtype) | {"out": buffer(ROWS, k, np.int64)}, _by_value)
def deepselect_sorted_values(t, k):
    values, indices = sglang.topk(
        t["scores"], k, sorted=True, end=t["lengths"], indices_type=torch.int64, output_idx=t["out"], return_value=True,
        value_oob_fill_value=-7.0,
    )  # fmt: skip
    assert indices is t["out"] and indices.dtype is torch.int64
    return {"values": values, "indices": indices}


def _of_window(a, k, r, o):
    start, end = int(a["starts"][r]), int(a["ends"][r])
    return {"indices": Slots([start + i for i in best(a["scores"][r], start, end, k)], FILL)}


@case(of_rows, _of_window)
def deepselect_sorted_index_of_a_window(t, k):
    _, indices = sglang.topk(t["scores"], k, begin=t["starts"], end=t["ends"], sorted_index=True)
    return {"indices": indices}


def _every(a, k, r, o):
    found = list(range(k - 5))
    return {"indices": Slots(found, FILL, False), "values": values_of(a, r, o["indices"], found)}


@case(lambda rng, width, k, dtype: {"scores": scores_of(rng, ROWS, k - 5, dtype)}, _every)
def deepselect_more_slots_than_scores(t, k):
    values, indices = sglang.topk(t["scores"], k, return_value=True)
    return {"values": values, "indices": indices}


PAGE = 16


def _paged(a, k, r, o):
    def pages(found):
        return [int(a["table"][r, i // PAGE]) * PAGE + i % PAGE for i in found]

    found = pages(prefix(a, r, k))
    return {"out": found, "ordered": Slots(found, FILL), "whole": pages(best(a["scores"][r], 0, 1 << 40, k))}


@case(
    lambda rng, width, k, dtype: of_rows(rng, width, k, dtype) | {"table": table_of(rng, ROWS, -(-width // PAGE))},
    _paged, "float32", "bfloat16",
)  # fmt: skip
def deepselect_page_transform(t, k):
    x, end, pages = t["scores"], t["lengths"], {"page_table": t["table"], "page_size": PAGE}
    out = sglang.topk_page_transform(x, k, **pages, end=end, output_idx=t["out"])
    assert out is t["out"]
    ordered = sglang.topk_page_transform(x, k, **pages, end=end, sorted_index=True, idx_oob_fill_value=FILL)
    return {"out": out, "ordered": ordered, "whole": sglang.topk_page_transform(x, k, **pages)}
