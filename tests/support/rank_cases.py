"""Ranks without a process group: the kernels of `ksieve.distributed` beside the protocol's operations, in lock step."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import torch

import ksieve.distributed as ranks
from ksieve.core.options import Options
from ksieve.distributed import fused
from ksieve.distributed.plans import ShardPlan
from ksieve.distributed.protocol import NOTHING, agree, marked
from ksieve.distributed.ranks import _merged, ordered_keys
from ksieve.distributed.schedules import LINKS, Pairs, Samples, Shape
from ksieve_lab.rank_simulator import run_together

KINDS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "few values": lambda rng, shape: rng.integers(-2, 3, shape),
    "in wide shards": lambda rng, shape: rng.standard_normal(shape) + 8 * (shape[1] > 256),
    "one value": lambda rng, shape: np.zeros(shape),
    "outliers": lambda rng, shape: np.broadcast_to(_outliers(shape[1]), shape),
    "a run and the end": lambda rng, shape: np.broadcast_to(_run_and_end(shape[1]), shape),
    "not finite": lambda rng, shape: rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], shape),
}
"""Scores; of these kernels' buckets, equal ones, outliers and adjacent positions overfill some."""
SCHEDULES = (Pairs(), Samples(4), Samples(32))
LAYOUTS = {
    "uneven": (ranks.Contiguous(), (700, 0, 301)),
    "by one": (ranks.Interleaved(1), (500, 500)),
    "by 64": (ranks.Interleaved(64), (320, 320, 256, 256)),
    "eight": (ranks.Contiguous(), (40, 500, 0, 300, 7, 64, 90, 200)),
    "alone": (ranks.Contiguous(), (9000,)),
}
ROWS = 5
TAG = (1 << 62) - 5


def _outliers(width: int) -> Any:
    """Adjacent numbers, one far off, and one still farther: overfull buckets, cut again, are overfull."""
    from_end = width - np.arange(width)
    return np.where(from_end > 2, 1 + np.arange(width) * 2.0**-23, np.where(from_end == 2, 1.02, 1e30))


def _run_and_end(width: int) -> Any:
    """Best at the last position, then from the first one on."""
    return np.where(np.arange(width) == width - 1, 1, -np.arange(width))


def check_kernels(layout_name: str, schedule: Any, kind: str, device: str = "cpu", rows: int = ROWS) -> int:
    """Compare positions and counts of every rank, for several k, dtypes, rankings and tie-breaks; returns how many."""
    layout, widths = LAYOUTS[layout_name]
    rng = np.random.default_rng([len(widths), getattr(schedule, "step", 0), list(KINDS).index(kind)])
    cases = 0
    for number, (k, dtype) in enumerate(((130, torch.float32), (300, torch.bfloat16), (1, torch.float16))):
        if getattr(schedule, "step", 1) > k:
            continue
        ties = ("low", "high")[number % 2]
        options = Options(largest=number != 1, nan=("last", "highest")[number == 2], tie_break=ties)
        bits = 32 if dtype is torch.float32 else 16
        contiguous = isinstance(layout, ranks.Contiguous)
        shape = Shape(rows, k, len(widths), layout.extent(widths), bits, contiguous, number % 2 == 1)
        ks = None if number else torch.from_numpy(rng.integers(-1, k + 3, rows))
        wanted = torch.full((rows,), k) if ks is None else ks.clamp(0, k)
        ours, theirs = [], []
        for rank, width in enumerate(widths):
            base = ("row", "shard")[number % 2]
            plan = ShardPlan(
                rank, widths, layout, shape, str(dtype)[6:], "cuda", options, "owned", base, schedule, LINKS["nvlink"]
            )  # fmt: skip
            assert fused.covers(plan)
            values = torch.from_numpy(KINDS[kind](rng, (rows, width)).astype(np.float32)).to(dtype)
            ids, scores, mixed, of_mixed = _local_best(plan, values, np.arange(width), rng)
            given = (None if x is None else x.to(device) for x in (mixed, of_mixed, ks))
            ours.append(_through_the_host(fused.select(plan, *given, base == "shard", TAG), device))
            theirs.append(_by_operations(plan, ids, scores, wanted))
        for found, right in zip(*(run_together(each) for each in (ours, theirs)), strict=True):
            assert torch.equal(found[1].cpu(), right[1])
            assert torch.equal(found[0].cpu(), right[0])
            cases += 1
    return cases


def check_tags(schedule: Any, kernels: bool, device: str = "cpu", world: int = 3) -> None:
    """Let one rank have another tag: every position is -1, and all flags say so; not in the calls around it."""
    shape, output = Shape(ROWS, 64, world, 100 * world), "owned" if kernels else "global"
    ids = torch.arange(64, dtype=torch.int32, device=device).expand(ROWS, 64).contiguous()
    wanted = torch.full((ROWS,), 64, device=device)
    for odd in (TAG, TAG - 1, 0, TAG ^ 1 << 40, TAG):
        plans, calls = [], []
        for rank in range(world):
            plan = ShardPlan(
                rank, (100,) * world, ranks.Contiguous(), shape, "float32", "cuda", Options(tie_break="low"), output,
                "row", schedule, LINKS["nvlink"],
            )  # fmt: skip
            tag = odd if rank == 1 else TAG
            if kernels:
                assert fused.covers(plan)
                steps = fused.select(plan, ids, 64.0 - ids, None, False, tag)
            else:
                steps = marked(
                    _merged(torch, plan, ids.long(), 64.0 - ids, wanted, False), tag, world, plan.flag(device)
                )
            plans.append(plan)
            calls.append(_through_the_host(steps, device))
        answers = run_together(calls)
        assert [plan.disagreed for plan in plans] == [odd != TAG] * world
        found = torch.stack([answer[0] if kernels else answer for answer in answers])
        assert (found >= 0).sum() == (0 if odd != TAG else 64 * ROWS * (1 if kernels else world))
        assert found[found < 0].unique().tolist() in ([-1], [])
        for counts in [answer[1] for answer in answers if kernels and odd != TAG]:
            assert not counts.any()


def _through_the_host(steps: Generator[Any, Any, Any], device: str) -> Generator[Any, Any, Any]:
    """Collectives on the host, so that a device runs these kernels alone, as sanitizers want it."""
    answer = None
    while True:
        try:
            ask = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = (yield type(ask)(ask.array.cpu())).to(device)


def _local_best(plan: ShardPlan, values: torch.Tensor, ids: Any, rng: np.random.Generator) -> tuple[torch.Tensor, ...]:
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
    return torch.from_numpy(kept), scores, mixed.contiguous(), torch.gather(scores, 1, torch.from_numpy(shuffled))


def _by_operations(plan: ShardPlan, ids: Any, values: Any, ks: Any) -> Generator[Any, Any, Any]:
    positions = plan.layout.positions(ids.clamp(min=0).long(), plan.rank, plan.widths)
    order = plan.shape.extent - 1 - positions if plan.shape.high_first else positions
    keys = ordered_keys(values, plan.options.ranking)
    best = torch.where(ids < 0, NOTHING, (keys << plan.shape.position_bits) | order)
    agreed = yield from agree(plan.schedule, plan.shape, plan.rank, best, ks)
    held = torch.arange(plan.shape.k, device=ids.device)[None] < agreed.count[:, None]
    of_shard = plan.index_base == "shard"
    found = torch.where(held, ids.long() if of_shard else positions, 1 << 40).sort(1).values
    return torch.where(found == 1 << 40, -1, found).int(), agreed.count.int()
