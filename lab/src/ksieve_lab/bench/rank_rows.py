"""Verified rows of `ksieve bench ranks`: answers for rows of many kinds, and of replays of CUDA graphs.

Every rank draws the same whole rows. The first judges whole answers by `ksieve.verify` on the rows' device, which
counts scores and uses none of the kernels. Every rank judges its own part of an answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.checking.verify import verify
from ksieve.core.arrays import as_numpy
from ksieve.distributed import Contiguous, Interleaved, Pairs, Samples, ShardPlan, plan, topk
from ksieve.distributed.agreement import distributed, gather
from ksieve.distributed.layouts import Layout
from ksieve.distributed.schedules import Output

VERIFIED_AT_A_TIME = 2000
LAYOUTS = ("contiguous", "uneven", "interleaved 1", "interleaved 64")
FAMILIES = ("normal", "few values", "not finite", "one value")

REPLAYED = {"rows": 16, "width": 20_000, "k": 512}
"""Shape of whole rows in replays."""

_JUDGED_AT_A_TIME = 50  # replays
_LAST = (1 << 31) - 1
_UNWRITTEN = 77

Each = Callable[[], None] | None


# ---- judging -----------------------------------------------------------------------------------------------


def judge(made: ShardPlan, whole: Any, lengths: Any, found: Any) -> tuple[int, Any]:
    """Count the wrong rows of an answer, and join it: positions of all ranks, ascending, then -1.

    `whole`, `lengths`: whole rows. `found`: what `topk` returned for the plan. The count is that of the first rank;
    others count only faults in what ranks own.
    """
    if made.output == "global":
        answer, wrong = found, np.zeros(len(found), bool)
    else:
        answer, faults = collected(found[0], made.shape.world)
        faults |= _misheld(made, *found)
        wrong = as_numpy(gather(distributed(), faults.byte(), made.shape.world, None).amax(0).cpu()) > 0
    if made.rank == 0:
        verdict = verify(whole, lengths, answer, k=made.shape.k, sorted="index", tie_break="low")
        wrong = wrong | (verdict.reasons != 0)
    return int(wrong.sum()), answer


def collected(indices: Any, world: int) -> tuple[Any, Any]:
    """Owned positions of all ranks, ascending, then -1; and in which rows they are more than there are slots."""
    import torch

    rows, slots = indices.shape
    every = gather(distributed(), indices.contiguous(), world, None).transpose(0, 1).reshape(rows, world * slots)
    ordered = torch.where(every < 0, _LAST, every).sort(1).values
    return torch.where(ordered == _LAST, -1, ordered)[:, :slots], (ordered[:, slots:] != _LAST).any(1)


def columns_of(made: ShardPlan, kind: str) -> Any:
    """Positions that this rank holds, ascending."""
    import torch

    return torch.from_numpy(made.layout.positions(np.arange(made.width), made.rank, made.widths)).to(kind)


def _misheld(made: ShardPlan, indices: Any, counts: Any) -> Any:
    """Rows of an owned answer that are not positions of this rank, ascending, then -1, as many as are counted."""
    import torch

    held = torch.zeros(made.shape.extent, dtype=torch.bool, device=indices.device)
    held[columns_of(made, made.device)] = True
    used = torch.arange(indices.shape[1], device=indices.device) < counts[:, None]
    inside = (indices >= 0) & (indices < made.shape.extent)
    mine = inside & held[torch.where(inside, indices, 0).long()]
    wrong = torch.where(used, ~mine, indices != -1)
    wrong[:, 1:] |= used[:, 1:] & (indices[:, 1:] <= indices[:, :-1])
    return wrong.any(1) | (counts < 0) | (counts > indices.shape[1])


# ---- rows of many kinds ------------------------------------------------------------------------------------


def verify_rows(count: int, *, kind: str = "cpu", seed: int = 0, each: Each = None) -> dict[str, Any]:
    """Select and verify rows of many kinds.

    Returns "rows", "failed" and "exact" (None on other ranks than the first), "digest", equal for equal answers, and
    "layouts": rows of each.
    """
    import torch

    digest, failed, done = hashlib.sha256(), 0, 0
    layouts = dict.fromkeys(LAYOUTS, 0)
    for name, rows, lengths, made in drawn(count, kind, seed):
        whole = tensor(rows, made.dtype, kind)
        local = whole[:, columns_of(made, kind)].contiguous()
        found = topk(local, global_lengths=torch.from_numpy(lengths).to(kind), plan=made)
        wrong, answer = judge(made, whole, lengths, found)
        digest.update(as_numpy(answer.cpu()).tobytes())
        failed += wrong
        layouts[name] += len(rows)
        done += len(rows)
        if each is not None:
            each()
    dist = distributed()
    mine = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8).to(kind)
    every = as_numpy(gather(dist, mine, dist.get_world_size(), None).cpu())
    first = dist.get_rank() == 0
    return {
        "rows": done, "failed": failed if first else None, "exact": not failed if first else None,
        "same_on_every_rank": bool((every == every[0]).all()), "digest": digest.hexdigest(), "layouts": layouts,
    }  # fmt: skip


def drawn(count: int, kind: str, seed: int) -> Iterator[tuple[str, NDArray[np.float32], NDArray[np.int32], ShardPlan]]:
    """Yield the layout's name, whole rows, their lengths and a plan, until there are so many rows."""
    dist = distributed()
    rank, world = dist.get_rank(), dist.get_world_size()
    # What is drawn, and so the digest, does not depend on the number of ranks; how rows are cut does.
    rng, cuts = np.random.default_rng(seed), np.random.default_rng([seed, world])
    for number, begin in enumerate(range(0, count, VERIFIED_AT_A_TIME)):
        rows = min(VERIFIED_AT_A_TIME, count - begin)
        width, k = int(rng.integers(1, 700)), int(rng.integers(1, 120))
        whole = rows_of(rng, FAMILIES[number % 4], rows, width)
        lengths = rng.integers(-1, width + 2, rows).astype(np.int32)
        lengths[::3] = width
        name = LAYOUTS[number // 4 % 4]
        layout, widths = sharded(name, width, world, cuts)
        output: Output = "global" if number % 5 == 4 else "owned"
        made = plan(
            rows=rows, width=widths[rank], k=k, dtype=("float32", "float16", "bfloat16")[number % 3], device=kind,
            layout=layout, output=output, schedule=(None, Pairs())[number % 7 == 6],
        )  # fmt: skip
        yield name, whole, lengths, made


def rows_of(rng: np.random.Generator, family: str, rows: int, width: int) -> NDArray[np.float32]:
    """Whole rows of one of `FAMILIES`."""
    if family == "few values":
        return rng.integers(-3, 4, (rows, width)).astype(np.float32)
    x = rng.standard_normal((rows, width), np.float32)
    if family == "not finite":
        wild = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45], np.float32)
        return np.where(rng.random((rows, width)) < 0.4, rng.choice(wild, (rows, width)), x)
    return np.broadcast_to(x[:, :1], x.shape).copy() if family == "one value" else x


def sharded(name: str, width: int, world: int, cuts: np.random.Generator) -> tuple[Layout, tuple[int, ...]]:
    """One of `LAYOUTS`, and the widths of all shards."""
    if name == "uneven":
        edges = np.sort(cuts.integers(0, width + 1, world - 1))
        return Contiguous(), tuple(np.diff(np.concatenate([[0], edges, [width]])).tolist())
    layout: Layout = Contiguous() if name == "contiguous" else Interleaved(int(name.split()[1]))
    return layout, layout.widths(width, world)


def tensor(x: NDArray[np.float32], dtype: str, kind: str) -> Any:
    """PyTorch tensor of a dtype on a device."""
    import torch

    return torch.from_numpy(x).to(kind).to(getattr(torch, dtype))


# ---- replays -----------------------------------------------------------------------------------------------


def replay_plans(kind: str) -> list[ShardPlan]:
    """Plans that `replay` captures: both schedules that kernels run, and both layouts."""
    dist = distributed()
    rank, world = dist.get_rank(), dist.get_world_size()
    rows, width, k = REPLAYED.values()
    ways: Sequence[tuple[Layout, Any]] = ((Contiguous(), Pairs()), (Interleaved(64), Samples(16)))
    return [
        plan(rows=rows, width=layout.widths(width, world)[rank], k=k, device=kind, layout=layout, schedule=schedule)
        for layout, schedule in ways
    ]


def replay(count: int, *, kind: str = "cpu", seed: int = 0) -> dict[str, Any]:
    """Replay graphs of calls, with other scores and lengths each time, and verify every answer.

    On the CPU, which has no graphs, each replay is a call. Returns "replays", "rows", "failed" and "exact" (None on
    other ranks than the first), and "schedules".
    """
    plans = replay_plans(kind)
    failed = 0
    for number, made in enumerate(plans):
        share = count * (number + 1) // len(plans) - count * number // len(plans)
        failed += _replayed(made, share, seed + number)
    first = plans[0].rank == 0
    return {
        "replays": count, "rows": count * REPLAYED["rows"], "failed": failed if first else None,
        "exact": not failed if first else None, "schedules": [f"{made.schedule}, {made.layout}" for made in plans],
    }  # fmt: skip


def _replayed(made: ShardPlan, count: int, seed: int) -> int:
    """Wrong rows of the replays of one plan."""
    import torch

    kind, (rows, width, k) = made.device, REPLAYED.values()
    rng = np.random.default_rng(seed)  # the same rows on every rank
    columns = columns_of(made, kind)
    shard = torch.zeros(rows, made.width, device=kind)
    bound = torch.full((rows,), width, dtype=torch.int32, device=kind)

    def call() -> Any:
        return topk(shard, global_lengths=bound, plan=made)

    run = graph_of(call)[1] if kind == "cuda" else call
    failed = 0
    for begin in range(0, count, _JUDGED_AT_A_TIME):
        many = min(_JUDGED_AT_A_TIME, count - begin)
        drawn = [rows_of(rng, FAMILIES[i % len(FAMILIES)], rows, width) for i in range(many)]
        whole = tensor(np.concatenate(drawn), "float32", kind)
        lengths = torch.from_numpy(rng.integers(-1, width + 2, many * rows).astype(np.int32)).to(kind)
        indices = torch.full((many * rows, k), _UNWRITTEN, dtype=torch.int32, device=kind)
        counts = torch.full((many * rows,), -1, dtype=torch.int32, device=kind)
        found: Any = ()
        for i in range(many):
            at = slice(i * rows, (i + 1) * rows)
            shard.copy_(whole[at, columns])
            bound.copy_(lengths[at])
            for old in found:  # of a graph these are the arrays that it writes again
                old.fill_(_UNWRITTEN)
            found = run()
            indices[at], counts[at] = found
        failed += judge(made, whole, lengths, (indices, counts))[0]
    return failed


def graph_of(call: Callable[[], Any]) -> tuple[Any, Callable[[], Any]]:
    """A CUDA graph of a call, and a function that replays it and returns the arrays that it writes."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = call()

    def replayed() -> Any:
        graph.replay()
        return found

    return graph, replayed
