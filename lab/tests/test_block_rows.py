"""Rows of many kinds: each is verified, and the oracle agrees with `ksieve.verify` on wrong answers."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import numpy as np
import pytest

from bench_host import invoke
from ksieve import api
from ksieve.planning.devices import DEVICES
from ksieve_lab.bench import block_rows
from ksieve_lab.bench.block_rows import judged
from ksieve_lab.report import specs, tables

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = {kind.name: kind for kind in block_rows.KINDS}
ROWS = 24
OF_WRITING = ("written", "value")
"""Reasons that concern what `ksieve.verify` does not judge."""


def made(kind, rows=ROWS, seed=1):
    """A batch of a kind with its answer."""
    batch = block_rows.Batch(kind, kind.dtypes[-1], rows, 1)
    block_rows.fill(batch, seed, "cpu")
    outputs, intact = block_rows.answer(batch, block_rows.plan_of(batch, "cpu"), api.topk)
    assert intact
    return batch, outputs


def refuted(reasons, leaving_out=()):
    return (sum(found for reason, found in reasons.items() if reason not in leaving_out) > 0).tolist()


def used_of(outputs, row):
    raw = outputs.get("raw_out", outputs["out"])
    return int(outputs["counts_out"][row]) if "counts_out" in outputs else int((raw[row] != -1).sum())


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
        return api.topk(scores, lengths, k, backend="reference", **call)

    found = block_rows.verify_rows(1, seed=5, topk=select)
    assert found["exact"], found["wrong"]


def test_wrong_rows_are_counted_and_named(tmp_path, monkeypatch):
    def select(scores, lengths, k, *, out, **call):
        api.topk(scores, lengths, k, out=out, **call)
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
        api.topk(scores, lengths, k, out=out, **call)
        out.as_strided((1,), (1,), out.storage_offset() + out.shape[1])[0] = 7

    batch, _ = made(KINDS["GLM-5.3"])
    assert not block_rows.answer(batch, block_rows.plan_of(batch, "cpu"), select)[1]


@pytest.mark.parametrize("name", KINDS)
def test_random_faults_are_found_where_verify_finds_them(name):
    batch, outputs = made(KINDS[name])
    live = ROWS if batch.live is None else batch.live
    assert not any(refuted(judged(batch, outputs)))
    rng = np.random.default_rng(len(name))
    seen = 0
    for _ in range(6):
        changed = {key: array.clone() for key, array in outputs.items()}
        slots = changed["raw_out" if "raw_out" in changed else "out"]
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
            elif fault == 4 and "counts_out" in changed:
                changed["counts_out"][row] = used + int(rng.integers(-4, 5))
            else:
                slots[row] = slots[row].flip(0)
        # What lies behind a count, verify does not read; nor what is written in place of the positions.
        ours = refuted(judged(batch, changed), (*OF_WRITING, *["unused slots"] * ("counts_out" in outputs)))
        host = block_rows.by_verify(batch, changed, live).tolist()
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
