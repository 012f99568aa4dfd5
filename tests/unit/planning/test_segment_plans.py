"""Plans of segments: for their usual width, whatever the flat scores are, and for longer ones too."""

from __future__ import annotations

import pytest

import ksieve
from ksieve import ArgumentError
from ksieve.planning import memory
from ksieve.planning.length_bins import launches


def plan_of(rows, total, k=8, device="h100", **more):
    hints = {name: more.pop(name) for name in ("max_length", "mean_length") if name in more}
    return ksieve.plan(rows=rows, width=total, k=k, device=device, bounds=ksieve.Segments("int64", **hints), **more)


@pytest.mark.parametrize(
    ("rows", "mean", "hints", "families"),
    [
        (1_000_000, 150, {}, ["register_warp", "resident_block"]),
        (1_000_000, 150, {"max_length": 300}, ["register_warp"]),
        (20_000, 4096, {}, ["resident_block"]),
        (20_000, 12_288, {}, ["length_bins", "resident_block", "resident_block", "resident_block"]),
        (1000, 100_000, {"max_length": 200_000}, ["stream"]),
        (3, 1_000_000, {}, ["stream_split"]),
        (9, 700, {}, ["resident_block"]),
        (2, 700, {"max_length": 1400}, ["register_block"]),
        (16, 20_000, {}, ["resident_block"]),
        (16, 50_000, {}, ["stream_split"]),
    ],
)
def test_launches_are_planned_for_the_usual_width(rows, mean, hints, families):
    plan = plan_of(rows, rows * mean, **hints)
    assert [launch.family for launch in launches(plan)] == families
    assert plan.problem.usual <= 2 * mean
    fitting = [launch for launch in launches(plan) if memory.shared_bytes(launch) <= plan.device.shared_per_block]
    assert fitting == list(launches(plan))


@pytest.mark.parametrize("device", ["a100", "b200", "rtx5090", "cpu"])
def test_every_device_has_plans(device):
    for rows, total in ((1, 0), (1, 5), (5000, 90_000), (100_000, 1 << 33), (7, 1 << 33)):
        for k in (1, 2048):
            assert plan_of(rows, total, k, device).problem.pitch == total


@pytest.mark.parametrize("family", ["register_warp", "register_block", "resident_cluster", "resident_grid"])
def test_families_that_take_no_longer_rows_are_refused(family):
    with pytest.raises(
        ArgumentError, match=rf"^family: got '{family}' for segments .* takes max_length= of at most 600"
    ):
        plan_of(1000, 150_000, family=family)


def test_a_mean_length_stands_for_that_of_the_array():
    assert plan_of(1_000_000, 1 << 34, mean_length=150).family == plan_of(1_000_000, 150_000_000).family
