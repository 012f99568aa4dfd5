"""Rows that stay on chip: every launch shape, every alignment, and inputs that sample or steps cannot take.

A row is decided by the steps of its scores (resident/select.cuh), as a plateau of its samples, or by dividing a step
once more (resident/overfull.cuh); one that stays in registers by coarse bins (register/select.cuh). Statistics have no
held rows, so what is judged here is the answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
import torch

import cases
import ksieve
from gpu import material, runner, served
from gpu.served import Asked
from gpu.variants import Variant, possible
from harness import sampled_at, samplers
from ksieve.planning import shapes, tuned
from ksieve.planning.families import ONE_CTA
from ksieve.planning.memory import with_workspace

pytestmark = pytest.mark.gpu

K = 700
RESIDENT = shapes.of(runner.PLANNED_FOR).resident
ANY_ROWS = {"fewest_rows": 0, "most_rows": 0, "source": "for any rows"}
SHAPES = list(
    dict.fromkeys((family, dataclasses.replace(s, **ANY_ROWS)) for family, listed in RESIDENT.items() for s in listed)
)
"""Every launch shape once, however many runs of row counts it is for."""
IDS = [f"{f}-{s.resident_width}-{s.ctas_per_row}x{s.threads}x{s.ctas_per_sm}" for f, s in SHAPES]
FORCED = {family: Variant(family, family) for family in RESIDENT}


@contextlib.contextmanager
def alone(family, shape, dtype="float32"):
    """Plan with one launch shape, whatever the number of rows."""
    known = shapes.of(runner.PLANNED_FOR, dtype)
    with tuned.replaced(known, dataclasses.replace(known, resident={**known.resident, family: (shape,)})):
        yield


def plan_of(family, shape, rows, k=K, dtype="float32", **changes):
    with alone(family, shape, dtype):
        plan = FORCED[family].plan(rows, shape.resident_width, k, dtype=dtype)
    return with_workspace(dataclasses.replace(plan, **changes)) if changes else plan


def plans_of(family, shape, rows, ks=(K,), dtype="float32", **options):
    """Plans of those k that the shape takes, with options."""
    with alone(family, shape, dtype):
        width = shape.resident_width
        return [plan for k in ks for plan in possible(FORCED[family], rows, width, k, dtype=dtype, **options)]


@functools.cache
def hard_rows(width):
    """Rows by name: what decides each of them, and what cannot."""
    rows = cases.hard_rows(width, K, 8)
    normal, positions = rows["normal"], np.arange(width)
    tail = np.argsort(np.argsort(-normal))
    with np.errstate(over="ignore", invalid="ignore"):
        return rows | {
            # by steps
            "clumped": normal + 2 * (positions > width * 0.93),
            "alike neighbours": np.repeat(normal[: width // 16], 16) + normal * np.float32(1e-3),
            "narrow": 1 + normal * np.float32(1e-5),
            "heavy tail": 1 / np.maximum(np.abs(normal), np.float32(1e-6)),
            # a plateau of the samples, or beyond their range
            "two values": (normal > 1.5).astype(np.float32),
            # most of both are about the rank: the samples of some warps tell the wrong one
            "two values, the better": (tail < K + width // 64).astype(np.float32),
            "two values, the worse": (tail < K - 20).astype(np.float32),
            "three values": np.where(tail < 40, 2, (tail < K + width // 64).astype(np.float32)),
            # the step of the k-th is crowded
            "outliers": np.where(positions % (width // 64) == 3, np.float32(1e30), normal),
            "dozens in a step": np.where(positions % (width // 64) == 3, np.float32(60), normal),
            "hundreds in a step": np.where(positions % (width // 64) == 3, np.float32(400), normal),
            "one octave of many": np.exp2(np.round(normal * 40)).astype(np.float32),
            # the sample is misled: nearly all or none of the best lie where it looks
            "best in one class of 32": normal + 30 * (positions % 32 == 7),
            "best in one vector of 256": normal + 30 * (positions // 4 % 256 == 9),
        }


def stacked(rows, offset=0, padding=0, dtype="float32"):
    """Rows of a dtype, rounded to its nearest values, on the device."""
    scores = torch.from_numpy(np.stack(list(rows)).astype(np.float32)).to(getattr(torch, dtype))
    return material.place(scores.view(material.ITEM[dtype]), dtype, runner.DEVICE, offset=offset, padding=padding)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("family", "shape"), SHAPES, ids=IDS)
@served.judged("{family}")
def test_rows_that_registers_hold(family, shape, full):
    width = shape.resident_width
    rows = hard_rows(width)
    call, count = {}, len(rows)
    if not full:
        short = [width - 1, width - 3, width * 5 // 8 + 1, K + 1, K, 3, 0, width // 2]
        call["lengths"] = torch.tensor((short * count)[:count], dtype=torch.int32, device=runner.DEVICE)
    # Each CTA meets several rows: what one leaves behind is what the next begins with. Its first is copied before
    # it is known to be too short for that.
    several = ((0, 0), (3, 0), (3, 4)) if family in ONE_CTA else ((0, 0),)
    for number, (offset, padding) in enumerate(((0, 0), (1, 3), (6, 1))):
        scores = stacked(rows.values(), offset, padding)
        # An emulated launch takes a second: each alignment with one number of CTAs.
        for ctas, rolled in several[number % len(several) :][:1] if runner.HOST else several:
            plan = plan_of(family, shape, count, **({"ctas": ctas} if ctas else {}))
            yield Asked(plan, scores, {name: lengths.roll(-rolled) for name, lengths in call.items()})


@pytest.mark.parametrize(("family", "shape"), SHAPES, ids=IDS)
@served.judged("{family}")
def test_k_from_one_to_nearly_all(family, shape):
    """Up to where the sample's rank is beyond the sample, and positions beyond what is collected on chip."""
    width = shape.resident_width
    scores = stacked(np.random.default_rng(9).standard_normal((6, width)))
    ks = (1, 2, 31, 2048, width // 4, width // 2, width * 3 // 4, width - 1)
    return [Asked(plan, scores, {}) for plan in plans_of(family, shape, 6, ks)]


@pytest.mark.parametrize(("family", "shape"), SHAPES, ids=IDS)
@served.judged("{family}")
def test_subnormals_a_few_apart(family, shape):
    """A sixteenth of such scores is rounded: the distance of two may come out as -0, and a scale from that as -inf."""
    width = shape.resident_width
    rng = np.random.default_rng(10)
    count = 16 if runner.HOST else 192
    units = rng.integers(0, 16, (count, width)) + rng.integers(-400, 400, (count, 1))
    lengths = torch.from_numpy(rng.integers(K + 1, width + 1, count).astype(np.int32)).to(runner.DEVICE)
    plan = plan_of(family, shape, count)
    return [Asked(plan, stacked(units * 2.0**-149), {"lengths": lengths}, runs=1)]


def sampled(plan, row):
    """Positions that a row of full length is sampled at (kernels/resident/select.cuh), if it starts on 16 bytes."""
    vectors = plan.stages + plan.overflow_vectors
    blocks = math.gcd(vectors, plan.overflow_vectors)
    copied = [
        v for v in range(vectors) if v % (vectors // blocks) not in range(1, 2 * plan.overflow_vectors // blocks, 2)
    ]
    step = 4 * plan.threads
    (at,) = sampled_at(samplers(plan), plan.stages * step, [row])
    place = np.array(copied)[at // step] * step + at % step
    return np.concatenate([place + part * vectors * 4 * plan.threads for part in range(plan.splits)])


@pytest.mark.parametrize(("family", "shape"), SHAPES, ids=IDS)
@served.judged("{family}")
def test_rows_aimed_at_the_sample(family, shape):
    """The k-th score is better than all samples, or worse: counted once more over the rest of the row's range."""
    plan = plan_of(family, shape, 12)
    rng = np.random.default_rng(11)
    rows = rng.standard_normal((12, shape.resident_width)).astype(np.float32)
    for row, scores in enumerate(rows):
        mine = sampled(plan, row)
        assert len(np.unique(mine)) == samplers(plan) * plan.splits
        assert mine.max() < shape.resident_width
        others = np.setdiff1d(np.arange(shape.resident_width), mine)
        best = rng.choice(others, K + (0, 1, 500)[row % 3], replace=False)
        kind = row // 3
        if kind == 0:
            scores[best] += 20  # none of the best is sampled
        elif kind == 1:
            scores[best] = np.float32(np.inf)  # nor has any of them a finite score
        elif kind == 2:
            scores[mine] += 20  # nothing but a few of the best is
        else:
            scores[mine] = np.abs(scores[mine]) + 1
            scores[others] = -np.exp2(rng.uniform(-120, 120, len(others))).astype(np.float32)
    plans = plans_of(family, shape, 12, (K, shape.threads * plan.splits + 1, shape.resident_width // 2))
    return [Asked(each, stacked(rows), {}) for each in plans]


OWNED = [shape for family, shape in SHAPES if family == "resident_block"]
RINGS = [f"{s.resident_width}-{s.threads}x{s.ctas_per_sm}" for s in OWNED]
TIED = {"tie_break": "low", "sorted": "index"}
SCANNED = ("normal", "plateau", "few values", "sorted", "ties around the rank", "a third NaN")


@pytest.mark.parametrize("shape", OWNED, ids=RINGS)
@served.judged("row")
def test_rows_that_are_scanned_in_the_ring(shape):
    """Statistics and tie-breaks need all of a row there, and both of its scans, however many vectors that are."""
    width = shape.resident_width
    rows = [values for name, values in hard_rows(width).items() if name in SCANNED]
    scores = stacked(rows, 1, 3)
    lengths = [width, width - 1, width * 15 // 16, width * 5 // 8 + 3, K + 1, K]
    call = {"lengths": torch.tensor(lengths, dtype=torch.int32, device=runner.DEVICE)}
    yield Asked(plan_of("resident_block", shape, len(rows)), scores, call, stats=True)
    options = served.options_of(TIED | call)
    yield from [
        Asked(plan, scores, TIED | call) for plan in plans_of("resident_block", shape, len(rows), options=options)
    ]


READS = {"NaN": 3.3, "mostly NaN": 3.3, "few values": 2.2, "three values": 3.75, "plateau": 1.6, "two values": 4.8}
READS |= {"two values, the better": 3.75, "two values, the worse": 4.05}
"""How often rows are read at most, by name; others 1.45 times: copied, and part of them divided once."""


@pytest.mark.skipif(not runner.HOST, reason="only the emulator counts bytes")
@pytest.mark.parametrize(("family", "shape"), SHAPES, ids=IDS)
def test_how_often_a_row_is_read(family, shape, tally):
    """Bytes that a kernel asks global memory for, beside those of the row: C21 of the contract."""
    from gpu import emulated

    wrong = []
    for name, row in hard_rows(shape.resident_width).items():
        scores, before = stacked([row]), emulated.DRIVER.bytes_read
        wrong += served.check(served.Served(plan_of(family, shape, 1), scores, {}), runs=1)
        times = (emulated.DRIVER.bytes_read - before) / (4 * shape.resident_width)
        if not 1 <= times <= READS.get(name, 1.45):
            wrong.append(f"{name}: read {times:.2f} times")
    tally.judge(family, len(hard_rows(shape.resident_width)), wrong)


COOPERATIVE = [shape for family, shape in SHAPES if family == "resident_grid"]


@pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")
@pytest.mark.parametrize("shape", COOPERATIVE, ids=[f"{s.resident_width}-{s.ctas_per_row}" for s in COOPERATIVE])
def test_what_ctas_tell_each_other_is_zero_again(shape, tally):
    """On every route, of rows in turn, and of fewer live rows."""
    rows = hard_rows(shape.resident_width)
    count, wrong, scores = len(rows), [], stacked(rows.values(), 1, 3)
    plan = plan_of("resident_grid", shape, count)
    memory = torch.zeros(plan.workspace_bytes, dtype=torch.uint8, device=runner.DEVICE)
    workspace, out = plan.workspace(memory), torch.empty(count, K, dtype=torch.int32, device=runner.DEVICE)
    for live in (count, count // 2, 1):
        ksieve.topk(scores, plan=plan, out=out, workspace=workspace, num_rows=served.live(live)["live"])
        wrong += [f"{live} rows: {int(memory.count_nonzero())} bytes left"] * bool(memory.any())
    for row, name in enumerate(rows):
        ksieve.topk(scores[row : row + 1], plan=plan, out=out[:1], workspace=workspace)
        wrong += [f"{name}: {int(memory.count_nonzero())} bytes left"] * bool(memory.any())
    tally.judge("cooperative", 2 * count, wrong)


REGISTERS = [
    (dtype, dataclasses.replace(shape, **ANY_ROWS))
    for dtype in ("float32", "float16", "bfloat16")
    for shape in shapes.of(runner.PLANNED_FOR, dtype).resident.get("register_block", ())
]


@pytest.mark.parametrize(("dtype", "shape"), REGISTERS, ids=[f"{d}-{s.resident_width}" for d, s in REGISTERS])
@served.judged("register_block")
def test_bins_as_full_as_are_ranked(dtype, shape):
    """As many scores in the k-th one's coarse bin as are ranked at once, and more: all of it is wanted, or a part."""
    width, rng = shape.resident_width, np.random.default_rng(12)
    most = min(shape.threads // 2, 256)  # kernels/register/select.cuh, kRankListMax
    k = 2 * most + 100
    # How many values there are in a bin: with 16 bits one, two, and as many as it has.
    step, different = (2.0**-23, (1 << 17,)) if dtype == "float32" else (2.0**-7, (1, 2, 4))
    rows = []
    for count, values in itertools.product(
        (1, 2, 31, 32, 33, 63, 64, 65, most - 1, most, most + 1, 2 * most), different
    ):
        for wanted in {1, count // 2, count - 1, count} - {0}:
            # In a bin: some are equal, and the most beyond it are next to it.
            scores = np.where(rng.random(width) < 0.5, 0.75, rng.uniform(0, 0.98, width))
            place = rng.permutation(width)
            scores[place[: k - wanted]] = rng.uniform(1.05, 9, k - wanted)
            within = 1 + rng.integers(0, values, count) * step
            within[rng.random(count) < 0.2] = 1 + values // 8 * step
            scores[place[k - wanted : k - wanted + count]] = within
            rows += [scores, -1 / np.maximum(scores, 1e-3)]
    plan = plan_of("register_block", shape, len(rows), k, dtype)
    return [Asked(plan, stacked(rows, *place, dtype), {}) for place in ((0, 0), (3, 1))]
