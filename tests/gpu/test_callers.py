"""What callers of a general top-k expect: 64-bit lengths, expanded rows, any rank, k = 0, and large k in order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import ksieve
from gpu import material, runner, served
from gpu.served import Asked
from gpu.variants import ALL, banded, possible
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
ORDERS = ({"sorted": "value", "tie_break": "high", "return_values": True}, {"sorted": "index", "tie_break": "low"})


def kernels():
    for name in ALL:
        k, width = SHAPES.get(name, (K, WIDTH))
        for plan in possible(ALL[name], ROWS, width, k, options=LONG):
            yield plan, False
    for k, call in itertools.product(LARGE, ORDERS):
        shape = {"rows": 3, "width": WIDE, "k": k, "options": served.options_of(call)}
        yield ksieve.plan(**shape, device="cuda"), False


def scores_of(rows, width, dtype="float32", seed=3):
    bits = material.narrow(np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32), dtype)
    return material.place(bits, dtype, runner.DEVICE, offset=1, padding=3)


def check(scores, lengths, k, indices, tally, name="callers"):
    """Whether the rows of an answer, in a matrix, are exact."""
    wrong = runner.refuted(scores, lengths, indices, k)
    tally.judge(name, len(scores), wrong)


@pytest.mark.parametrize("name", ALL)
def test_lengths_of_64_bits(name, tally):
    k, width = SHAPES.get(name, (K, WIDTH))
    scores, cases = scores_of(ROWS, width), []
    for offset in (0, 3):
        lengths = torch.tensor([*EDGES, *BEYOND], device=runner.DEVICE).roll(offset)
        plan = runner.plan_for(ALL[name], scores, k, options=LONG)
        cases.append(Asked(plan, scores, {"lengths": lengths} | served.live(ROWS - offset), runs=1))
    served.judge(tally, name, cases)


def test_lengths_of_64_bits_in_several_launches(tally):
    rows, width = 64, 20_000
    scores = scores_of(rows, width)
    lengths = np.random.default_rng(5).integers(0, width + 1, rows)
    lengths[: len(BEYOND)] = BEYOND
    plan = banded(rows, width, K, ctas=2, options=LONG)
    call = {"lengths": torch.from_numpy(lengths).to(runner.DEVICE)}
    served.judge(tally, "banded", [Asked(plan, scores, call, runs=1)])


def select(scores, lengths, k, **more):
    """Select through the public call into new indices."""
    out = torch.full((*scores.shape[:-1], k), runner.POISON, dtype=torch.int32, device=runner.DEVICE)
    ksieve.topk(runner.on_device(scores), k=k, **runner.on_device({"lengths": lengths, "out": out}), **more)
    return out


@pytest.mark.parametrize("shape", [(300, WIDTH), (3, 200_000), (4_000, 256), (40, 40_000)])
def test_rows_of_pitch_0(shape, tally):
    rows, width = shape
    rows = 20 if runner.HOST else rows
    scores = scores_of(1, width).expand(rows, width)
    lengths = torch.arange(rows, dtype=torch.int32, device=runner.DEVICE) * 7 % width
    for given in (None, lengths):
        check(scores, given, 50, select(scores, given, 50), tally)


@pytest.mark.parametrize("call", ORDERS, ids=lambda call: call["sorted"])
@pytest.mark.parametrize("k", LARGE)
def test_large_k_in_order(k, call, tally):
    scores = (scores_of(3, WIDE) * 64).round() / 64  # many ties
    plan = ksieve.plan(rows=3, width=WIDE, k=k, device="cuda", options=served.options_of(call))
    served.judge(tally, "large k", [Asked(plan, scores, call, runs=1)])
