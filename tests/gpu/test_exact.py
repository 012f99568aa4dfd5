"""Every family of kernels, every rank, every width, every value family, every kind of length, at every alignment."""

from __future__ import annotations

import itertools
import zlib
from dataclasses import replace

import pytest
import torch

from gpu import material, runner, served
from gpu.served import Asked
from gpu.variants import VARIANTS, small_storage
from ksieve.core.policy import PAPER_64
from ksieve.planning.families import QUEUED
from ksieve.planning.memory import with_workspace
from ksieve.tuning import variants as bench

pytestmark = pytest.mark.gpu

RANKS = (1, 16, 512, 1000, 1024, 2048, 4096)
WIDTHS = (
    1, 2, 3, 7, 31, 100, 257, 1000, 1023, 2049, 4097, 8191, 16_384, 16_385, 24_577, 32_768, 65_537, 100_003, 131_072,
    262_143, 524_289, 1_100_000,
)  # fmt: skip
NARROW_WIDTHS = (5003, 40_001, 131_072, 262_149)
NARROW_RANKS = (1, 512, 2048)
OVERFLOW = ((5003, 64), (20_001, 200), (140_003, 64))
"""(width, k) of plans with room for few candidates: boundaries admit far more than that."""

if runner.HOST:
    RANKS, WIDTHS, NARROW_WIDTHS, NARROW_RANKS = (1, 16, 512), (1, 3, 257, 5003), (3001,), (512,)
    OVERFLOW = ((5003, 64),)


def layout(*what, vector=4):
    """Base offset and row padding: any combination, the same one every time."""
    drawn = zlib.crc32(repr(what).encode())
    return drawn % (vector + 1) % vector, drawn // 8 % 6


def matrix(width, k, dtype, offset, padding):
    reps = 2 if width <= 33_000 and not runner.HOST else 1
    bits = material.on_device(width, k, reps, dtype, runner.DEVICE)
    scores = material.place(bits, dtype, runner.DEVICE, offset=offset, padding=padding)
    return scores, {"lengths": torch.from_numpy(material.lengths_for(len(bits), width, k)).to(runner.DEVICE)}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VARIANTS)
@served.judged("{name}")
def test_float32(name, width):
    for k in RANKS:
        scores, lengths = matrix(width, k, "float32", *layout(name, width, k))
        plan = runner.plan_for(VARIANTS[name], scores, k)
        yield from [Asked(plan, scores, given) for given in (lengths, {})]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", VARIANTS)
@served.judged("{name}")
def test_narrow_scores(name, dtype):
    for width, k in itertools.product(NARROW_WIDTHS, NARROW_RANKS):
        scores, lengths = matrix(width, k, dtype, *layout(name, width, k, dtype, vector=8))
        yield Asked(runner.plan_for(VARIANTS[name], scores, k), scores, lengths)


LAUNCHES = tuple(
    bench.Variant(f"{family}-{threads}x{ctas}-{stages}", family, policy, (("threads", threads), ("ctas_per_sm", ctas),
                                                                          ("stages", stages)))
    for family, policy, threads, ctas, stages in (
        ("stream", "lines-64", 512, 2, 8), ("stream", PAPER_64, 1024, 1, 8), ("stream", "quads-16", 256, 3, 8),
        ("stream", "lines-16", 512, 2, 6), ("stream_split", "lines-64", 512, 2, 6),
    )
)  # fmt: skip
"""Launch shapes whose threads compare two or four vectors of 16-bit scores at a time."""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("launch", LAUNCHES, ids=[launch.name for launch in LAUNCHES])
@served.judged("{launch.name}")
def test_batches_of_narrow_scores(launch, dtype):
    for width, k in itertools.product(NARROW_WIDTHS, NARROW_RANKS[-2:]):
        scores, lengths = matrix(width, k, dtype, *layout(launch.name, width, k, dtype, vector=8))
        plan = launch.plan(*scores.shape, k, dtype, runner.PLANNED_FOR)
        plan = with_workspace(replace(plan, problem=replace(plan.problem, pitch=max(scores.stride(0), width))))
        yield Asked(plan, scores, lengths)


@pytest.mark.parametrize("name", VARIANTS)
@served.judged("{name}")
def test_storage_for_few_candidates(name):
    """Frontiers beyond the storage: spilled, narrowed by rescans, or solved as one value."""
    for (width, k), spill in itertools.product(OVERFLOW, (0, 256)):
        scores, lengths = matrix(width, k, "float32", 1, 2)
        plan = runner.plan_for(VARIANTS[name], scores, k)
        if not spill or plan.family in QUEUED:  # others spill nothing: the plan without spilling once more
            plan = small_storage(plan, 256, spill)
            yield from [Asked(plan, scores, given) for given in (lengths, {})]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
@served.judged("{name}")
def test_every_alignment(name, offset):
    """All residues of base and pitch, each with lengths that end anywhere in a vector."""
    for padding, (width, k) in itertools.product(range(4), ((4093, 100), (40_002, 512))[: 1 if runner.HOST else 2]):
        scores, _ = matrix(width, k, "float32", offset, padding)
        lengths = torch.arange(len(scores), dtype=torch.int32, device=runner.DEVICE) % 9 + (width - 8)
        yield Asked(runner.plan_for(VARIANTS[name], scores, k), scores, {"lengths": lengths}, runs=1)
