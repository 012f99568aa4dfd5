"""DeepSelect's functions, as SGLang ships them."""

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


def topk_page_transform(
    input, topk, *, page_table, page_size, end=None, sorted_index=False, output_idx=None, idx_oob_fill_value=-1,
    abort_when_nan_found=False,
):  # fmt: skip
    rows, width = input.shape
    stop = torch.full((rows,), width) if end is None else end
    found = selection.best("page_transform", input, torch.zeros(rows), stop, topk)
    pages = page_table.gather(1, found.clamp(min=0) // page_size) * page_size + found % page_size
    pages = torch.where(found < 0, idx_oob_fill_value, pages).int()
    return pages if output_idx is None else output_idx.copy_(pages)
