"""The estimated cost of a call: its table is of the result files, and shapes that are left out of it are met."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace

import pytest
from conftest import ROOT

import ksieve
from ksieve.core.device import DEVICES, DeviceInfo
from ksieve.core.problem import Device, Problem
from ksieve.planning import cost

ON, SHAPES = cost.table()


def problem(rows: int, width: int, dtype: str, k: int = 2048) -> Problem:
    return Problem(rows, width, width, k, dtype, Device("cuda", 0))


def us(asked: Problem, device: DeviceInfo = DEVICES["h200"]) -> float:
    found = cost.cost_of(asked, device)
    assert found is not None
    return found.us


def test_the_table_is_that_of_the_result_files(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("plan_costs", ROOT / "scripts" / "plan_costs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(("dtype", "most"), [("float32", 0.15), ("float16", 0.21), ("bfloat16", 0.21)])
def test_a_shape_that_is_left_out_of_the_table_is_met(dtype: str, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, tried = SHAPES[dtype][2048], 0
    for width, listed in grid.items():
        for rows in listed:
            asked = problem(rows, width, dtype)
            measured = us(asked)
            rest = {n: {m: at for m, at in of.items() if (m, n) != (rows, width)} for n, of in grid.items()}
            monkeypatch.setattr(cost, "table", lambda rest=rest: (ON, {dtype: {2048: rest}}))
            found = cost.cost_of(asked, DEVICES["h200"])
            monkeypatch.undo()
            assert found is not None
            if width > 4096 and found.source == "interpolated":
                tried += 1
                assert abs(found.us / measured - 1) <= most, (rows, width, found.us, measured)
    assert tried > 140, tried


def test_an_estimate_by_bandwidth_is_that_of_another_card() -> None:
    """Calls of ranks, with options, were timed on both cards: their ratio is the model's."""
    local = {}
    for card, name in (("h200", "ranks-cuda-4"), ("h100", "ranks-cuda-4-h100")):
        payload = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8"))
        for case in payload["results"]["shapes"]:
            if case["layout"] == "contiguous":
                key = (card, case["rows"], case["width"] // payload["results"]["world"], case["dtype"])
                local[key] = case["selectors"]["local"]["median_us"]
    shapes = {key[1:] for key in local}
    assert len(shapes) == 24
    for rows, width, dtype in shapes:
        asked = problem(rows, width, dtype)
        found = cost.cost_of(asked, DEVICES["h100"])
        assert found is not None and found.source == "bandwidth"
        ratio = local["h100", rows, width, dtype] / local["h200", rows, width, dtype]
        assert abs(found.us / us(asked) / ratio - 1) <= 0.17, (rows, width, dtype)


@pytest.mark.parametrize(
    ("asked", "source", "words"),
    [
        ({"rows": 1024, "width": 131_072, "k": 2048, "device": "h200"}, "measured",
         r"about 13\d us, 0\.8\d of the plain read's speed \(measured for this shape on an H200\)"),
        ({"rows": 700, "width": 131_072, "k": 2048, "device": "h200"}, "interpolated",
         r"about \d+(\.\d)? us, 0\.8\d of the plain read's speed \(interpolated between shapes measured on an H200\)"),
        ({"rows": 64, "width": 131_072, "k": 300, "device": "h200", "order": "value"}, "interpolated",
         r".*on an H200, k=2,048; options are not counted\)"),
        ({"rows": 1024, "width": 131_072, "k": 2048, "device": "b200"}, "bandwidth",
         r"about .* us, 0\.\d\d of .* \(by bandwidth; no measurement for this GPU\)"),
        ({"rows": 64, "width": 131_072, "k": 100_000, "device": "h200"}, "read",
         r"at least 9\.\d+ us, which a plain read takes \(by bandwidth; no shape like this was measured\)"),
    ],
)  # fmt: skip
def test_a_plan_says_what_a_call_costs(asked: dict[str, object], source: str, words: str) -> None:
    plan = ksieve.plan(**{**asked, "sorted": "value"} if asked.pop("order", None) else asked)
    assert plan.cost is not None
    assert plan.cost.source == source
    assert re.fullmatch(words, plan.cost.text(plan.problem))
    assert plan.cost.text(plan.problem) in str(plan)


def test_the_table_is_read_when_a_cost_is_asked_for() -> None:
    cost.table.cache_clear()
    plan = ksieve.plan(rows=1024, width=131_072, k=2048, device="h200")
    assert cost.table.cache_info().misses == 0
    assert plan.cost == plan.cost and cost.table.cache_info().misses == 1


def test_no_cost_is_made_up() -> None:
    shape = {"rows": 1024, "width": 131_072, "k": 2048}
    assert ksieve.plan(**shape).cost is None, "on a CPU"
    assert ksieve.plan(**shape, device="h200", family="resident_grid").cost is None, "not the planner's family"
    assert ksieve.plan(**shape, device="h200", policy="direct").cost is None, "not the planner's policy"
    assert ksieve.plan(rows=0, width=8, k=1, device="h200").cost is None
    for name in ("NVIDIA GH200 480GB", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA T4"):
        assert cost.cost_of(problem(64, 4096, "float32"), replace(DEVICES["h200"], name=name)) is None, name
