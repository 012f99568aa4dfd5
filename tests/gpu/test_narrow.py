"""Many narrow rows, of a warp each: every width that has a kernel, every way that a row is decided, at every alignment.

A row is decided by listing and ranking up to 32 scores, by bisection down to k scores or to equal keys, or, where it
has fewer than k numbers, by what is no number (register/warp.cuh).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import cases
from gpu import material, runner, served
from gpu.served import Asked
from gpu.variants import ALL

pytestmark = pytest.mark.gpu

WARP = ALL["warp"]
DTYPES = ("float32", "float16", "bfloat16")
WIDTHS = (1, 5, 64, 100, 128, 129, 250, 256, 257, 512, 1000, 1024, 1500, 2048)
RANKS = (1, 6, 14, 16, 31, 32, 33, 63, 128, 255, 999)


def hard_rows(width, k):
    """Rows by name: how each is decided."""
    rows = cases.hard_rows(width, k, width)
    normal, rng = rows["normal"], np.random.default_rng(width)
    place = rng.permutation(width)  # place[i] < k: one of the k best, where the others are alike
    lanes = np.arange(width) // 4 % 32
    return rows | {
        # more than 32 reach the cutoff that the lanes' best scores give
        "best in one lane": normal + 30 * (lanes == 7),
        "best in three lanes": normal + 30 * (lanes < 3),
        "best twice at the front": normal + 30 * (np.arange(width) < 2 * k),
        # equal keys at the rank: a few, and a part of them
        "two of the k-th": np.where(place < k - 1, normal + 50, np.where(place < k + 1, 9.0, normal)),
        "40 of the k-th": np.where(place < k // 2, normal + 50, np.where(place < k // 2 + 40, 9.0, normal)),
        "next to each other": 1 + place * 2.0**-23,
        # as many numbers as k, and one fewer
        "k numbers": np.where(place < k, normal, np.nan),
        "fewer than k numbers": np.where(place < k - 1, normal, np.nan),
    }


def bits_of(rows, dtype):
    with np.errstate(over="ignore", invalid="ignore"):
        return material.narrow(np.ascontiguousarray(np.stack(list(rows.values())).astype(np.float32)), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@served.judged("warp")
def test_every_way_that_a_row_is_decided(width, dtype):
    asked = {1, width // 2, width - 1, width, width + 3, *(k for k in RANKS if k < width)} - {0}
    for number, k in enumerate(sorted(asked)):
        rows = hard_rows(width, k)
        offset, padding = ((0, 0), (1, 3), (0, 1), (6, 2), (7, 4))[number % 5]
        scores = material.place(bits_of(rows, dtype), dtype, runner.DEVICE, offset=offset, padding=padding)
        edges = [width - 1, k + 1, k, width - 3, k - 1, 1, 0, width * 5 // 8 + 1, -1, width + 1, width - 8]
        lengths = torch.tensor((edges * len(rows))[: len(rows)], dtype=torch.int32, device=runner.DEVICE)
        plan = runner.plan_for(WARP, scores, k, ctas=2)  # each warp meets several rows
        assert plan.family == "register_warp"
        for call in ({}, {"lengths": lengths}, {"lengths": lengths.roll(4)}):
            yield Asked(plan, scores, call, runs=1)


@pytest.mark.parametrize("dtype", DTYPES)
@served.judged("warp")
def test_every_alignment_and_length(dtype):
    """The first vector of a row begins before it, and takes the row's last scores."""
    for width, offset, padding in itertools.product((127, 128, 256), range(8), (0, 1, 2, 4)):
        if dtype == "float32" and offset > 3:
            continue
        rng = np.random.default_rng(width + offset)
        bits = material.narrow(rng.standard_normal((2 * 17, width)).astype(np.float32), dtype)
        scores = material.place(bits, dtype, runner.DEVICE, offset=offset, padding=padding)
        call = {"lengths": torch.arange(len(bits), dtype=torch.int32, device=runner.DEVICE) % 17 + (width - 16)}
        yield from [Asked(runner.plan_for(WARP, scores, k), scores, call, runs=1) for k in (3, 100)]


@served.judged("warp")
def test_random_bits_and_fewer_live_rows():
    bits = np.random.default_rng(3).integers(-(2**31), 2**31, (40, 300)).astype(np.int32)
    scores = material.place(bits, "float32", runner.DEVICE, offset=2, padding=1)
    plan = runner.plan_for(WARP, scores, 12)
    return [Asked(plan, scores, served.live(rows)) for rows in (0, 1, 33, 40, 77)]


@pytest.mark.parametrize("width", [64, 200, 2048])
@served.judged("warp")
def test_statistics_are_those_of_a_block(width):
    rows = hard_rows(width, 20)
    scores = material.place(bits_of(rows, "float32"), "float32", runner.DEVICE)
    return [Asked(runner.plan_for(WARP, scores, 20), scores, {}, stats=True)]
