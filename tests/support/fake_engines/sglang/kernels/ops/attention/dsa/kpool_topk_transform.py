"""SGLang's function for scores of pools, with its own output."""

import torch

from ..dsv4.topk import topk_transform_kpool_ragged_v2


def fast_kpool_topk_transform_fused(
    score, lengths, kpool, topk, page_table=None, topk_indices_offset=None, row_starts=None, seq_lens=None,
    page_table_row_index=None,
):  # fmt: skip
    out = torch.empty(score.shape[0], topk + (kpool - 1 if seq_lens is not None else 0), dtype=torch.int32)
    topk_transform_kpool_ragged_v2(
        score, lengths, out, kpool, row_starts=row_starts, token_seq_lens=seq_lens, page_table=page_table,
        page_table_row_index=page_table_row_index, out_offsets=topk_indices_offset,
    )  # fmt: skip
    return out
