"""From the times of `ksieve tune` to the entries of a file: which candidate wins, and for how many rows.

Shapes whose kernels for options would spill registers are marked: they are for calls without.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from statistics import geometric_mean
from typing import Any

from ksieve.core.arrays import Device
from ksieve.core.options import Options
from ksieve.core.problem import MAX_WIDTH, Problem
from ksieve.planning import choose, explain, shapes, tuned
from ksieve.planning.families import RESIDENT, SHARED_ROWS
from ksieve.planning.length_bins import launches
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import Geometry, Shapes
from ksieve.planning.switch_points import LINES_RANK, SPLITS
from ksieve.planning.tuned import Tuned
from ksieve.tuning.run import (
    POLICIES,
    STREAM_WAVES,
    WIDER,
    Progress,
    Results,
    Target,
    Times,
    best_of,
    possible,
    resident_width,
    unfit,
)

KEPT = (
    "threads", "ctas_per_sm", "resident_width", "ctas_per_row", "overflow_vectors", "plain", "fewest_rows", "most_rows",
)  # fmt: skip
DEFAULTS = Geometry(0, 0)
"""Fields of an entry, and their values where they are left out."""

TIE = 1.02
"""What is within 2 % of the best is as good: fewer kernels are worth that."""

FIRST = ("register_block", "resident_grid")
"""Families that the planner asks before another that may win fewer rows of the same width."""

ASKED = (
    Options(windows="ends"), Options(order="value"), Options(tie_break="low"),
    Options(transform="pages", page_size=64, raw=True),
)  # fmt: skip
"""Options whose kernels are others: some launch shapes spill with windows, some with slots in order or page tables."""

ByWidth = Mapping[int, Sequence[tuple[int, Times]]]
Entry = dict[str, Any]
Parts = dict[str, Any]


def table(done: Results, target: Target) -> Parts:
    """Return the parts of a file. A part without measurements is left out, and the class's part holds."""
    measured = _by_width(done, target)
    streamed = {"stream": _stream_shapes(measured, target), "stream_split": _split_shape(measured)}
    parts = {
        "resident": _resident(measured, target),
        "streamed": {family: entries for family, entries in streamed.items() if entries},
        "splits": _splits(measured),
        "strides": _strides(measured, target),
    }
    return {part: entries for part, entries in parts.items() if entries}


def _by_width(done: Results, target: Target) -> dict[int, list[tuple[int, Times]]]:
    """Times of each width's row counts, in order, for the k that is tuned for."""
    by_width: dict[int, list[tuple[int, Times]]] = {}
    for name, found in done.items():
        rows, width, k = map(int, re.split("[xk]", name))
        if found["us"] and (rows, width, k) == target.asked(rows, width):
            by_width.setdefault(width, []).append((rows, found["us"]))
    return {width: sorted(found, key=lambda pair: pair[0]) for width, found in sorted(by_width.items())}


def shape_of(name: str, width: int) -> Entry:
    """Fields of a candidate's launch shape, from its name and the width that was asked."""
    family, launch, *rest = name.split()
    threads, ctas = map(int, launch.split("x"))
    entry = {"threads": threads, "ctas_per_sm": ctas}
    if family in RESIDENT:
        entry["resident_width"] = resident_width(family, width)
    names = {"x": "ctas_per_row", "+": "overflow_vectors", "s": "stages", "w": "resident_width"}
    return entry | {names[word[0]]: int(word[1:]) for word in rest}


def _runs(measured: Iterable[tuple[int, Times]]) -> list[tuple[str, list[tuple[int, Times]]]]:
    """Runs of row counts that one candidate is as good as the best for: the fewest runs, so each as long as it gets."""
    runs: list[tuple[str, list[tuple[int, Times]]]] = []
    left = list(measured)
    while left:
        alive, length = set(left[0][1]), 0
        for _, times in left:
            good = {name for name in alive if times.get(name, math.inf) <= TIE * min(times.values())}
            if not good:
                break
            alive, length = good, length + 1
        won, left = left[:length], left[length:]
        best = min(sorted(alive), key=lambda name: sum(math.log(times[name]) for _, times in won))
        runs.append((best, won))
    return runs


def _facts(name: str, times: Times) -> Entry:
    """Time of a winner, what came second, and by how much."""
    others = {n: us for n, us in times.items() if n != name}
    beat = {"beat": best_of(others), "by": round(min(others.values()) / times[name], 3)} if others else {}
    return {"us": round(times[name], 2)} | beat


def bare(entry: Entry) -> Entry:
    """Return an entry without its facts."""
    return {name: value for name, value in entry.items() if name not in shapes.FACTS}


def _only(measured: Iterable[tuple[int, Times]], pattern: str) -> list[tuple[int, Times]]:
    """Times of the candidates whose names match, where there are any."""
    found = [(rows, {n: us for n, us in times.items() if re.fullmatch(pattern, n)}) for rows, times in measured]
    return [(rows, times) for rows, times in found if times]


def _resident(measured: ByWidth, target: Target) -> dict[str, list[Entry]]:
    """Entries of rows that stay on chip. Widths that were not measured keep the shipped ones, without a time."""
    device = target.device
    entries: dict[str, list[Entry]] = {family: [] for family in RESIDENT}
    tried = set()
    for width, found in measured.items():
        resident = {n.split()[0] for _, times in found for n in times} & set(RESIDENT)
        tried |= {(family in SHARED_ROWS, resident_width(family, width)) for family in resident}
        for family, entry in _winners(found, width, target) if resident else ():
            if bare(entry) not in map(bare, entries[family]):  # two widths may lead to the same one
                entries[family].append(entry)
    if not tried:
        return {}
    shipped = shapes.of(device, target.dtype)
    for family in shipped.resident:
        for shape in shipped.of_family(family, device):
            key = (family in SHARED_ROWS, shape.resident_width)
            if key not in tried and possible(family, shape, device, target.dtype):
                fields = {name: getattr(shape, name) for name in KEPT}
                entries[family].append({n: v for n, v in fields.items() if v != getattr(DEFAULTS, n)})
    return {
        family: sorted(found, key=lambda entry: int(entry["resident_width"]))
        for family, found in entries.items()
        if found
    }


def _winners(measured: Sequence[tuple[int, Times]], width: int, target: Target) -> Iterator[tuple[str, Entry]]:
    """Entries of a width: runs of row counts that one resident shape wins against all others, and streaming."""
    device = target.device
    runs = _runs(measured)
    before, reached, wider = "", 0, 0  # family of the run before, its rows, and those up to which a wider shape won
    for number, (name, won) in enumerate(runs):
        family = name.partition(" ")[0]
        most, times = won[-1]
        entry = shape_of(name, width) if family in RESIDENT else {}
        if family == "resident_cluster" and number + 1 < len(runs):
            # Up to where another shape is known to win, as long as all clusters run at once.
            at_once = device.sm_count * entry["ctas_per_sm"] // entry["ctas_per_row"]
            most = max(most, min(runs[number + 1][1][0][0] - 1, at_once))
        # The planner asks families and widths in order: this one must leave fewer rows to the one that wins them.
        if before not in ("", family) and family in FIRST:
            entry["fewest_rows"] = reached + 1 if before in RESIDENT else won[0][0]
        elif wider and family == "resident_block" and WIDER not in name:
            entry["fewest_rows"] = wider + 1
        before, reached, wider = family, most, most if WIDER in name else wider
        if not entry:
            continue
        if family in SHARED_ROWS or number + 1 < len(runs):
            entry["most_rows"] = most
        elif family == "resident_block" and (limit := _resident_up_to(width, target)):
            entry["most_rows"] = limit
        yield family, entry | _facts(name, times)


def _resident_up_to(width: int, target: Target) -> int:
    """Rows of a width beyond which the shipped shapes stream a small k; 0: none."""
    listed = shapes.of(target.device, target.dtype).of_family("resident_block", target.device)
    same = [shape for shape in listed if shape.resident_width == resident_width("resident_block", width)]
    return same[-1].most_rows if same else 0


def _stream_shapes(measured: ByWidth, target: Target) -> list[Entry]:
    """Launch shapes of rows that do not stay on chip: for each measured width, and narrower ones, runs of rows."""
    by_width: list[tuple[int, list[Entry]]] = []
    timed = {width: _only(found, r"stream \d+x\d+ s\d+") for width, found in measured.items()}
    waves = {int(wave * target.device.sm_count) for wave in STREAM_WAVES}  # some widths are timed at others too
    asked = {width: waves & {rows for rows, _ in found} for width, found in timed.items()}
    most_asked = max(map(len, asked.values()), default=0)
    for width, found in timed.items():
        if len(asked[width]) < most_asked:
            continue  # the run was stopped: its shape for many rows would be taken for few too
        runs = _runs(found)
        entries = []
        for number, (name, won) in enumerate(runs):
            limit = {"most_rows": won[-1][0]} if number + 1 < len(runs) else {}
            entries.append(shape_of(name, width) | limit | _facts(name, won[-1][1]))
        by_width += [(width, entries)] if entries else []

    # Of widths with the same shapes, the widest says enough; the widest of all is for any wider rows too.
    bares = [list(map(bare, listed)) for _, listed in by_width]
    kept = [by_width[i] for i, (one, after) in enumerate(pairwise(bares)) if one != after] + by_width[-1:]
    listed = [entry | {"widest": width} for width, entries in kept[:-1] for entry in entries]
    return listed + [entry for _, entries in kept[-1:] for entry in entries]


def _split_shape(measured: ByWidth) -> list[Entry]:
    """The launch shape of rows that CTAs share: of least time over the rows and widths where sharing them wins."""
    timed: dict[str, list[float]] = {}
    for found in measured.values():
        won = [(rows, times) for rows, times in found if best_of(times).startswith("stream_split")]
        for _, times in _only(won, r"stream_split \d+x\d+ x\d+ s\d+"):
            for name, us in times.items():
                timed.setdefault(re.sub(r" x\d+", "", name), []).append(us)
    most = max(map(len, timed.values()), default=0)
    means = {name: geometric_mean(all_us) for name, all_us in timed.items() if len(all_us) == most}
    return [shape_of(best_of(means), 0) | _facts(best_of(means), means)] if means else []


def _splits(measured: ByWidth) -> list[Entry]:
    """From which width how many CTAs a row pay: the fewest that gain, and lose more than `TIE` at no row count.

    More CTAs do so too.
    """
    entries: list[Entry] = []
    for width, found in measured.items():
        tried: dict[int, list[tuple[float, float]]] = {}
        for _, times in found:
            whole = min((us for name, us in times.items() if name.partition(" ")[0] == "stream"), default=0.0)
            for name in times if whole else ():
                if match := re.fullmatch(r"stream_split x(\d+)", name):
                    tried.setdefault(int(match[1]), []).append((times[name], whole))
        means = {splits: tuple(map(geometric_mean, zip(*pairs, strict=True))) for splits, pairs in tried.items()}
        paying = 0
        for splits in sorted(means, reverse=True):
            if TIE * means[splits][0] > means[splits][1] or any(split > TIE * whole for split, whole in tried[splits]):
                break
            paying = splits
        fewest = paying or (SPLITS[0] if means and entries else 0)  # where none pays, no row has room for so many
        if fewest and fewest != (entries[-1]["fewest"] if entries else 0):
            facts = _facts("split", dict(zip(("split", "stream"), means[fewest], strict=True))) if paying else {}
            entries.append({"fewest": fewest} | ({"narrowest": width} if entries else {}) | facts)
    return entries


def _strides(measured: ByWidth, target: Target) -> list[Entry]:
    """From which ratio of width to k which policy wins; a sparser one of few rows alone says up to how many."""
    count, entries, few = target.device.sm_count, list[Entry](), list[Entry]()
    chosen = sparsest = -1
    names = [f"stream {policy}" for policy in POLICIES]
    for width, found in measured.items():
        ratio = width // max(min(target.k, width // 2), LINES_RANK)
        best = {}
        for rows, times in _only(found, "|".join(map(re.escape, names))):
            fastest = min(times.values())
            best[rows > count] = next(
                (i, times) for i, name in enumerate(names) if times.get(name, 1e9) <= TIE * fastest
            )
        if True in best and best[True][0] > chosen:
            chosen, times = best[True]
            entry = {"policy": POLICIES[chosen]} | ({"ratio": ratio} if entries else {})
            entries.append(entry | _facts(names[chosen], times))
        if False in best and best[False][0] > max(chosen, sparsest) and entries:
            sparsest, times = best[False]
            entry = {"policy": POLICIES[sparsest], "ratio": ratio, "narrowest": width, "most_rows": count}
            few.append(entry | _facts(names[sparsest], times))
    return entries + few


def without_spills(found: Tuned, target: Target, progress: Progress) -> Tuned:
    """Return a file whose resident shapes are for calls without options only, where a kernel for options would spill.

    The kernels of `_plans` are compiled for that, again after each change.
    """
    from ksieve.backends.cuda.jit.spec import kernel_spec

    if "resident" not in found.parts:
        return found
    shipped = tuned.shapes_of(target.device, target.dtype)
    known = tuned.with_parts(shipped, found, target.device, "tuned.json")
    with tuned.replaced(shipped, known):
        launched = {
            kernel_spec(launch): launch
            for plan in _plans(known, target)
            for launch in launches(plan)
            if launch.family in known.resident
        }
        entries = map(explain.entry_of, (launched[spec] for spec in unfit(launched, progress)))
        short = {id(entry) for entry in entries if entry is not None and not entry.plain}
    if not short:
        return found
    resident = {
        family: [
            entry | ({"plain": True} if id(shape) in short else {})
            for entry, shape in zip(of, known.resident[family], strict=True)
        ]
        for family, of in found.parts["resident"].items()
    }
    return without_spills(replace(found, parts={**found.parts, "resident": resident}), target, progress)


def _plans(known: Shapes, target: Target) -> Iterator[Plan]:
    """Plans with options, at the rows and widths where entries begin and end: where an entry is used, one shows it."""
    entries = [shape for of in known.resident.values() for shape in of]
    rows = {1, 2, 100_000} | {rows for e in entries for rows in (e.most_rows, e.most_rows + 1, e.fewest_rows) if rows}
    widths = {entry.resident_width for entry in entries}
    for m, n, k, options in product(sorted(rows), sorted(widths), (512, target.k), ASKED):
        if k <= n <= MAX_WIDTH:
            yield choose.choose(Problem(m, n, n, k, target.dtype, Device("cuda", 0), options), target.device)
