"""The module that chooses a kernel by the user's option."""

import torch

from vllm import _custom_ops as ops


class SparseIndexerTopk(torch.nn.Module):
    def __init__(self, backend):
        super().__init__()
        self._backend = backend

    def forward(self, logits, seq_lens, next_n, topk_indices, topk_tokens, max_seq_len):
        if self._backend == "persistent":
            torch.ops._C.persistent_topk(logits, seq_lens, topk_indices, torch.empty(4), topk_tokens, max_seq_len)
        else:
            rows, strides = logits.shape[0], logits.stride()
            ops.top_k_per_row_decode(logits, next_n, seq_lens, topk_indices, rows, *strides, topk_tokens)
