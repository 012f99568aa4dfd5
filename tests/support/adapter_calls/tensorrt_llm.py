"""TensorRT-LLM's calls, and what its operators write."""

from __future__ import annotations

from adapter_calls.base import CASES, ROWS, Case, best, buffer, case, lengths_of, same, scores_of, windows_of
from ksieve.adapters import tensorrt_llm


def _prefill_inputs(rng, width, k, dtype):
    starts, ends = windows_of(rng, ROWS, width)
    return {"logits": scores_of(rng, ROWS, width, dtype), "starts": starts, "ends": ends, "out": buffer(ROWS, k)}


@case(_prefill_inputs)
class tensorrt_llm_prefill:  # noqa: N801
    @staticmethod
    def call(t, k):
        assert tensorrt_llm.indexer_topk_prefill(t["logits"], t["starts"], t["ends"], t["out"], k) is None
        return {"out": t["out"]}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            same(o["out"][r], best(a["logits"][r], int(a["starts"][r]), int(a["ends"][r]), k))


def _decode(name, next_n, ratio):
    def inputs(rng, width, k, dtype):
        seq_lens = lengths_of(rng, ROWS // next_n, width * ratio, k * ratio)
        return {"logits": scores_of(rng, ROWS, width, dtype), "seq_lens": seq_lens, "out": buffer(ROWS, k)}

    def call(t, k):
        hints = {"pre_idx": None, "heuristic_scratch": None, "radix_aux_indices": t["out"], "radix_aux_logits": None}
        tensorrt_llm.indexer_topk_decode(
            t["logits"], t["seq_lens"], t["out"], next_n, k, compress_ratio=ratio, **hints
        )  # fmt: skip
        return {"out": t["out"]}

    def check(a, k, o):
        for r in range(ROWS):
            end = (max(int(a["seq_lens"][r // next_n]), 0) - next_n + 1 + r % next_n) // ratio
            same(o["out"][r], best(a["logits"][r], 0, max(0, end), k))

    CASES.append(Case(name, inputs, call, check))


_decode("tensorrt_llm_decode", 1, 1)
_decode("tensorrt_llm_decode_next_n", 3, 1)
_decode("tensorrt_llm_decode_compressed", 2, 4)
