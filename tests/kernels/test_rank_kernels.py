"""The kernels of `ksieve.distributed` on the emulator: the answers of the protocol's operations, rank by rank."""

from __future__ import annotations

import numpy as np
import pytest

from emulator import build, driver

torch = pytest.importorskip("torch")

import ksieve.distributed as ranks  # noqa: E402
from ksieve.core.options import Options  # noqa: E402
from ksieve.distributed import fused  # noqa: E402
from ksieve.distributed.collectives import NOTHING, AllGather, AllReduce, TorchOps  # noqa: E402
from ksieve.distributed.plans import ShardPlan  # noqa: E402
from ksieve.distributed.protocol import agree  # noqa: E402
from ksieve.distributed.ranks import ordered_keys  # noqa: E402
from ksieve.distributed.schedules import LINKS, Pairs, Samples, Shape  # noqa: E402
from ksieve.distributed.simulator import run_together  # noqa: E402

pytestmark = pytest.mark.skipif(bool(build.missing()), reason=build.missing() or "present")


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    driver.install(monkeypatch)
    monkeypatch.setattr(fused, "place_of", lambda device: (0, 0))


def plan_of(rank, widths, layout, shape, dtype, options, schedule, index_base="row"):
    return ShardPlan(
        rank, widths, layout, shape, dtype, "cuda", options, "owned", index_base, schedule, LINKS["nvlink"]
    )


def by_numpy(steps):
    """The same steps, whose collectives are of NumPy arrays."""
    answer = None
    while True:
        try:
            ask = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        found = yield (AllGather if isinstance(ask, AllGather) else AllReduce)(ask.array.numpy())
        answer = torch.from_numpy(np.ascontiguousarray(found))


def local_best(plan, values, ids, rng):
    """A rank's k best of its scores as `ksieve.topk` gives them, in order, and in another order."""
    k = plan.shape.k
    positions = plan.layout.positions(ids, plan.rank, plan.widths)
    order = plan.shape.extent - 1 - positions if plan.shape.high_first else positions
    keys = ordered_keys(values, plan.options.ranking).numpy()
    best = np.argsort(keys << plan.shape.position_bits | order, axis=1)[:, :k]
    kept = np.full((len(keys), k), -1, np.int32)
    kept[:, : best.shape[1]] = best
    scores = torch.zeros(kept.shape, dtype=values.dtype)
    if best.shape[1]:
        scores[:, : best.shape[1]] = torch.gather(values, 1, torch.from_numpy(best))
    shuffled = rng.permuted(np.tile(np.arange(k), (len(keys), 1)), axis=1)
    mixed = torch.from_numpy(np.take_along_axis(kept, shuffled, 1))
    return torch.from_numpy(kept), scores, mixed, torch.gather(scores, 1, torch.from_numpy(shuffled))


def expected(plan, ids, values, ks):
    positions = plan.layout.positions(ids.clamp(min=0).long(), plan.rank, plan.widths)
    order = plan.shape.extent - 1 - positions if plan.shape.high_first else positions
    keys = ordered_keys(values, plan.options.ranking)
    best = torch.where(ids < 0, NOTHING, (keys << plan.shape.position_bits) | order)
    agreed = yield from by_numpy(agree(plan.schedule, TorchOps("cpu"), plan.shape, plan.rank, best, ks))
    held = torch.arange(plan.shape.k)[None] < agreed.count[:, None]
    found = torch.where(held, ids.long() if plan.index_base == "shard" else positions, 1 << 40).sort(1).values
    return torch.where(found == 1 << 40, -1, found).int(), agreed.count.int()


KINDS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "few values": lambda rng, shape: rng.integers(-2, 3, shape),
    "one value": lambda rng, shape: np.zeros(shape),
    "not finite": lambda rng, shape: rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], shape),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schedule", [Pairs(), Samples(4), Samples(32)], ids=str)
@pytest.mark.parametrize(
    "layout, widths",
    [
        (ranks.Contiguous(), (700, 0, 301)),
        (ranks.Interleaved(1), (500, 500)),
        (ranks.Interleaved(64), (320, 320, 256, 256)),
        (ranks.Contiguous(), (900,)),
    ],
    ids=["uneven", "by one", "by 64", "alone"],
)
def test_kernels_equal_the_operations(layout, widths, schedule, kind):
    rng = np.random.default_rng([len(widths), getattr(schedule, "step", 0), list(KINDS).index(kind)])
    for number, (k, dtype) in enumerate(((130, torch.float32), (300, torch.bfloat16), (1, torch.float16))):
        if getattr(schedule, "step", 1) > k:
            continue
        rows, extent = 5, layout.extent(widths)
        options = Options(
            largest=number != 1, nan=("last", "highest")[number == 2], tie_break=("low", "high")[number % 2]
        )
        bits = 32 if dtype is torch.float32 else 16
        shape = Shape(rows, k, len(widths), extent, bits, isinstance(layout, ranks.Contiguous), number % 2 == 1)
        ks = None if number else torch.from_numpy(rng.integers(-1, k + 3, rows))
        wanted = torch.full((rows,), k) if ks is None else ks.clamp(0, k)
        ours, theirs = [], []
        for rank, width in enumerate(widths):
            base = ("row", "shard")[number % 2]
            plan = plan_of(rank, widths, layout, shape, str(dtype)[6:], options, schedule, base)
            assert fused.covers(plan)
            values = torch.from_numpy(KINDS[kind](rng, (rows, width)).astype(np.float32)).to(dtype)
            ids, scores, mixed, of_mixed = local_best(plan, values, np.arange(width), rng)
            ours.append(by_numpy(fused.select(plan, mixed.contiguous(), of_mixed.contiguous(), ks, base == "shard")))
            theirs.append(expected(plan, ids, scores, wanted))
        for found, right in zip(run_together(ours), run_together(theirs), strict=True):
            assert torch.equal(found[1], right[1])
            assert torch.equal(found[0], right[0])
