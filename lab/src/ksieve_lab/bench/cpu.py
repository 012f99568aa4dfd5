"""The CPU backend and other libraries: the same rows, one process, rotated rounds, every answer verified.

`_compare` times the contenders on ordinary rows, and `_short` ksieve and torch on many short ones. `_hostile` compares
adversarial families with plain random rows of the same shape, and `_aimed` does the same with rows that a search finds
(`ksieve_lab.bench.aimed`). `_options` compares calls with options with the plain call. `ksieve_lab.bench.startup`
measures the costs outside a call.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve import api
from ksieve.backends import cpu
from ksieve.core.errors import ArgumentError
from ksieve.core.keys import widen
from ksieve.core.options import Options
from ksieve.core.paths import unreadable
from ksieve.core.problem import SCORE_DTYPES
from ksieve.core.stats import Route, Stats
from ksieve.planning.plan import Plan
from ksieve_lab.bench import aimed, contenders, record, startup
from ksieve_lab.bench.contenders import ARGPARTITION, FLOOR, TORCH
from ksieve_lab.bench.runner import Facts, Live, Settings
from ksieve_lab.bench.shape_lists import words
from ksieve_lab.captures.format import open_capture
from ksieve_lab.workloads.adversarial import ADVERSARIAL
from ksieve_lab.workloads.producers import find_producer

F32 = NDArray[np.float32]

PARTS = ("compared", "short", "options", "adversarial", "start")
"""What can be measured; adversarial rows include those that a search finds."""

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

    Raises
    ------
    VerificationError
        If ksieve gave an inexact answer; another library's is recorded.
    """
    k, rounds, seed, fixed = settings.k, settings.rounds, settings.seed, settings.fixed
    parts, usual, shapes = cases(settings), not settings.shapes.items, settings.shapes.items or SHAPES
    sources, has_torch = words(settings.scores), contenders.has_torch()
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
    starts = 2 * ("start" in parts)
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
            results["memory"] = _memory(k, [BASELINE, *families])
            progress(len(steps) + starts, len(steps) + starts)
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
    open_capture(name)
    return lambda rows, width, k, seed: _capture_rows(name, rows, width)


def _capture_rows(path: str, rows: int, width: int) -> tuple[str, F32]:
    """Rows spread evenly over a capture, their valid scores alone; neighbours joined where one is too short."""
    with open_capture(path) as capture:
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


def _compare(load: Load, plan: Plan, rounds: int, seed: int) -> Iterator[Facts]:
    """Time every contender on the same rows; the ratios are of medians."""
    what, scores = load(plan.problem.rows, plan.problem.width, plan.problem.k, seed)
    seconds, exact = contenders.rotate(contenders.every(scores, plan), scores, plan, rounds)
    _, stats = api.topk(scores, plan=plan, return_stats=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    own = medians["ksieve"]
    yield {
        "source": what,
        "median_seconds": medians,
        "spread": {name: record.spread(values) for name, values in seconds.items()},
        "exact": exact,
        "times_faster_than": {name: medians[name] / own for name in (TORCH, ARGPARTITION) if name in medians},
        "rate_of_max": medians[FLOOR] / own,
        "scores_per_second": scores.size / own,
        **_account(stats),
    }


def _short(rows: int, width: int, k: int, dtype: str, rounds: int, seed: int) -> Iterator[Facts]:
    """Time ksieve and torch on random rows of one dtype."""
    import torch

    scores = torch.from_numpy(find_producer(BASELINE)(rows, width, seed=seed, k=k)).to(getattr(torch, dtype))
    plan = api.plan(rows=rows, width=width, k=k, dtype=dtype)
    both = [contenders.ksieve_topk(scores, plan, "ksieve"), contenders.torch_topk(scores, k)]
    seconds, exact = contenders.rotate(both, scores, plan, rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    yield {
        "rows": rows,
        "width": width,
        "k": k,
        "dtype": dtype,
        "median_seconds": medians,
        "spread": {name: record.spread(values) for name, values in seconds.items()},
        "exact": exact,
        "times_faster_than": {TORCH: medians[TORCH] / medians["ksieve"]},
    }


def _options(rows: int, width: int, k: int, threads: int, rounds: int, seed: int) -> list[Facts]:
    """Time the plain call and one with each option in turns."""
    scores = find_producer(BASELINE)(rows, width, seed=seed, k=k)
    asked = {"plain": Options()} | OPTIONS
    plans = {
        name: replace(api.plan(rows=rows, width=width, k=k, options=o), threads=threads) for name, o in asked.items()
    }
    calls = [contenders.ksieve_topk(scores, plan, name) for name, plan in plans.items()]
    seconds, _ = contenders.rotate(calls, scores, plans["plain"], rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    shape = {"rows": rows, "width": width, "k": k, "threads": threads}
    return [
        {"option": name, **shape, "median_seconds": medians[name], "times_plain": medians[name] / medians["plain"]}
        for name in medians
    ]


def _hostile(family: str, plan: Plan, rounds: int, seed: int) -> Iterator[Facts]:
    """Time one family and plain rows in turns, so that both see the same machine."""
    rows, width, k = plan.problem.rows, plan.problem.width, plan.problem.k
    family_rows, plain = (find_producer(name)(rows, width, seed=seed, k=k) for name in (family, BASELINE))
    yield _in_turns(family_rows, plain, plan, rounds)


def _in_turns(scores: F32, plain: F32, plan: Plan, rounds: int) -> Facts:
    both = [
        contenders.ksieve_topk(scores, plan, "family"),
        replace(contenders.ksieve_topk(plain, plan, "plain"), judged=False),
    ]
    seconds, _ = contenders.rotate(both, scores, plan, rounds)
    _, stats = api.topk(scores, plan=plan, return_stats=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "median_seconds": medians["family"],
        "plain_median_seconds": medians["plain"],
        "times_plain": medians["family"] / medians["plain"],
        **_account(stats),
    }


def _aimed(width: int, k: int, rounds: int, seed: int) -> Iterator[Facts]:
    """Search for the row of a width that costs the most, and time it and a plain one in turns."""
    plan = api.plan(rows=1, width=width, k=k)
    found = aimed.search(plan, aimed.STEPS, seed)
    plain = find_producer(BASELINE)(1, width, seed=seed, k=k)
    yield {
        "work": found.work,
        "random_work": found.random_work,
        "times_random": found.times_random,
        **_in_turns(found.row[None], plain, plan, rounds),
    }


def _account(stats: Stats) -> dict[str, Any]:
    """Routes and model traffic of a call."""
    return {
        "routes": {route.name.lower(): count for route, count in stats.route_counts().items()},
        "scans_mean": float(stats.scans.mean()),
        "admitted_mean": float(stats.admitted0.mean()) if (stats.route != Route.DIRECT).any() else None,
    }


def _memory(k: int, producers: list[str]) -> dict[str, Any]:
    threads = cpu.thread_count()
    extra = startup.extra_bytes(threads, k, producers)
    return {
        "threads": threads,
        "scratch_bytes_per_thread": cpu.scratch_bytes(api.plan(rows=1, width=SHAPES[-1][1], k=k)),
        "resident_growth_bytes_per_thread": None if extra is None else extra / threads,
    }
