"""vLLM's calls, and what its documentation says of them."""

from __future__ import annotations

import numpy as np
import torch

from adapter_calls.base import ROWS, best, buffer, case, lengths_of, of_rows, prefix, scores_of, windows_of
from ksieve.adapters import vllm


def _outputs(out, k):
    """Of a buffer that is larger than the batch: what is to be written, and the rest."""
    return {"out": out[:ROWS, :k], "untouched": torch.cat([out[ROWS:].flatten(), out[:, k:].flatten()])}


def _prefill_inputs(rng, width, k, dtype):
    # vLLM's buffers are larger than the batch: a row of logits, two windows, two rows and three columns of output more.
    starts, ends = windows_of(rng, ROWS + 2, width)
    return {
        "scores": scores_of(rng, ROWS + 1, width, dtype), "starts": starts, "ends": ends,
        "out": buffer(ROWS + 2, k + 3),
    }  # fmt: skip


@case(
    _prefill_inputs, lambda a, k, r, o: {"out": best(a["scores"][r], int(a["starts"][r]), int(a["ends"][r]), k)},
    "float32", "float16", "bfloat16",
)  # fmt: skip
def vllm_prefill(t, k):
    vllm.top_k_per_row_prefill(t["scores"], t["starts"], t["ends"], t["out"], ROWS, *t["scores"].stride(), k)
    return _outputs(t["out"], k)


def _decode(name, next_n, shape):
    """`shape`: of the lengths, one of each request or one of each row."""
    per_row = np.prod(shape) == ROWS and next_n > 1

    def inputs(rng, width, k, dtype):
        lengths = lengths_of(rng, int(np.prod(shape)), width, k)
        return of_rows(rng, width, k, dtype) | {"lengths": lengths.reshape(shape)}

    def row(a, k, r, o):
        lengths = a["lengths"].reshape(-1).astype(np.int64)
        end = lengths[r] if per_row else lengths[r // next_n] - next_n + 1 + r % next_n
        return {"out": best(a["scores"][r], 0, max(0, int(end)), k)}

    @case(inputs, row, name=name)
    def call(t, k):
        vllm.top_k_per_row_decode(t["scores"], next_n, t["lengths"], t["out"], ROWS, *t["scores"].stride(), k)
        return {"out": t["out"]}


_decode("vllm_decode", 1, (ROWS,))
_decode("vllm_decode_column", 1, (ROWS, 1))
_decode("vllm_decode_next_n", 3, (ROWS // 3,))
_decode("vllm_decode_next_n_column", 2, (ROWS // 2, 1))
_decode("vllm_decode_lengths_per_row", 4, (ROWS // 4, 4))


@case(of_rows, lambda a, k, r, o: dict.fromkeys(o, prefix(a, r, k)))
def vllm_flat(t, k):
    lengths, work = t["lengths"].reshape(ROWS // 2, 2), torch.empty(64, dtype=torch.uint8)
    for function, out in ((vllm.persistent_topk, t["out"]), (vllm.cooperative_topk, t["raw"])):
        assert function(t["scores"], lengths, out, work, k, t["scores"].shape[1]) is None
    return {"persistent": t["out"], "cooperative": t["raw"]}


def _deep_select_inputs(rng, width, k, dtype):
    return of_rows(rng, width, k, dtype) | {"out": buffer(ROWS + 2, k + 3)}


@case(_deep_select_inputs, lambda a, k, r, o: dict.fromkeys(o, prefix(a, r, k)), "float32", "bfloat16")
def vllm_deep_select(t, k):
    assert vllm.deep_select_topk(t["scores"], k, end=t["lengths"], output_idx=t["out"]) is t["out"]
    new = vllm.deep_select_topk(t["scores"], k, t["lengths"], indices_dtype=torch.int64)
    assert new.dtype is torch.int64
    return _outputs(t["out"], k) | {"new": new}
