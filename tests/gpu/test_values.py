"""Slots without an order: every option of a slot, and values that are the bits of their scores.

Kernels have the keys of what they select, in which zeros of both signs are equal, and all NaN: values are still those
of memory.
"""

from __future__ import annotations

import pytest
import torch

from gpu import runner, served
from gpu.served import Asked
from gpu.test_options import ALL_NAMES, possible_plan
from gpu.variants import Variant, banded, crowded, small_storage
from ksieve.core.errors import ArgumentError

pytestmark = pytest.mark.gpu

NAMES = (*ALL_NAMES, "small-cluster", "resident", "binned")
ROWS = 6
# Both widths with 4 bytes a score, one with each dtype of 2: every case has eight kernels of each family.
CASES = (
    ((20_003, 512, "float32"), (70_001, 2048, "float32"), (20_003, 512, "bfloat16"), (70_001, 2048, "float16"))
    if not runner.HOST
    else tuple((3001, 200, dtype) for dtype in ("float32", "float16", "bfloat16"))
)
CALLS = (
    {"values": True, "index_dtype": "int64"},
    {"values": True, "raw": True, "page_size": 64},
    {"values": True, "raw": True, "page_size": 1, "index_dtype": "int64"},
    {"values": True, "offsets": True, "starts": True, "lengths": True},
    {"values": True, "lengths": True},
    {"values": True, "nan": "highest", "ks": True},
    {"values": True, "largest": False},
    {"page_size": 64, "ks": True},
    {"values": True, "tie_break": "low"},
    {"values": True, "raw": True, "page_size": 64, "tie_break": "high", "starts": True, "lengths": True},
)


def scores_of(rows, width, k, dtype, call):
    """Rows with one right set: zeros of both signs and subnormals, then numbers that all differ as far as k goes.

    Where ties have a preference, numbers are equal in groups: few, some and many candidates are in that of the k-th.
    """
    device = runner.DEVICE
    scores = torch.empty(rows, width, dtype=getattr(torch, dtype), device=device)
    bits = scores.view(getattr(torch, f"int{8 * scores.dtype.itemsize}"))
    sign, first = -(1 << 8 * scores.dtype.itemsize - 1), {"float32": 0x3F800000, "float16": 0x400, "bfloat16": 0x3F80}
    rank = torch.arange(width, device=device).clamp(max=12_000)
    if "tie_break" in call:
        groups = torch.tensor([1, 9, 150, 900, 5000, width], device=device)[:rows, None]
        rank = rank // groups * groups
    number = rank * 999 if dtype == "float32" else rank
    bits[:] = (number + first[dtype]).to(bits.dtype) | (sign if call.get("largest", True) else 0)
    special = torch.tensor([0, sign, 1, sign | 1, 5, sign | 7], dtype=bits.dtype, device=device)
    for row in range(rows):
        count = (0, k // 8, k // 3)[row % 3]
        bits[row, :count] = special.repeat(count // len(special) + 1)[:count]
    if call.get("nan") == "highest":
        infinity = int(torch.full((1,), torch.inf, dtype=scores.dtype).view(bits.dtype))
        bits[:, : k // 16] = (infinity + 1 + torch.arange(k // 16, device=device) % 77).to(bits.dtype)
        bits[:, 1 : k // 16 : 3] |= sign
    generator = torch.Generator(device=device).manual_seed(width)
    places = torch.rand(rows, width, device=device, generator=generator).argsort(1)
    return torch.empty_like(bits).scatter_(1, places, bits).view(scores.dtype)


def call_of(form, rows, width, k):
    """The arguments of a form; arrays stand for their marks."""
    call, row = dict(form), torch.arange(rows, dtype=torch.int32, device=runner.DEVICE)
    if "page_size" in call:
        pages = -(-width // call["page_size"]) - 1  # the last positions have none
        generator = torch.Generator(device=runner.DEVICE).manual_seed(3)
        shape, device = (3, pages), runner.DEVICE
        call["page_table"] = torch.randint(0, 1 << 20, shape, dtype=torch.int32, device=device, generator=generator)
        call["row_to_request"] = row % 4  # one of them is outside the table
    if "offsets" in call:
        call["offsets"] = row * 1000
    if "lengths" in call:
        least = k * width // 10_000  # of 12,000 scores that differ in a row, more than k lie in so many columns
        lengths = (width, max(min(width, 8192), least), k - 5, width // 2, max(2900, least), 0)
        call["lengths"] = torch.tensor(lengths, dtype=torch.int32, device=runner.DEVICE)
    if "starts" in call:
        call["starts"] = row % 3
    if call.pop("ks", False):
        call["ks"] = torch.where(row % 2 == 0, k, k - 3).int()
    return call


def plan_of(name, scores, k, call):
    """A forced plan, or None where there is none: also that of many rows, which are launched by length."""
    if name in ALL_NAMES:
        return possible_plan(name, scores, k, call)
    if name == "small-cluster":  # counts of buckets lie in the ring, where candidates have no room for them
        plan = possible_plan("cluster", scores, k, call) if scores.dtype.itemsize == 4 else None
        return plan and small_storage(plan, 32)
    asked = {"options": served.options_of(call), "dtype": str(scores.dtype).removeprefix("torch.")}
    if name == "resident":  # of many rows: each CTA meets several, and may keep one until its values are written
        try:
            return crowded(Variant(name, "resident_block"), 4096, *scores.shape, k, ctas=2, **asked)
        except ArgumentError:
            return None
    plan = banded(*scores.shape, k, **asked)
    return plan if plan.bins else None


@pytest.mark.parametrize(("width", "k", "dtype"), CASES)
@pytest.mark.parametrize("name", NAMES)
@served.judged("values {name}")
def test_slots_without_an_order(name, width, k, dtype):
    if name == "binned" and runner.HOST:
        width = 9001  # narrower rows are all of one length
    # A kernel each, which takes the emulator seconds: a third of them, in turn.
    for form in CALLS[NAMES.index(name) % 3 :: 3] if runner.HOST else CALLS:
        scores, call = scores_of(ROWS, width, k, dtype, form), call_of(form, ROWS, width, k)
        if plan := plan_of(name, scores, k, call):
            yield Asked(plan, scores, call)
