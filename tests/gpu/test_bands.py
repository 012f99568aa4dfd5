"""Rows dealt to several launches by their length: every band and its borders, and what callers may ask for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from gpu import material, runner, served
from gpu.served import Asked
from gpu.variants import banded
from ksieve.core.options import PLAIN
from ksieve.planning.switch_points import BIN_WIDTH, MOST_BINS

pytestmark = pytest.mark.gpu

K = 700
WIDTHS = (10_000, 20_000, 32_768, 65_536)
"""Behind one, two and three bands the rest is held, too; behind four it is sampled."""


def plan_of(rows, width, ctas=None, options=PLAIN):
    return banded(rows, width, K, ctas=ctas, options=options)


def lengths_of(width, rows, seed=3):
    """Lengths on both sides of every border, of slots and of the matrix, and then any."""
    borders = (0, K, BIN_WIDTH, 2 * BIN_WIDTH, 3 * BIN_WIDTH, 4 * BIN_WIDTH, width)
    known = [border + beside for border in borders for beside in (-1, 0, 1)] + [-9, width + 9, 3]
    drawn = np.random.default_rng(seed).integers(-5, width + 6, max(rows - len(known), 0))
    return torch.from_numpy(np.concatenate([known, drawn]).astype(np.int32)[:rows]).to(runner.DEVICE)


def test_widths_reach_every_number_of_bands():
    """Where registers hold rows at all. If the planner gave none, the tests below would judge one launch."""
    plans = [plan_of(8, width) for width in WIDTHS]
    if plans[0].device.capability == (9, 0):
        assert [len(plan.bins) for plan in plans] == list(range(1, MOST_BINS + 1))


@pytest.mark.parametrize("ctas", [None, 2])
@pytest.mark.parametrize("width", WIDTHS)
@served.judged("banded")
def test_rows_of_every_length(width, ctas):
    """Each CTA meets many rows with `ctas`, and one at most without."""
    bits = material.stack(width, K)
    bits = np.ascontiguousarray(np.resize(bits, (max(len(bits), 60), width))).view(np.int32)
    rows = len(bits)
    plan = plan_of(rows, width, ctas)
    for (offset, padding), seed, live in itertools.product(((0, 0), (1, 3)), (3, 4), (None, rows - 7)):
        scores = material.place(bits, "float32", runner.DEVICE, offset=offset, padding=padding)
        yield Asked(plan, scores, {"lengths": lengths_of(width, rows, seed)} | served.live(live))


@pytest.mark.parametrize("width", WIDTHS)
@served.judged("banded")
def test_launches_without_a_row(width):
    """All rows in one list; no lengths; fewer rows than there are lists."""
    bits = material.stack(width, K)[:24].view(np.int32)
    for count in (24, 3, 1):
        scores = material.place(np.ascontiguousarray(bits[:count]), "float32", runner.DEVICE)
        plan = plan_of(24, width, 2)
        yield Asked(plan, scores, {})
        for length in (0, 5, K, *(BIN_WIDTH * (i + 1) for i in range(MOST_BINS)), width):
            lengths = torch.full((count,), min(length, width), dtype=torch.int32, device=runner.DEVICE)
            yield Asked(plan, scores, {"lengths": lengths})


@pytest.mark.parametrize("name", ["values", "windows"])
@served.judged("banded")
def test_options_of_dealt_rows(name):
    """Scores without ties, so that the answer is one: slots by value, and windows that end where lengths say."""
    width, rows = WIDTHS[-1], 40
    rng = np.random.default_rng(12)
    bits = np.stack([rng.permutation(width) for _ in range(rows)]).astype(np.float32).view(np.int32)
    scores = material.place(bits, "float32", runner.DEVICE, offset=2, padding=5)
    call = {"lengths": lengths_of(width, rows), "sorted": "value", "values": True}
    if name == "windows":
        starts = torch.from_numpy(rng.integers(0, 3 * BIN_WIDTH, rows).astype(np.int32)).to(runner.DEVICE)
        call["starts"] = starts
    options = served.options_of(call)
    return [Asked(plan_of(rows, width, ctas, options), scores, call) for ctas in (None, 2)]


@served.judged("banded")
def test_statistics_have_one_launch():
    """They are of the plan's own kernel: its route for short rows, too, is the model's."""
    width, rows = 40_000, 24
    scores = material.place(
        np.ascontiguousarray(material.stack(width, K)[:rows].view(np.int32)), "float32", runner.DEVICE
    )
    call = {"lengths": lengths_of(width, rows)}
    return [Asked(plan_of(rows, width), scores, call, stats=True)]
