"""Selection over ranks: times of local selection, pairs and the planner's schedule, and verified rows.

Every rank runs this code, under ``torchrun`` or alone. Rows are drawn from the seed on every rank, so that the first
can judge whole answers. The rows, and so the digest of all answers, do not depend on the number of ranks.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ksieve import api
from ksieve.checking.verify import verify
from ksieve.core.errors import BackendError
from ksieve.distributed import Contiguous, Interleaved, Pairs, ShardPlan, plan, topk
from ksieve.distributed.layouts import Layout
from ksieve.distributed.plans import distributed, gather
from ksieve.distributed.schedules import Output
from ksieve.lab.bench import record

SHAPES = ((1, 131_072), (16, 131_072), (64, 131_072))
"""Rows and width of whole rows in the default measurement."""

VERIFIED_AT_A_TIME = 2000
_WARM_UPS = 2

Progress = Callable[[int, int], None]


@contextmanager
def group(kind: str) -> Iterator[tuple[int, int]]:
    """Join the process group that ``torchrun`` asks for, or one of this process alone; yields rank and world.

    Raises
    ------
    BackendError
        PyTorch is not installed.
    """
    try:
        import torch.distributed as dist
    except ImportError:
        raise BackendError("ranks are those of PyTorch: pip install 'ksieve[torch]'") from None
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


def run(
    shapes: Sequence[tuple[int, int]] = SHAPES,
    *,
    k: int = 2048,
    dtypes: Sequence[str] = ("float32",),
    rounds: int = 9,
    verified_rows: int = 0,
    kind: str = "cpu",
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure on this rank; a process group must exist (`group`). Every rank must call it.

    Parameters
    ----------
    shapes : sequence of (rows, width)
        Of whole rows, in contiguous shards.
    k : int
    dtypes : sequence of str
    rounds : int
        Timed calls of each selector, in turn; medians are reported.
    verified_rows : int
        Rows to verify besides, of many shapes, layouts, dtypes and outputs.
    kind : {"cpu", "cuda"}
        On CUDA calls are timed as replays of a CUDA graph.
    seed : int
    progress : callable, optional
        Receives the number of steps done, and of all.

    Returns
    -------
    dict
        For `ksieve.lab.bench.record.write_json`; verdicts are those of the first rank.
    """
    dist = distributed()
    world, rank = dist.get_world_size(), dist.get_rank()
    batches = -(-verified_rows // VERIFIED_AT_A_TIME)
    cases = [(shape, dtype) for shape in shapes for dtype in dtypes]
    steps, done = len(cases) + batches, 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, steps)

    results: dict[str, Any] = {"world": world, "shapes": [], "verified": None}
    for (rows, width), dtype in cases:
        results["shapes"].append(_measure(rank, world, rows, width, k, dtype, rounds, kind, seed))
        step()
    if verified_rows:
        results["verified"] = verify_rows(verified_rows, kind=kind, seed=seed, each=step)
    settings = {
        "shapes": list(shapes), "k": k, "dtypes": list(dtypes), "rounds": rounds, "verified_rows": verified_rows,
        "device": kind, "seed": seed,
    }  # fmt: skip
    return record.payload("ranks", settings, results, gpu=kind == "cuda")


# ---- times -------------------------------------------------------------------------------------------------


def _measure(
    rank: int, world: int, rows: int, width: int, k: int, dtype: str, rounds: int, kind: str, seed: int
) -> dict[str, Any]:
    """Times of one shape: the local selection alone, pairs, and the planner's schedule; each verified."""
    import torch

    layout, asked = Contiguous(), cast(Any, {"rows": rows, "k": k, "dtype": dtype, "device": kind})
    widths = layout.widths(width, world)
    whole = _tensor(np.random.default_rng(seed).standard_normal((rows, width), np.float32), dtype, kind)
    begin = sum(widths[:rank])
    local = whole[:, begin : begin + widths[rank]].contiguous()
    plans = {"pairs": plan(**asked, width=widths[rank], schedule=Pairs()), "planned": plan(**asked, width=widths[rank])}
    calls: dict[str, Callable[[], Any]] = {
        "local": lambda: api.topk(local, k=k, sorted=True, tie_break="low", return_values=True)
    }
    calls |= {name: lambda made=made: topk(local, plan=made) for name, made in plans.items()}  # type: ignore[misc]
    found: dict[str, Any] = {"rows": rows, "width": width, "k": k, "dtype": dtype, "selectors": {}}
    for name, made in plans.items():
        answer = _collected(topk(local, plan=made)[0], world)
        exact = bool(verify(_host(whole), None, answer, k=k, sorted="index", tie_break="low")) if not rank else None
        found["selectors"][name] = {
            "schedule": str(made.schedule), "bytes": [message.size for message in made.messages],
            "modelled_us": made.modelled_us, "exact": exact,
        }  # fmt: skip
    runs = {name: _graphed(call) if kind == "cuda" else call for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    distributed().barrier()
    for _ in range(_WARM_UPS):
        for run_once in runs.values():
            run_once()
    for _ in range(rounds):
        for name, run_once in runs.items():
            start = time.perf_counter()
            run_once()
            if kind == "cuda":
                torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) * 1e6)
    for name, each in times.items():
        found["selectors"].setdefault(name, {}).update(median_us=statistics.median(each), rounds_us=each)
    local_us = found["selectors"]["local"]["median_us"]
    for name in plans:
        found["selectors"][name]["added_us"] = found["selectors"][name]["median_us"] - local_us
    return found


def _graphed(call: Callable[[], Any]) -> Callable[[], Any]:
    """A replay of the call, captured in a CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay  # type: ignore[no-any-return]


# ---- verified rows -----------------------------------------------------------------------------------------

_LAYOUTS = ("contiguous", "uneven", "interleaved 1", "interleaved 64")
_FAMILIES = ("normal", "few values", "not finite", "one value")


def verify_rows(
    count: int, *, kind: str = "cpu", seed: int = 0, each: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Select and verify rows of many kinds.

    Returns
    -------
    dict
        "rows", "failed" and "exact" (None on other ranks than the first), "digest", equal for equal answers, and
        "layouts": rows of each.
    """
    dist = distributed()
    rank, world = dist.get_rank(), dist.get_world_size()
    rng, cuts = np.random.default_rng(seed), np.random.default_rng([seed, world])
    digest, failed, done = hashlib.sha256(), 0, 0
    layouts = dict.fromkeys(_LAYOUTS, 0)
    while done < count:
        rows, number = min(VERIFIED_AT_A_TIME, count - done), done // VERIFIED_AT_A_TIME
        width, k = int(rng.integers(1, 700)), int(rng.integers(1, 120))
        dtype = ("float32", "float16", "bfloat16")[number % 3]
        whole = _tensor(_rows(rng, _FAMILIES[number % 4], rows, width), dtype, kind)
        lengths = rng.integers(-1, width + 2, rows).astype(np.int32)
        lengths[::3] = width
        name = _LAYOUTS[number // 4 % 4]
        layout, widths = _sharded(name, width, world, cuts)
        output: Output = "global" if number % 5 == 4 else "owned"
        made = plan(
            rows=rows, width=widths[rank], k=k, dtype=dtype, device=kind, layout=layout, output=output,
            schedule=(None, Pairs())[number % 7 == 6],
        )  # fmt: skip
        answer = _answer(made, whole, lengths, kind)
        digest.update(answer.tobytes())
        if rank == 0:
            failed += verify(_host(whole), lengths, answer, k=k, sorted="index", tie_break="low").failed
        layouts[name] += rows
        done += rows
        if each is not None:
            each()
    same = len(set(_digests(dist, digest.digest(), world, kind))) == 1
    return {
        "rows": done, "failed": failed if rank == 0 else None, "exact": not failed if rank == 0 else None,
        "same_on_every_rank": same, "digest": digest.hexdigest(), "layouts": layouts,
    }  # fmt: skip


def _answer(made: ShardPlan, whole: Any, lengths: NDArray[np.int32], kind: str) -> NDArray[np.int32]:
    """Answer of all ranks for whole rows, ascending."""
    import torch

    columns = made.layout.positions(np.arange(made.width), made.rank, made.widths)
    local = whole[:, torch.from_numpy(columns).to(kind)].contiguous()
    found = topk(local, global_lengths=torch.from_numpy(lengths).to(kind), plan=made)
    if made.output == "global":
        return np.ascontiguousarray(_host(found))
    return _collected(found[0], made.shape.world)


def _rows(rng: np.random.Generator, family: str, rows: int, width: int) -> NDArray[np.float32]:
    if family == "few values":
        return rng.integers(-3, 4, (rows, width)).astype(np.float32)
    x = rng.standard_normal((rows, width), np.float32)
    if family == "not finite":
        wild = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45], np.float32)
        return np.where(rng.random((rows, width)) < 0.4, rng.choice(wild, (rows, width)), x)
    return np.broadcast_to(x[:, :1], x.shape).copy() if family == "one value" else x


def _sharded(name: str, width: int, world: int, cuts: np.random.Generator) -> tuple[Layout, tuple[int, ...]]:
    if name == "uneven":
        edges = np.sort(cuts.integers(0, width + 1, world - 1))
        return Contiguous(), tuple(np.diff(np.concatenate([[0], edges, [width]])).tolist())
    layout: Layout = Contiguous() if name == "contiguous" else Interleaved(int(name.split()[1]))
    return layout, layout.widths(width, world)


def _collected(indices: Any, world: int) -> NDArray[np.int32]:
    """Owned positions of all ranks, ascending, then -1, as many as there are slots."""
    every = _host(gather(distributed(), indices.contiguous(), world, None)).astype(np.int64)
    joined = np.where(every < 0, 1 << 40, every).transpose(1, 0, 2).reshape(indices.shape[0], -1)
    kept = np.sort(joined, axis=1)
    if (kept[:, indices.shape[1] :] != 1 << 40).any():
        raise AssertionError("ranks own more positions than there are slots")
    kept = kept[:, : indices.shape[1]]
    return np.where(kept == 1 << 40, -1, kept).astype(np.int32)


def _digests(dist: Any, own: bytes, world: int, kind: str) -> list[bytes]:
    import torch

    mine = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(kind)
    return [bytes(row) for row in _host(gather(dist, mine, world, None))]


def _tensor(x: NDArray[np.float32], dtype: str, kind: str) -> Any:
    import torch

    return torch.from_numpy(x).to(kind).to(getattr(torch, dtype))


def _host(tensor: Any) -> Any:
    from ksieve.core.arrays import as_numpy

    return as_numpy(tensor.cpu())
