"""vLLM's calls, and what its documentation says of them."""

from __future__ import annotations

import numpy as np
import torch

from adapter_calls.base import CASES, POISON, ROWS, Case, best, buffer, case, lengths_of, same, scores_of, windows_of
from ksieve.adapters import vllm


def _prefill_inputs(rng, width, k, dtype):
    # vLLM's buffers are larger than the batch: a row of logits, two windows, two rows and three columns of output more.
    starts, ends = windows_of(rng, ROWS + 2, width)
    logits = scores_of(rng, ROWS + 1, width, dtype)
    return {"logits": logits, "starts": starts, "ends": ends, "out": buffer(ROWS + 2, k + 3)}


@case(_prefill_inputs, ("float32", "float16", "bfloat16"))
class vllm_prefill:  # noqa: N801
    @staticmethod
    def call(t, k):
        x = t["logits"]
        vllm.top_k_per_row_prefill(x, t["starts"], t["ends"], t["out"], ROWS, x.stride(0), x.stride(1), k)
        return {"out": t["out"]}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            same(o["out"][r, :k], best(a["logits"][r], int(a["starts"][r]), int(a["ends"][r]), k))
        assert (o["out"][ROWS:] == POISON).all() and (o["out"][:, k:] == POISON).all(), "written outside numRows x topK"


def _decode_inputs(next_n, per_row):
    def inputs(rng, width, k, dtype):
        entries = ROWS if per_row else ROWS // next_n
        lens = lengths_of(rng, entries, width, k)
        shape = (ROWS // next_n, next_n) if per_row else (entries,)
        return {
            "logits": scores_of(rng, ROWS, width, dtype), "seq_lens": lens.reshape(shape), "out": buffer(ROWS, k),
        }  # fmt: skip

    return inputs


def _decode(name, next_n, per_row, column=False):
    inputs = _decode_inputs(next_n, per_row)

    def with_column(rng, width, k, dtype):
        arrays = inputs(rng, width, k, dtype)
        return arrays | {"seq_lens": arrays["seq_lens"].reshape(-1, 1)} if column else arrays

    def call(t, k):
        x = t["logits"]
        vllm.top_k_per_row_decode(x, next_n, t["seq_lens"], t["out"], ROWS, x.stride(0), x.stride(1), k)
        return {"out": t["out"]}

    def check(a, k, o):
        lens = a["seq_lens"].reshape(-1).astype(np.int64)
        for r in range(ROWS):
            end = lens[r] if per_row else lens[r // next_n] - next_n + 1 + r % next_n
            same(o["out"][r], best(a["logits"][r], 0, max(0, int(end)), k))

    CASES.append(Case(name, with_column, call, check))


_decode("vllm_decode", 1, False)
_decode("vllm_decode_column", 1, False, column=True)
_decode("vllm_decode_next_n", 3, False)
_decode("vllm_decode_next_n_column", 2, False, column=True)
_decode("vllm_decode_lengths_per_row", 4, True)


def _flat(name, function):
    def inputs(rng, width, k, dtype):
        lens = lengths_of(rng, ROWS, width, k)
        return {
            "logits": scores_of(rng, ROWS, width, dtype), "lengths": lens.reshape(ROWS // 2, 2), "out": buffer(ROWS, k),
            "workspace": np.full(64, 0xAB, np.uint8),
        }  # fmt: skip

    def call(t, k):
        assert function(t["logits"], t["lengths"], t["out"], t["workspace"], k, t["logits"].shape[1]) is None
        return {"out": t["out"]}

    def check(a, k, o):
        for r, length in enumerate(a["lengths"].reshape(-1)):
            same(o["out"][r], best(a["logits"][r], 0, int(length), k))

    CASES.append(Case(name, inputs, call, check))


_flat("vllm_persistent", vllm.persistent_topk)
_flat("vllm_cooperative", vllm.cooperative_topk)


def _deep_select_inputs(rng, width, k, dtype):
    return {
        "input": scores_of(rng, ROWS, width, dtype), "end": lengths_of(rng, ROWS, width, k),
        "out": buffer(ROWS + 2, k + 3),
    }  # fmt: skip


@case(_deep_select_inputs, ("float32", "bfloat16"))
class vllm_deep_select:  # noqa: N801
    @staticmethod
    def call(t, k):
        assert vllm.deep_select_topk(t["input"], k, end=t["end"], output_idx=t["out"]) is t["out"]
        return {"out": t["out"], "new": vllm.deep_select_topk(t["input"], k, t["end"], indices_dtype=torch.int64)}

    @staticmethod
    def check(a, k, o):
        assert (o["out"].dtype, o["new"].dtype) == (np.int32, np.int64)
        for r in range(ROWS):
            found = best(a["input"][r], 0, int(a["end"][r]), k)
            same(o["out"][r, :k], found)
            same(o["new"][r], found)
        assert (o["out"][ROWS:] == POISON).all() and (o["out"][:, k:] == POISON).all()
