"""The planner on CUDA devices: policies by row width, splits by idle multiprocessors, storage that fits."""

from __future__ import annotations

import pytest

import ksieve
from ksieve import planner
from ksieve.devices import DEVICES
from ksieve.errors import ArgumentError

H200 = DEVICES["h200"]
CUDA = sorted(name for name, device in DEVICES.items() if device.kind == "cuda")


@pytest.mark.parametrize(
    ("rows", "width", "k", "family", "policy"),
    [
        (64, 2048, 512, "row_exact", None),
        (4096, 2048, 512, "persistent_exact", None),
        (4096, 8192, 512, "persistent_sampled", "quads-16"),
        (64, 65_536, 2048, "persistent_sampled", "quads-16"),
        (4096, 65_536, 2048, "persistent_sampled", "lines-64"),
        (4096, 4096, 2048, "persistent_exact", None),
        (256, 4096, 2048, "persistent_sampled", "quads-16"),
        (4096, 131_072, 2048, "persistent_sampled", "lines-64"),
        (4096, 1_048_576, 2048, "persistent_sampled", "lines-128"),
        (1, 1_048_576, 2048, "split_sampled", "lines-128"),
        (1, 24_576, 12_289, "cluster_exact", None),
        (4096, 24_576, 8192, "persistent_exact", None),
    ],
)
def test_the_choice_follows_the_shape(rows, width, k, family, policy):
    plan = ksieve.plan(rows=rows, width=width, k=k, device=H200)
    assert (plan.family, plan.policy and plan.policy.name) == (family, policy)


@pytest.mark.parametrize("name", CUDA)
@pytest.mark.parametrize("family", ["persistent_sampled", "persistent_exact", "split_sampled", "cluster_exact"])
def test_shared_memory_fits_every_device(name, family):
    device = DEVICES[name]
    if family == "cluster_exact" and device.capability < (9, 0):
        with pytest.raises(ArgumentError, match=r"compute capability 9\.0"):
            ksieve.plan(rows=4, width=24_576, k=512, device=device, family=family)
        return
    for k in (16, 2048):
        plan = ksieve.plan(rows=4, width=24_576, k=k, device=device, family=family)
        assert plan.capacity >= k and planner.shared_bytes(plan) <= device.shared_per_block
        assert plan.ctas_per_sm * (planner.shared_bytes(plan) + 1024) <= device.shared_per_sm


def test_splits_are_forced_or_refused():
    asked = {"rows": 4, "width": 131_072, "k": 512, "device": H200}
    free = ksieve.plan(**asked, family="split_sampled")
    forced = ksieve.plan(**asked, family="split_sampled", splits=3)
    assert (forced.splits, forced.ctas) == (3, 12) and free.splits > 3
    for bad in (0, 257, True):
        with pytest.raises(ArgumentError, match="splits: got"):
            ksieve.plan(**asked, family="split_sampled", splits=bad)
    with pytest.raises(ArgumentError, match="only split_sampled splits rows"):
        ksieve.plan(**asked, family="persistent_sampled", splits=2)
