"""A caller that holds functions of the kernels under its own names, and imports another when it is called."""

import torch

from sglang.kernels.ops.attention.dsv4 import topk_transform_paged, topk_transform_paged_v2


def topk_transform_paged_from_metadata(logits, seq_lens, page_table, page_indices, page_size, use_topk_v2):
    if logits.dtype == torch.bfloat16:
        from sglang.kernels.ops.attention.deep_select import topk_page_transform

        k = page_indices.shape[1]
        topk_page_transform(
            logits, k, page_table=page_table, page_size=page_size, end=seq_lens, output_idx=page_indices
        )
    elif use_topk_v2:
        topk_transform_paged_v2(logits, seq_lens, page_table, page_indices, page_size, None)
    else:
        topk_transform_paged(logits, seq_lens, page_table, page_indices, page_size)
