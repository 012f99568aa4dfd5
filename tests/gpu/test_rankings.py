"""Smaller scores first, and NaN first: every family and dtype, on rows that decide a route, and on mirrored ones.

A kernel compares ranked scores (kernels/common/ranking.cuh). `mirrored` rows are those whose ranked scores are the rows
of other tests, so that every route is taken; the rows themselves have what a ranking moves: NaN, infinities, zeros.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from gpu import material, runner, served
from gpu.served import Asked
from gpu.test_narrow import bits_of, hard_rows
from gpu.variants import ALL, overflowing, possible

pytestmark = pytest.mark.gpu

K, WIDTH = 300, 9_001
SHAPES = {"warp": (20, 1_001), "cooperative": (K, 262_144)}
"""(k, width) where they are not K and WIDTH."""
DTYPES = ("float32", "float16", "bfloat16")
RANKINGS = {"smallest": {"largest": False}, "nan_first": {"nan": "highest"}}
CALLS = (
    {"starts": 5, "index_base": "start"},
    {"values": True, "sorted": "value", "tie_break": "high"},
    {"tie_break": "low", "sorted": "index"},
)
CASES = [(*case, *SHAPES.get(case[0], (K, WIDTH))) for case in itertools.product(ALL, DTYPES, RANKINGS)]


def calls_in_turn(name, dtype):
    """Two calls with options for each variant and dtype, in turn."""
    number = list(ALL).index(name) + DTYPES.index(dtype)
    return [CALLS[at % 3] for at in (number, number + 1)]


def mirrored(bits, dtype, ranking):
    """Scores whose ranked scores are the given ones, as bit patterns."""
    kind = {"float32": np.uint32}.get(dtype, np.uint16)
    given, infinity = bits.view(kind), kind(material.INFINITY[dtype])
    sign = kind(1 << (8 * given.itemsize - 1))
    if ranking == "smallest":
        return (given ^ sign).view(bits.dtype)
    size = given & (sign - kind(1))
    higher = np.where(size == 0, kind(1), np.where(given & sign, given - kind(1), given + kind(1)))  # of +inf a NaN
    return np.where(size > infinity, sign | infinity, higher).astype(kind).view(bits.dtype)


def matrix(k, width, dtype, ranking):
    plain = bits_of(hard_rows(width, k), dtype)
    return np.concatenate([plain, mirrored(plain, dtype, ranking)])


@pytest.mark.parametrize(("name", "dtype", "ranking", "k", "width"), CASES)
@served.judged("{name}")
def test_every_family(name, dtype, ranking, k, width):
    bits, call = matrix(k, width, dtype, ranking), RANKINGS[ranking]
    edges = [width, width - 1, k + 1, k, width * 5 // 8 + 1, width - 3, 0]
    lengths = torch.tensor((edges * len(bits))[: len(bits)], dtype=torch.int32, device=runner.DEVICE)
    for offset, padding, given in ((0, 0 if width % 4 == 0 else 3, {}), (1, 2, {"lengths": lengths})):
        scores = material.place(bits, dtype, runner.DEVICE, offset=offset, padding=padding)
        plan = served.plan_for(ALL[name], scores, k, call)
        yield Asked(plan, scores, call | given, runs=1)
        if ALL[name].policy is not None and not given:
            yield Asked(overflowing(plan, 512), scores, call, runs=1)


@pytest.mark.parametrize(("name", "dtype", "ranking", "k", "width"), CASES)
@served.judged("{name}")
def test_options(name, dtype, ranking, k, width):
    bits = matrix(k, width, dtype, ranking)
    scores = material.place(bits, dtype, runner.DEVICE, offset=1, padding=5)
    for keywords in calls_in_turn(name, dtype):
        call = keywords | RANKINGS[ranking]
        if "starts" in call:  # any of equal scores: the others are broken by position
            call = call | {"tie_break": "low", "sorted": "index"}
            starts = np.arange(len(bits)) % 7 * call["starts"]
            call["starts"] = torch.from_numpy(starts.astype(np.int32)).to(runner.DEVICE)
        shape = (len(bits), width, k)
        for plan in possible(ALL[name], *shape, dtype=dtype, options=served.options_of(call)):
            yield Asked(plan, scores, call, runs=1)


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("name", ["persistent-64", "persistent-tied", "split-4", "persistent-peaks", "row", "cluster"])
@served.judged("{name}")
def test_statistics_are_the_model_s(name, ranking):
    bits = matrix(K, WIDTH, "float32", ranking)
    scores = material.place(bits, "float32", runner.DEVICE, offset=1, padding=3)
    plan = served.plan_for(ALL[name], scores, K, RANKINGS[ranking])
    return [Asked(plan, scores, RANKINGS[ranking], stats=True)]
