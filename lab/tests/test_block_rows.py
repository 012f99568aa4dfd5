"""Rows of many kinds: each is verified, and the oracle agrees with `ksieve.verify` on wrong answers."""

from __future__ import annotations

import dataclasses
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


@pytest.mark.parametrize("name", KINDS)
def test_each_fault_by_name(name):
    batch, outputs = made(KINDS[name])
    key = "raw_out" if "raw_out" in outputs else "out"
    expand = batch.kind.asked.get("expand", 1)
    size = expand if expand is not True else batch.kind.asked["block_size"]
    full = [row for row in range(ROWS) if used_of(outputs, row) > 2 * size + 3]
    row, faults = full[len(full) // 2], {}
    used = used_of(outputs, row)

    def fault(expected, of, change):
        faulty = {name: array.clone() for name, array in outputs.items()}
        change(faulty[of][row])
        reasons = judged(batch, faulty)
        faults[expected] = [reason for reason, found in reasons.items() if found[row]]
        assert not any(v for i, v in enumerate(refuted(reasons)) if i != row)

    def repeat(slots):
        slots[size : 2 * size] = slots[:size].clone()

    fault("position", key, lambda slots: slots[0].add_(1 << 28))
    fault("twice", key, repeat)
    fault("missing", key, lambda slots: slots[used - 1].fill_(-1))
    if used < outputs[key].shape[1] and batch.call.get("fill") is not False:
        fault("unused", key, lambda slots: slots[used].fill_(3))
    if "counts_out" in outputs:
        fault("count", "counts_out", lambda count: count.sub_(1))
        fault("count, more", "counts_out", lambda count: count.add_(1))
        fault("count, beyond", "counts_out", lambda count: count.fill_(outputs[key].shape[1] + 1))
    if "values_out" in outputs:
        fault("value", "values_out", lambda values: values[1].add_(1))
        assert faults["value"] == ["value"]
    if key == "raw_out":
        fault("written", "out", lambda slots: slots[0].add_(1))
        assert faults["written"] == ["written"]
    assert all(faults.values()), faults


@pytest.mark.parametrize("name", KINDS)
def test_other_scores_have_other_best_entries(name):
    batch, _ = made(KINDS[name], rows=12)
    kind, best = batch.kind, -1.0 if batch.call.get("largest") is False else 1.0
    call = {key: value for key, value in batch.call.items() if key not in ("starts", "ends", "k", "max_k", "tail")}
    per = kind.asked.get("expand", 1) if kind.asked.get("block_size", 1) == 1 else 1
    call |= {"lengths": torch.full((12 // kind.asked.get("next_n", 1),), kind.width)}
    call |= {"tail": call["lengths"] * per} if "tail" in batch.call else {}
    other = dataclasses.replace(
        batch, scores=(best * torch.arange(kind.width * 1.0)).expand(12, -1).to(batch.scores.dtype), live=None,
        call=call | {"k": kind.k},
    )  # fmt: skip
    if "k" in kind.arrays:
        other.call |= {"k": torch.full((12,), kind.k, dtype=torch.int32), "max_k": kind.k}
    if "starts" in kind.arrays:
        other.call |= {"starts": torch.zeros(12, dtype=torch.int32)}
    if "ends" in kind.arrays:
        other.call["ends"] = other.call.pop("lengths")
    if "long" not in kind.arrays:
        other.call |= {
            key: other.call[key].int() for key in ("lengths", "ends", "tail") if other.call.get(key) is not None
        }
    right, _ = block_rows.answer(other, block_rows.plan_of(other, "cpu"), api.topk)
    assert not any(refuted(judged(other, right))), judged(other, right)
    falling = dataclasses.replace(other, scores=other.scores.flip(1).contiguous())
    reasons = judged(falling, right)
    assert all(reasons["worse entry"].tolist()), "what was the best is the worst"


@pytest.mark.parametrize(
    "name", [name for name, kind in KINDS.items() if "tie_break" in kind.asked or "deterministic" in kind.asked]
)
def test_a_tie_that_goes_the_wrong_way_is_found(name):
    batch, _ = made(KINDS[name])
    asked = batch.call
    batch.scores.fill_(1)
    other = {"low": "high", "high": "low"}[asked.get("tie_break", "low")]
    batch.call = {key: value for key, value in asked.items() if key != "deterministic"} | {"tie_break": other}
    if "deterministic" in asked:
        batch.call["sorted"] = "index"
    kind = dataclasses.replace(
        batch.kind, asked={key: v for key, v in batch.kind.asked.items() if key != "deterministic"}
        | {"tie_break": other} | ({"sorted": "index"} if "deterministic" in asked else {}),
    )  # fmt: skip
    batch.kind = kind
    outputs, _ = block_rows.answer(batch, block_rows.plan_of(batch, "cpu"), api.topk)
    assert not any(refuted(judged(batch, outputs)))
    batch.call = asked
    assert sum(judged(batch, outputs)["tie"].tolist()) > ROWS // 4


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
