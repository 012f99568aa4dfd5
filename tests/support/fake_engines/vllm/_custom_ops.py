"""Registers the operators, as vLLM's module does when it is imported, and wraps two of them."""

import os
import sys

import torch

_TAIL = "int k, int max_seq_len) -> ()"
_MORE = ", bool sampled=False" if os.environ.get("FAKE_VLLM") == "newer" else ""
_SCHEMAS = (
    "top_k_per_row_prefill(Tensor logits, Tensor rowStarts, Tensor rowEnds, Tensor(a!) indices, int numRows, "
    "int stride0, int stride1, int topK) -> ()",
    "top_k_per_row_decode(Tensor logits, int next_n, Tensor seq_lens, Tensor(a!) indices, int numRows, int stride0, "
    f"int stride1, int topK{_MORE}) -> ()",
    f"persistent_topk(Tensor logits, Tensor lengths, Tensor(a!) output, Tensor workspace, {_TAIL}",
)


def _best(*args):
    import selection

    return selection.best(*args)


def _lengths_of(*args):
    import selection

    return selection.lengths_of(*args)


def _prefill(logits, rowStarts, rowEnds, indices, numRows, stride0, stride1, topK):
    found = _best("prefill", logits[:numRows], rowStarts, rowEnds, topK)
    indices[:numRows, :topK] = torch.where(found < 0, -1, found - rowStarts[:numRows, None])


def _decode(logits, next_n, seq_lens, indices, numRows, stride0, stride1, topK, sampled=False):
    lengths = _lengths_of(seq_lens, numRows, next_n)
    indices[:numRows, :topK] = _best("decode", logits[:numRows], torch.zeros(numRows), lengths, topK)


def _persistent(logits, lengths, output, workspace, k, max_seq_len):
    rows = logits.shape[0]
    output[:rows, :k] = _best("persistent", logits, torch.zeros(rows), lengths.reshape(-1), k)


# Once in a process, whatever tests import this module again.
if not hasattr(sys, "fake_vllm"):
    sys.fake_vllm = torch.library.Library("_C", "FRAGMENT")
    for schema, function in zip(_SCHEMAS, (_prefill, _decode, _persistent), strict=True):
        sys.fake_vllm.define(schema)
        sys.fake_vllm.impl(schema.partition("(")[0], function, "CPU")


def top_k_per_row_prefill(
    logits, cu_seqlen_ks, cu_seqlen_ke, raw_topk_indices, num_rows, stride0, stride1, topk_tokens
):
    torch.ops._C.top_k_per_row_prefill(
        logits, cu_seqlen_ks, cu_seqlen_ke, raw_topk_indices, num_rows, stride0, stride1, topk_tokens
    )


def top_k_per_row_decode(logits, next_n, seq_lens, raw_topk_indices, num_rows, stride0, stride1, topk_tokens):
    torch.ops._C.top_k_per_row_decode(
        logits, next_n, seq_lens, raw_topk_indices, num_rows, stride0, stride1, topk_tokens
    )
