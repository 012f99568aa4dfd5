"""FlashInfer's function for decode steps."""

import selection
import torch


def top_k_varlen(
    logits, seq_lens, top_k, pre_idx=None, compress_ratio=1, next_n=1, return_values=False, out_indices=None,
    out_values=None, backend="auto", load_balance=True, workspace=None, row_starts=None, max_seq_len=None,
    absolute_indices=False,
):  # fmt: skip
    rows = logits.shape[0]
    lengths = selection.lengths_of(seq_lens, rows, next_n)
    if row_starts is None:
        return selection.best("varlen", logits, torch.zeros(rows), lengths, top_k).int(), None
    found = selection.best("varlen", logits, row_starts, row_starts + lengths, top_k)
    return (found if absolute_indices else torch.where(found < 0, -1, found - row_starts[:, None])).int(), None
