"""AITER's functions, whose positions count from the start of the row."""

import selection
import torch


def top_k_per_row_prefill(
    logits, rowStarts, rowEnds, indices, values, numRows, stride0, stride1, k=2048, stable=False
):  # fmt: skip
    indices[:numRows, :k] = selection.best("aiter_prefill", logits[:numRows], rowStarts, rowEnds, k)


def top_k_per_row_decode(logits, next_n, seqLens, indices, numRows, stride0, stride1, k=2048, stable=False):
    lengths = selection.lengths_of(seqLens, numRows, next_n)
    indices[:numRows, :k] = selection.best("aiter_decode", logits[:numRows], torch.zeros(numRows), lengths, k)
