"""FlashInfer's functions, with decorators as there: a wrapper that has attributes of its own."""

import enum
import functools

import selection
import torch


class TopKTieBreak(enum.IntEnum):
    NONE = 0
    SMALL = 1
    LARGE = 2

    def __repr__(self):
        return f"TopKTieBreak.{self.name}"


def _api(function):
    @functools.wraps(function)
    def called(*args, **kwargs):
        return function(*args, **kwargs)

    called.is_backend_supported = lambda *_: True
    return called


@_api
def top_k(input, k, sorted=False, deterministic=False, tie_break=TopKTieBreak.NONE, dsa_graph_safe=False):
    rows, width = input.shape
    found = selection.best("top_k", input, torch.zeros(rows), torch.full((rows,), width), k)
    return input.gather(1, found), found


topk = top_k


@_api
def top_k_page_table_transform(
    input, src_page_table, lengths, k, row_to_batch=None, deterministic=False, tie_break=TopKTieBreak.NONE,
    dsa_graph_safe=False, row_starts=None, page_table_row_starts=None, *, page_size=1, out=None, out_raw_indices=None,
):  # fmt: skip
    found = selection.best("page_table", input, torch.zeros(input.shape[0]), lengths, k)
    return torch.where(found < 0, -1, src_page_table.gather(1, found.clamp(min=0))).int()


@_api
def top_k_ragged_transform(
    input, offsets, lengths, k, deterministic=False, tie_break=TopKTieBreak.NONE, dsa_graph_safe=False, row_starts=None
):
    found = selection.best("ragged_transform", input, torch.zeros(input.shape[0]), lengths, k)
    return torch.where(found < 0, -1, found + offsets[:, None]).int()
