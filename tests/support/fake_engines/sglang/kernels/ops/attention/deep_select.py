"""DeepSelect's function, as SGLang ships it."""

import selection
import torch


def topk(
    input, topk, *, sorted=False, begin=None, end=None, indices_type=torch.int32, sorted_index=False, hint=None,
    output_idx=None, output_idx_offset=None, idx_oob_fill_value=2147483647, value_oob_fill_value=float("-inf"),
    return_value=False, abort_when_nan_found=False,
):  # fmt: skip
    rows, width = input.shape
    stop = torch.full((rows,), width) if end is None else end
    found = selection.best("deep_select", input, torch.zeros(rows), stop, topk)
    found = found.masked_fill(found < 0, idx_oob_fill_value).to(indices_type)
    return None, found if output_idx is None else output_idx.copy_(found)
