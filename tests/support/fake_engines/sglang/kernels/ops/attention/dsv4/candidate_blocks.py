"""SGLang's selection of DeepSeek-V4.1's candidate blocks: 8 positions each, the newest among them."""

import selection
import torch


def amax_topk_blocks(logits, seq_lens, nblocks, topk_blocks, max_seq_len=None):
    rows, width = logits.shape
    blocks = -(-width // 8)
    best = torch.full((rows, blocks * 8), -torch.inf)
    seen = torch.arange(width) < seq_lens[:, None]
    best[:, :width] = logits.float().masked_fill(~seen, -torch.inf)
    best = best.unflatten(1, (blocks, 8)).amax(2)
    newest = (seq_lens.long() - 1).clamp(min=0) // 8
    best[torch.arange(rows), newest.clamp(max=blocks - 1)] = torch.inf
    return selection.best("blocks", best, torch.zeros(rows), nblocks, topk_blocks).int()
