"""The benches themselves on a GPU, small: every command's path runs, every answer is exact, every clock has run."""

from __future__ import annotations

import math

import pytest

from gpu import runner
from ksieve_lab.bench import adversarial_gpu as hard
from ksieve_lab.bench import general, gpu, scores, trace, worst

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")]


def sound(case, *, floor=True):
    """Assert that a case was measured in full, and that nothing is faster than reading by more than noise."""
    assert "skipped" not in case, case
    assert case["fastest"] is not None
    for name, facts in case["selectors"].items():
        assert facts.get("exact") is True, (name, facts)
        assert facts["median_us"] > 0
    if floor:
        assert math.isfinite(case["floor_us"]) and case["floor_us"] > 0
        own = case["selectors"]["ksieve"]["of_floor"]
        assert 0 < own < 1.25


@pytest.mark.parametrize("lengths", ["causal", "ragged"])
def test_shapes(lengths):
    payload = gpu.run(
        [(1, 8192), (64, 131_072), (700, 20_001)], 512, lengths=lengths, peer_names=["torch.topk"], rounds=2,
        torch_rounds=1,
    )  # fmt: skip
    for shape in payload["results"]["shapes"]:
        sound(shape)
        assert shape["selectors"]["torch.topk"]["peer"]


def test_the_worst_case():
    results = worst.run([(512, 32_768)], 512, peer_names=[], rounds=1)["results"]
    assert {case["family"] for case in results["cases"]} == set(hard.FAMILIES)
    for case in results["cases"]:
        sound(case)


def test_a_trace():
    asked = {"short": 9000}
    found = trace.run(asked, 512, step_tokens=4096, budget_bytes=100_000_000, decode_steps=2, batch=2, peer_names=[],
                      rounds=1)["results"]["traces"]["short"]  # fmt: skip
    for call in found["invocations"]:
        sound(call)
    assert found["selectors"]["ksieve"]["exact"] and found["floor_us"] > 0


def test_shapes_from_outside_the_indexer():
    cases = [(4096, 128, 8, "bfloat16"), (1, 2_000_000, 100, "float32")]
    found = general.run(cases, rounds=1)["results"]
    for shape in found["shapes"]:
        sound(shape, floor=False)  # no read kernel is made for rows of 128 scores
        assert shape["times_faster"] > 0
    assert found["over_torch"]["shapes"] == len(cases)


def test_factors_give_the_same_scores_as_on_the_host(tmp_path):
    import torch

    from bench_host import factor_file

    path = tmp_path / "f.safetensors"
    factor_file(path, queries=5, keys=700)
    for rows, width in ((5, 700), (2, 300), (12, 2000)):
        made = []
        for device in ("cpu", "cuda"):
            matrix = torch.empty(rows, width, device=device)
            scores.source_of(f"factors:{path}")(matrix, None, 1)
            made.append(matrix.cpu())
        assert torch.allclose(*made, rtol=1e-4, atol=1e-5)
