"""SGLang's functions for paged and ragged caches. The ragged one writes to its scores, as SGLang's does."""

import selection
import torch


def plan_topk_v2(seq_lens, static_threshold=-1, *, out=None):
    return torch.zeros(seq_lens.shape[0] + 1, 2, dtype=torch.int32) if out is None else out


def topk_transform_paged_v2(
    scores, seq_lens, page_tables, out_page_indices, page_size, metadata, out_raw_indices=None
):  # fmt: skip
    topk_transform_paged(scores, seq_lens, page_tables, out_page_indices, page_size, out_raw_indices)


def topk_transform_bf16_small(scores, seq_lens, page_table, out_page_indices, page_size):
    topk_transform_paged(scores, seq_lens, page_table, out_page_indices, page_size)


def topk_transform_paged(scores, seq_lens, page_tables, out_page_indices, page_size, out_raw_indices=None):
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


def topk_transform_kpool_v2(
    scores, pool_lens, out, pool_size, metadata, *, token_seq_lens=None, page_table=None, page_size=1, out_offsets=None
):
    topk_transform_kpool_ragged_v2(
        scores, pool_lens, out, pool_size, token_seq_lens=token_seq_lens, page_table=page_table, page_size=page_size,
        out_offsets=out_offsets,
    )  # fmt: skip


def topk_transform_kpool_ragged_v2(
    scores, pool_lens, out, pool_size, *, row_starts=None, token_seq_lens=None, page_table=None,
    page_table_row_index=None, page_size=1, out_offsets=None,
):  # fmt: skip
    rows, tail = scores.shape[0], 0 if token_seq_lens is None else pool_size - 1
    starts = torch.zeros(rows, dtype=torch.int32) if row_starts is None else row_starts
    k = (out.shape[1] - tail) // pool_size
    found = selection.best("kpool", scores, starts, starts + pool_lens, k)
    for r in range(rows):
        pools = [int(g - starts[r]) for g in found[r] if g >= 0]
        written = [g * pool_size + j for g in pools for j in range(pool_size)]
        if tail:
            written += [int(pool_lens[r]) * pool_size + j for j in range(int(token_seq_lens[r]) % pool_size)]
        if page_table is not None:
            row = page_table[r if page_table_row_index is None else page_table_row_index[r]]
            written = [int(row[i // page_size]) * page_size + i % page_size for i in written]
        offset = 0 if out_offsets is None else int(out_offsets[r])
        out[r] = torch.tensor([i + offset for i in written] + [-1] * (out.shape[1] - len(written)))
