"""Rows far wider than the usual: views of bounded size, and CTAs that fill the device."""

from __future__ import annotations

import itertools

import pytest

from frozen import frozen_shapes
from ksieve import dispatch
from ksieve.core.device import DEVICES
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.problem import MAX_WIDTH
from ksieve.planning import memory
from ksieve.planning.switch_points import MOST_SLICES, MOST_SPLITS, MOST_STATISTICS, SPLITS, WIDEST_USUAL

H200 = DEVICES["h200"]
HUGE, WIDEST = 100_000_000, MAX_WIDTH
CUDA = sorted(name for name, device in DEVICES.items() if device.kind == "cuda")


@pytest.fixture(autouse=True, scope="module")
def frozen():
    with frozen_shapes():
        yield


def plan_of(rows, width, k, device=H200, **asked):
    return dispatch.plan_of(rows=rows, width=width, k=k, device=device, **asked)


@pytest.mark.parametrize(
    ("rows", "width", "k", "policy", "splits"),
    [
        (1, HUGE, 1000, "bursts-2048", 132),
        (1, 1_000_000_000, 100, "bursts-8192", 132),
        (1, WIDEST, 1000, "bursts-16384", 132),
        (16, 1_000_000, 100, "lines-128", 8),
        (32, 1_048_576, 65_536, "quads-64", 4),
        (1, 8_388_608, 2048, "lines-128", 132),
        (1, 8_388_609 + 4096, 2048, "bursts-256", 132),
        (3, WIDEST_USUAL + 1, 2048, "lines-128", 44),
        (40, 2_000_000, 2048, "lines-128", 3),
        (66, 2_000_000, 2048, "lines-128", 2),
        (1, HUGE, 1 << 20, "bursts-512", SPLITS[0]),
    ],
)
def test_views_and_splits_of_huge_rows(rows, width, k, policy, splits):
    plan = plan_of(rows, width, k)
    assert (plan.family, plan.policy.name, plan.splits, plan.ctas) == ("stream_split", policy, splits, rows * splits)


@pytest.mark.parametrize("name", CUDA)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_huge_rows_fill_every_device(name, dtype):
    device = DEVICES[name]
    for rows, width, k in itertools.product((1, 2, 3, 7, 36), (WIDEST_USUAL + 1, HUGE, WIDEST), (1, 1000, 1 << 20)):
        if k > width // 2:
            continue
        plan = plan_of(rows, width, k, device, dtype=dtype)
        assert plan.family == "stream_split" and plan.splits <= MOST_SPLITS
        running = device.sm_count * plan.ctas_per_sm
        assert plan.ctas <= running
        slices = plan.ctas * plan.spill_capacity * memory.CANDIDATE_BYTES
        room = max(MOST_SLICES, rows * width * SCORE_DTYPES[dtype].size)
        assert slices <= room or plan.splits in SPLITS
        if slices * running <= room * plan.ctas:
            assert plan.splits == min(running // rows, MOST_SPLITS), "CTAs are left out without a need"
        assert memory.shared_bytes(plan) <= device.shared_per_block
        assert plan.splits * plan.spill_capacity < 1 << 31, "kernels count the candidates of a row's slices in 32 bits"


def test_views_are_bounded_and_usable_at_any_width_and_k():
    for bits, k in itertools.product(range(17, 31), (1, 100, 2048, 20_000, 65_536, 300_000, 1 << 20)):
        for width in (1 << bits, (1 << bits) + 1, 3 << bits - 1):
            plan = plan_of(1, width, k) if k <= width // 2 else None
            if plan is None or plan.policy is None:
                continue
            ranked = memory.statistics_bound(width, plan.policy)
            admitted = plan.policy.primary_rank(k) * plan.policy.stride
            assert ranked <= MOST_STATISTICS or ranked <= admitted - k, f"{width} k={k} {plan.policy.name}"
            assert plan.policy.usable(ranked, k), f"{width} k={k} {plan.policy.name}"


def test_rows_of_no_launch_are_planned():
    assert plan_of(0, HUGE, 1000).splits == 132
