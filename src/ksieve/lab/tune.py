"""``ksieve tune``: time every resident launch shape on this GPU, and write those that win as a file for the planner.

1. `questions` lists shapes of score matrices: widths of resident rows, and row counts from one to many times the
   device. `candidates` lists what may answer them: every resident launch shape that fits the device, and streaming.
2. All kernels are compiled first, on all processors; those that spill registers are left out.
3. `run` times the candidates of each question in one process, on the same inputs, and verifies their answers. Results
   are kept after each question, so that an interrupted run goes on where it stopped.
4. `table` turns the winners into entries, each with its time, the plan that came second, and by how much.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.lab.bench import gpu, record, scores
from ksieve.lab.bench.variants import PLANNED, Variant
from ksieve.planning import shapes, tuned
from ksieve.planning.families import SHARED_ROWS
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import Geometry

ONE_CTA_WIDTHS = (
    3072, 4096, 8192, 12_288, 16_384, 20_480, 24_576, 28_672, 32_768, 36_864, 40_960, 45_056, 49_152, 57_344, 65_536,
)  # fmt: skip
SHARED_WIDTHS = (16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
FEW = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
WAVES = (0.5, 1, 2, 4, 8, 16, 32)
"""Row counts of one-CTA shapes, over the number of multiprocessors."""

OVERFLOW = (0, 1, 2, 4, 5, 6, 8, 10)
"""Vectors outside the ring that are tried, fewest first."""

KEPT = (
    "threads", "ctas_per_sm", "resident_width", "ctas_per_row", "overflow_vectors", "plain", "fewest_rows", "most_rows",
)  # fmt: skip
DEFAULTS = Geometry(0, 0)
"""Fields of an entry, and their values where they are left out."""

TIE = 1.015
"""A shape is kept for more rows while it is within 1.5 % of the best one: fewer kernels are worth that."""

STREAMS = (Variant("stream", "stream"), Variant("stream_split", "stream_split"))
Question = tuple[int, int]
Results = dict[str, dict[str, Any]]
_log = logging.getLogger(__name__)
Progress = Callable[[int, int], None]


def questions(device: DeviceInfo) -> list[Question]:
    """Return the (rows, width) that are measured, those that decide most first."""
    count = device.sm_count
    few = [(rows, width) for width in SHARED_WIDTHS for rows in FEW]
    many = [(max(1, int(waves * count)), width) for width in ONE_CTA_WIDTHS for waves in WAVES]
    even = {width: i for i, width in enumerate((16_384, 65_536, 131_072, 8192, 32_768, 262_144, 4096, 1_048_576))}
    return sorted(dict.fromkeys(few + many), key=lambda shape: even.get(shape[1], len(even)))


def candidates(rows: int, width: int, device: DeviceInfo) -> list[Variant]:
    """Return the resident launch shapes that a question may be answered with, and streaming."""
    found = list(STREAMS)
    for family in tuned.FAMILIES:
        for geometry in _geometries(family, rows, width, device):
            fields = ("threads", "ctas_per_sm", "resident_width", "ctas_per_row", "overflow_vectors")
            changes = {name: getattr(geometry, name) for name in fields} | {"fewest_rows": 0, "most_rows": 0}
            shared = f" x{geometry.ctas_per_row}" if family in SHARED_ROWS else ""
            beside = f" +{geometry.overflow_vectors}" if geometry.overflow_vectors else ""
            name = f"{family} {geometry.threads}x{geometry.ctas_per_sm}{shared}{beside}"
            found.append(Variant(name, family, geometry=tuple({**changes, "plain": False}.items())))
    return found


def _geometries(family: str, rows: int, width: int, device: DeviceInfo) -> Iterator[Geometry]:
    """Launch shapes of the narrowest resident width of a family that has room for rows of `width` scores."""
    shared = family in SHARED_ROWS
    if rows > FEW[-1] if shared else 4 * rows < device.sm_count:
        return
    resident = _resident_width(family, width)
    per_row = {"resident_cluster": [2, 4, 8, 16], "resident_grid": [4, 8, 16, 32, 64]}.get(family, [1])
    grid = family == "resident_grid"
    for threads, ctas, share in itertools.product(
        (512,) if grid else (256, 512), (1,) if grid else (4, 3, 2, 1), per_row
    ):
        if shared and rows * share > device.sm_count * ctas:
            continue  # they would not run at once
        if family == "register_block" and resident > 32 * threads:
            continue
        geometry = Geometry(threads, ctas, resident_width=resident, ctas_per_row=share)
        outside = (0,) if family == "register_block" else OVERFLOW
        fitting = (replace(geometry, overflow_vectors=vectors) for vectors in outside)
        found = [g for g in fitting if resident and not tuned.impossible(family, g, device)]
        # The ring as full as it gets, or one step less: with 8 vectors outside, rows are up to 8 % faster than with 6.
        yield from found[: 2 if found and found[0].overflow_vectors else 1]


def planned(variant: Variant, question: Question, k: int, device: DeviceInfo) -> Plan | None:
    """Return a candidate's plan; None where the planner refuses it, or changes its launch shape."""
    rows, width = question
    try:
        plan = variant.plan(rows, width, min(k, width // 2), tuned.DTYPE, device)
    except ArgumentError:
        return None
    asked = dict(variant.geometry)
    return plan if all(getattr(plan, name) == asked[name] for name in ("threads", "ctas_per_sm") if asked) else None


def _compiles(job: tuple[Any, Plan]) -> bool:
    """Compile a kernel into the cache; whether it runs as planned."""
    from ksieve.backends.cuda.jit import build, cache

    spec, plan = job
    try:
        return not build.shortcomings(plan, spec, cache.obtain(spec)[0].resources)
    except BackendError as error:
        _log.warning("a launch shape is left out: %s", error)
        return False


def compiled(plans: Iterable[Plan], progress: Progress) -> set[Any]:
    """Compile the kernels of plans on all processors; return the specialisations that run as planned."""
    from ksieve.backends.cuda.jit.spec import kernel_spec

    jobs = {kernel_spec(plan): plan for plan in plans}
    fine = set()
    # In processes: NVRTC holds a lock, so that threads compile one after another.
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
        for done, (spec, runs) in enumerate(zip(jobs, pool.map(_compiles, jobs.items()), strict=True), 1):
            progress(done, len(jobs))
            if runs:
                fine.add(spec)
    return fine


def name_of(question: Question) -> str:
    """Key of a question in the results."""
    return f"{question[0]}x{question[1]}"


Options = dict[Question, list[Variant]]


def prepare(asked: Sequence[Question], k: int, device: DeviceInfo, progress: Progress) -> Options:
    """Compile the kernels of all candidates; return those of each question that run as planned."""
    from ksieve.backends.cuda.jit.spec import kernel_spec

    plans = {
        shape: [(v, plan) for v in candidates(*shape, device) if (plan := planned(v, shape, k, device))]
        for shape in asked
    }
    fine = compiled([plan for found in plans.values() for _, plan in found], progress)
    return {shape: [v for v, plan in found if kernel_spec(plan) in fine] for shape, found in plans.items()}


def run(
    options: Options, k: int, done: Results, *, rounds: int, end: float, progress: Progress, keep: Callable[[], None]
) -> None:
    """Measure the questions that `done` does not answer yet.

    Parameters
    ----------
    options : dict
        From `prepare`.
    k : int
        Slots per row; half the width, where that is less.
    done : dict
        Results by `name_of`, completed in place: ``us`` of each exact candidate, and ``choice``, that of the planner.
    rounds : int
    end : float
        Time of ``time.monotonic`` from which no further question is begun.
    progress : callable
        Called as ``progress(done, of)``.
    keep : callable
        Called after each question.
    """
    device = gpu.require_device()
    fill = scores.source_of("endpoint")
    for number, (shape, variants) in enumerate(options.items()):
        progress(number, len(options))
        if time.monotonic() > end:
            return
        ask = gpu.Ask(min(k, shape[1] // 2), tuned.DTYPE, [PLANNED, *variants], (), rounds, 0, reads=False, judged=1)
        found = gpu.measure_shape(shape, "ragged" if shape[0] <= 256 else "causal", fill, 0, ask, device)
        times = {n: f["median_us"] for n, f in found.get("selectors", {}).items() if f.get("exact") is True}
        choice = times.pop(PLANNED.name, None)
        done[name_of(shape)] = {"us": times, "choice": choice}
        keep()
    progress(len(options), len(options))


def table(done: Results, device: DeviceInfo) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the entries of each family: for every width the shapes that win, and for how many rows.

    Widths that were not measured keep the shipped entries, which then have no time.
    """
    entries: dict[str, list[dict[str, Any]]] = {family: [] for family in tuned.FAMILIES}
    by_width: dict[int, list[tuple[int, dict[str, float]]]] = {}
    for name, found in done.items():
        rows, width = map(int, name.split("x"))
        if found["us"]:
            by_width.setdefault(width, []).append((rows, found["us"]))
    for width, measured in sorted(by_width.items()):
        for family, entry in _winners(sorted(measured), width, device):
            entries[family].append(entry)
    tried = {
        (name.partition(" ")[0] in SHARED_ROWS, _shape_of(name, width)["resident_width"])
        for width, measured in by_width.items()
        for _, times in measured
        for name in times
        if name.partition(" ")[0] in tuned.FAMILIES
    }
    shipped = shapes.of(device)
    for family in shipped.resident:
        for shape in shipped.resident_of(family, device):
            if (family in SHARED_ROWS, shape.resident_width) not in tried and not tuned.impossible(
                family, shape, device
            ):
                fields = {name: getattr(shape, name) for name in KEPT}
                entries[family].append({n: v for n, v in fields.items() if v != getattr(DEFAULTS, n)})
    return {
        family: tuple(sorted(found, key=lambda entry: int(entry["resident_width"])))
        for family, found in entries.items()
        if found
    }


def _resident_width(family: str, width: int) -> int:
    """The narrowest width of a family's shapes that has room for rows of `width` scores; 0 if none has."""
    known = SHARED_WIDTHS if family in SHARED_ROWS else ONE_CTA_WIDTHS
    return next((w for w in known if w >= width), 0)


def _streamed_from(family: str, width: int, device: DeviceInfo) -> int:
    """Rows up to which the shipped shapes of a width are resident for every k; 0 without a limit.

    One k is measured, and more rows are streamed for a small k alone (`RESIDENT_RANK`): that limit stays.
    """
    shipped = shapes.of(device)
    same = [s for s in shipped.resident_of(family, device) if s.resident_width == width]
    return same[-1].most_rows if same and family == "resident_block" else 0


def _winners(
    measured: Sequence[tuple[int, Mapping[str, float]]], width: int, device: DeviceInfo
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Entries of a width: runs of row counts that one shape wins."""
    runs: list[tuple[str, list[tuple[int, Mapping[str, float]]]]] = []
    for rows, times in measured:
        best = min(times, key=lambda name: times[name])
        last = runs[-1][0] if runs else ""
        kept = last if last in times and times[last] <= TIE * times[best] else best
        if kept != last:
            runs.append((kept, []))
        runs[-1][1].append((rows, times))
    for number, (name, won) in enumerate(runs):
        family = name.partition(" ")[0]
        if family not in tuned.FAMILIES:
            continue
        most, times = won[-1]
        shared = family in SHARED_ROWS
        entry = _shape_of(name, width)
        if family == "resident_cluster" and number + 1 < len(runs):
            # Up to where another shape is known to win, as long as all clusters run at once.
            at_once = device.sm_count * entry["ctas_per_sm"] // entry["ctas_per_row"]
            most = max(most, min(runs[number + 1][1][0][0] - 1, at_once))
        if shared or number + 1 < len(runs):
            entry["most_rows"] = most
        elif limit := _streamed_from(family, entry["resident_width"], device):
            entry["most_rows"] = limit
        if family == "resident_grid" and won[0][0] > 1:
            entry["fewest_rows"] = won[0][0]
        others = {n: us for n, us in times.items() if n != name}
        second = min(others, key=lambda n: others[n], default="")
        entry |= {"us": round(times[name], 2)}
        if second:
            entry |= {"beat": second, "by": round(others[second] / times[name], 3)}
        yield family, entry


def _shape_of(name: str, width: int) -> dict[str, Any]:
    """Fields of a candidate's launch shape, from its name."""
    family, launch, *rest = name.split()
    threads, ctas = map(int, launch.split("x"))
    entry = {"threads": threads, "ctas_per_sm": ctas, "resident_width": _resident_width(family, width)}
    for word in rest:
        entry["ctas_per_row" if word[0] == "x" else "overflow_vectors"] = int(word[1:])
    return entry


def gain(done: Results, asked: Sequence[Question]) -> list[tuple[str, float, str, float]]:
    """Return for each measured question the planner's time, and the best candidate with its time."""
    rows = []
    for name in map(name_of, asked):
        found = done.get(name, {})
        if found.get("choice") and found["us"]:
            best = min(found["us"], key=lambda n: found["us"][n])
            rows.append((name, found["choice"], best, found["us"][best]))
    return rows


def about(device: DeviceInfo, k: int) -> dict[str, Any]:
    """Return the facts of a file: device, driver, packages, date, commit, dtype and k."""
    facts = record.environment(gpu=True)
    cards = (facts.get("gpu") or {}).get("devices") or [{}]
    return {
        "device": tuned.described(device), "driver": cards[0].get("driver_version"), "packages": facts["packages"],
        "date": facts["date"], "commit": facts["commit"], "dtype": tuned.DTYPE, "k": k,
    }  # fmt: skip
