"""TensorRT-LLM's calls, and what its operators write."""

from __future__ import annotations

from adapter_calls.base import ROWS, best, case, lengths_of, of_rows
from ksieve.adapters import tensorrt_llm


@case(of_rows, lambda a, k, r, o: {"out": best(a["scores"][r], int(a["starts"][r]), int(a["ends"][r]), k)})
def tensorrt_llm_prefill(t, k):
    assert tensorrt_llm.indexer_topk_prefill(t["scores"], t["starts"], t["ends"], t["out"], k) is None
    return {"out": t["out"]}


def _decode(name, next_n, ratio):
    def inputs(rng, width, k, dtype):
        lengths = lengths_of(rng, ROWS // next_n, width * ratio, k * ratio)
        return of_rows(rng, width, k, dtype) | {"lengths": lengths}

    def row(a, k, r, o):
        end = (max(int(a["lengths"][r // next_n]), 0) - next_n + 1 + r % next_n) // ratio
        return {"out": best(a["scores"][r], 0, max(0, end), k)}

    @case(inputs, row, name=name)
    def call(t, k):
        hints = {"pre_idx": None, "heuristic_scratch": None, "radix_aux_indices": t["out"], "radix_aux_logits": None}
        tensorrt_llm.indexer_topk_decode(t["scores"], t["lengths"], t["out"], next_n, k, compress_ratio=ratio, **hints)
        return {"out": t["out"]}


_decode("tensorrt_llm_decode", 1, 1)
_decode("tensorrt_llm_decode_next_n", 3, 1)
_decode("tensorrt_llm_decode_compressed", 2, 4)
