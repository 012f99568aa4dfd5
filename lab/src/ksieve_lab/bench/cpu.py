"""The CPU backend and other libraries: the same rows, one process, rotated rounds, every answer verified.

Six parts: `_compare` times the contenders on ordinary rows, and `_short` ksieve and torch on many short ones;
`_adversarial` compares adversarial families with plain random rows of the same shape, and `_aimed` does the same with
rows that a search finds (`ksieve_lab.bench.aimed`); `_options` compares calls with options with the plain call;
`ksieve_lab.bench.startup` measures the costs outside a call.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
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
from ksieve_lab.captures.format import open_capture
from ksieve_lab.workloads.adversarial import ADVERSARIAL
from ksieve_lab.workloads.producers import find_producer

F32 = NDArray[np.float32]
Progress = Callable[[int, int], None]

SHAPES = ((64, 131_072), (16, 1_048_576))
"""Rows and width of the default measurement."""

OPTIONS = {
    "sorted": Options(order="value"),
    "values": Options(values=True),
    "deterministic": Options(order="index", tie_break="low"),
}
"""What a selected row is finished with, on one thread and on all of them."""

OPTION_SHAPES = ((32, 50_257, 50),)
"""Rows, width and k of calls with `OPTIONS`: a step of sampling from a vocabulary."""

ENDPOINT = "endpoint"
"""Source name: the endpoint-structured producer."""

BASELINE = "random_normal"
"""Producer of the short rows, and of the plain ones that adversarial rows are compared with."""


def run(
    shapes: Sequence[tuple[int, int]] = SHAPES,
    sources: Sequence[str | os.PathLike[str]] = (ENDPOINT,),
    k: int = 2048,
    rounds: int = 9,
    *,
    short: Sequence[tuple[int, int, int]] = (),
    optional: Sequence[tuple[int, int, int]] = (),
    adversarial: bool = True,
    searched: Sequence[tuple[int, int]] = aimed.SHAPES,
    starts: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure the CPU backend.

    Parameters
    ----------
    shapes : sequence of (rows, width)
    sources : sequence of str or path
        "endpoint", another producer's name, or the path of a capture. A capture wider than the shape is cut;
        a narrower one has its rows joined end to end until they are wide enough.
    k : int
    rounds : int
        Timed rounds; medians are reported.
    short : sequence of (rows, width, k)
        Many short rows, of every dtype, beside torch; left out without torch.
    optional : sequence of (rows, width, k)
        Calls with each of `OPTIONS`, beside the plain call.
    adversarial : bool
        Also time every adversarial family against plain random rows, and the rows of `searched`.
    searched : sequence of (width, k)
        Width and k of the searches for the row that costs the most.
    starts : bool
        Also measure import, first call and memory in fresh processes.
    seed : int
        Of the producers.
    progress : callable, optional
        Called as ``progress(steps done, steps in all)``.

    Returns
    -------
    dict
        For `record.write_json`; `tables` formats it.

    Raises
    ------
    ArgumentError
        If an argument cannot be used; nothing has been measured then.
    VerificationError
        If ksieve gave an inexact answer; another library's is recorded.
    """
    if rounds < 1:
        raise ArgumentError("rounds", rounds, "an int of at least 1")
    for rows, width in shapes:
        if rows < 1 or width < k:
            raise ArgumentError("shapes", f"{rows}x{width}", f"at least 1 row of at least k = {k} scores")
    families = [p.name for p in ADVERSARIAL] if adversarial else []
    searches = list(searched) if adversarial else []
    kinds = [(*shape, dtype) for shape in short for dtype in SCORE_DTYPES] if contenders.has_torch() else []
    asked = [(*shape, threads) for shape in optional for threads in sorted({1, cpu.thread_count()})]
    total = len(shapes) * (len(sources) + len(families)) + len(kinds) + len(asked) + len(searches) + 3 * starts
    steps = _Steps(total, progress)
    loaded = {os.fspath(source): _check_source(source) for source in sources}
    compared, hurt = [], []
    for rows, width in shapes:
        plan = api.plan(rows=rows, width=width, k=k)
        for load in loaded.values():
            what, scores = load(rows, width, k, seed)
            compared.append({"source": what, "rows": rows, "width": width} | _compare(scores, plan, rounds))
            steps.advance()
        if families:
            plain = find_producer(BASELINE)(rows, width, seed=seed, k=k)
            for family in families:
                scores = find_producer(family)(rows, width, seed=seed, k=k)
                hurt.append(
                    {"family": family, "rows": rows, "width": width} | _adversarial(scores, plain, plan, rounds)
                )
                steps.advance()
    brief = []
    for kind in kinds:
        brief.append(_short(*kind, rounds, seed))
        steps.advance()
    finished = []
    for one in asked:
        finished += _options(*one, rounds, seed)
        steps.advance()
    found = []
    for width, ranks in searches:
        found.append({"width": width, "k": ranks} | _aimed(width, ranks, rounds, seed))
        steps.advance()
    results: dict[str, Any] = {
        "compared": compared, "short": brief, "options": finished, "adversarial": hurt, "aimed": found
    }  # fmt: skip
    if starts:
        results["start"] = {"import_seconds": startup.import_seconds()}
        steps.advance()
        compiling, cached = startup.first_call_seconds()
        results["start"] |= {"first_call_compiling_seconds": compiling, "first_call_cached_seconds": cached}
        steps.advance()
        results["memory"] = _memory(k, [BASELINE, *families])
        steps.advance()
    settings = {
        "shapes": shapes,
        "sources": [Path(name).name for name in loaded],
        "k": k,
        "rounds": rounds,
        "seed": seed,
        "threads": cpu.thread_count(),
    }
    return record.payload("cpu", settings, results)


def result_name(payload: dict[str, Any]) -> str:
    """File name of a payload, the same on every run of the same kind of machine."""
    return f"cpu-{payload['settings']['threads']}-threads.json"


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
                "sources", repr(name), f"{ENDPOINT!r}, a producer's name or the path of a capture"
            ) from None
        return lambda rows, width, k, seed: (producer.name, producer(rows, width, seed=seed, k=k))
    open_capture(name).close()
    return lambda rows, width, k, seed: _capture_rows(name, rows, width)


def _capture_rows(path: str, rows: int, width: int) -> tuple[str, F32]:
    """Rows spread evenly over a capture, their valid scores alone; neighbours joined where one is too short."""
    with open_capture(path) as capture:
        valid = capture.clamped()
        pieces = -(-width // max(int(valid.min()), 1)) if capture.rows else 1
        if capture.rows < rows * pieces:
            raise ArgumentError(
                "sources", f"{capture.rows} rows in {Path(path).name}", f"{rows * pieces} rows to make {rows} x {width}"
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


def _compare(scores: F32, plan: Plan, rounds: int) -> dict[str, Any]:
    """Time every contender on the same rows; the ratios are of medians."""
    seconds, exact = contenders.rotate(contenders.every(scores, plan), scores, plan, rounds)
    _, stats = api.topk(scores, plan=plan, return_stats=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    own = medians["ksieve"]
    return {
        "median_seconds": medians,
        "spread": {name: record.spread(values) for name, values in seconds.items()},
        "exact": exact,
        "times_faster_than": {name: medians[name] / own for name in (TORCH, ARGPARTITION) if name in medians},
        "rate_of_max": medians[FLOOR] / own,
        "scores_per_second": scores.size / own,
        **_account(stats),
    }


def _short(rows: int, width: int, k: int, dtype: str, rounds: int, seed: int) -> dict[str, Any]:
    """Time ksieve and torch on random rows of one dtype."""
    import torch

    scores = torch.from_numpy(find_producer(BASELINE)(rows, width, seed=seed, k=k)).to(getattr(torch, dtype))
    plan = api.plan(rows=rows, width=width, k=k, dtype=dtype)
    both = [contenders.ksieve_topk(scores, plan, "ksieve"), contenders.torch_topk(scores, k)]
    seconds, exact = contenders.rotate(both, scores, plan, rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "rows": rows,
        "width": width,
        "k": k,
        "dtype": dtype,
        "median_seconds": medians,
        "spread": {name: record.spread(values) for name, values in seconds.items()},
        "exact": exact,
        "times_faster_than": {TORCH: medians[TORCH] / medians["ksieve"]},
    }


def _options(rows: int, width: int, k: int, threads: int, rounds: int, seed: int) -> list[dict[str, Any]]:
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


def _adversarial(scores: F32, plain: F32, plan: Plan, rounds: int) -> dict[str, Any]:
    """Time one family and plain rows in turns, so that both see the same machine."""
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


def _aimed(width: int, k: int, rounds: int, seed: int) -> dict[str, Any]:
    """Search for the row of a width that costs the most, and time it and a plain one in turns."""
    plan = api.plan(rows=1, width=width, k=k)
    found = aimed.search(plan, aimed.STEPS, seed)
    plain = find_producer(BASELINE)(1, width, seed=seed, k=k)
    return {
        "work": found.work,
        "random_work": found.random_work,
        "times_random": found.times_random,
        **_adversarial(found.row[None], plain, plan, rounds),
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


class _Steps:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def advance(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


# ---- tables ----------------------------------------------------------------------------------------------


TableOfTexts = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, column names and rows."""


def tables(payload: dict[str, Any]) -> Iterator[TableOfTexts]:
    """Write a payload of `run` as tables for people; those without rows are left out."""
    results, settings = payload["results"], payload["settings"]
    for rows, width in settings["shapes"]:
        title = f"{rows:,} x {width:,}, top {settings['k']:,}, {settings['threads']} threads"
        compared = [
            (
                case["source"],
                _milliseconds(case["median_seconds"]["ksieve"]),
                *(_faster(case, name) for name in (TORCH, ARGPARTITION)),
                f"{case['rate_of_max']:.2f}x",
            )
            for case in _of_shape(results["compared"], rows, width)
        ]
        if compared:
            columns = ("rows", "ksieve", "torch.topk", "argpartition", "max")
            yield f"{title}: times faster than others", columns, compared
        adversarial = [
            (
                case["family"],
                _milliseconds(case["median_seconds"]),
                f"{case['times_plain']:.2f}x",
                f"{case['scans_mean']:.1f}",
                ", ".join(f"{count} {route}" for route, count in case["routes"].items()),
            )
            for case in _of_shape(results["adversarial"], rows, width)
        ]
        if adversarial:
            columns = ("family", "ksieve", "of plain rows", "model scans", "routes")
            yield f"{title}: adversarial rows", columns, adversarial
    if results["short"]:
        lines = [
            (
                f"{case['rows']:,} x {case['width']:,}, top {case['k']:,}",
                case["dtype"],
                _milliseconds(case["median_seconds"]["ksieve"]),
                _faster(case, TORCH),
            )
            for case in results["short"]
        ]
        yield "Many short rows: times faster than torch.topk", ("rows", "dtype", "ksieve", "torch.topk"), lines
    if results["options"]:
        asked = [
            (
                f"{case['rows']:,} x {case['width']:,}, top {case['k']:,}",
                str(case["threads"]),
                case["option"],
                _milliseconds(case["median_seconds"]),
                f"{case['times_plain']:.2f}x",
            )
            for case in results["options"]
        ]
        yield "Calls with options", ("rows", "threads", "option", "ksieve", "of a plain call"), asked
    if results["aimed"]:
        searched = [
            (
                f"{case['width']:,}, top {case['k']:,}",
                f"{case['times_random']:.2f}x",
                _milliseconds(case["median_seconds"]),
                f"{case['times_plain']:.2f}x",
            )
            for case in results["aimed"]
        ]
        heads = ("row", "work of a random row's", "ksieve", "of a plain row")
        yield "The most expensive rows that a search finds, one at a time", heads, searched
    if "start" in results:
        start, memory = results["start"], results["memory"]
        grown = memory["resident_growth_bytes_per_thread"]
        costs = [
            ("import ksieve", f"{start['import_seconds']:.2f} s"),
            ("first call, compiling", f"{start['first_call_compiling_seconds']:.1f} s"),
            ("first call, from the disk cache", f"{start['first_call_cached_seconds']:.2f} s"),
            ("scratch per thread", f"{memory['scratch_bytes_per_thread'] / 1024:.0f} KiB"),
        ]
        if grown is not None:
            costs.append(("resident growth per thread", f"{grown / 1024:.0f} KiB"))
        yield "Outside a call", ("what", "cost"), costs


def _of_shape(cases: list[dict[str, Any]], rows: int, width: int) -> list[dict[str, Any]]:
    return [case for case in cases if (case["rows"], case["width"]) == (rows, width)]


def _faster(case: dict[str, Any], name: str) -> str:
    if name not in case["times_faster_than"]:
        return "absent"
    return f"{case['times_faster_than'][name]:.1f}x" + ("" if case["exact"][name] else ", inexact")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
