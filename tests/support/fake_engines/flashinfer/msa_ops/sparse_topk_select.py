"""FlashInfer's function for blocks of each head."""

import selection
import torch


def msa_topk_select(
    max_score, topk, num_valid_pages=None, output=None, force_begin_blocks=0, force_end_blocks=0
):  # fmt: skip
    heads, blocks, tokens = max_score.shape
    scores = max_score.permute(2, 0, 1).reshape(tokens * heads, blocks).clone()
    valid = blocks if num_valid_pages is None else num_valid_pages
    ends = torch.as_tensor(valid).expand(tokens).repeat_interleave(heads)
    for row, end in zip(scores, ends, strict=True):
        row[:force_begin_blocks] = row[max(int(end) - force_end_blocks, 0) : int(end)] = float("inf")
    found = selection.best("msa", scores, torch.zeros(len(scores)), ends, topk).int().view(tokens, heads, topk)
    return found if output is None else output.copy_(found)
