"""Recording, replaying and the ablations on the GPU, in small."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ksieve
import ksieve_lab
from ksieve.backends.cuda.jit.compile import compile_kernel, shipped_sources
from ksieve.backends.cuda.jit.spec import kernel_spec
from ksieve.core.errors import BackendError
from ksieve_lab.captures.format import Capture

torch = pytest.importorskip("torch")

from gpu import runner  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")]


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
    from ksieve_lab.traces import replay

    trace = replay.Trace.of_requests(
        "small", [{"prompt": 20_000, "step_tokens": 9000, "budget_bytes": 4 * 20_000 * 4000, "decode_steps": 2}], k=512
    )
    payload = replay.run(trace, backend="cuda", rounds=2)
    total = payload["results"]["total"]
    assert total["exact"] is True
    assert 0 < total["of_floor"] <= 1.05
    assert total["calls"] == len(trace.calls)


def test_the_ablations_run_and_every_answer_is_exact():
    from ksieve_lab.bench import catalog
    from ksieve_lab.bench.ablation.phases import PHASES
    from ksieve_lab.report import told

    small = {"backend": "cuda", "step_tokens": 4500, "budget_bytes": 4 * 70_000 * 1600, "widths": (16_384, 65_536)}
    bench = replace(catalog.find("ablation"), fixed=small | {"rows": (64, 512)})
    payload = bench.run(shapes="70000", rounds=2)
    assert all(told.verdicts(payload))
    step = payload["results"]["steps"]["70000"]
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


def test_a_kernel_that_is_compiled_again_is_reported_again():
    """Beside a driver, NVRTC may find the machine code in its cache, of which it has no report."""
    spec = kernel_spec(ksieve.plan(rows=4, width=1024, k=16, device="cuda"))
    first, second = (compile_kernel(spec, shipped_sources()).resources for _ in range(2))
    assert first == second and first.registers
