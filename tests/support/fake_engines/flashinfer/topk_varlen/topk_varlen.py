"""FlashInfer's function for decode steps."""

import selection
import torch


def top_k_varlen(
    logits, seq_lens, top_k, pre_idx=None, compress_ratio=1, next_n=1, return_values=False, out_indices=None,
    out_values=None, backend="auto", load_balance=True, workspace=None,
):  # fmt: skip
    rows = logits.shape[0]
    lengths = selection.lengths_of(seq_lens, rows, next_n)
    return selection.best("varlen", logits, torch.zeros(rows), lengths, top_k).int(), None
