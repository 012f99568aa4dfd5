"""Operator, decode, short, trace and worst-case benches on the host: what they run, print, write and draw."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench_host import FLOOR_US, OTHER_US, OWN_US, host, invoke
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.planning.tune.variants import Variant
from ksieve_lab.bench import adversarial_gpu as hard
from ksieve_lab.bench import gpu, record, shape_lists, trace, worst
from ksieve_lab.report.specs import gpu as shown

torch = pytest.importorskip("torch")

__all__ = ["host"]
SMALL = [(8, 4096), (16, 4096), (16, 9000)]


def test_shapes_are_measured_and_judged(host):
    told = []
    payload = gpu.run(SMALL, 64, variants=[Variant("forced", "stream")], torch_rounds=1, each=told.append)
    assert payload["results"]["shapes"] == told and len(told) == 3
    shape = told[0]
    assert (shape["floor_us"], shape["floor_kernel"]) == (FLOOR_US, "read a")
    own = shape["selectors"]["ksieve"]
    assert (own["exact"], own["of_floor"], own["family"]) == (True, FLOOR_US / OWN_US, "register_block")
    assert shape["selectors"]["torch.topk"] == {
        "median_us": OTHER_US, "min_us": OTHER_US, "spread": 0.0, "exact": True, "of_floor": 0.5,
        "peer": True,
    }  # fmt: skip
    assert shape["fastest"] == "ksieve"
    assert payload["results"]["over_best_peer"]["geometric_mean"] == pytest.approx(OTHER_US / OWN_US)
    assert {plan.problem.k for plan in host} == {64}


def test_a_wrong_answer_is_never_the_fastest(host, monkeypatch):
    from ksieve import api

    def lazy(scores, lengths, *, plan, out, workspace):
        out[:] = torch.arange(out.shape[1])

    monkeypatch.setattr(api, "topk", lazy)
    results = gpu.run(SMALL[:1], 64, torch_rounds=1)["results"]
    assert results["shapes"][0]["fastest"] == "torch.topk"
    assert results["inexact"] == {"ksieve": 1} and results["over_best_peer"] is None
    assert "ksieve" not in results["of_floor"]


@pytest.mark.parametrize(("name", "count"), [("operator", 20), ("decode", 63), ("short", 90)])
def test_named_grids_are_the_stated_ones(name, count):
    shapes, _ = shape_lists.SHAPES[name]
    assert len(shapes) == len(set(shapes)) == count
    assert all(width > 2048 for _, width in shapes)


def test_a_trace_is_summed(host, tmp_path):
    done = invoke("trace", "--prompts", "300", "--step-tokens", 128, "--budget-bytes", 100_000, "--k", 16,
                  "--decode-steps", 2, "--batch", 3, "--out", tmp_path, "--figures", tmp_path)  # fmt: skip
    assert done.exit_code == 0, done.output
    payload = json.loads((tmp_path / "gpu-trace-k16.json").read_text())
    found = payload["results"]["traces"]["300"]
    calls = found["invocations"]
    assert sum(c["rows"] for c in calls) == 3 * 302 and calls[-1]["phase"] == "decode"
    assert found["floor_us"] == pytest.approx(FLOOR_US * len(calls))
    assert found["selectors"]["ksieve"]["total_us"] == pytest.approx(OWN_US * len(calls))
    assert found["selectors"]["ksieve"]["of_floor"] == pytest.approx(0.8)
    assert f"{OWN_US * len(calls) / 1e3:.2f}" in done.output and "0.800" in done.output
    assert (tmp_path / "gpu-trace-k16.png").stat().st_size > 1000


def test_a_trace_sums_only_exact_and_complete_selectors():
    def call(**selectors):
        return {"floor_us": 2.0, "selectors": selectors}

    good, wrong, broken = {"median_us": 4.0, "exact": True}, {"median_us": 1.0, "exact": False}, {"error": "no"}
    found = trace.total([call(a=good, b=good, c=good), call(a=good, b=wrong, c=broken)])
    assert found["selectors"]["a"] == {"total_us": 8.0, "of_floor": 0.5, "exact": True}
    assert found["selectors"]["b"] == {"exact": False, "inexact": 1, "failed": 0}
    assert found["selectors"]["c"] == {"exact": None, "inexact": 0, "failed": 1}
    assert trace.total([call(a=good), {"skipped": "too large"}]) == {"skipped": 1}


def test_the_worst_case_is_found(host, tmp_path):
    done = invoke("worst", "--shapes", "4x4096,4x5000", "--k", 64, "--peers", "none", "--out", tmp_path,
                  "--figures", tmp_path)  # fmt: skip
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "gpu-worst-k64.json").read_text())["results"]
    assert len(results["cases"]) == 2 * len(hard.FAMILIES) and set(results["worst"]) == set(hard.FAMILIES)
    assert all(case["selectors"]["ksieve"]["exact"] for case in results["cases"])
    assert "reads" not in results["cases"][0]
    assert "1.25 times the floor" in done.output
    assert (tmp_path / "gpu-worst-k64.svg").exists()
    with pytest.raises(ArgumentError, match=r"^families: got 'nice'"):
        worst.run(families=["nice"])
    assert str(invoke("worst", "--inputs", "nice").exception).startswith("--inputs: got 'nice'; takes names of normal")


def test_the_worst_of_several_shapes_counts():
    def case(rows, share, exact=True):
        selectors = {"ksieve": {"of_floor": share, "exact": exact, "median_us": 1.0}}
        return {"family": "descending", "rows": rows, "width": 8, "selectors": selectors}

    found = worst.worst([case(1, 0.5), case(2, 0.25), case(3, 0.1, exact=False), {"family": "x", "skipped": "y"}])
    assert found["descending"]["ksieve"] == {"ratio": 4.0, "rows": 2, "width": 8}
    assert found["x"] == {}


def test_an_inexact_answer_fails_the_worst_case(host, monkeypatch):
    from ksieve import api

    monkeypatch.setattr(api, "topk", lambda *a, out, **k: out.fill_(0))
    done = invoke("worst", "--shapes", "4x4096", "--inputs", "normal", "--k", 64, "--peers", "none")
    assert done.exit_code == 1 and "INEXACT" in done.output


@pytest.mark.parametrize("bench", ["operator", "decode", "short"])
def test_named_benches_write_and_draw(host, monkeypatch, tmp_path, bench):
    monkeypatch.setitem(shape_lists.SHAPES, bench, (((2, 4096), (4, 4096), (4, 8192)), "ragged"))
    done = invoke(bench, "--k", 32, "--out", tmp_path, "--figures", tmp_path, "--scores", "normal")
    assert done.exit_code == 0, done.output
    payload = record.read_json(tmp_path / f"gpu-{bench}-normal-k32.json")
    assert (payload["bench"], payload["settings"]["scores"]) == (bench, "normal")
    assert (tmp_path / f"gpu-{bench}-normal-k32-of-floor.svg").exists()
    assert (tmp_path / f"gpu-{bench}-normal-k32-decode.svg").exists(), "few rows are drawn as decode curves"
    assert "not compared: " in done.output and "flashinfer" in done.output


def test_results_are_drawn_again(host, tmp_path):
    payload = gpu.run([(64, 4096), (600, 4096)], 64, torch_rounds=1)
    record.write_json(tmp_path / "r.json", payload)
    done = invoke("plot", tmp_path / "r.json", "--figures", tmp_path / "f")
    assert done.exit_code == 0, done.output
    names = sorted(p.name for p in (tmp_path / "f").iterdir())
    assert names == ["r-latency.png", "r-latency.svg", "r-of-floor.png", "r-of-floor.svg"]
    svg = (tmp_path / "f" / "r-latency.svg").read_text()
    assert "torch.topk" in svg and "plain read" in svg
    record.write_json(tmp_path / "cpu.json", {"schema": 1, "bench": "cpu", "results": {"compared": []}})
    assert "nothing to draw" in invoke("plot", tmp_path / "cpu.json").output
    (tmp_path / "no.json").write_text("{}")
    assert isinstance(invoke("plot", tmp_path / "no.json").exception, FileFormatError)


def test_an_inexact_selector_leaves_a_gap():
    shape = {
        "floor_us": 1.0,
        "selectors": {"a": {"median_us": 2.0, "exact": True}, "b": {"median_us": 1.0, "exact": False}},
    }
    assert shown.microseconds(shape, "a") == 2.0
    assert np.isnan(shown.microseconds(shape, "b")) and shown._selectors([shape]) == ["plain read", "ksieve", "a"]


def test_published_times_stand_apart(host, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks").mkdir()
    times = {"causal": {"64": {"8x4096": {"HPC-Ops": 3.25}, "9x9": {"HPC-Ops": 1.0}}}}
    (tmp_path / "benchmarks" / "anchors-h200.json").write_text(json.dumps({"device": "H200", "times": times}))
    done = invoke("gpu", "--shapes", "8x4096", "--k", 64)
    assert done.exit_code == 0, done.output
    table = done.output.split("Microseconds published, not measured here")[1]
    assert "3.2" in table and "9 x 9" not in table
    assert "HPC-Ops" not in invoke("gpu", "--shapes", "8x4096", "--k", 32).output
