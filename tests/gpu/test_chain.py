"""The Triton score producer on the GPU, and a chain with it: production is deterministic, selections are exact."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import chain_checks  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _needs_fp8():
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 products need compute capability 8.9")


def test_the_kernel_computes_the_formula():
    chain_checks.check_all("cuda")
    chain_checks.check("cuda", 9, 64, 128, 20_001, pitch=20_004)
    chain_checks.check("cuda", 9, 64, 128, 20_001, pitch=20_004, masked=True)


def test_the_epilogue_keeps_what_candidates_ask_for():
    chain_checks.check_candidates("cuda")
    chain_checks.check_candidates("cuda", queries=70, width=20_001, k=300, capacity=4096, seed=1)
    chain_checks.check_ways("cuda")
    chain_checks.check_ways("cuda", queries=300, width=30_000, k=512)


def test_the_producer_that_the_guide_shows():
    chain_checks.check_example("cuda")
    chain_checks.check_example("cuda", rows=300, width=70_000, k=2048, tile=16_384)


def test_the_same_factors_give_the_same_bits():
    from ksieve_lab.chain import producers
    from ksieve_lab.workloads.lengths import LENGTHS

    produce = producers.load("triton")
    made = producers.make_queries(producers.make_keys(50_000), LENGTHS["causal"](300, 50_000))
    first, second = (torch.zeros(300, 50_000, device="cuda") for _ in range(2))
    produce(made, first, False)
    produce(made, second, False)
    assert torch.equal(first, second)


def test_a_small_layer_is_exact_in_every_variant():
    from ksieve_lab.bench import catalog, layer

    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("programmatic launches need compute capability 9.0")
    (shape,) = catalog.find("layer").run(shapes="3x20001:full", k=500, rounds=1)["results"]["shapes"]
    assert {name: facts["exact"] for name, facts in shape["selectors"].items()} == dict.fromkeys(layer.VARIANTS, True)


def test_a_small_chain_is_exact_for_every_selector():
    from ksieve_lab.bench import catalog

    small = {"producer": "triton", "heads": 32, "dim": 64, "step_tokens": 2000, "budget_bytes": 4 * 30_000 * 600}
    bench = replace(catalog.find("chain"), fixed=small)
    payload = bench.run(shapes="30000", k=512, peers="torch.topk", rounds=2)
    (request,) = payload["results"]["requests"]
    assert {"ksieve, tiles", "ksieve, candidates"} < request["selectors"].keys()
    assert request["calls"] == [[600, 30_000]] * 3 + [[200, 30_000]]
    for name, facts in request["selectors"].items():
        assert facts["exact"] is True, f"{name}: {facts}"
        assert facts["chain_ms"] > 0
