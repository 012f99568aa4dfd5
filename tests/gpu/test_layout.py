"""Shapes at the edge: no rows, few scores, live row counts, wide pitches, and matrices beyond 2**31 elements."""

from __future__ import annotations

import pytest
import torch

import ksieve
from flat_calls import ask
from gpu import material, runner, served
from gpu.served import Asked
from gpu.variants import VARIANTS, possible

pytestmark = pytest.mark.gpu

K, WIDTH = 300, 20_011
HUGE_ROWS, HUGE_WIDTH, HUGE_K = 2100, 1_100_000, 2048


def kernels():
    """Those of `huge`, which is made once."""
    for variant in VARIANTS.values():
        yield from ((p, False) for p in possible(variant, HUGE_ROWS, HUGE_WIDTH, HUGE_K))


def one_matrix(padding=0):
    bits = material.on_device(WIDTH, K, 1, "float32", runner.DEVICE)
    return material.place(bits, "float32", runner.DEVICE, padding=padding)


@pytest.mark.parametrize("name", VARIANTS)
@served.judged("{name}")
def test_live_rows(name):
    """Rows past the live count are filled with -1, whatever their lengths say."""
    scores = one_matrix(padding=2)
    rows = len(scores)
    lengths = torch.from_numpy(material.lengths_for(rows, WIDTH, K)).to(runner.DEVICE)
    plan = runner.plan_for(VARIANTS[name], scores, K)
    counts = (0, 1, rows // 2, rows - 1, rows, rows + 1, -1, -(2**31), 2**31 - 1)
    calls = ({"lengths": lengths} | served.live(count) for count in counts)
    return [Asked(plan, scores, call, runs=1) for call in calls]


@pytest.mark.parametrize("name", VARIANTS)
@served.judged("{name}")
def test_a_plan_serves_fewer_rows_and_narrower_matrices(name):
    scores = one_matrix()
    plan = runner.plan_for(VARIANTS[name], scores, K)
    parts = ((1, WIDTH), (7, K + 1), (len(scores), 1), (13, 5003), (3, K), (len(scores), WIDTH))
    return [Asked(plan, scores[:rows, :width], {}, runs=1) for rows, width in parts]


@pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")
def test_no_rows_and_no_scores():
    empty = torch.empty(0, 100, device="cuda")
    assert ksieve.topk(empty, k=5).shape == (0, 5)
    assert ask(empty, k=5, stats=True)[1].raw.shape == (0, 16)
    for variant in VARIANTS.values():
        plan = variant.plan(4, 100, 5)
        assert ksieve.topk(empty, plan=plan).shape == (0, 5)
        nothing = ksieve.topk(torch.empty(4, 0, device="cuda"), plan=plan)
        assert (nothing == -1).all()


@pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")
@pytest.mark.parametrize("name", VARIANTS)
@served.judged("{name}")
def test_more_than_two_to_the_31_elements(name, huge):
    return [Asked(runner.plan_for(VARIANTS[name], huge, HUGE_K), huge, {}, runs=1)]


@pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")
@pytest.mark.parametrize("name", VARIANTS)
@served.judged("{name}")
def test_rows_further_apart_than_two_to_the_31_bytes(name, huge):
    apart = huge.as_strided((4, 200_003), (577_000_001, 1), 3)
    lengths = torch.tensor([200_003, 150_000, 2049, 200_000], dtype=torch.int32, device="cuda")
    return [Asked(runner.plan_for(VARIANTS[name], apart, HUGE_K), apart, {"lengths": lengths})]


@pytest.fixture(scope="module")
def huge():
    """2100 x 1,100,000 scores, 9.2 GB; the value families in the first and in the last rows."""
    scores = torch.empty(HUGE_ROWS, HUGE_WIDTH, device="cuda").normal_()
    some = material.on_device(HUGE_WIDTH, HUGE_K, 1, "float32", "cuda")
    scores.view(torch.int32)[: len(some)] = some
    scores.view(torch.int32)[-len(some) :] = some
    yield scores
    del scores
    torch.cuda.empty_cache()
