"""The benches themselves on a GPU, small: every command's path runs, every answer is exact, every clock has run."""

from __future__ import annotations

import dataclasses
import math

import pytest

from bench_host import payload
from gpu import runner
from ksieve_lab.bench import adversarial_gpu as hard
from ksieve_lab.bench import catalog, scores

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")]


def sound(case, *, floor=True):
    """Assert that a case was measured in full, and that nothing is faster than reading by more than noise."""
    assert "skipped" not in case, case
    for name, facts in case["selectors"].items():
        assert facts.get("exact") is True, (name, facts)
        assert facts["median_us"] > 0
    if floor:
        assert math.isfinite(case["floor_us"]) and case["floor_us"] > 0
        own = case["selectors"]["ksieve"]["of_floor"]
        assert 0 < own < 1.25


@pytest.mark.parametrize("lengths", ["causal", "ragged"])
def test_shapes(lengths):
    shapes = ",".join(f"{shape}:{lengths}" for shape in ("1x8192", "64x131072", "700x20001"))
    for shape in payload("gpu", shapes=shapes, k=512, peers="torch.topk", rounds=2)["results"]["shapes"]:
        sound(shape)
        assert shape["selectors"]["torch.topk"]["peer"]


def test_the_worst_case():
    results = payload("worst", shapes="512x32768", k=512, peers="none", rounds=1)["results"]
    assert {case["family"] for case in results["cases"]} == set(hard.FAMILIES)
    for case in results["cases"]:
        sound(case)


def test_a_trace():
    small = {"step_tokens": 4096, "budget_bytes": 100_000_000, "decode_steps": 2, "batch": 2}
    bench = dataclasses.replace(catalog.find("trace"), fixed=small)
    found = bench.run(shapes="9000", k=512, peers="none", rounds=1)["results"]["traces"]["9000"]
    for call in found["invocations"]:
        sound(call)
    assert found["selectors"]["ksieve"]["exact"] and found["floor_us"] > 0


def test_shapes_from_outside_the_indexer():
    for shape, dtype in (("4096x128:8", "bfloat16"), ("1x2000000:100", "float32")):
        found = payload("general", shapes=shape, dtype=dtype, rounds=1)["results"]
        sound(found["shapes"][0], floor=False)  # no read kernel is made for rows of 128 scores
        assert found["shapes"][0]["times_faster"] > 0 and found["over_torch"]["shapes"] == 1


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
