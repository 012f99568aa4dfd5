"""SGLang's compiled-on-demand function."""

import sgl_kernel.top_k


def fast_topk(score, lengths, topk, row_starts=None):
    return sgl_kernel.top_k.fast_topk_v2(score, lengths, topk, row_starts)
