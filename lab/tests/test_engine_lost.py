"""Calls of an engine's operator or of ksieve that lose the GPU context: what is recorded, and what is before them."""

from __future__ import annotations

import functools
import importlib

import pytest

pytest.importorskip("torch")

from bench_engines import bench, fakes, host, measured
from bench_host import invoke
from ksieve.cli import exits
from ksieve.planning.tune import timing
from ksieve_lab.bench import engines
from ksieve_lab.report import tables
from ksieve_lab.report.specs.engines import seen

__all__ = ["bench", "fakes", "host"]


@pytest.fixture
def device(bench, monkeypatch):
    """A GPU that a call of a `fault` takes down."""
    state = {"lost": False, "fault": lambda name, rows: False}
    best, topk = bench.best, importlib.import_module("ksieve.adapters.sglang").topk

    def call(name, rows, function, *args, **kwargs):
        if rows != 2 and (state["lost"] or state["fault"](name, rows)):  # plans ask with 2 rows, without a GPU
            state["lost"] = True
            raise RuntimeError("CUDA error: operation not supported on global/shared address space\nmore")
        return function(*args, **kwargs)

    @functools.wraps(topk)  # the switch asks for its signature
    def ours(scores, *args, **kwargs):
        return call("ours", len(scores), topk, scores, *args, **kwargs)

    monkeypatch.setattr(bench, "best", lambda name, scores, *a: call(name, len(scores), best, name, scores, *a))
    monkeypatch.setattr("ksieve.adapters.sglang.topk", ours)
    monkeypatch.setattr(timing, "context_lost", lambda: state["lost"])
    monkeypatch.setattr(engines, "prepare", lambda *_: None)
    return state


SOME = ("--peers", "sglang", "--only", "ragged_v2", "--dtype", "float32")
RAGGED = "sglang.kernels.ops.attention.dsv4.topk.topk_transform_ragged_v2"
KPOOL = "sglang.kernels.ops.attention.dsv4.topk.topk_transform_kpool_ragged_v2"
CALL, ERROR = f"{RAGGED} 5 x 4096 float32", "operation not supported on global/shared address space"


def test_an_engine_s_fault_ends_the_measurement(device, tmp_path):
    device["fault"] = lambda name, rows: name == "ragged" and rows == 5
    done, payload = measured(tmp_path, *SOME, "--shapes", "3x4096,5x4096,6x4096")
    assert done.exit_code == exits.Exit.ERROR
    found = payload["results"]
    assert [(lost["call"], lost["by"]) for lost in found["lost"]] == [(CALL, engines.BEFORE)]
    assert ERROR in found["lost"][0]["error"] and "more" not in found["lost"][0]["error"]
    cases = {(case["operator"], case["rows"]): case for case in found["shapes"]}
    assert set(cases) == {(name, rows) for name in (RAGGED, KPOOL) for rows in (3, 5, 6)}
    before = list(cases)[: list(cases).index((RAGGED, 5))]
    assert {(RAGGED, 3), (KPOOL, 3)} <= set(before)
    assert {key for key, case in cases.items() if "times_faster" in case} == set(before)
    assert cases[RAGGED, 5]["lost_by"] == engines.BEFORE and ERROR in cases[RAGGED, 5]["skipped"]
    assert cases[RAGGED, 6]["skipped"] == f"not measured: the GPU context was lost by {CALL}"
    assert len(found["host"]) == 2 and all("lost by" in host["skipped"] for host in found["host"])
    said = " ".join(done.stderr.split())
    assert f"the GPU context was lost by the engine's own operator in {CALL}" in said and f"--only '!{CALL}'" in said


def test_what_is_known_to_fail_comes_last(device, tmp_path, monkeypatch):
    device["fault"] = lambda name, rows: name == "ragged" and rows == 5
    monkeypatch.setattr(engines, "LAST", (CALL,))
    done, payload = measured(tmp_path, *SOME, "--shapes", "3x4096,5x4096,6x4096")
    assert done.exit_code == exits.Exit.ERROR
    found = payload["results"]
    assert [lost["call"] for lost in found["lost"]] == [CALL]
    untimed = [(case["operator"], case["rows"]) for case in found["shapes"] if "times_faster" not in case]
    assert untimed == [(RAGGED, 5)] and ERROR in found["shapes"][-1]["skipped"]
    assert all(host[engines.AFTER]["median_us"] > 0 for host in found["host"])
    page = seen("sglang", [tables.File("a", payload)])
    assert "`topk_transform_ragged_v2`, 5 x 4,096, float32 | the engine's own: RuntimeError: CUDA error" in page


def test_a_call_can_be_left_out(device, tmp_path):
    device["fault"] = lambda name, rows: name == "ragged" and rows == 5
    done, payload = measured(tmp_path, *SOME, "--only", f"ragged_v2; !{CALL}", "--shapes", "3x4096,5x4096")
    assert done.exit_code == 0, done.output
    assert {(case["operator"], case["rows"]) for case in payload["results"]["shapes"]} == {
        (RAGGED, 3), (KPOOL, 3), (KPOOL, 5),
    }  # fmt: skip


def test_a_fault_of_ksieve_is_not_the_engine_s(device, tmp_path):
    device["fault"] = lambda name, rows: name == "ours" and rows == 5
    done, payload = measured(tmp_path, "--peers", "sglang", "--only", "deep_select.topk", "--shapes", "3x4096,5x4096")
    assert done.exit_code == exits.Exit.ERROR
    found = payload["results"]
    assert {lost["by"] for lost in found["lost"]} == {engines.AFTER}
    case = next(case for case in found["shapes"] if case["rows"] == 5 and "lost_by" in case)
    assert "not supported" in case["selectors"][engines.AFTER]["error"] and "skipped" not in case
    with pytest.raises(tables.InexactError):
        seen("sglang", [tables.File("a", payload)])


def test_a_fault_of_the_host_s_part(device, tmp_path, monkeypatch):
    device["fault"] = lambda name, rows: name == "ragged" and rows == engines.HOST_ROWS
    monkeypatch.setattr(engines, "LAST", (f"{RAGGED} 4 x 4096 float32 host",))
    _, payload = measured(tmp_path, *SOME)
    found = payload["results"]
    assert [lost["call"] for lost in found["lost"]] == [f"{RAGGED} 4 x 4096 float32 host"]
    assert all("times_faster" in case for case in found["shapes"])
    assert [host["operator"] for host in found["host"] if engines.AFTER in host] == [KPOOL]


def test_a_first_call_that_takes_the_gpu_down_is_an_error(device, tmp_path):
    device["lost"] = True
    done = invoke("engines", *SOME, "--out", tmp_path)
    assert done.exit_code != 0 and "lost the GPU context: choose others with --only" in str(done.exception)
