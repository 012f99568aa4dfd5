"""The CPU measurement: that it times what it says, verifies every answer, and writes one stable layout."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

import ksieve
from bench_host import invoke
from ksieve.cli import exits
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, BackendError, FileFormatError
from ksieve.core.selection import Selection
from ksieve.tuning.timing import Contender
from ksieve_lab.bench import catalog, cpu, record, runner, startup
from ksieve_lab.bench.host_timing import measure_host
from ksieve_lab.captures.writer import CaptureWriter
from ksieve_lab.report import told

BENCH = catalog.find("cpu")
FEW = replace(BENCH, fixed={"short": ((30, 70, 4), (5, 9, 9)), "optional": ((3, 4000, 50),), "searched": ((1024, 50),)})


def measure(live=runner.SILENT, bench=FEW, **asked):
    return bench.run(live, **{"shapes": "3x4000", "k": 50, "rounds": 2, "only": "compared"} | asked)


def tables_of(payload):
    return [said for said in told.told(payload) if isinstance(said, told.Table)]


@pytest.fixture
def capture(tmp_path):
    """Six rows of 3,000 scores, valid from 2,500 on; what lies beyond is better than anything valid."""
    path = tmp_path / "rows.safetensors"
    lengths = np.arange(2500, 2506, dtype=np.int32)
    scores = np.random.default_rng(0).standard_normal((6, 3000), dtype=np.float32)
    scores[np.arange(3000) >= lengths[:, None]] = 100
    with CaptureWriter(path, 6, 3000) as writer:
        writer.write(scores, lengths)
    return path, scores


# ---- what is measured ------------------------------------------------------------------------------------


def test_contenders_see_the_same_rows_and_ratios_follow_from_the_seconds():
    torch = pytest.importorskip("torch")
    assert torch is not None
    case = measure(rounds=3)["results"]["compared"][0]
    assert case["exact"] == {"ksieve": True, cpu.TORCH: True, cpu.ARGPARTITION: True}
    medians = case["median_seconds"]
    assert set(medians) == set(case["spread"]) == {"ksieve", cpu.TORCH, cpu.ARGPARTITION, cpu.FLOOR}
    assert min(medians.values()) > 0 and min(case["spread"].values()) >= 0
    assert case["times_faster_than"][cpu.TORCH] == medians[cpu.TORCH] / medians["ksieve"]
    assert case["rate_of_max"] == medians[cpu.FLOOR] / medians["ksieve"]
    assert case["scores_per_second"] == 12_000 / medians["ksieve"]
    assert case["routes"] == {"direct": 3}
    assert case["source"] == "endpoint_structured"


def test_short_rows_of_every_dtype_are_set_beside_torch(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(cpu, "SHAPES", ((1, 99),))
    payload = measure(shapes="", only="short")
    cases = payload["results"]["short"]
    assert [(c["rows"], c["width"], c["k"], c["dtype"]) for c in cases] == [
        (*shape, dtype) for shape in ((30, 70, 4), (5, 9, 9)) for dtype in SCORE_DTYPES
    ]
    for case in cases:
        assert case["exact"] == {"ksieve": True, cpu.TORCH: True}
        medians = case["median_seconds"]
        assert case["times_faster_than"] == {cpu.TORCH: medians[cpu.TORCH] / medians["ksieve"]}
    (table,) = tables_of(payload)
    assert [line[:2] for line in table.rows[1:3]] == [["30 x 70, 4", "float16"], ["30 x 70, 4", "bfloat16"]]


def test_calls_with_options_are_set_beside_the_plain_call(monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "2")
    monkeypatch.setattr(cpu, "SHAPES", ((1, 99),))
    payload = measure(shapes="", only="options")
    cases = payload["results"]["options"]
    assert [(c["threads"], c["option"]) for c in cases] == [(t, o) for t in (1, 2) for o in ("plain", *cpu.OPTIONS)]
    for threads, plain in ((1, cases[0]), (2, cases[4])):
        own = [case for case in cases if case["threads"] == threads]
        assert [c["times_plain"] for c in own] == [c["median_seconds"] / plain["median_seconds"] for c in own]
    ((columns, lines, _),) = tables_of(payload)
    assert len(lines) == 8 and lines[0][:3] == ["3 x 4,000, 50", "1", "plain"] and lines[0][4] == "1.00x"
    assert len(columns) == len(lines[0])


def test_every_adversarial_family_is_set_beside_plain_rows():
    cases = measure(only="adversarial", rounds=1)["results"]["adversarial"]
    assert {case["family"] for case in cases} == {p.name for p in cpu.ADVERSARIAL}
    for case in cases:
        assert case["times_plain"] == case["median_seconds"] / case["plain_median_seconds"]


@pytest.mark.parametrize("wrong", ["first", "poison"])
def test_an_inexact_answer_fails_the_command(monkeypatch, wrong):
    honest = cpu.api.select

    def select(scores, lengths=None, k=None, *, out=None, **options):
        if out is None:
            return honest(scores, lengths, k, **options)
        if wrong == "first":
            out[...] = np.arange(out.shape[1])
        return Selection(out)  # "poison": nothing written, so what stands there must not look like an answer

    monkeypatch.setattr(cpu.api, "select", select)
    done = invoke("cpu", "--shapes", "3x4000", "--k", 50, "--only", "compared", "--rounds", 1)
    assert done.exit_code == exits.Exit.REFUTED, done.output


def test_another_library_that_is_inexact_is_recorded(monkeypatch):
    monkeypatch.setattr(cpu.np, "argpartition", lambda scores, at, axis: np.tile(np.arange(scores.shape[1]), (3, 1)))
    payload = measure()
    assert payload["results"]["compared"][0]["exact"][cpu.ARGPARTITION] is False


def test_answers_are_poisoned_and_judged_in_every_round_outside_the_clock():
    order = []
    contender = Contender("a", lambda i: order.append("run"), lambda i: True, lambda i: order.append("poison"))
    (timing,) = measure_host([contender], 1, 0, rounds=2, every_round=True)
    assert order == ["poison", "run"] * 3 and timing.exact is True and len(timing.rounds) == 2


def test_rounds_start_with_another_contender_each_and_errors_stay_alone():
    order = []
    three = [Contender(name, lambda i, name=name: order.append(name)) for name in "abc"]
    broken = Contender("broken", lambda i: 1 / 0)
    *found, last = measure_host([*three, broken], 1, 0, rounds=2)
    assert "".join(order) == "abc" + "abc" + "bca" and [len(t.rounds) for t in found] == [2, 2, 2]
    assert "ZeroDivisionError" in last.error and last.rounds == []
    with pytest.raises(BackendError, match="broken: ZeroDivisionError"):
        cpu._timed([broken], 1)


def test_progress_reaches_its_total():
    calls = []
    live = runner.Live(phase=lambda *_: nullcontext(lambda a, b: calls.append((a, b))))
    measure(live, scores="endpoint,random_normal", only="compared; adversarial", rounds=1)
    total = 2 + len(cpu.ADVERSARIAL) + 1
    assert calls == [(i + 1, total) for i in range(total)]


# ---- sources ---------------------------------------------------------------------------------------------


def test_capture_rows_hold_valid_scores_alone(capture):
    path, scores = capture
    what, rows = cpu._capture_rows(str(path), 3, 2400)
    assert what == "rows.safetensors"
    np.testing.assert_array_equal(rows, scores[[0, 2, 4], :2400])


def test_short_capture_rows_are_joined(capture):
    path, scores = capture
    what, rows = cpu._capture_rows(str(path), 2, 6000)
    assert what == "rows.safetensors, 3 rows joined"
    np.testing.assert_array_equal(rows[1], np.concatenate([scores[3, :2503], scores[4, :2504], scores[5, :993]]))
    payload = measure(shapes="2x6000", scores=str(path))
    assert payload["settings"]["sources"] == ["rows.safetensors"]
    assert payload["results"]["compared"][0]["source"] == "rows.safetensors, 3 rows joined"
    with pytest.raises(ArgumentError, match=r"scores: got 6 rows in rows.safetensors; takes 9 rows to make 3 x 6000"):
        measure(shapes="3x6000", scores=str(path))


def test_a_file_that_is_no_capture_is_refused_before_measuring(tmp_path):
    path = tmp_path / "notes.safetensors"
    path.write_text("no capture")
    with pytest.raises(FileFormatError, match=r"notes\.safetensors"):
        measure(scores=f"endpoint,{path}")


# ---- fresh processes -------------------------------------------------------------------------------------


def test_import_is_timed_in_a_process_of_its_own(monkeypatch):
    assert startup.import_seconds(1) > 0
    monkeypatch.setattr(startup, "_IMPORT", "print(1.5)")
    assert startup.import_seconds(3) == 1.5


FIRST = """
import numpy as np
from ksieve.backends.cpu.compiled import cached_jit
double = cached_jit(lambda x: x * 2)
double(np.arange(3))
print(len(double.stats.cache_misses))
"""


@pytest.mark.extended
def test_first_calls(monkeypatch):
    """A small function stands in for the kernels, whose compilation takes long."""
    assert startup.fresh("-c", startup._FIRST_CALL) > 0
    monkeypatch.setattr(startup, "_FIRST_CALL", FIRST)
    assert startup.first_call_seconds(1) == (1.0, 0.0)


# Writing 5 to clear_refs resets the peak (VmHWM), so that the start of Python is not measured.
MEMORY = """
import numpy as np, ksieve
from ksieve_lab.workloads.producers import find_producer

def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) * 1024

plan = ksieve.plan(rows=16, width=131072, k=2048)
out = np.zeros((16, 2048), np.int32)
ksieve.topk(np.zeros((16, 131072), np.float32)[:, :300], k=2048, plan=plan, out=out)
worst = 0
for name in ("random_normal", "all_equal", "stride_hole", "nan_sprinkled"):
    scores = find_producer(name)(16, 131072, k=2048)
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    before = resident("VmRSS")
    ksieve.topk(scores, plan=plan, out=out)
    worst = max(worst, resident("VmHWM") - before)
print(worst)
"""


@pytest.mark.extended
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no /proc")
def test_memory_beside_the_arguments_is_bounded():
    extra = startup.fresh("-c", MEMORY, NUMBA_NUM_THREADS="2")
    # Stacks and machine code that are first touched in the measured call count too.
    assert extra / 2 <= 256 * 1024


# ---- record and tables -----------------------------------------------------------------------------------


def test_a_bare_name_is_a_result(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = record.write_json("x.json", record.payload("x", {}, 1))
    assert path.as_posix() == "benchmarks/results/x.json" and list(tmp_path.rglob(".*")) == []


def test_values_that_json_does_not_know(tmp_path):
    value = {"a": np.float32(1.5), "b": np.arange(2), "c": (float("nan"), float("inf")), 3: np.True_}
    path = record.write_json(tmp_path / "deep" / "x.json", record.payload("x", {}, value))
    assert json.loads(path.read_text())["results"] == {"a": 1.5, "b": [0, 1], "c": [None, None], "3": True}


def test_foreign_files_and_payloads_are_refused(tmp_path):
    with pytest.raises(ValueError, match="schema None"):
        record.write_json(tmp_path / "x.json", {"results": 1})
    (tmp_path / "y.json").write_text("[]")
    with pytest.raises(ValueError, match="no result file of schema"):
        record.read_json(tmp_path / "y.json")


def test_environment_names_software_and_machine_but_no_place():
    facts = record.environment(gpu=True)
    assert facts["ksieve"] == ksieve.__version__
    assert facts["packages"]["numpy"] == np.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", facts["date"])
    assert facts["cpu"]["usable"] >= 1
    assert facts["cpu"]["model"]
    assert facts["commit"] is None or re.fullmatch(r"[0-9a-f]{40}", facts["commit"])
    assert "/" not in facts["command"]
    asked = ["x.py", "--scores", "factors:/data/set/f.safetensors", "--out", "/tmp/out", "C:\\x"]
    quoted = "x" if os.name == "nt" else "'C:\\x'"
    assert record.command_line(asked) == f"x.py --scores factors:f.safetensors --out out {quoted}"
    assert record.command_line(["/a/b/ksieve", "bench", "cpu", "../c/rows.safetensors", "--k", "5"]) == (
        "ksieve bench cpu rows.safetensors --k 5"
    )
    assert (
        record.command_line(["/a/ksieve/__main__.py", "study", "rows.safetensors"]) == "ksieve study rows.safetensors"
    )


def test_a_copy_of_the_tree_is_known_by_the_commit_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KSIEVE_COMMIT", raising=False)
    found = record.git_state()
    assert found["dirty"] is None or len(found["commit"]) == 40
    # A copy carries a history that may have stopped long before what is measured.
    monkeypatch.setenv("KSIEVE_COMMIT", "c0ffee")
    assert record.git_state() == {"commit": "c0ffee", "dirty": None}
    monkeypatch.setenv("KSIEVE_COMMIT", "")
    assert record.git_state() == found
