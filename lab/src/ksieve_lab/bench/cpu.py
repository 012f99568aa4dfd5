"""The CPU backend and other libraries: the same rows, one process, rotated rounds, every answer verified.

`_compare` times the contenders on ordinary rows, and `_short` ksieve and torch on many short ones. `_hostile` compares
adversarial families with plain random rows of the same shape, and `_aimed` does the same with rows that a search finds
(`ksieve_lab.bench.cpu_worst_rows`). `_options` compares calls with options with the plain call.
`ksieve_lab.bench.startup` measures the costs outside a call.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve import api, dispatch
from ksieve.backends import cpu
from ksieve.checking.verify import verify
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.keys import widen
from ksieve.core.options import Options
from ksieve.core.paths import unreadable
from ksieve.core.stats import Route, Stats
from ksieve.planning.plan import Plan
from ksieve.tuning.timing import Contender
from ksieve_lab.bench import cpu_worst_rows, startup
from ksieve_lab.bench.host_timing import measure_host
from ksieve_lab.bench.runner import Facts, Live, Settings
from ksieve_lab.bench.shape_lists import words
from ksieve_lab.captures.format import Capture
from ksieve_lab.workloads.adversarial import ADVERSARIAL
from ksieve_lab.workloads.producers import find_producer

F32 = NDArray[np.float32]

FLOOR = "numpy max(axis=1)"
TORCH = "torch.topk(sorted=False)"
ARGPARTITION = "numpy.argpartition"

PARTS = ("compared", "short", "options", "adversarial", "start")
"""What can be measured; adversarial rows include what a search finds."""

SHAPES = ((64, 131_072), (16, 1_048_576))
"""Rows and width of the default measurement."""

OPTIONS = {
    "sorted": Options(order="value"),
    "values": Options(values=True),
    "deterministic": Options(order="index", tie_break="low"),
}
"""What a selected row is finished with, on one thread and on all of them."""

ENDPOINT = "endpoint"
"""Source name: the endpoint-structured producer."""

BASELINE = "random_normal"
"""Producer of the short rows, and of the plain ones that adversarial rows are compared with."""


def cases(settings: Settings) -> list[str]:
    """Parts to measure, after a look at shapes and sources."""
    for rows, width in settings.shapes.items or SHAPES:
        if width < settings.k:
            raise ArgumentError("shapes", f"{rows}x{width}", f"rows of at least k = {settings.k} scores")
    return settings.chosen(PARTS)


def sources_of(text: str) -> None:
    """Refuse sources that have no rows."""
    for source in words(text) or [text]:
        _check_source(source)


def measure(settings: Settings, live: Live) -> Facts:
    """Measure the CPU backend. With shapes of the user's, many short rows and calls with options are left out.

    A capture wider than a shape is cut; a narrower one has its rows joined end to end until they are wide enough.
    """
    k, rounds, seed, fixed = settings.k, settings.rounds, settings.seed, settings.fixed
    parts, usual, shapes = cases(settings), not settings.shapes.items, settings.shapes.items or SHAPES
    sources, has_torch = words(settings.scores), _has_torch()
    families = [p.name for p in ADVERSARIAL] if "adversarial" in parts else []
    loaded = {source: _check_source(source) for source in sources} if "compared" in parts else {}
    results: Facts = {"compared": [], "short": [], "options": [], "adversarial": [], "aimed": []}
    steps: list[tuple[str, Callable[[], Any]]] = []

    def step(part: str, measured: Callable[..., Any], *given: Any, **names: Any) -> None:
        steps.append((part, lambda: [names | facts for facts in measured(*given)]))

    for rows, width in shapes:
        plan, shape = api.plan(rows=rows, width=width, k=k), {"rows": rows, "width": width}
        for load in loaded.values():
            step("compared", _compare, load, plan, rounds, seed, **shape)
        for family in families:
            step("adversarial", _hostile, family, plan, rounds, seed, family=family, **shape)
    if usual and has_torch and "short" in parts:
        for kind in itertools.product(fixed["short"], SCORE_DTYPES):
            step("short", _short, *kind[0], kind[1], rounds, seed)
    if usual and "options" in parts:
        for shape_k, threads in itertools.product(fixed["optional"], sorted({1, cpu.thread_count()})):
            step("options", _options, *shape_k, threads, rounds, seed)
    for width, rank in fixed["searched"] if families else ():
        step("aimed", _aimed, width, rank, rounds, seed, width=width, k=rank)
    starts = int("start" in parts)
    with live.phase("measuring", "steps") as progress:
        for done, (part, run) in enumerate(steps, 1):
            results[part] += run()
            progress(done, len(steps) + starts)
        if starts:
            compiling, cached = startup.first_call_seconds()
            results["start"] = {
                "import_seconds": startup.import_seconds(), "first_call_compiling_seconds": compiling,
                "first_call_cached_seconds": cached,
            }  # fmt: skip
            progress(len(steps) + 1, len(steps) + starts)
            from ksieve.backends.cpu import kernels, runner

            plan = api.plan(rows=1, width=SHAPES[-1][1], k=k)
            scratch = kernels.bytes_needed(runner.stored_candidates(plan, plan.problem.width), plan.policy)
            results["memory"] = {"threads": cpu.thread_count(), "scratch_bytes_per_thread": scratch}
    written = {"shapes": shapes, "sources": [Path(name).name for name in sources], "threads": cpu.thread_count()}
    return settings.payload(results, gpu=False, **written, **dict.fromkeys(("scores", *fixed)))


# ---- rows ------------------------------------------------------------------------------------------------

Load = Callable[[int, int, int, int], tuple[str, F32]]


def _check_source(source: str | os.PathLike[str]) -> Load:
    """Turn a source into a function that makes its rows; errors are raised before the measurement."""
    name = os.fspath(source)
    if unreadable(Path(name)):
        try:
            producer = find_producer("endpoint_structured" if name == ENDPOINT else name)
        except ArgumentError:
            raise ArgumentError(
                "scores", repr(name), f"{ENDPOINT!r}, a producer's name or the path of a capture"
            ) from None
        return lambda rows, width, k, seed: (producer.name, producer(rows, width, seed=seed, k=k))
    Capture(name)
    return lambda rows, width, k, seed: _capture_rows(name, rows, width)


def _capture_rows(path: str, rows: int, width: int) -> tuple[str, F32]:
    """Rows spread evenly over a capture, their valid scores alone; neighbours joined where one is too short."""
    with Capture(path) as capture:
        valid = capture.clamped()
        pieces = -(-width // max(int(valid.min()), 1)) if capture.rows else 1
        if capture.rows < rows * pieces:
            raise ArgumentError(
                "scores", f"{capture.rows} rows in {Path(path).name}", f"{rows * pieces} rows to make {rows} x {width}"
            )
        matrix = np.empty((rows, width), np.float32)
        for r in range(rows):
            first = r * capture.rows // rows
            done = 0
            for piece in range(first, first + pieces):
                if done == width:
                    break
                scores = widen(capture.rows_block(piece, piece + 1))[0, : min(valid[piece], width - done)]
                matrix[r, done : done + scores.size] = scores
                done += scores.size
        what = Path(path).name if pieces == 1 else f"{Path(path).name}, {pieces} rows joined"
    return what, matrix


# ---- timing ----------------------------------------------------------------------------------------------


def _ksieve(scores: Any, plan: Plan, name: str = "ksieve") -> Contender:
    """`ksieve.select` of an array or a tensor, with its plan, into an array made beforehand."""
    out, values = np.empty((scores.shape[0], plan.problem.k), np.int32), plan.problem.options.values
    return _judged(name, lambda: api.select(scores, plan=plan, out=out, values=values), scores, out)


def _torch(scores: Any, k: int) -> Contender:
    """`torch.topk` of a tensor, into arrays made beforehand."""
    import torch

    values, indices = (torch.empty((scores.shape[0], k), dtype=dtype) for dtype in (scores.dtype, torch.int64))
    run = lambda: torch.topk(scores, k, dim=1, sorted=False, out=(values, indices))  # noqa: E731
    return _judged(TORCH, run, scores, indices.numpy())


def _argpartition(scores: F32, k: int) -> Contender:
    out, width = np.empty((len(scores), k), np.int64), scores.shape[1]

    def run() -> None:
        nonlocal out
        out = np.argpartition(scores, width - k, axis=1)[:, width - k :]

    return Contender(ARGPARTITION, lambda _: run(), lambda _: verify(scores, None, out, k=k).ok)


def _judged(name: str, run: Callable[[], Any], scores: Any, out: NDArray[Any]) -> Contender:
    """A contender that leaves its answer in an array, which does not look like one before."""
    check = lambda _: verify(scores, None, out, k=out.shape[1]).ok  # noqa: E731
    return Contender(name, lambda _: run(), check, lambda _: out.fill(-(1 << 30)))


def _timed(contenders: Sequence[Contender], rounds: int) -> dict[str, Facts]:
    """Time contenders on the same rows and verify all their answers; an error is raised."""
    found = measure_host(contenders, 1, 0, rounds=rounds, every_round=True)
    for timing in found:
        if timing.error:
            raise BackendError(f"{timing.name}: {timing.error}")
    medians, exact = {t.name: t.median / 1e6 for t in found}, {t.name: t.exact for t in found if t.exact is not None}
    return {"median_seconds": medians, "spread": {t.name: t.facts()["spread"] for t in found}, "exact": exact}


def _compare(load: Load, plan: Plan, rounds: int, seed: int) -> Iterator[Facts]:
    """Time every contender on the same rows; the ratios are of medians."""
    k = plan.problem.k
    what, scores = load(plan.problem.rows, plan.problem.width, k, seed)
    every = [_ksieve(scores, plan), _argpartition(scores, k), Contender(FLOOR, lambda _: scores.max(axis=1))]
    if _has_torch():
        import torch

        every.append(_torch(torch.from_numpy(scores), k))
    found = _timed(every, rounds)
    medians = found["median_seconds"]
    own = medians["ksieve"]
    faster = {name: medians[name] / own for name in (TORCH, ARGPARTITION) if name in medians}
    yield {
        "source": what, **found, "times_faster_than": faster, "rate_of_max": medians[FLOOR] / own,
        "scores_per_second": scores.size / own, **_account(scores, plan),
    }  # fmt: skip


def _short(rows: int, width: int, k: int, dtype: str, rounds: int, seed: int) -> Iterator[Facts]:
    """Time ksieve and torch on random rows of one dtype."""
    import torch

    scores = torch.from_numpy(find_producer(BASELINE)(rows, width, seed=seed, k=k)).to(getattr(torch, dtype))
    plan = api.plan(rows=rows, width=width, k=k, dtype=dtype)
    found = _timed([_ksieve(scores, plan), _torch(scores, k)], rounds)
    faster = found["median_seconds"][TORCH] / found["median_seconds"]["ksieve"]
    yield {"rows": rows, "width": width, "k": k, "dtype": dtype, **found, "times_faster_than": {TORCH: faster}}


def _options(rows: int, width: int, k: int, threads: int, rounds: int, seed: int) -> Iterator[Facts]:
    """Time the plain call and one with each option in turns."""
    scores, calls = find_producer(BASELINE)(rows, width, seed=seed, k=k), []
    for name, options in ({"plain": Options()} | OPTIONS).items():
        plan = dispatch.plan_of(rows=rows, width=width, k=k, options=options)
        calls.append(_ksieve(scores, replace(plan, threads=threads), name))
    found = _timed(calls, rounds)
    medians = found["median_seconds"]
    for name, seconds in medians.items():
        yield {
            "option": name, "rows": rows, "width": width, "k": k, "threads": threads, "median_seconds": seconds,
            "times_plain": seconds / medians["plain"], "exact": found["exact"][name],
        }  # fmt: skip


def _hostile(family: str, plan: Plan, rounds: int, seed: int) -> Iterator[Facts]:
    """Time one family and plain rows in turns, so that both see the same machine."""
    rows, width, k = plan.problem.rows, plan.problem.width, plan.problem.k
    family_rows, plain = (find_producer(name)(rows, width, seed=seed, k=k) for name in (family, BASELINE))
    yield _in_turns(family_rows, plain, plan, rounds)


def _in_turns(scores: F32, plain: F32, plan: Plan, rounds: int) -> Facts:
    found = _timed([_ksieve(scores, plan, "family"), _ksieve(plain, plan, "plain")], rounds)
    family, usual = found["median_seconds"].values()
    return {
        "median_seconds": family, "plain_median_seconds": usual, "times_plain": family / usual,
        "exact": all(found["exact"].values()), **_account(scores, plan),
    }  # fmt: skip


def _aimed(width: int, k: int, rounds: int, seed: int) -> Iterator[Facts]:
    """Search for the row of a width that costs the most, and time it and a plain one in turns."""
    plan = api.plan(rows=1, width=width, k=k)
    found = cpu_worst_rows.search(plan, cpu_worst_rows.STEPS, seed)
    plain = find_producer(BASELINE)(1, width, seed=seed, k=k)
    yield {
        "work": found.work, "random_work": found.random_work, "times_random": found.times_random,
        **_in_turns(found.row[None], plain, plan, rounds),
    }  # fmt: skip


def _account(scores: F32, plan: Plan) -> Facts:
    """Routes and model traffic of a call."""
    stats: Stats = api.select(scores, plan=plan, stats=True).stats
    return {
        "routes": {route.name.lower(): count for route, count in stats.route_counts().items()},
        "scans_mean": float(stats.scans.mean()),
        "admitted_mean": float(stats.admitted0.mean()) if (stats.route != Route.DIRECT).any() else None,
    }


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None
