"""16-bit scores that stay on chip: few values, so that many scores share the k-th.

Where a bucket (resident/buckets.cuh) or a coarse bin (register/select.cuh) has one value, any of its scores complete
the answer: nothing is ranked, or read again.
"""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
import torch

import ksieve
from gpu import material, runner, served
from gpu.test_bands import lengths_of
from gpu.test_held import K, hard_rows
from gpu.variants import Variant, banded, possible
from ksieve.core.errors import ArgumentError
from ksieve.planning import shapes, tuned
from ksieve.planning.families import ONE_CTA
from ksieve.planning.memory import with_workspace

pytestmark = pytest.mark.gpu

DTYPES = ("float16", "bfloat16")
KNOWN = {dtype: shapes.of(runner.PLANNED_FOR, dtype) for dtype in DTYPES}
SHAPES = [(family, shape) for family, listed in KNOWN["bfloat16"].resident.items() for shape in listed]
IDS = [f"{f}-{s.resident_width}-{s.ctas_per_row}x{s.threads}x{s.ctas_per_sm}" for f, s in SHAPES]
IN_TURN = [(family, shape, DTYPES[number % 2]) for number, (family, shape) in enumerate(SHAPES)]
"""Every launch shape with one of the dtypes: each has another kernel, which takes seconds to compile."""
FORCED = {family: Variant(family, family) for family, _ in SHAPES}
FIELDS = ("threads", "ctas_per_sm", "resident_width", "ctas_per_row")


@contextlib.contextmanager
def alone(family, shape, dtype):
    """Plan with one launch shape, whatever the number of rows."""
    known = KNOWN[dtype]
    same = [one for one in known.resident.get(family, ()) if all(getattr(one, n) == getattr(shape, n) for n in FIELDS)]
    if not same:
        pytest.skip(f"no such shape of {dtype}")
    only = (dataclasses.replace(same[0], fewest_rows=0, most_rows=0),)
    with tuned.replaced(known, dataclasses.replace(known, resident={**known.resident, family: only})):
        yield


def plan_of(family, shape, dtype, rows, k=K, **changes):
    with alone(family, shape, dtype):
        plan = FORCED[family].plan(rows, shape.resident_width, k, dtype=dtype, device=runner.PLAN_DEVICE)
    return with_workspace(dataclasses.replace(plan, **changes)) if changes else plan


def kernels():
    for family, shape in SHAPES:
        for dtype in DTYPES:
            with contextlib.suppress(ArgumentError, pytest.skip.Exception):
                yield plan_of(family, shape, dtype, 32), False
    for family, shape, dtype, levels in ABOUT_LEVELS:
        for plan in plans_about_levels(family, shape, dtype, levels):
            yield plan, False
    for family, shape, dtype, asked in ASKED_IN_TURN:
        for plan in asked_plans(family, shape, dtype, OPTIONS[asked]):
            yield plan, False
    if runner.PLANNED_FOR.capability >= (9, 0):
        yield from [(plan, False) for dtype in DTYPES for plan in fullest_plans(dtype)]


def rounded_rows(width):
    """Rows by name: how many values there are about the k-th score, and what lies beside it."""
    rng = np.random.default_rng(13)
    normal = rng.standard_normal(width).astype(np.float32)
    positions, tail = np.arange(width), np.argsort(np.argsort(-normal))
    unit = np.float32(2.0**-24)
    with np.errstate(over="ignore"):
        return {
            "16 levels": np.round(normal * 16) / 16,
            "4 levels": np.round(normal * 4) / 4,
            "levels of one sign": np.abs(np.round(normal * 8)) / 8 + 1,
            "negative levels": -np.abs(np.round(normal * 8)) / 8 - 1,
            "large levels": np.round(normal * 8) * 4096,
            "sums of rectified parts": np.maximum(normal, 0) + np.maximum(rng.standard_normal(width), 0) / 2,
            "mostly zero": np.where(tail < K // 2, np.abs(normal), 0) * np.where(positions % 2, 1, -1) ** 2,
            "zeros about the rank": np.where(tail < K - 9, np.abs(normal) + 1, np.where(tail < 2 * K, 0, -1)),
            "one value about the rank": np.where((tail > K - 300) & (tail < K + 300), np.sort(normal)[-K], normal),
            "two neighbours": np.where(tail < K - 40, 2, np.where(tail < K + 40, 1 + 2.0**-7, 1)),
            "one better": np.where(tail < 1, 2, 1),
            "one worse": np.where(tail < width - 1, 1, 0.5),
            "an infinity": np.where(tail < 1, np.inf, np.round(normal * 4) / 4),
            "infinities and levels": np.where(tail < K - 50, np.inf, np.round(normal * 2) / 2),
            "NaN between levels": np.where(positions % 3 == 0, np.nan, np.round(normal * 4) / 4),
            "negative NaN": np.where(positions % 3 == 0, -np.float32(np.nan), np.round(normal * 4) / 4),
            "subnormal levels": np.round(normal * 4) * unit * 8,
            "subnormals": np.round(normal * 300) * unit,
            "tiny": np.round(normal * 16) * np.float32(2.0**-130),
            "huge": np.clip(normal * 30_000, -65_504, 65_504),
            "octaves": np.exp2(np.round(normal * 4)),
            "every pattern": positions.astype(np.uint32).astype(np.uint16).view(np.float16).astype(np.float32),
            "sorted levels": np.sort(np.round(normal * 16) / 16),
            "levels by position": (positions // max(width // 40, 1)).astype(np.float32),
        }


def matrix(rows, dtype):
    """Rows as bit patterns of a dtype, rounded to its nearest values."""
    scores = np.ascontiguousarray(np.stack(list(rows.values())).astype(np.float32))
    if dtype == "bfloat16":
        scores = torch.from_numpy(scores).to(torch.bfloat16).view(torch.int16).numpy()
        return np.ascontiguousarray(scores)
    return material.narrow(scores, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "shape"), SHAPES, ids=IDS)
def test_rows_of_few_values(family, shape, dtype, tally):
    width = shape.resident_width
    rows = rounded_rows(width) | hard_rows(width)
    bits, count, wrong = matrix(rows, dtype), len(rows), []
    short = [width, width - 1, width - 3, width * 5 // 8 + 1, width, width // 2, K + 1, width]
    lengths = torch.tensor((short * count)[:count], dtype=torch.int32, device=runner.DEVICE)
    several = (0, 3) if family in ONE_CTA else (0,)
    alignments = ((0, 0, None), (1, 3, None), (6, 1, lengths), (0, 8, lengths))
    for number, (offset, padding, given) in enumerate(alignments):
        scores = material.place(bits, dtype, runner.DEVICE, offset=offset, padding=padding)
        # An emulated launch takes a second: each number of CTAs with and without lengths.
        for ctas in several[number % len(several) :][:1] if runner.HOST else several:
            plan = plan_of(family, shape, dtype, count, **({"ctas": ctas} if ctas else {}))
            found = runner.check(plan, scores, given, runs=1)
            wrong += [f"{offset=} {padding=} {ctas=}: {text} of {list(rows)}" for text in found]
    tally.add(family, count, wrong)
    assert not wrong, "\n".join(wrong)


LEVELS = ((2, 0), (1.5, -0.5), (1, 0.5))
"""Values about whose last score k is tried, two for each launch shape in turn: every k has another kernel."""
ABOUT_LEVELS = [(*one, LEVELS[number % len(LEVELS)]) for number, one in enumerate(IN_TURN)]


def rows_of_levels(width):
    normal = np.random.default_rng(14).standard_normal(width)
    return {"levels": np.round(normal * 8) / 8, "fine": np.round(normal * 64) / 64}


def plans_about_levels(family, shape, dtype, levels):
    width = shape.resident_width
    beyond = {int((rows_of_levels(width)["levels"] > level).sum()) for level in levels}
    for k in sorted({k + step for k in beyond for step in (-1, 0, 1, 2)} | {1, width - 1}):
        if not 0 < k < width:
            continue
        with alone(family, shape, dtype):
            yield from list(possible(FORCED[family], 2, width, k, dtype=dtype, device=runner.PLAN_DEVICE))


@pytest.mark.parametrize(("family", "shape", "dtype", "levels"), ABOUT_LEVELS, ids=IDS)
def test_k_about_the_ends_of_a_value(family, shape, dtype, levels, tally):
    """All of a value's scores are wanted, or all but one, or one; up to where no more positions fit on chip."""
    scores = material.place(matrix(rows_of_levels(shape.resident_width), dtype), dtype, runner.DEVICE)
    wrong = []
    for plan in plans_about_levels(family, shape, dtype, levels):
        wrong += [f"k={plan.problem.k}: {text}" for text in runner.check(plan, scores, None, runs=1)]
    tally.add(family, 2, wrong)
    assert not wrong, "\n".join(wrong)


OPTIONS = {
    "windows": {"starts": 5, "index_base": "start"},
    "values": {"return_values": True},
    "sorted": {"sorted": True, "return_values": True},
    "ties": {"tie_break": "low", "sorted": "index"},
}


ASKED_IN_TURN = [(*one, list(OPTIONS)[number % len(OPTIONS)]) for number, one in enumerate(reversed(IN_TURN))]


ROWS_WITH_OPTIONS = 9


def asked_plans(family, shape, dtype, call):
    with alone(family, shape, dtype):
        return list(
            possible(
                FORCED[family], ROWS_WITH_OPTIONS, shape.resident_width, K, dtype=dtype, device=runner.PLAN_DEVICE,
                options=served.options_of(call),
            )
        )  # fmt: skip


@pytest.mark.parametrize(("family", "shape", "dtype", "asked"), ASKED_IN_TURN, ids=reversed(IDS))
def test_options_of_rows_of_few_values(family, shape, dtype, asked, tally):
    rows = dict(list(rounded_rows(shape.resident_width).items())[:ROWS_WITH_OPTIONS])
    count, call = len(rows), dict(OPTIONS[asked])
    plans = asked_plans(family, shape, dtype, call)
    starts = np.arange(count) * call.get("starts", 0)
    if "starts" in call:
        call["starts"] = torch.from_numpy(starts.astype(np.int32)).to(runner.DEVICE)
    scores, wrong = material.place(matrix(rows, dtype), dtype, runner.DEVICE), []
    for plan in plans:
        wrong += served.check(served.Served(plan, scores, call))
    tally.add(family, count, wrong)
    assert not wrong, "\n".join(wrong)


LISTED = [(dtype, shape) for dtype in DTYPES for shape in KNOWN[dtype].resident.get("register_block", ())]


@pytest.mark.parametrize(("dtype", "shape"), LISTED, ids=[f"{d}-{s.resident_width}" for d, s in LISTED])
def test_bins_of_registers_with_more_than_are_ranked(dtype, shape, tally):
    """A coarse bin with one value, with two, and with as many as it has."""
    width, rng = shape.resident_width, np.random.default_rng(15)
    most = min(shape.threads // 2, 256)  # kernels/register/select.cuh, kRankListMax
    k = 2 * most + 100
    rows = {}
    for count in (1, 33, most - 1, most, most + 1, 2 * most):
        for wanted in {1, count // 2, count} - {0}:
            for values in (1, 2, 4):
                scores = rng.uniform(0, 0.9, width)
                place = rng.permutation(width)
                scores[place[: k - wanted]] = rng.uniform(1.05, 9, k - wanted)
                scores[place[k - wanted : k - wanted + count]] = 1 + rng.integers(0, values, count) * 2.0**-7
                rows[f"{count} {wanted} {values}"] = scores
                rows[f"-{count} {wanted} {values}"] = -1 / np.maximum(scores, 1e-3)
    wrong = []
    for offset, padding in ((0, 0), (3, 1)):
        scores = material.place(matrix(rows, dtype), dtype, runner.DEVICE, offset=offset, padding=padding)
        plan = plan_of("register_block", shape, dtype, len(rows), k=k)
        wrong += [f"offset={offset}: {text}" for text in runner.check(plan, scores, None)]
    tally.add("register_block", len(rows), wrong)
    assert not wrong, "\n".join(wrong)


def fullest_plans(dtype):
    """Clusters whose rows have as many slots as are collected on chip, and one more: then candidates are stored."""
    asked = {"rows": 1, "width": FULLEST, "dtype": dtype, "device": runner.PLAN_DEVICE}
    most = max(k for k in range(512, FULLEST) if ksieve.plan(**asked, k=k).capacity < k)
    plans = [ksieve.plan(**asked, k=k) for k in (most - 8, most, most + 1)]
    return [plan for plan in plans if plan.family == "resident_cluster"]


FULLEST = 24_576


@pytest.mark.skipif(runner.PLANNED_FOR.capability < (9, 0), reason="no such families")
@pytest.mark.parametrize("dtype", DTYPES)
def test_as_many_slots_as_are_collected_on_chip(dtype, tally):
    """All scores are equal, so that no candidate of an exact route could be left out."""
    scores = material.place(matrix({"equal": np.full(FULLEST, 3)}, dtype), dtype, runner.DEVICE)
    plans, wrong = fullest_plans(dtype), []
    assert len(plans) >= 2
    for plan in plans:
        wrong += [f"k={plan.problem.k}: {text}" for text in runner.check(plan, scores, None, runs=1)]
    tally.add("resident_cluster", len(plans), wrong)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_length_in_several_launches(dtype, tally):
    """Listed by length (kernels/length_bins.cuh), with few values."""
    width = 20_000
    rows = rounded_rows(width)
    count, wrong = len(rows), []
    plan = banded(count, width, K, ctas=2, device=runner.PLAN_DEVICE, dtype=dtype)
    for offset, seed in ((0, 3), (1, 4)):
        scores = material.place(matrix(rows, dtype), dtype, runner.DEVICE, offset=offset, padding=3)
        wrong += runner.check(plan, scores, lengths_of(width, count, seed), runs=1)
    tally.add("banded", 2 * count, wrong)
    assert not wrong, "\n".join(wrong)
