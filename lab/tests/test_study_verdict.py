"""`ksieve study` answers its title: the verdict first, for the plan that would run, and no number that is none."""

from __future__ import annotations

import functools
import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ksieve_lab.captures.writer import CaptureWriter
from ksieve_lab.cli.app import app

K, ROWS, WIDTH = 512, 20, 40_000
"""Wide enough for the CPU's plan to sample, with the paper's policy."""

NORMAL = np.random.default_rng(7).standard_normal((ROWS, WIDTH)).astype(np.float32)


def with_tied_rows() -> np.ndarray:
    scores = NORMAL.copy()
    scores[:4] = 0
    scores[4:6] = np.nan
    return scores


PERIODIC = NORMAL.copy()
PERIODIC[:, ::8] += 10  # the regular view of one phase in eight sees nothing but the best


SCORES = {
    "normal": NORMAL,
    "periodic": PERIODIC,
    "equal": np.full_like(NORMAL, 3),
    "zeros": np.zeros_like(NORMAL),
    "nan": np.full_like(NORMAL, np.nan),
    "plateau": np.maximum(NORMAL - 2.5, 0),
    "some_tied": with_tied_rows(),
    "one_row": NORMAL[:1],
}
"""Captures by name."""


def capture_of(path: Path, scores: np.ndarray, lengths: object = None, k: int = K) -> Path:
    with CaptureWriter(path, *scores.shape, "float32", k=k) as writer:
        full = np.full(scores.shape[0], scores.shape[1])
        writer.write(scores, np.asarray(full if lengths is None else lengths, np.int32))
    return path


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Figures take most of a study's time; `test_study` and `test_figures` draw them."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@functools.cache
def studied(name: str) -> tuple[str, dict, str]:
    """Output, result file and report of `ksieve study` for a capture of `SCORES`."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = capture_of(Path(folder) / f"{name}.safetensors", SCORES[name]), Path(folder) / "out"
        done = CliRunner().invoke(app, ["study", str(path), "--out", str(out)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout, json.loads((out / "study.json").read_text()), (out / "report.html").read_text()


@pytest.mark.parametrize("name", SCORES)
def test_the_first_line_is_the_verdict_and_tied_rows_are_called_tied(name):
    answer = "with lines-64 only" if name == "periodic" else "yes"
    text, payload, page = studied(name)
    assert text.splitlines()[0].startswith(f"{answer}: ")
    assert payload["results"]["verdict"]["answer"] == answer
    assert page.index(f"<strong>{answer}</strong>") < page.index("<table>")
    for words in (text, re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)):
        assert not re.search(r"\b(inf|nan) ?%|\binf\b|\bwithin nan\b", words)
    (found,) = payload["results"]["captures"]
    rows = found["studied"]
    tied = {"equal": ROWS, "zeros": ROWS, "nan": ROWS, "plateau": ROWS, "some_tied": 6}.get(name, 0)
    assert f"{tied} of {rows}" in text
    line = next(li for li in text.splitlines() if li.startswith("median rank against request, view 1/256"))
    assert line.endswith("tied") == (tied == rows)
    # Rows without a boundary do not blur what is found in the others.
    if tied < rows and name != "periodic":
        assert re.search(r"within \d+\.\d %$", line)
        entries = [e for e in found["ranks"] if e["requested"] == 1.5 and e["count"]]
        assert all(abs(e["rms"] / e["reference_rms"] - 1) < 0.6 for e in entries)
    assert found["plan"]["name"] == "paper-64" and found["plan"]["traffic"] >= 1 + 1 / 64
    for key in ("below_k", "median", "p95", "traffic", "p_band", "p_exact", "rescans"):
        assert found["plan"][key] is None or type(found["plan"][key]) in (int, float)


def test_a_policy_other_than_the_plans_is_named_where_the_plans_fails():
    results = studied("periodic")[1]["results"]
    assert results["verdict"] == {"answer": "with lines-64 only", "with": "lines-64"}
    own = results["captures"][0]["plan"]
    other = next(p for p in results["captures"][0]["policies"] if p["name"] == "lines-64")
    assert not own["holds"]
    assert own["traffic"] == pytest.approx(1 + 1 / 64 + 1 / 8, abs=1e-3)  # one more scan where the boundary underfills
    assert other["holds"]
    assert other["traffic"] == pytest.approx(1 + 1 / 64, abs=1e-4)


def test_the_papers_column_appears_at_its_own_k_alone(tmp_path):
    text, _, page = studied("normal")
    assert "paper found" not in text
    assert "the paper found" not in page
    path = capture_of(tmp_path / "a.safetensors", NORMAL, k=2048)
    done = CliRunner().invoke(app, ["study", str(path), "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert "the paper found" in done.stdout
    assert "the paper found" in (tmp_path / "out" / "report.html").read_text()


def test_no_policy_holds_where_rows_are_scanned_twice():
    """No view of rows like these is large enough, and no backend keeps them: a CUDA plan of k = 16,384."""
    from ksieve_lab.study import verdict, words

    own = {"name": "direct", "holds": False}
    none = [{"name": name, "holds": False} for name in ("paper-64", "lines-64")]
    captures = [{"plan": own, "policies": none, "verdict": verdict.verdict(own, none)}]
    results = {"verdict": verdict.overall(captures), "captures": captures}
    assert results["verdict"] == captures[0]["verdict"] == {"answer": "no", "with": None}
    said = words.verdict_sentence(results)
    assert said.startswith("no: the plan samples nothing and scans rows twice, and no named policy holds")


def test_rows_on_chip_need_no_sampling(tmp_path):
    path = capture_of(tmp_path / "a.safetensors", NORMAL)
    arguments = ["study", str(path), "--out", str(tmp_path / "out"), "--device", "h200"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("yes: rows are read once, and nothing is sampled")
    plan = json.loads((tmp_path / "out" / "study.json").read_text())["results"]["captures"][0]["plan"]
    assert plan["device"] == "NVIDIA H200"
    assert plan["traffic"] == 1


@pytest.mark.parametrize("name", ["paper-64", "paper-128", "lines-64", "quads-16"])
def test_expected_scans_are_the_means_of_the_model(tmp_path, name):
    """Rows that are alike, one of every phase: what is expected of a row is the mean of what the model counts."""
    from ksieve import api
    from ksieve.model import reference
    from ksieve_lab.study.ranked import rank_rows
    from ksieve_lab.study.verdict import _SEED, Judged

    plan = api.plan(rows=1, width=WIDTH, k=K, policy=name)
    assert plan.policy is not None
    row = np.sort(NORMAL[0])[::-1].reshape(200, -1).T.ravel()  # the view of some phases underfills
    judged = Judged.of(plan)
    (ranked,) = rank_rows(row[None], np.array([WIDTH]), 8 * K)
    judged.add(ranked, 0)
    if plan.policy.jitter:  # phases are the hash of the row turned, of which the model runs one
        _, trace = reference.select_row(row, K, policy=plan.policy, capacity=plan.capacity, seed=_SEED)
        assert judged.results()["traffic"] >= trace.scans + trace.sampled / WIDTH - 1e-9
        return
    reads = [
        reference.select_row(row, K, row_id=r, policy=plan.policy, capacity=plan.capacity, seed=_SEED)[1]
        for r in range(plan.policy.stride)
    ]
    scans = np.mean([trace.scans for trace in reads])
    assert judged.results()["traffic"] == pytest.approx(scans + judged.view)
    assert judged.results()["below_k"] == np.mean([trace.scans > 1 for trace in reads])


def test_calibrate_says_first_whether_its_prediction_came_true(tmp_path):
    path = capture_of(tmp_path / "a.safetensors", SCORES["plateau"])
    arguments = ["calibrate", str(path), "--out", str(tmp_path / "policy.json")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    results = json.loads((tmp_path / "policy.json").read_text())["calibration"]["results"]
    verdict = results["verdict"]
    assert verdict["as_predicted"] == all(results["came_true"].values())
    begin = "as predicted on rows held back" if verdict["as_predicted"] else "NOT as predicted on rows held back: "
    assert done.stdout.startswith(begin)
    assert "1e+02" not in done.stdout
    lines = next(entry for entry in results["ranking"] if entry["policy"] == "lines-64")
    assert lines["overflow"] == 0, "scores that tie are counted, not stored"
