"""SGLang's functions for paged and ragged caches. The ragged one writes to its scores, as SGLang's does."""

import selection
import torch


def plan_topk_v2(seq_lens, static_threshold=-1, *, out=None):
    return torch.zeros(seq_lens.shape[0] + 1, 2, dtype=torch.int32) if out is None else out


def topk_transform_paged_v2(
    scores, seq_lens, page_tables, out_page_indices, page_size, metadata, out_raw_indices=None
):  # fmt: skip
    rows, k = out_page_indices.shape
    found = selection.best("paged", scores, torch.zeros(rows), seq_lens, k)
    entry = page_tables.gather(1, found.clamp(min=0) // page_size)
    out_page_indices.copy_(torch.where(found < 0, -1, entry * page_size + found % page_size))
    if out_raw_indices is not None:
        out_raw_indices.copy_(found)


def topk_transform_ragged_v2(scores, seq_lens, *, out_offsets, out_indices, row_starts=None):
    rows, k = out_indices.shape
    starts = torch.zeros(rows, dtype=torch.int32) if row_starts is None else row_starts
    found = selection.best("ragged", scores, starts, starts + seq_lens, k)
    out_indices.copy_(torch.where(found < 0, -1, found - starts[:, None] + out_offsets[:, None]))
    scores.fill_(float("-inf"))
