"""The module that chooses a kernel by the user's option."""

import selection
import torch

from vllm import _custom_ops as ops


def deep_select_topk(input, topk, end=None, output_idx=None, indices_dtype=torch.int32):
    rows, width = input.shape
    stop = torch.full((rows,), width) if end is None else end
    found = selection.best("deep_select_topk", input, torch.zeros(rows), stop, topk).to(indices_dtype)
    if output_idx is None:
        return found
    output_idx[:rows, :topk] = found
    return output_idx


class SparseIndexerTopk(torch.nn.Module):
    def __init__(self, backend):
        super().__init__()
        self._backend = backend

    def forward(self, logits, seq_lens, next_n, topk_indices, topk_tokens, max_seq_len):
        if self._backend == "persistent":
            torch.ops._C.persistent_topk(logits, seq_lens, topk_indices, torch.empty(4), topk_tokens, max_seq_len)
        elif self._backend == "deep_select":
            deep_select_topk(logits, topk_tokens, end=seq_lens, output_idx=topk_indices)
        else:
            rows, strides = logits.shape[0], logits.stride()
            ops.top_k_per_row_decode(logits, next_n, seq_lens, topk_indices, rows, *strides, topk_tokens)
