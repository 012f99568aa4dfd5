"""Selection over ranks: times of local selection, pairs and the planner's schedule, and verified rows.

Every rank runs this code, under ``torchrun`` or alone. Verified rows and replays: `ksieve_lab.bench.rank_rows`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from ksieve import api
from ksieve.checking.verify import verify
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.installation import require_torch
from ksieve.core.options import PLAIN, Options
from ksieve.core.problem import Device, Problem
from ksieve.distributed import Contiguous, Interleaved, Pairs, ShardPlan, fused, plan, topk
from ksieve.distributed.agreement import distributed, gather
from ksieve.distributed.layouts import Layout
from ksieve.tuning.timing import Timing, input_sets
from ksieve_lab.bench import rank_rows, runner
from ksieve_lab.bench.runner import Facts, Live, Settings

REPLAY_SHARE = 100
"""Verified rows for each replay that is verified too."""

LAYOUTS: dict[str, Layout] = {"contiguous": Contiguous(), "interleaved 64": Interleaved(64)}
"""Layouts that are timed."""

MOST_JUDGED = 64
"""Rows of a measurement whose answers are judged."""

MOST_BYTES = 4 << 30
"""Memory of all input sets of a shape, unless one alone takes more."""

_WARM_UPS = 2
_BUSY_BYTES = 1 << 30  # written in about 300 us, in which every host enqueues a replay


@contextmanager
def group(kind: str) -> Iterator[tuple[int, int]]:
    """Join the process group that ``torchrun`` asks for, or one of this process alone; yields rank and world."""
    dist = require_torch("ranks are those of PyTorch").distributed
    ours = not dist.is_initialized()
    if ours:
        backend = "nccl" if kind == "cuda" else "gloo"
        if kind == "cuda":
            import torch

            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        if ours:
            dist.destroy_process_group()


def cases(settings: Settings) -> list[tuple[int, int, str, str]]:
    """Shapes of whole rows and layouts of their shards, in every dtype."""
    return [(*shape, dtype) for shape in settings.shapes.items for dtype in settings.dtypes]


def measure(settings: Settings, live: Live) -> Facts | None:
    """Time calls on this rank; every rank must run it. Verdicts are the first rank's, which has the payload."""
    kind = settings.fixed["device"]
    with group(kind) as (rank, world):
        listed = [
            (layout, width, _plans(layout, rows, width, settings.k, dtype, kind))
            for rows, width, layout, dtype in cases(settings)
        ]
        if kind == "cuda":
            _compile([made for *_, plans in listed for made in plans.values()], [])
        found: list[Facts] = []
        with (runner.SILENT if rank else live).phase("measuring", "shapes") as progress:
            for layout, width, plans in listed:
                found.append({"layout": layout} | _measure(plans, width, settings.rounds, settings.seed))
                progress(len(found), len(listed))
        return _payload(settings, rank, {"world": world, "shapes": found, "verified": None, "replays": None})


def verify_rows(settings: Settings, live: Live) -> Facts | None:
    """Select and verify rows of many kinds, then replays of CUDA graphs with other scores and lengths each."""
    rows, kind, seed = settings.shapes.items[0], settings.fixed["device"], settings.seed
    with group(kind) as (rank, world):
        if kind == "cuda":
            drawn = [made for *_, made in rank_rows.drawn(rows, kind, seed)]
            _compile([], drawn + rank_rows.replay_plans(kind))
        steps, done = -(-rows // rank_rows.VERIFIED_AT_A_TIME), itertools.count(1)
        with (runner.SILENT if rank else live).phase("verifying", "steps") as progress:
            verified = rank_rows.verify_rows(rows, kind=kind, seed=seed, each=lambda: progress(next(done), steps))
        replays = rank_rows.replay(-(-rows // REPLAY_SHARE), kind=kind, seed=seed)
        return _payload(settings, rank, {"world": world, "shapes": [], "verified": verified, "replays": replays})


def _payload(settings: Settings, rank: int, results: Facts) -> Facts | None:
    """Payload of the first rank."""
    gpu = settings.fixed["device"] == "cuda"
    return None if rank else settings.payload(results, gpu=gpu, dtypes=list(settings.dtypes), dtype=None)


def _plans(name: str, rows: int, width: int, k: int, dtype: str, kind: str) -> dict[str, ShardPlan]:
    """Plans of one shape: the schedule of pairs, and the planner's."""
    dist, layout = distributed(), LAYOUTS[name]
    own = layout.widths(width, dist.get_world_size())[dist.get_rank()]
    asked = cast(Any, {"rows": rows, "width": own, "k": k, "dtype": dtype, "device": kind, "layout": layout})
    return {"pairs": plan(**asked, schedule=Pairs()), "planned": plan(**asked)}


def _compile(timed: Iterable[ShardPlan], others: Iterable[ShardPlan]) -> None:
    """Compile the kernels of plans, and of the calls timed with them, on all processors of the machine.

    Otherwise every rank meets the kernels in the same order, and waits for the one that compiles: some sixty times.
    """
    import torch

    from ksieve.backends.cuda import ranks
    from ksieve.backends.cuda.jit import cache
    from ksieve.backends.cuda.jit.spec import KernelSpec, architecture, kernel_spec
    from ksieve.backends.cuda.runtime import driver
    from ksieve.planning import choose, length_bins

    if not int(os.environ.get("LOCAL_RANK", "0")):
        device = driver.get().device_info(torch.cuda.current_device())
        arch = architecture(device.capability)
        wanted: dict[KernelSpec, None] = {}
        for made, is_timed in [(made, True) for made in timed] + [(made, False) for made in others]:
            shape, kernels = made.shape, fused.covers(made)
            best = Options(values=True, order="any" if kernels else "value", tie_break="low")
            asked = [(own, best) for own in set(made.widths) if own]
            if is_timed:
                asked += [(made.width, PLAIN), (made.width, Options(values=True)), (shape.world * shape.k, PLAIN)]
            for width, options in asked:
                problem = Problem(shape.rows, width, width, shape.k, made.dtype, Device("cuda", device.index), options)
                parts = length_bins.launches(choose.choose(problem, device, kept=False))
                wanted |= {kernel_spec(part): None for part in parts}
            if kernels:
                (stems, slots), few = fused.launches(made), shape.rows <= device.sm_count
                wanted |= {ranks.rank_kernel(s, arch, slots=slots, dtype=made.dtype, few=few): None for s in stems}
        for _ in cache.compile_all(wanted):  # what fails is reported by the call that needs it
            pass
    distributed().barrier()


# ---- times -------------------------------------------------------------------------------------------------


def _measure(plans: dict[str, ShardPlan], width: int, rounds: int, seed: int) -> dict[str, Any]:
    """Times of one shape, the slowest rank's: the shard alone, a gather of pairs as engines write it, and plans."""
    made = plans["pairs"]
    shape, kind, dtype = made.shape, made.device, made.dtype
    rows, k, world, own = shape.rows, shape.k, shape.world, made.width
    sets = _sets(rows * own * SCORE_DTYPES[dtype].size) if kind == "cuda" else 1
    shards = [_shard([seed, made.rank, number], rows, own, dtype, kind) for number in range(sets)]
    calls: dict[str, Callable[[int], Any]] = {
        "local": lambda i: api.topk(shards[i], k=k),
        "gathered": lambda i: _gathered(shards[i], made),
    }
    calls |= {name: lambda i, of=of: topk(shards[i], plan=of) for name, of in plans.items()}  # type: ignore[misc]
    found: dict[str, Any] = {"rows": rows, "width": width, "k": k, "dtype": dtype, "sets": sets, "selectors": {}}
    judged = min(rows, MOST_JUDGED)
    whole = _whole(shards[0][:judged], made)
    for name, call in calls.items():
        facts: dict[str, Any] = {}
        found["selectors"][name] = facts
        answer = call(0)
        if name == "local":
            continue
        if name in plans:
            of = plans[name]
            facts |= {"schedule": str(of.schedule), "bytes": [message.size for message in of.messages]}
            facts |= {"modelled_us": of.modelled_us}
            exact = not rank_rows.judge(of, whole, None, [part[:judged] for part in answer])[0]
        elif made.rank == 0:
            exact = bool(verify(whole, None, answer[:judged], k=k))
        facts["exact"] = exact if made.rank == 0 else None
    runs = {name: _timer(call, sets, kind) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(_WARM_UPS + rounds):
        first = number % len(runs)
        for name in [*runs][first:] + [*runs][:first]:
            distributed().barrier()
            us = runs[name]()
            if number >= _WARM_UPS:
                times[name].append(us)
    for name, each in times.items():
        facts = found["selectors"][name]
        facts |= Timing(name, _slowest(each, world, kind), facts.get("exact")).facts()
    local_us = found["selectors"]["local"]["median_us"]
    for name in ("gathered", *plans):
        found["selectors"][name]["added_us"] = found["selectors"][name]["median_us"] - local_us
    return found


def _gathered(shard: Any, made: ShardPlan) -> Any:
    """Positions of the k best, as engines merge them: every rank gathers all pairs, and selects again."""
    import torch

    world, k = made.shape.world, made.shape.k
    ids, values, *_ = api.select(shard, k=k, values=True)
    if isinstance(made.layout, Contiguous):
        places = ids + sum(made.widths[: made.rank])
    else:
        places = made.layout.positions(ids, made.rank, made.widths).int()
    places = torch.where(ids < 0, -1, places)

    def of_all(array: Any) -> Any:
        return gather(distributed(), array, world, None).transpose(0, 1).reshape(array.shape[0], world * k)

    places, values = of_all(places), of_all(values)
    best: Any = api.topk(values, k=k)
    return places.gather(1, best.long())


def _shard(seed: list[int], rows: int, width: int, dtype: str, kind: str) -> Any:
    import torch

    if kind == "cpu":
        return rank_rows.tensor(np.random.default_rng(seed).standard_normal((rows, width), np.float32), dtype, kind)
    generator = torch.Generator(kind).manual_seed(hash(tuple(seed)))
    return torch.randn(rows, width, generator=generator, dtype=getattr(torch, dtype), device=kind)


def _whole(shard: Any, made: ShardPlan) -> Any:
    """Whole rows of all shards, on every rank."""
    import torch

    widths = made.widths
    padded = torch.nn.functional.pad(shard, (0, max(widths) - shard.shape[1])).contiguous()
    every = gather(distributed(), padded, len(widths), None)
    whole = shard.new_empty(shard.shape[0], sum(widths))
    for rank, own in enumerate(widths):
        whole[:, torch.from_numpy(made.layout.positions(np.arange(own), rank, widths)).to(whole.device)] = every[
            rank, :, :own
        ]
    return whole


def _sets(bytes_of_a_set: int) -> int:
    import torch

    l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return input_sets(bytes_of_a_set, l2, MOST_BYTES)


def _slowest(times: list[float], world: int, kind: str) -> list[float]:
    """Of every round the time of the slowest rank."""
    import torch

    every = gather(distributed(), torch.tensor(times, dtype=torch.float64, device=kind), world, None)
    return cast(list[float], every.max(0).values.tolist())


def _timer(call: Callable[[int], Any], sets: int, kind: str) -> Callable[[], float]:
    """A function that runs the call and returns its microseconds; on CUDA by a graph of one call for each set.

    Call it on all ranks at once.
    """
    if kind == "cpu":

        def timed() -> float:
            start = time.perf_counter()
            call(0)
            return (time.perf_counter() - start) * 1e6

        return timed
    import torch

    def every() -> None:
        for number in range(sets):
            call(number)

    graph, _ = rank_rows.graph_of(every)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    busy = torch.empty(_BUSY_BYTES, dtype=torch.uint8, device="cuda")

    def replayed() -> float:
        torch.cuda.synchronize()
        busy.zero_()  # meanwhile the replay is enqueued, so that no rank waits for another's host
        distributed().all_reduce(busy[:1])  # GPUs begin together
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e3 / sets

    return replayed
