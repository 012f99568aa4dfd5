"""Calls of an engine's operator or of ksieve that lose the GPU context: what is recorded, and what is measured on."""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from bench_engines import bench, fakes, host, measured
from ksieve.adapters._operators import OPERATORS
from ksieve.cli import exits
from ksieve.lab.bench import engine_pages, engine_process, engine_switch, engines, pages, timing

__all__ = ["bench", "fakes", "host"]


class Answers(list):
    """The end of a pipe that a measuring process writes to."""

    send = list.append

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def device(bench, monkeypatch):
    """A GPU that calls of a `fault` take down, until a new process begins; yields what each new process was asked."""
    state, asked = {"lost": False, "fault": lambda name, rows: False}, []
    best, topk = bench.best, importlib.import_module("ksieve.adapters.sglang").topk

    def call(name, rows, function, *args, **kwargs):
        if rows != 2 and (state["lost"] or state["fault"](name, rows)):  # plans ask with 2 rows, without a GPU
            state["lost"] = True
            raise RuntimeError("CUDA error: operation not supported on global/shared address space\nmore")
        return function(*args, **kwargs)

    def elsewhere(tasks, work, measured):
        asked.append([engine_process.label(task) for task in tasks])
        state["lost"] = False
        named = [(kind, operator.name, *shape) for kind, (operator, *shape) in tasks]
        with pytest.MonkeyPatch.context() as patch:
            installed = contextlib.nullcontext((state["operators"], {}, {}))
            patch.setattr(engine_switch, "installed", lambda engines, only: installed)
            answers = Answers()
            engine_process.measure(answers, work, named, measured)
        yield from answers

    run = engines.run
    monkeypatch.setattr(
        engines, "run", lambda operators, *a, **k: state.update(operators=operators) or run(operators, *a, **k)
    )
    monkeypatch.setattr(bench, "best", lambda name, scores, *a: call(name, len(scores), best, name, scores, *a))
    monkeypatch.setattr(
        importlib.import_module("ksieve.adapters.sglang"), "topk",
        lambda scores, *a, **k: call("ours", len(scores), topk, scores, *a, **k),
    )  # fmt: skip
    monkeypatch.setattr(timing, "context_lost", lambda: state["lost"])
    monkeypatch.setattr(engine_process, "elsewhere", elsewhere)
    monkeypatch.setattr(engines, "prepare", lambda *_: None)
    state["asked"] = asked
    return state


SOME = ("--engines", "sglang", "--only", "ragged_v2", "--dtypes", "float32")
RAGGED = "sglang.kernels.ops.attention.dsv4.topk.topk_transform_ragged_v2"
KPOOL = "sglang.kernels.ops.attention.dsv4.topk.topk_transform_kpool_ragged_v2"


def test_an_engine_s_fault_costs_its_own_cases_alone(device, tmp_path):
    device["fault"] = lambda name, rows: name == "ragged" and rows == 5
    done, payload = measured(tmp_path, *SOME, "--shapes", "3x4096,5x4096,6x4096")
    assert done.exit_code == exits.Exit.ERROR
    found = payload["results"]
    call, error = f"{RAGGED} 5 x 4096 float32", "operation not supported on global/shared address space"
    assert [(lost["call"], lost["by"]) for lost in found["lost"]] == [(call, engines.BEFORE)]
    assert error in found["lost"][0]["error"] and "more" not in found["lost"][0]["error"]
    cases = {(case["operator"], case["rows"]): case for case in found["shapes"]}
    assert set(cases) == {(name, rows) for name in (RAGGED, KPOOL) for rows in (3, 5, 6)}
    assert {key for key, case in cases.items() if "times_faster" in case} == set(cases) - {(RAGGED, 5), (RAGGED, 6)}
    assert cases[RAGGED, 5]["lost_by"] == engines.BEFORE and error in cases[RAGGED, 5]["skipped"]
    assert cases[RAGGED, 6]["skipped"] == f"not measured: the GPU context was lost by {call}"
    hosts = {host["operator"]: host for host in found["host"]}
    assert hosts[KPOOL][engines.BEFORE]["median_us"] > 0 and "lost by" in hosts[RAGGED]["skipped"]
    assert len(device["asked"]) == 1 and not any(RAGGED in text for text in device["asked"][0])
    assert f"the GPU context was lost by the engine's own operator in {call}" in " ".join(done.stderr.split())
    page = engine_pages.gained("sglang", Path("a"), payload)
    assert "`topk_transform_ragged_v2`, 5 x 4,096, float32: the engine's own: RuntimeError: CUDA error" in page


def test_a_fault_of_ksieve_is_not_the_engine_s(device, tmp_path):
    device["fault"] = lambda name, rows: name == "ours" and rows == 5
    done, payload = measured(tmp_path, "--engines", "sglang", "--only", "deep_select.topk", "--shapes", "3x4096,5x4096")
    assert done.exit_code == exits.Exit.ERROR
    found = payload["results"]
    assert {lost["by"] for lost in found["lost"]} == {engines.AFTER}
    case = next(case for case in found["shapes"] if case["rows"] == 5 and "lost_by" in case)
    assert "not supported" in case["selectors"][engines.AFTER]["error"] and "skipped" not in case
    with pytest.raises(pages.InexactError):
        engine_pages.gained("sglang", Path("a"), payload)


def test_faults_of_the_host_s_part_and_of_the_first_calls(device, tmp_path):
    device["fault"] = lambda name, rows: name == "ragged" and rows == engines.HOST_ROWS
    device["lost"] = True
    _, payload = measured(tmp_path, *SOME)
    found = payload["results"]
    assert [lost["call"] for lost in found["lost"]] == ["a first call", f"{RAGGED} 4 x 4096 float32 host"]
    assert all("times_faster" in case for case in found["shapes"])
    assert [host["operator"] for host in found["host"] if engines.AFTER in host] == [KPOOL]
    assert [len(tasks) for tasks in device["asked"]] == [4, 1]


def test_a_case_left_out_by_the_user(device, tmp_path):
    device["fault"] = lambda name, rows: name == "ragged" and rows == 5
    skip = f"{RAGGED} 5 x 4096 float32"
    done, payload = measured(tmp_path, *SOME, "--shapes", "3x4096,5x4096", "--skip", skip)
    assert done.exit_code == 0, done.output
    found = payload["results"]
    left = [case for case in found["shapes"] if "skipped" in case]
    assert [(case["operator"], case["rows"], case["skipped"]) for case in left] == [(RAGGED, 5, engines.LEFT_OUT)]
    assert payload["settings"]["skip"] == [skip] and not found["lost"] and not device["asked"]
    _, payload = measured(tmp_path, *SOME, "--skip", "topk_transform_ragged")
    assert [host.get("skipped") for host in payload["results"]["host"]].count(engines.LEFT_OUT) == 1


def test_a_process_that_ends_is_the_fault_of_its_case():
    operators = [engine_switch.Replaced(operator, None, print, print) for operator in OPERATORS["sglang"][:4]]
    tasks = [("shapes", (operator, 3, 4096, "float32")) for operator in operators]
    names = [operator.name for operator in operators]

    def ended(*facts):
        yield from facts

    lost, starts = [], iter([ended({"fine": 1}), ended()])
    gone = ended({"lost_by": "own", "skipped": "why"})
    found = list(engine_process.run_on(tasks, gone, lambda rest: next(starts), 512, lost))
    assert [facts for _, facts in found[:2]] == [{"lost_by": "own", "skipped": "why"}, {"fine": 1}]
    assert found[2][1]["skipped"] == "its process ended" and found[2][1]["operator"] == names[2]
    assert lost[1] == {"call": f"{names[2]} 3 x 4096 float32", "by": None, "error": "its process ended"}
    assert found[3][1]["skipped"].endswith(
        f"lost by {names[2]} 3 x 4096 float32, and the process after it measured nothing"
    )
    assert len(found) == 4


def half(answers, work, named, measured):
    """Measure the first tasks in a process that then comes to its end."""
    with answers:
        for task in named[:2]:
            answers.send({"task": task, "k": work.k})
        os._exit(3)


def test_facts_of_a_new_process_that_ends(fakes, monkeypatch):
    monkeypatch.setattr(engine_process, "measure", half)
    with engine_switch.installed(["sglang"], "ragged_v2") as (operators, _, _):
        tasks = [("shapes", (operators[0], rows, 4096, "float32")) for rows in (1, 2, 3)]
        found = list(engine_process.elsewhere(tasks, engine_process.Work(k=8), engines.measured))
    assert found == [{"task": ("shapes", operators[0].name, rows, 4096, "float32"), "k": 8} for rows in (1, 2)]


def test_a_new_process_without_a_gpu_measures_nothing(fakes, capfd):
    with engine_switch.installed(["sglang"], "ragged_v2") as (operators, _, _):
        case = ("shapes", (operators[0], 3, 4096, "float32"))
        assert (
            list(engine_process.elsewhere([case], engine_process.Work(("sglang",), "ragged_v2"), engines.measured))
            == []
        )
    err = capfd.readouterr().err
    assert "BackendError" in err and "KeyError" not in err and "no operator" not in err
