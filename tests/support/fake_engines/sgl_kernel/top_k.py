"""SGLang's functions of the ahead-of-time kernels."""

import selection
import torch


def _starts(row_starts, rows):
    return torch.zeros(rows, dtype=torch.int32) if row_starts is None else row_starts


def fast_topk_v2(score, lengths, topk, row_starts=None):
    starts = _starts(row_starts, score.shape[0])
    found = selection.best("fast_topk_v2", score, starts, starts + lengths, topk)
    return torch.where(found < 0, -1, found - starts[:, None]).int()


def fast_topk_transform_fused(score, lengths, page_table_size_1, cu_seqlens_q, topk, row_starts=None):
    found = fast_topk_v2(score, lengths, topk, row_starts).long()
    pages = page_table_size_1.gather(1, found.clamp(min=0))
    return torch.where(found < 0, -1, pages).int()


def fast_topk_transform_ragged_fused(score, lengths, topk_indices_offset, topk, row_starts=None):
    found = fast_topk_v2(score, lengths, topk, row_starts)
    return torch.where(found < 0, -1, found + topk_indices_offset[:, None]).int()
