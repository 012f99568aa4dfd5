"""What callers of a general top-k expect: 64-bit lengths, expanded rows, and large k in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flat_calls import plan_of
from gpu import material, runner, served
from gpu.served import Asked
from gpu.variants import ALL, banded
from ksieve.core.options import Options

pytestmark = pytest.mark.gpu

K, WIDTH, ROWS = 300, 9_001, 14
SHAPES = {"warp": (20, 1_001), "cooperative": (K, 262_144)}
"""(k, width) where they are not K and WIDTH."""
LONG = Options(length_dtype="int64")
EDGES = (0, 1, K, K + 1, WIDTH - 1, WIDTH, 5_000)
BEYOND = (-1, -(2**31) - 5, -(2**63), 2**31 + 7, 2**40 + 3, 2**32, 2**63 - 1)
"""Lengths of which 32 bits would tell other ones."""
LARGE = (20_000, 70_000)
WIDE = 90_001
ORDERS = ({"sorted": "value", "tie_break": "high", "values": True}, {"sorted": "index", "tie_break": "low"})


def scores_of(rows, width, dtype="float32", seed=3):
    bits = material.narrow(np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32), dtype)
    return material.place(bits, dtype, runner.DEVICE, offset=1, padding=3)


@pytest.mark.parametrize("name", ALL)
@served.judged("{name}")
def test_lengths_of_64_bits(name):
    k, width = SHAPES.get(name, (K, WIDTH))
    scores = scores_of(ROWS, width)
    for offset in (0, 3):
        lengths = torch.tensor([*EDGES, *BEYOND], device=runner.DEVICE).roll(offset)
        plan = runner.plan_for(ALL[name], scores, k, options=LONG)
        yield Asked(plan, scores, {"lengths": lengths} | served.live(ROWS - offset), runs=1)


@served.judged("banded")
def test_lengths_of_64_bits_in_several_launches():
    rows, width = 64, 20_000
    scores = scores_of(rows, width)
    lengths = np.random.default_rng(5).integers(0, width + 1, rows)
    lengths[: len(BEYOND)] = BEYOND
    plan = banded(rows, width, K, ctas=2, options=LONG)
    return [Asked(plan, scores, {"lengths": torch.from_numpy(lengths).to(runner.DEVICE)}, runs=1)]


@pytest.mark.parametrize(("rows", "width"), [(300, WIDTH), (3, 200_000), (4_000, 256), (40, 40_000)])
@served.judged("callers")
def test_rows_of_pitch_0(rows, width):
    rows = 20 if runner.HOST else rows
    scores = scores_of(1, width).expand(rows, width)
    plan = plan_of(rows=rows, width=width, k=50, pitch=0, device="cuda")
    lengths = torch.arange(rows, dtype=torch.int32, device=runner.DEVICE) * 7 % width
    return [Asked(plan, scores, call, runs=1) for call in ({}, {"lengths": lengths})]


@pytest.mark.parametrize("call", ORDERS, ids=lambda call: call["sorted"])
@pytest.mark.parametrize("k", LARGE)
@served.judged("large k")
def test_large_k_in_order(k, call):
    scores = (scores_of(3, WIDE) * 64).round() / 64  # many ties
    plan = plan_of(rows=3, width=WIDE, k=k, device="cuda", options=served.options_of(call))
    return [Asked(plan, scores, call, runs=1)]
