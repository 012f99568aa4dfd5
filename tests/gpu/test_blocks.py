"""Rows of blocks, and forced entries: every size of a block, family and alignment, and rows that are hard to pool.

Blocks are pooled by shuffles where loads are aligned with them, else by atomics (common/blocks.cuh). Answers are judged
by the oracle, and statistics by the NumPy model.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from answers import RANKINGS
from flat_calls import ask
from gpu import material, runner, served
from gpu.served import Asked
from gpu.variants import ALL, Variant
from ksieve.planning import blocks

pytestmark = pytest.mark.gpu

SIZES = (2, 3, 4, 5, 7, 8, 16, 24, 100, 128, 255, 256)
DTYPES = ("float32", "float16", "bfloat16")
K, BLOCKS = 40, 333
FAMILIES = [f for f in blocks.FAMILIES if runner.PLANNED_FOR.capability >= (9, 0) or f != "resident_cluster"]
FORCED = {name: Variant(name, name) for name in FAMILIES}
WITHOUT_BLOCKS = ("persistent-lines", "split-8-tied", "row", "cluster", "cooperative", "warp", "persistent-exact")


def hard_rows(size, width, k=K, seed=3):
    """Rows by name, of blocks that are hard to pool or to select."""
    rng = np.random.default_rng(seed + size)
    normal = rng.standard_normal(width).astype(np.float32)
    positions = np.arange(width)
    within, block = positions % size, positions // size
    place = rng.permutation(-(-width // size))[block]
    last = within == size - 1
    return {
        "normal": normal,
        "all blocks equal": np.where(within == block % size, np.float32(2), -np.abs(normal)),
        "equal": np.full(width, 0.25, np.float32),
        "one block has the best": np.where(block == 5, np.float32(9) + normal, normal),
        "the last score of each": np.where(last, normal + 50, normal),
        "the first score of each": np.where(within == 0, normal + 50, normal),
        "best at the ends": normal + 30 * ((positions < 3) | (positions >= width - 3)),
        "a few of the k-th": np.where(place < k + 9, np.maximum(normal, 3), normal),
        "few values": np.round(4 * normal) / 4,
        "a value of many": np.where(np.abs(normal) < 1, normal, np.sign(normal) * 1.5),
        "zeros of both signs": np.where(within == 0, np.where(block % 2, 0.0, -0.0), np.where(last, 0.0, -1.0)),
        "NaN beside one number": np.where(within == block % size, normal, np.float32(np.nan)),
        "blocks of NaN": np.where(place < k // 2, normal, np.float32(np.nan)),
        "a third NaN": np.where(positions % 3 == 0, np.float32(np.nan), normal),
        "-inf and NaN": np.where(place < k // 2, normal, np.where(place % 2, -np.inf, np.nan)),
        "infinities": np.where(place < 2 * k, np.float32(np.inf), normal),
        "subnormal": normal * np.float32(1e-42),
        "forced are the best": normal + 90 * ((block == 0) | (block == block[-1])),
        "forced are the worst": normal - 90 * ((block == 0) | (block == block[-1])),
    }


@cache
def scores_of(size, width, k, dtype, number=0):
    """These rows on the device, at an alignment that the number chooses; tests share them."""
    offset, padding = ((0, 0), (1, 3), (4, 4), (6, 2), (7, 5))[number % 5]
    rows = np.stack(list(hard_rows(size, width, k).values())).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        bits = material.narrow(np.ascontiguousarray(rows), dtype)
    return material.place(bits, dtype, runner.DEVICE, offset=offset, padding=padding)


def calls(rows, width, size, k=K):
    """Bounds of rows: shorter than a block, of k blocks, and windows that begin inside of blocks."""

    def integers(*values):
        return torch.tensor((values * rows)[:rows], dtype=torch.int32, device=runner.DEVICE)

    lengths = integers(width, width - 1, size * k, size * k + 1, width - size, 1, size, 0, size + 1, -1, width + 1)
    starts = integers(0, 1, size - 1, size, 2 * size + 1, 3, width - 1)
    yield {"lengths": lengths}
    yield {"starts": starts, "ends": lengths.roll(3)}
    yield {"starts": starts.roll(2), "lengths": lengths.roll(5), "index_base": "start"}


def asked_of(variant, scores, k, call, *, stats=False, **changes):
    """A case, or nothing where the device has no such family."""
    if runner.PLANNED_FOR.capability >= (9, 0) or variant.family != "resident_cluster":
        plan = served.plan_for(variant, scores, k, call, **changes)
        assert variant not in FORCED.values() or plan.family == variant.family
        yield Asked(plan, scores, call, stats)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", SIZES)
@served.judged("blocks-{family}")
def test_every_size(size, family):
    width, number = size * BLOCKS + 2, SIZES.index(size)
    for turn, dtype in enumerate((DTYPES[number % 3], "float32")[: 1 + (number % 3 > 0 and not runner.HOST)]):
        scores = scores_of(size, width, K, dtype, number + turn)
        # Few CTAs, so that each meets several rows; clusters have a row each.
        ctas = 5 if family != "resident_cluster" else 4 * scores.shape[0]
        for call in calls(scores.shape[0], width, size):
            yield from asked_of(FORCED[family], scores, K, call | {"block_size": size}, ctas=ctas)


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@served.judged("blocks-options")
def test_orders_values_and_statistics(dtype, ranking):
    size, k = {"float32": (8, 20), "float16": (16, 9), "bfloat16": (5, 33)}[dtype]
    width = size * 150 + 1
    scores = scores_of(size, width, k, dtype, 2)
    bounds = list(calls(scores.shape[0], width, size, k))
    ks = torch.arange(scores.shape[0], dtype=torch.int32, device=runner.DEVICE) * 3 % (k + 2) - 1
    more = {"block_size": size, "values": True, "raw": True}
    asked = [
        ("resident_block", {"sorted": "value"}),
        ("resident_block", {"force_last": 1, "index_dtype": "int64"}),
        ("resident_cluster", {"sorted": "index", "force_first": 1, "force_last": 2, "forced_extra": True}),
        ("resident_cluster", {"sorted": "value", "force_first": 2}),
        ("stream_unsampled", {"sorted": "value", "tie_break": "high", "force_first": 1, "force_last": 1}),
        ("stream_unsampled", {"sorted": "index", "tie_break": "low", "force_last": 3, "forced_extra": True}),
    ]
    for number, (family, call) in enumerate(asked):
        if family in FORCED:
            call = bounds[number % 3] | call | more | RANKINGS[ranking] | ({"ks": ks} if number % 2 else {})
            yield from asked_of(FORCED[family], scores, k, call, stats=True)


@pytest.mark.parametrize("family", FAMILIES)
@served.judged("blocks-expanded")
def test_blocks_are_expanded_behind_their_selection(family):
    size, k = {"resident_block": (8, 20), "resident_cluster": (7, 9), "stream_unsampled": (5, 33)}[family]
    width = size * 150 + 3
    scores = scores_of(size, width, k, "float32", 3)
    rows = scores.shape[0]
    bounds = list(calls(rows, width, size, k))
    tail = torch.tensor(([width, size * k, 5, width - 1, 0, -3, size] * rows)[:rows], dtype=torch.int32)
    counts = torch.zeros(rows, dtype=torch.int32, device=runner.DEVICE)
    tied = {"tie_break": "high", "sorted": "value"} if family == "stream_unsampled" else {"sorted": "index"}
    for number, call in enumerate((
        {"force_last": 1, "counts": counts},
        {"force_first": 1, "force_last": 2, "forced_extra": True, "values": True, "counts": counts} | tied,
        {"tail": tail.to(runner.DEVICE), "force_last": 1, "raw": True, "counts": counts},
    )):  # fmt: skip
        call = bounds[(number + 1) % 3] | {"block_size": size, "expand": size} | call
        yield from asked_of(FORCED[family], scores, k, call)


@pytest.mark.parametrize("name", WITHOUT_BLOCKS)
@served.judged("forced-{name}")
def test_forced_entries_without_blocks(name):
    width, k = (1000, 30) if name == "warp" else (9001, 64)
    scores = scores_of(64, width, k, "float32", 1)
    bounds = list(calls(scores.shape[0], width, 64, 1))
    ks = torch.arange(scores.shape[0], dtype=torch.int32, device=runner.DEVICE) * 7 % (k + 2) - 1
    for number, call in enumerate((
        {"force_last": 1},
        {"force_first": 4, "force_last": 70, "forced_extra": True, "ks": ks},
        {"force_first": k - 1, "force_last": 1, "values": True},
        {"force_first": 2, "force_last": 1, "ks": ks, "sorted": "value", "tie_break": "high", "raw": True},
        {"force_first": 1, "force_last": 3, "sorted": "index", "index_dtype": "int64", "values": True},
    )):  # fmt: skip
        if name not in ("warp", "cooperative") or "sorted" not in call:
            few = {"ctas": 3} if name == "row" else {}  # several rows for each
            yield from asked_of(ALL[name], scores, k, bounds[number % 3] | call, stats=number in (0, 3), **few)


def test_rows_of_no_slots_have_forced_entries(tally):
    scores = scores_of(8, 500, 4, "float32")
    rows = scores.shape[0]
    for call in ({"block_size": 8}, {}):
        out = torch.full((rows, 3), 7, dtype=torch.int32, device=runner.DEVICE)
        asked = call | {"force_first": 1, "force_last": 2, "forced_extra": True, "sorted": "index"}
        ask(runner.on_device(scores), None, 0, out=runner.on_device(out), **asked)
        n = 63 if call else 500
        assert (out.cpu() == torch.tensor([0, n - 2, n - 1], dtype=torch.int32)).all()
    tally.add("blocks-no-slots", 2 * rows, [])
