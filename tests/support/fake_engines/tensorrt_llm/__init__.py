"""Registers the operators, as TensorRT-LLM does when it is imported."""

import sys

import torch

_SCHEMAS = (
    "indexer_topk_prefill(Tensor logits, Tensor row_starts, Tensor row_ends, Tensor indices, int index_topk=2048) "
    "-> ()",
    "indexer_topk_decode(Tensor logits, Tensor seq_lens, Tensor indices, int next_n, int index_topk=2048, "
    "Tensor? pre_idx=None, Tensor? heuristic_scratch=None, int compress_ratio=1, Tensor? radix_aux_indices=None, "
    "Tensor? radix_aux_logits=None) -> ()",
)


def _prefill(logits, row_starts, row_ends, indices, index_topk=2048):
    import selection

    found = selection.best("trtllm_prefill", logits, row_starts, row_ends, index_topk)
    indices.copy_(torch.where(found < 0, -1, found - row_starts[:, None]))


def _decode(logits, seq_lens, indices, next_n, index_topk=2048, pre_idx=None, scratch=None, compress_ratio=1, *_):
    import selection

    rows = logits.shape[0]
    lengths = selection.lengths_of(seq_lens, rows, next_n) // compress_ratio
    indices.copy_(selection.best("trtllm_decode", logits, torch.zeros(rows), lengths, index_topk))


if not hasattr(sys, "fake_trtllm"):
    sys.fake_trtllm = torch.library.Library("trtllm", "FRAGMENT")
    for schema, function in zip(_SCHEMAS, (_prefill, _decode), strict=True):
        sys.fake_trtllm.define(schema)
        sys.fake_trtllm.impl(schema.partition("(")[0], function, "CPU")
