"""Traces: generated, written, read, recorded; and replayed on the host with every answer verified."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

import ksieve
import ksieve_lab
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve_lab.bench import machines
from ksieve_lab.traces import replay
from ksieve_lab.traces import serving as traces
from ksieve_lab.traces.serving import Invocation, invocations
from ksieve_lab.workloads.producers import write_synthetic

SMALL = replay.Trace.of_requests(
    "small", [{"prompt": 500, "step_tokens": 200, "budget_bytes": 4 * 500 * 80, "decode_steps": 3, "batch": 2}], k=32
)


def test_a_generated_trace_is_what_a_scheduler_would_issue():
    assert list(SMALL.calls) == invocations(500, step_tokens=200, budget_bytes=4 * 500 * 80, decode_steps=3, batch=2)
    assert [len(replay.load(name).calls) for name in ("245K", "430k")] == [26, 71]
    two = replay.Trace.of_requests("two", [{"prompt": 100}, {"prompt": 50, "decode_steps": 1}])
    assert [(c.step, c.rows, c.phase) for c in two.calls] == [(0, 100, "prefill"), (1, 50, "prefill"), (2, 1, "decode")]
    assert sum(c.valid_scores for c in replay.EXAMPLE.calls) < 5e7
    for bad in ({"prompt": 10, "steps": 3}, {"batch": 2}):
        with pytest.raises(ArgumentError, match=r"^requests: got"):
            replay.Trace.of_requests("x", [bad])


def test_traces_are_written_and_read(tmp_path):
    path = tmp_path / "trace.json"
    SMALL.save(path)
    assert replay.load(path) == SMALL
    plain = replay.Trace("calls", None, (Invocation("decode", 3, 2, 90, 80, "equal"),))
    plain.save(path)
    assert replay.load(path) == plain
    path.write_text(json.dumps({"ksieve_trace": 1, "calls": [{"rows": 4, "width": 100}]}))
    assert replay.load(path).calls[0].lengths().tolist() == [97, 98, 99, 100]
    blocks = re.findall(r"```json\n(.*?)```", (ROOT / "docs/guide/study.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        path.write_text(block)
        assert replay.load(path).calls and replay.load(path).name == json.loads(block)["name"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", 'takes an object with "ksieve_trace": 1'),
        ('{"ksieve_trace": 2}', 'takes an object with "ksieve_trace": 1'),
        ('{"ksieve_trace": 1}', 'neither "requests" nor "calls"; takes an object with one of them'),
        ('{"ksieve_trace": 1, "k": 0, "calls": []}', "k: got 0"),
        ('{"ksieve_trace": 1, "calls": [{"rows": -1, "width": 5}]}', "calls.rows: got -1"),
        ('{"ksieve_trace": 1, "calls": [{"rows": 1, "wide": 5}]}', "rows and width are required"),
        ('{"ksieve_trace": 1, "calls": [{"rows": 1, "width": 5, "rule": "x"}]}', "'causal' or 'equal'"),
        ('{"ksieve_trace": 1, "requests": [{"prompt": -1}]}', "prompt: got -1"),
        ('{"ksieve_trace": 1, "requests": 3}', "not iterable"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path, text, words):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=r"trace\.json: ") as raised:
        replay.load(path)
    assert words in str(raised.value)


def test_what_is_no_trace_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match="no such trace"):
        replay.load(tmp_path / "none.json")
    path = tmp_path / "scores.safetensors"
    write_synthetic(path, "random_normal", 3, 100)
    with pytest.raises(FileFormatError, match="a capture, but no recording"):
        replay.load(path)
    with pytest.raises(ArgumentError, match=r"^k: got None"):
        replay.run(replay.Trace("x", None, SMALL.calls), backend="cpu")
    with pytest.raises(ArgumentError, match="without a call"):
        replay.run(replay.Trace("x", 3, ()), backend="cpu")


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_replay_takes_every_call_in_order(backend):
    seen = []
    payload = replay.run(SMALL, backend=backend, rounds=1, progress=lambda done, of: seen.append((done, of)))
    calls, total = payload["results"]["calls"], payload["results"]["total"]
    assert [(c["rows"], c["width"], c["phase"]) for c in calls] == [(c.rows, c.width, c.phase) for c in SMALL.calls]
    assert all(c["exact"] is True and c["us"] > 0 and c["floor_us"] > 0 for c in calls)
    assert total["us"] == pytest.approx(sum(c["us"] for c in calls))
    assert total["of_floor"] == pytest.approx(sum(c["floor_us"] for c in calls) / total["us"])
    phases = payload["results"]["phases"]
    assert phases["prefill"]["us"] + phases["decode"]["us"] == pytest.approx(total["us"])
    assert sum(s["calls"] for s in payload["results"]["steps"]) == len(calls)
    assert total["valid_scores"] == sum(int(c.lengths().astype(np.int64).sum()) for c in SMALL.calls)
    assert seen == [(i, len(calls)) for i in range(len(calls) + 1)]
    assert payload["settings"]["backend"] == backend


def test_one_wrong_answer_takes_the_sum_away(monkeypatch):
    payload = replay.run(SMALL, backend="cpu", rounds=1)
    calls = payload["results"]["calls"]
    calls[2]["exact"] = False
    found = replay.summary(calls)
    assert found["total"]["us"] is None
    assert found["total"]["exact"] is False
    assert found["phases"]["decode"]["us"] > 0


def test_a_recording_replays_the_rows_it_saw(tmp_path, monkeypatch):
    path = tmp_path / "recording.safetensors"
    rng = np.random.default_rng(1)
    first, second = (rng.standard_normal(shape, dtype=np.float32) for shape in ((4, 300), (2, 900)))
    lengths = np.array([300, 20, -1, 299], np.int32)
    with ksieve_lab.record(path):
        ksieve.topk(first, lengths, k=16)
        ksieve.topk(second, k=16)
    met = []
    time = machines.Cpu.time

    def listen(self, scores, valid, *arguments):
        met.append((scores, valid))
        return time(self, scores, valid, *arguments)

    monkeypatch.setattr(machines.Cpu, "time", listen)
    trace = replay.load(path)
    payload = replay.run(trace, scores=path, backend="cpu", rounds=1)
    assert payload["settings"]["k"] == 16
    assert payload["results"]["total"]["exact"] is True
    assert payload["results"]["total"]["valid_scores"] == 300 + 20 + 0 + 299 + 2 * 900
    assert np.array_equal(met[0][0][0], first[0])
    assert met[0][1].tolist() == [300, 20, 0, 299]
    assert np.array_equal(met[1][0], second)


def test_rows_of_any_capture_are_joined_until_they_are_wide_enough(tmp_path, monkeypatch):
    path = tmp_path / "scores.safetensors"
    write_synthetic(path, "random_normal", 5, 100, lengths="ragged", dtype="bfloat16")
    trace = replay.Trace("x", 8, (Invocation("prefill", 0, 3, 250, 247, "causal"),))
    payload = replay.run(trace, scores=path, backend="cpu", rounds=1)
    assert payload["results"]["total"]["exact"] is True
    assert payload["settings"]["scores"] == "scores.safetensors"


def test_the_commands_say_what_they_did(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from ksieve_lab.cli.app import app

    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    done = run(app, ["replay", "--prompt", "300", "--step-tokens", "200", "--decode-steps", "2", "--k", "16",
                     "--backend", "cpu", "--save", "trace.json", "--out", "."])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].startswith("exact: ")
    assert "replay-1x300-cpu.json" in done.output
    again = run(app, ["replay", "trace.json", "--backend", "cpu", "--rounds", "1", "--k", "16"])
    assert again.exit_code == 0, again.output
    assert "4 calls, top 16, " in again.output
    for wrong in (["replay"], ["replay", "--example", "--prompt", "3"]):
        refused = run(app, wrong)
        assert isinstance(refused.exception, ArgumentError)
    long = run(
        app, ["replay", "--prompt", "40", "--decode-steps", "60", "--k", "4", "--backend", "cpu", "--rounds", "1"]
    )
    assert "decode" in long.output
    assert "60" in long.output


# ---- what a scheduler issues --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "steps", "count"), [("245K", 4, 26), ("430K", 7, 71)])
def test_the_papers_requests_take_the_papers_invocations(name, steps, count):
    made = traces.invocations(traces.PAPER_REQUESTS[name])
    assert (len(made), made[-1].step + 1) == (count, steps)
    assert made[-1].width == traces.PAPER_REQUESTS[name]
    assert made[-1].lengths()[-1] == made[-1].width
    assert [i.rows for i in made if i.step == 0] == [24_032, 24_032, 17_472], "6.3e9 bytes hold 24,032 rows of 65,536"


@given(
    prompt=st.integers(0, 1500), cap=st.integers(1, 700), budget=st.integers(1, 400_000),
    decode=st.integers(0, 5), batch=st.integers(1, 3),
)  # fmt: skip
def test_every_query_is_selected_for_once(prompt, cap, budget, decode, batch):
    made = traces.invocations(prompt, step_tokens=cap, budget_bytes=budget, decode_steps=decode, batch=batch)
    prefill = [i for i in made if i.phase == "prefill"]
    seen = np.concatenate([i.lengths() for i in prefill]) if prefill else np.zeros(0, np.int32)
    assert np.array_equal(seen, np.tile(np.arange(1, prompt + 1), batch))
    assert sum(i.rows for i in made) == batch * (prompt + decode)
    for i in made:
        assert (i.lengths() <= i.width).all() and i.lengths().sum() == i.valid_scores
        if i.phase == "prefill":
            assert i.rows == 1 or i.rows * i.width * traces.SCORE_BYTES <= budget
    assert [(i.rows, i.width, i.lengths().tolist()) for i in made if i.phase == "decode"] == [
        (batch, prompt + 1 + t, [prompt + 1 + t] * batch) for t in range(decode)
    ]
    assert [i.step for i in made] == sorted(i.step for i in made)


@pytest.mark.parametrize(
    ("name", "value"),
    [("prompt", -1), ("prompt", 1 << 31), ("prompt", True), ("step_tokens", 0), ("budget_bytes", 0), ("batch", 0)],
)
def test_bad_numbers_are_named(name, value):
    with pytest.raises(ArgumentError, match=rf"^{name}: got"):
        traces.invocations(**({"prompt": 8} | {name: value}))
