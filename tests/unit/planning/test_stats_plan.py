"""Plans of statistics: whatever a call is planned as, its statistics build has room for k candidates on chip."""

from __future__ import annotations

import itertools

import pytest

import ksieve
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError
from ksieve.planning import length_bins, memory

CUDA = sorted(name for name, device in DEVICES.items() if device.kind == "cuda")
ROWS = (1, 4, 16, 132, 4096)
WIDTHS = (4096, 16_384, 65_536, 131_072, 262_144, 1_048_576)
RANKS = (16, 2048, 16_384, 32_768, 65_536, 262_144)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CUDA)
def test_statistics_of_any_plan_fit_the_device(name, dtype):
    device = DEVICES[name]
    for rows, width, k in itertools.product(ROWS, WIDTHS, RANKS):
        if k > width:
            continue
        try:
            plan = ksieve.plan(rows=rows, width=width, k=k, dtype=dtype, device=device)
        except ArgumentError:
            continue
        made = length_bins.stats_plan(plan)
        assert memory.shared_bytes(made) <= device.shared_per_block, (rows, width, k, made.family)
        assert made.capacity >= k and made.problem == plan.problem


def test_a_cluster_without_room_for_the_candidates_is_replaced():
    plan = ksieve.plan(rows=4, width=65_536, k=32_768, dtype="bfloat16", device=DEVICES["h200"])
    assert plan.family == "resident_cluster"
    assert length_bins.stats_plan(plan).family == "stream_unsampled"
