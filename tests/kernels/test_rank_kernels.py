"""The kernels of `ksieve.distributed` on the emulator: the answers of the protocol's operations, rank by rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emulator import build, driver

pytest.importorskip("torch")

import rank_cases
from ksieve.backends.cuda import arrays

pytestmark = pytest.mark.skipif(bool(build.missing()), reason=build.missing() or "present")


CASES = [
    (layout, rank_cases.SCHEDULES[(number + other) % len(rank_cases.SCHEDULES)], kind)
    for number, layout in enumerate(rank_cases.LAYOUTS)
    for other, kind in enumerate(rank_cases.KINDS)
]
"""Every two of a layout, a schedule and a kind of scores; a GPU has all three (tests/gpu/test_ranks.py)."""


@pytest.mark.parametrize(("layout", "schedule", "kind"), CASES, ids=str)
def test_kernels_equal_the_operations(layout, schedule, kind, monkeypatch):
    gpu = driver.install(monkeypatch)
    if rank_cases.LAYOUTS[layout][1][0] % 500:  # the kernels for many rows
        gpu.device = replace(gpu.device, sm_count=rank_cases.ROWS - 1)
    monkeypatch.setattr(arrays, "place_of", lambda device: (0, 0))
    assert rank_cases.check_kernels(layout, schedule, kind)


@pytest.mark.parametrize("schedule", rank_cases.SCHEDULES, ids=str)
def test_other_tags_are_no_answer(schedule, monkeypatch):
    driver.install(monkeypatch)
    monkeypatch.setattr(arrays, "place_of", lambda device: (0, 0))
    rank_cases.check_tags(schedule, kernels=True)
