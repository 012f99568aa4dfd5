"""16-bit scores that stay on chip: few values, so that many scores share the k-th.

Where a bucket (resident/buckets.cuh) or a coarse bin (register/select.cuh) has one value, any of its scores complete
the answer: nothing is ranked, or read again.
"""

from __future__ import annotations

import dataclasses
import functools
import operator

import numpy as np
import pytest
import torch

from gpu import runner, served, test_held
from gpu.served import Asked
from gpu.test_bands import lengths_of
from gpu.test_held import K, hard_rows, plans_of, stacked
from gpu.variants import banded
from ksieve import dispatch
from ksieve.planning import shapes
from ksieve.planning.families import ONE_CTA

pytestmark = pytest.mark.gpu

DTYPES = ("float16", "bfloat16")
KNOWN = {dtype: shapes.of(runner.PLANNED_FOR, dtype).resident for dtype in DTYPES}
SHAPES = [(family, shape) for family, listed in KNOWN["bfloat16"].items() for shape in listed]
IDS = [f"{f}-{s.resident_width}-{s.ctas_per_row}x{s.threads}x{s.ctas_per_sm}" for f, s in SHAPES]
IN_TURN = [(family, shape, DTYPES[number % 2]) for number, (family, shape) in enumerate(SHAPES)]
"""Every launch shape with one of the dtypes: each has another kernel, which takes seconds to compile."""
FIELDS = operator.attrgetter("threads", "ctas_per_sm", "resident_width", "ctas_per_row")


def in_dtype(family, shape, dtype):
    """The same launch shape in the table of a dtype, for any number of rows."""
    same = [one for one in KNOWN[dtype].get(family, ()) if FIELDS(one) == FIELDS(shape)]
    if not same:
        pytest.skip(f"no such shape of {dtype}")
    return dataclasses.replace(same[0], fewest_rows=0, most_rows=0)


def plan_of(family, shape, dtype, rows, k=K, **changes):
    return test_held.plan_of(family, in_dtype(family, shape, dtype), rows, k, dtype, **changes)


@functools.cache
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "shape"), SHAPES, ids=IDS)
@served.judged("{family}")
def test_rows_of_few_values(family, shape, dtype):
    width = shape.resident_width
    rows = rounded_rows(width) | hard_rows(width)
    count = len(rows)
    short = [width, width - 1, width - 3, width * 5 // 8 + 1, width, width // 2, K + 1, width]
    lengths = torch.tensor((short * count)[:count], dtype=torch.int32, device=runner.DEVICE)
    several = (0, 3) if family in ONE_CTA else (0,)
    alignments = ((0, 0, {}), (1, 3, {}), (6, 1, {"lengths": lengths}), (0, 8, {"lengths": lengths}))
    for number, (offset, padding, call) in enumerate(alignments):
        scores = stacked(rows.values(), offset, padding, dtype)
        # An emulated launch takes a second: each number of CTAs with and without lengths.
        for ctas in several[number % len(several) :][:1] if runner.HOST else several:
            plan = plan_of(family, shape, dtype, count, **({"ctas": ctas} if ctas else {}))
            yield Asked(plan, scores, call, runs=1)


LEVELS = ((2, 0), (1.5, -0.5), (1, 0.5))
"""Values about whose last score k is tried, two for each launch shape in turn: every k has another kernel."""
ABOUT_LEVELS = [(*one, LEVELS[number % len(LEVELS)]) for number, one in enumerate(IN_TURN)]


def rows_of_levels(width):
    normal = np.random.default_rng(14).standard_normal(width)
    return {"levels": np.round(normal * 8) / 8, "fine": np.round(normal * 64) / 64}


@pytest.mark.parametrize(("family", "shape", "dtype", "levels"), ABOUT_LEVELS, ids=IDS)
@served.judged("{family}")
def test_k_about_the_ends_of_a_value(family, shape, dtype, levels):
    """All of a value's scores are wanted, or all but one, or one; up to where no more positions fit on chip."""
    width = shape.resident_width
    rows = rows_of_levels(width)
    beyond = {int((rows["levels"] > level).sum()) for level in levels[: 1 if runner.HOST else None]}
    ks = sorted({k + step for k in beyond for step in (-1, 0, 1, 2) if 0 < k + step < width} | {1, width - 1})
    scores = stacked(rows.values(), dtype=dtype)
    return [Asked(plan, scores, {}, runs=1) for plan in plans_of(family, in_dtype(family, shape, dtype), 2, ks, dtype)]


OPTIONS = {
    "windows": {"starts": 5, "index_base": "start"},
    "values": {"values": True},
    "sorted": {"sorted": True, "values": True},
    "ties": {"tie_break": "low", "sorted": "index"},
}
ASKED_IN_TURN = [(*one, list(OPTIONS)[number % len(OPTIONS)]) for number, one in enumerate(reversed(IN_TURN))]


@pytest.mark.parametrize(("family", "shape", "dtype", "asked"), ASKED_IN_TURN, ids=reversed(IDS))
@served.judged("{family}")
def test_options_of_rows_of_few_values(family, shape, dtype, asked):
    rows = dict(list(rounded_rows(shape.resident_width).items())[:9])
    count, call = len(rows), dict(OPTIONS[asked])
    if "starts" in call:
        starts = np.arange(count) * call["starts"]
        call["starts"] = torch.from_numpy(starts.astype(np.int32)).to(runner.DEVICE)
    options, scores = served.options_of(call), stacked(rows.values(), dtype=dtype)
    plans = plans_of(family, in_dtype(family, shape, dtype), count, dtype=dtype, options=options)
    return [Asked(plan, scores, call) for plan in plans]


@pytest.mark.skipif(runner.PLANNED_FOR.capability < (9, 0), reason="no such families")
@pytest.mark.parametrize("dtype", DTYPES)
@served.judged("resident_cluster")
def test_as_many_slots_as_are_collected_on_chip(dtype):
    """All scores are equal, so that no candidate of an exact route could be left out; one more, and they are stored."""
    width = 24_576
    asked = {"rows": 1, "width": width, "dtype": dtype, "device": "cuda"}
    most = max(k for k in range(512, width) if dispatch.plan_of(**asked, k=k).capacity < k)
    plans = [dispatch.plan_of(**asked, k=k) for k in (most - 8, most, most + 1)]
    plans = [plan for plan in plans if plan.family == "resident_cluster"]
    assert len(plans) >= 2
    scores = stacked([np.full(width, 3)], dtype=dtype)
    return [Asked(plan, scores, {}, runs=1) for plan in plans]


RESIDENT = {name: one for name, one in zip(IDS, SHAPES, strict=True) if one[0].startswith("resident")}
SOME = dict(list(RESIDENT.items())[::8])


@pytest.mark.parametrize(("family", "shape"), SOME.values(), ids=SOME)
@served.judged("{family}")
def test_scores_too_good_for_buckets_of_one_value(family, shape):
    """60 scores are many octaves above the others, most often where no sample is: all are in the first bucket."""
    width, rows = shape.resident_width, 12
    rng = np.random.default_rng(15)
    scores = rng.uniform(1, 1.1, (rows, width)) * 2.0**-20
    for row in scores:
        row[rng.choice(width, 60, replace=False)] = np.exp2(rng.uniform(0, 3, 60))
    plans = plans_of(family, in_dtype(family, shape, "bfloat16"), rows, (5, 50), "bfloat16")
    return [Asked(plan, stacked(scores, dtype="bfloat16"), {}, runs=1) for plan in plans]


@pytest.mark.parametrize("dtype", DTYPES)
@served.judged("banded")
def test_rows_of_every_length_in_several_launches(dtype):
    """Listed by length (kernels/length_bins.cuh), with few values."""
    width = 20_000
    rows = rounded_rows(width)
    count = len(rows)
    plan = banded(count, width, K, ctas=2, dtype=dtype)
    for offset, seed in ((0, 3), (1, 4)):
        call = {"lengths": lengths_of(width, count, seed)}
        yield Asked(plan, stacked(rows.values(), offset, 3, dtype), call, runs=1)
