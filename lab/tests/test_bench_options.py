"""The bench of serving options on the host: real selections on the CPU, real verdicts, a clock that is made up."""

from __future__ import annotations

import json

import pytest

import ksieve
from bench_host import OTHER_US, host, invoke
from ksieve import api
from ksieve.core.errors import ArgumentError
from ksieve.core.options import PLAIN
from ksieve.planning.tune import timing
from ksieve_lab.bench import options

torch = pytest.importorskip("torch")

__all__ = ["host"]


@pytest.fixture
def served(host, monkeypatch):
    """Calls with options run on the CPU backend; what they ask for is what their plans were made for."""
    ran = []

    def topk(scores, lengths, k=None, *, plan, workspace, **keywords):
        assert workspace == "workspace"
        ran.append(plan)
        return ksieve.topk(scores, lengths, plan.problem.k if k is None else k, **keywords)

    monkeypatch.setattr(api, "topk", topk)
    return ran


def test_every_option_is_timed_against_the_plain_call(served, tmp_path):
    done = invoke("options", "--shapes", "8x4096,3x5003", "--k", 64, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "gpu-options-k64.json").read_text())["results"]
    even, odd = results["shapes"]
    assert set(even["selectors"]) == {option.name for option in options.OPTIONS}
    assert set(even["selectors"]) - set(odd["selectors"]) == {"next_n"}, "three rows are no pairs of tokens"
    for shape in results["shapes"]:
        for facts in shape["selectors"].values():
            assert facts["exact"] is True and facts["of_plain"] == 1.0 and facts["median_us"] == OTHER_US
    assert results["of_plain"]["windows"] == {"geometric_mean": 1.0, "most": 1.0, "shapes": 2}
    assert "over the plain call: 1 costs nothing" in done.output


def test_options_are_told_apart(served):
    options.run([(8, 4096)], 64, names=["windows", "by value", "int64", "k per row"])
    asked = {plan.problem.options for plan in served}
    assert len(asked) == 5 and PLAIN in asked
    assert {(o.windows, o.order, o.index_dtype, o.per_row_k) for o in asked} == {
        ("none", "any", "int32", False), ("ends", "any", "int32", False), ("none", "value", "int32", False),
        ("none", "any", "int64", False), ("none", "any", "int32", True),
    }  # fmt: skip


def test_short_rows_are_read_from_memory_as_others_are(served, monkeypatch):
    """What they read fits L2 although the matrices do not: a call counts by the bytes that it reads."""
    asked, own = [], timing.measure

    def measure(contenders, sets, read_bytes, **settings):
        asked.append(read_bytes)
        return own(contenders, sets, read_bytes, **settings)

    monkeypatch.setattr(timing, "measure", measure)
    options.run([(8, 4096)], 64, lengths="full", names=["windows"])
    options.run([(8, 4096)], 64, lengths="full", names=["short rows"])
    short = next(option for option in options.OPTIONS if option.name == "short rows")
    lengths = short.keywords(8, 4096, 64, torch.full((8,), 4096, dtype=torch.int32))["lengths"]
    assert asked == [8 * 4096 * 4, int(lengths.sum()) * 4]
    assert asked[1] < asked[0] / 2


@pytest.mark.parametrize("broken", ["out", "values_out", "raw_out"])
def test_a_wrong_answer_is_found(served, monkeypatch, broken):
    right = api.topk

    def wrong(*arguments, **keywords):
        right(*arguments, **keywords)
        if broken in keywords:
            keywords[broken][2, 1] = keywords[broken][2, 0] + (1 if broken == "values_out" else 0)

    monkeypatch.setattr(api, "topk", wrong)
    names = {"out": "windows", "values_out": "values", "raw_out": "page table and raw"}
    done = invoke("options", "--shapes", "8x4096", "--k", 64, "--only", names[broken])
    assert done.exit_code == 1 and "INEXACT" in done.output and "not exact" in done.output


def test_unknown_options_are_refused():
    with pytest.raises(ArgumentError, match="options: got 'speed'; takes names of plain, windows"):
        options.run(names=["speed"])
