"""The laboratory on a GPU, small: benches, recordings and replays run, every answer is exact, every clock has run."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

import ksieve
import ksieve_lab
from bench_host import factor_file, payload
from gpu import runner
from ksieve.backends.cuda.jit.compile import compile_kernel, shipped_sources
from ksieve.backends.cuda.jit.spec import kernel_spec
from ksieve.core.errors import BackendError
from ksieve_lab.bench import adversarial_gpu as hard
from ksieve_lab.bench import catalog, samplers, scores
from ksieve_lab.bench.ablation.phases import PHASES
from ksieve_lab.captures.format import Capture
from ksieve_lab.report import told
from ksieve_lab.traces import replay

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


def test_calls_of_the_fixed_set():
    for case in payload("regress", only="16x131072, top; 20000x4096", rounds=1)["results"]["shapes"]:
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
    path = tmp_path / "f.safetensors"
    factor_file(path, queries=5, keys=700)
    for rows, width in ((5, 700), (2, 300), (12, 2000)):
        made = []
        for device in ("cpu", "cuda"):
            matrix = torch.empty(rows, width, device=device)
            scores.source_of(f"factors:{path}")(matrix, None, 1)
            made.append(matrix.cpu())
        assert torch.allclose(*made, rtol=1e-4, atol=1e-5)


def test_live_calls_are_recorded_from_the_device(tmp_path):
    path = tmp_path / "scores.safetensors"
    scores = torch.randn(40, 9000, device="cuda")
    lengths = torch.randint(0, 9001, (40,), dtype=torch.int32, device="cuda")
    plan = ksieve.plan(rows=40, width=9000, k=64, device="cuda")
    out = torch.empty(40, 64, dtype=torch.int32, device="cuda")
    for _ in range(2):
        ksieve.topk(scores, lengths, plan=plan, out=out)  # the fast path of repeated calls is prepared now
    want = out.clone()
    with ksieve_lab.record(path, rows_per_call=10) as recorder:
        ksieve.topk(scores, lengths, plan=plan, out=out)
        ksieve.topk(scores.half(), lengths, k=64)
    assert recorder.kept == 2
    assert torch.equal(out.sort(1).values, want.sort(1).values)
    with Capture(path) as capture:
        found, valid = capture.rows_block(0, 20), capture.lengths
    chosen = np.arange(10) * 4
    assert np.array_equal(valid, np.tile(lengths.cpu().numpy()[chosen], 2))
    for r, row in enumerate(chosen):
        assert np.array_equal(found[r, : valid[r]], scores[row, : valid[r]].cpu().numpy())
        assert np.array_equal(found[10 + r, : valid[r]], scores[row, : valid[r]].half().float().cpu().numpy())


def test_a_graph_is_not_captured_inside_a_recording(tmp_path):
    scores = torch.randn(8, 9000, device="cuda")
    plan = ksieve.plan(rows=8, width=9000, k=64, device="cuda").prepare()
    workspace, out = plan.workspace(), torch.empty(8, 64, dtype=torch.int32, device="cuda")
    ksieve.topk(scores, plan=plan, workspace=workspace, out=out)
    torch.cuda.synchronize()
    with (
        pytest.warns(RuntimeWarning, match="nothing was recorded"),
        ksieve_lab.record(tmp_path / "x"),
        pytest.raises(BackendError, match="outside the recording"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        ksieve.topk(scores, plan=plan, workspace=workspace, out=out)


def test_a_trace_is_replayed_beside_the_floor():
    trace = replay.Trace.of_requests(
        "small", [{"prompt": 20_000, "step_tokens": 9000, "budget_bytes": 4 * 20_000 * 4000, "decode_steps": 2}], k=512
    )
    found = replay.run(trace, backend="cuda", rounds=2)
    total = found["results"]["total"]
    assert total["exact"] is True
    assert 0 < total["of_floor"] <= 1.05
    assert total["calls"] == len(trace.calls)


def test_the_ablations_run_and_every_answer_is_exact():
    small = {"backend": "cuda", "step_tokens": 4500, "budget_bytes": 4 * 70_000 * 1600, "widths": (16_384, 65_536)}
    bench = dataclasses.replace(catalog.find("ablation"), fixed=small | {"rows": (64, 512)})
    found = bench.run(shapes="70000", rounds=2)
    assert all(told.verdicts(found))
    step = found["results"]["steps"]["70000"]
    assert len(step["calls"]) > 1
    assert "error" not in step["phases"], step["phases"]
    for how in ("alone", "together"):
        for name, split in step["phases"][how].items():
            assert set(split["row_us"]) == set(PHASES)
            assert sum(split["row_us"].values()) == pytest.approx(split["total_us"], rel=0.02), name
            assert 0.5 < split["clock_ghz"] < 3
    alone = step["phases"]["alone"]
    assert alone["exact proposal"]["row_us"]["proposal"] > alone["sampled, s = 128"]["row_us"]["proposal"]
    margins = [f["primary_missed_percent"] for n, f in step["variants"].items() if n.startswith("paper s=128")]
    assert max(margins) > 5
    wave = step["wave"]
    assert wave is not None
    assert wave["recovery_us"] > wave["rescue_us"] > 0


def test_logits():
    engines = tuple(name for name, (operators, *_) in (samplers.PEERS | samplers.WITHOUT_K).items() if operators)
    for shape in payload("logits", shapes="3x40000:50,300x32000:20", rounds=1)["results"]["shapes"]:
        for name, facts in shape["selectors"].items():
            if name.startswith(engines):  # their operators may be elsewhere, or wrong
                continue
            assert facts["median_us"] > 0 and facts["exact"] is True and facts["transient_mib"] > 0, (name, facts)


def test_a_kernel_that_is_compiled_again_is_reported_again():
    """Beside a driver, NVRTC may find the machine code in its cache, of which it has no report."""
    spec = kernel_spec(ksieve.plan(rows=4, width=1024, k=16, device="cuda"))
    first, second = (compile_kernel(spec, shipped_sources()).resources for _ in range(2))
    assert first == second and first.registers
