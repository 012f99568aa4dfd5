"""The bench of shapes from outside the indexer, on the host: real selections on the CPU, a clock that is made up."""

from __future__ import annotations

import json

import pytest

import bench_host
from bench_host import OTHER_US, OWN_US, host, invoke
from ksieve.core.errors import ArgumentError
from ksieve.planning.devices import DEVICES
from ksieve.planning.tune.variants import PLANNED
from ksieve_lab.bench import general, shape_lists

pytest.importorskip("torch")

__all__ = ["host"]

SMALL = ((30, 70, 4), (3, 5000, 40), (2, 64, 64))


@pytest.fixture
def small(host, monkeypatch):
    monkeypatch.setattr(general.cases, "__defaults__", (SMALL, ("float32", "float16", "bfloat16")))
    return host


def test_the_list_is_long_and_every_case_has_a_plan():
    listed = general.cases()
    assert len(listed) == len(set(listed)) >= 40
    assert set(shape_lists.MANY_SHORT) < set(shape_lists.GENERAL)
    for name in ("h100", "b200", "a100"):
        for case in listed:
            plan = PLANNED.plan(*case, DEVICES[name])
            assert (plan.problem.rows, plan.problem.width, plan.problem.k, plan.problem.dtype) == case


def test_every_dtype_is_timed_beside_torch_and_verified(small, tmp_path):
    done = invoke("general", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    payload = json.loads((tmp_path / "gpu-general.json").read_text())
    results = payload["results"]
    assert len(results["shapes"]) == 9 == results["over_torch"]["shapes"]
    for case in results["shapes"]:
        assert case["selectors"]["ksieve"]["exact"] is True and case["selectors"]["torch.topk"]["exact"] is True
        assert case["times_faster"] == OTHER_US / OWN_US
    assert results["slower"] == [] and "ksieve is slower in 0" in " ".join(done.output.split())
    assert {(plan.problem.k, plan.problem.dtype) for plan in small} >= {(64, "bfloat16"), (4, "float16")}


def test_cases_in_which_torch_is_faster_are_named(small, monkeypatch):
    monkeypatch.setattr(bench_host, "OWN_US", 2 * OTHER_US)
    found = general.run(general.cases())["results"]
    assert len(found["slower"]) == 9 and found["slower"][0] == "30 x 70, top 4, float32"
    assert found["over_torch"]["geometric_mean"] == pytest.approx(0.5) and found["over_torch"]["least"] == 0.5
    assert general.summary([]) == {"over_torch": None, "slower": []}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("--dtypes", "float64"), "--dtypes"), (("--dtypes", ","), "--dtypes"), (("--only", "7x7"), "--only")],
)
def test_what_is_not_in_the_list_is_named(small, arguments, named):
    done = invoke("general", *arguments)
    assert isinstance(done.exception, ArgumentError) and str(done.exception).startswith(f"{named}: got")


def test_a_part_of_the_list_can_be_asked_for(small):
    done = invoke("general", "--only", "30x", "--dtypes", "float16")
    assert done.exit_code == 0 and "1 cases" in " ".join(done.output.split()), done.output
