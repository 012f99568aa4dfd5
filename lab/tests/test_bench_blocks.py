"""The bench of blocks and pools: on the CPU, where a GPU's calls would be, and its page; wrong answers are refuted."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import numpy as np
import pytest

from bench_host import ENVIRONMENT, H200, invoke, measure
from flat_calls import ask
from ksieve import api, dispatch
from ksieve.core.device import DEVICES
from ksieve.planning.plan import Plan
from ksieve.tuning import tasks, timing, variants
from ksieve_lab.bench import block_rows, blocks, calls, floor, record
from ksieve_lab.report import specs, tables

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE, EVERY = "2x20480", (blocks.OWN, *blocks.AROUND)
NAMES = [model.name for model in blocks.MODELS]


def test_every_model_on_the_cpu(tmp_path):
    pytest.importorskip("matplotlib")
    done = invoke(
        "blocks-cpu", "--shapes", SHAPE, "--rounds", 1, "--dtype", "float32", "--out", tmp_path, "--figures", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    payload = json.loads((tmp_path / "blocks-cpu.json").read_text())
    found = payload["results"]["shapes"]
    assert [case["model"] for case in found] == NAMES and (tmp_path / "blocks-cpu.svg").exists()
    assert [case["columns"] for case in found] == [2048, 16, 16_384, 512, 2051, 16, 16]
    for case in found:
        own = case["selectors"]
        assert all(own[name]["exact"] is True and own[name]["median_us"] > 0 for name in EVERY)
        assert (blocks.BARE in own) == (not case["model"].startswith("blocks"))
        assert case["times_faster"]["around torch"] == own["around torch"]["median_us"] / own["ksieve"]["median_us"]
    section, file = specs.section_of("blocks"), tables.File("blocks-cpu", payload)
    tables.judge(section, file)
    assert "| DeepSeek-V4.1 | float32 | 1 |" in tables.render(section.tables[0], [file])


@pytest.fixture
def device(monkeypatch):
    """Let the bench believe in a GPU: its plans and tensors are the CPU's, its clock is made up."""
    planned, made = dispatch.plan_of, []

    def plan(*, device, options, **facts):
        assert device is H200
        return planned(options=options, **facts)

    def allocate(rows, width, dtype):
        return [torch.full((rows, width), 7.0, dtype=getattr(torch, dtype)) for _ in range(2)]

    monkeypatch.setattr(dispatch, "plan_of", plan)
    monkeypatch.setattr(variants, "compile_plans", lambda plans, progress: made.extend(plans))
    monkeypatch.setattr(tasks, "require_device", lambda: H200)
    monkeypatch.setattr(tasks, "allocate", allocate)
    monkeypatch.setattr(floor, "contenders", lambda *_: [timing.Contender("read a", lambda i: None)])
    monkeypatch.setattr(timing, "measure", measure)
    monkeypatch.setattr(Plan, "workspace", lambda self: pytest.fail("nothing to hold"))
    monkeypatch.setattr(record, "environment", lambda *, gpu: dict(ENVIRONMENT))
    return made


def test_on_a_gpu_a_wrong_answer_reaches_no_page(device, tmp_path, monkeypatch):
    select = api.select

    def wrong(*given, plan=None, out=None, **more):
        found = select(*given, plan=plan, out=out, **more)
        if plan and plan.problem.options.force_first:
            out[0, 0] = out[0, 1]
        return found

    monkeypatch.setattr(api, "select", wrong)
    done = invoke("blocks", "--shapes", "1x20480,4x20480", "--dtype", "bfloat16", "--only",
                  "blocks of 128; DeepSeek-V4.1, inside; MiniMax-M3, scored", "--out", tmp_path)  # fmt: skip
    assert done.exit_code != 0 and "not exact" in done.output
    payload = json.loads((tmp_path / "blocks-cuda.json").read_text())
    found = payload["results"]["shapes"]
    assert [plan.problem.k for plan in device] == 2 * [16] * 3 + 2 * [512] * 3 + 2 * [16, 16, 14]
    assert [case["selectors"]["ksieve"]["exact"] for case in found] == [True] * 4 + [False] * 2
    assert found[0]["selectors"]["ksieve"]["of_floor"] == 0.8 and "times_faster" not in found[4]
    with pytest.raises(tables.InexactError, match="no exact answer was measured"):
        tables.judge(specs.section_of("blocks"), tables.File("blocks-cuda", payload))
    assert len(specs.figures_of(payload)) == 1


# ---- rows of many kinds -------------------------------------------------------------------------------------


KINDS = {kind.name: kind for kind in block_rows.KINDS}
ROWS = 24
OF_WRITING = ("written", "value")
"""Reasons that concern what `ksieve.verify` does not judge."""


def made(kind, rows=ROWS, seed=1):
    """A batch of a kind with its answer."""
    batch = block_rows.Batch(kind, kind.dtypes[-1], rows, 1)
    block_rows.fill(batch, seed, "cpu")
    outputs, intact = block_rows.answer(batch, block_rows.plan_of(batch, "cpu"), calls.select)
    assert intact
    return batch, outputs


def refuted(reasons, leaving_out=()):
    return (sum(found for reason, found in reasons.items() if reason not in leaving_out) > 0).tolist()


def used_of(outputs, row):
    raw = outputs.get("raw", outputs["out"])
    return int(outputs["counts"][row]) if "counts" in outputs else int((raw[row] != -1).sum())


def test_every_kind_on_the_cpu(tmp_path):
    done = invoke("blocks-rows-cpu", "--shapes", 150, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    payload = json.loads((tmp_path / "blocks-rows-cpu.json").read_text())
    found = payload["results"]["verified"]
    assert payload["settings"]["verified_rows"] == 150 and payload["results"]["shapes"] == []
    assert found["rows"] >= 150 and found["exact"] is True and found["failed"] == 0 and found["wrong"] == []
    assert set(found["kinds"]) == set(KINDS) and set(found["dtypes"]) == set(block_rows.EVERY)
    assert sum(found["families"].values()) == found["rows"] >= found["by_verify"] > 0
    assert f"verified {found['rows']:,} rows: 0 failed" in done.output
    section, file = specs.section_of("blocks"), tables.File("blocks-cpu", payload)
    assert f"| blocks-cpu | cpu |  | {found['rows']} |" in tables.render(section.tables[1], [file])
    found["exact"] = False
    with pytest.raises(tables.InexactError):
        tables.judge(section, file)


def test_the_model_gives_right_answers_too():
    def select(scores, lengths, k, *, plan, **call):
        return ask(scores, lengths, k, backend="reference", **call)

    found = block_rows.verify_rows(1, seed=5, topk=select)
    assert found["exact"], found["wrong"]


def test_wrong_rows_are_counted_and_named(tmp_path, monkeypatch):
    def select(scores, lengths, k, *, out, **call):
        ask(scores, lengths, k, out=out, **call)
        if call["plan"].problem.options.nan == "highest":
            out[0] = 5

    found = block_rows.verify_rows(1, topk=select)
    assert not found["exact"] and found["failed"] == 2 and len(found["wrong"]) == 2, "one row of each dtype"
    first = found["wrong"][0]
    assert first["kind"] == "NaN first" and first["rows"] == [0] and first["verify"] == 1 and first["judge"]
    verified = block_rows.verify_rows
    monkeypatch.setattr(block_rows, "verify_rows", lambda *given, **more: verified(*given, **more, topk=select))
    done = invoke("blocks-rows-cpu", "--shapes", 1, "--out", tmp_path)
    assert done.exit_code != 0 and "2 failed" in done.output and "NaN first" in done.output


def test_what_is_written_beside_an_output_is_seen():
    def select(scores, lengths, k, *, out, **call):
        ask(scores, lengths, k, out=out, **call)
        out.as_strided((1,), (1,), out.storage_offset() + out.shape[1])[0] = 7

    batch, _ = made(KINDS["GLM-5.3"])
    assert not block_rows.answer(batch, block_rows.plan_of(batch, "cpu"), select)[1]


@pytest.mark.parametrize("name", KINDS)
def test_random_faults_are_found_where_verify_finds_them(name):
    batch, outputs = made(KINDS[name])
    live = batch.judged
    assert not any(refuted(calls.faults(batch.scores, batch.call, outputs, batch.live)))
    rng = np.random.default_rng(len(name))
    seen = 0
    for _ in range(6):
        changed = {key: array.clone() for key, array in outputs.items()}
        slots = changed["raw" if "raw" in changed else "out"]
        for row in range(0, live, 2):
            used = used_of(outputs, row)
            most = max(used, 1) + int(rng.integers(2))
            one, two = (int(x) for x in rng.integers(0, min(most, slots.shape[1]), 2))
            fault = rng.integers(6)
            if fault == 0:
                slots[row, one] = slots[row, two]
            elif fault == 1:
                slots[row, one] += int(rng.integers(-9, 10))
            elif fault == 2:
                slots[row, [one, two]] = slots[row, [two, one]]
            elif fault == 3:
                slots[row, one] = -1
            elif fault == 4 and "counts" in changed:
                changed["counts"][row] = used + int(rng.integers(-4, 5))
            else:
                slots[row] = slots[row].flip(0)
        # What lies behind a count, verify does not read; nor what is written in place of the positions.
        faults = calls.faults(batch.scores, batch.call, changed, batch.live)
        ours = refuted(faults, (*OF_WRITING, *["unused slots"] * ("counts" in outputs)))
        host = calls.by_verify(batch.scores, batch.call, changed, live).tolist()
        assert ours[:live] == host, [i for i in range(live) if ours[i] != host[i]]
        seen += sum(ours)
    assert seen >= ROWS // 2


@pytest.mark.parametrize(("name", "rows", "least"), [("Qwen3.8", 2048, 48), ("DeepSeek-V4.1, few rows", 16, 1)])
def test_every_family_has_rows(name, rows, least):
    found = Counter()
    for number in range(1 if rows > 99 else 12):
        found.update(block_rows.fill(block_rows.Batch(KINDS[name], "float32", rows, number), 0, "cpu"))
    assert set(found) == {*block_rows.FAMILIES, *block_rows.FRESH} and min(found.values()) >= least


def test_few_kernels_have_a_million_rows():
    from ksieve.backends.cuda.jit.spec import kernel_spec
    from ksieve.planning.length_bins import launches

    listed = list(block_rows.batches(1_000_000))
    assert 1_000_000 <= sum(batch.rows for batch in listed) < 1_001_000 and len(listed) < 400
    first = {(batch.kind.name, batch.dtype, batch.rows): batch for batch in listed}
    plans = map(partial(block_rows.plan_of, device=DEVICES["h200"]), first.values())
    assert len({kernel_spec(launch) for plan in plans for launch in launches(plan)}) <= 60
