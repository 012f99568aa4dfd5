"""Entries of a file of `ksieve tune` whose kernels for options would spill registers: they are for calls without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ksieve.core.arrays import Device
from ksieve.core.options import Options
from ksieve.core.problem import MAX_WIDTH, Problem
from ksieve.planning import choose, explain, tuned
from ksieve.planning.length_bins import launches
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import Shapes
from ksieve.planning.tuned import Tuned
from ksieve.tuning.run import Progress, Target, unfit

ASKED = (
    Options(windows="ends"), Options(order="value"), Options(tie_break="low"),
    Options(transform="pages", page_size=64, raw=True),
)  # fmt: skip
"""Options whose kernels are others: some launch shapes spill with windows, some with slots in order or page tables."""


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
