"""What is kept of a file of `ksieve tune`: entries that decide plans, for calls whose kernels do not spill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

from ksieve.core.arrays import Device
from ksieve.core.options import PLAIN, Options
from ksieve.core.problem import Problem
from ksieve.planning import choose, cuda, explain, shapes, tuned
from ksieve.planning.length_bins import launches
from ksieve.planning.plan import Plan
from ksieve.planning.thresholds import LINES_RANK, SPLITS
from ksieve.planning.tune.run import Progress, Target, unfit
from ksieve.planning.tune.table import Entry, Parts

ASKED = (
    PLAIN, Options(windows="ends"), Options(order="value"), Options(tie_break="low"),
    Options(transform="pages", page_size=64, raw=True),
)  # fmt: skip
"""Options whose kernels are others: some launch shapes spill with windows, some with slots in order or page tables."""


def unused(known: shapes.Shapes, target: Target) -> list[tuple[str, str, int]]:
    """Return the entries that decide no plan of `grid`: the part, the family (or the part again), and the number.

    `known`: what the planner uses now for the target, measured on a device of as many multiprocessors.
    """
    device = target.device
    left: dict[object, tuple[str, str, int]] = {
        id(entry): (part, family, number)
        for part, listed in (("resident", known.resident), ("streamed", known.streamed))
        for family, of in listed.items()
        for number, entry in enumerate(of)
    }
    left |= {split: ("splits", "splits", number) for number, split in enumerate(known.splits)}
    # The first is for all rows that no other is for, and stays.
    left |= {stride: ("strides", "strides", number) for number, stride in enumerate(known.strides) if number}
    for plan in grid(known, target):
        problem = plan.problem
        left.pop(id(explain.entry_of(plan)), None)
        if plan.policy is not None:
            ratio = problem.width // max(problem.k, LINES_RANK)
            left.pop(known.stride_for(problem.rows, problem.width, ratio, device), None)
            if 2 * problem.rows <= device.sm_count:
                left.pop(known.split_for(problem.width), None)
    return list(left.values())


def used(found: tuned.Tuned, target: Target) -> tuned.Tuned:
    """Return a file without the entries that decide no plan."""
    with _shapes(found, target) as known:
        left_out = unused(known, target)
    return tuned.Tuned(found.about, without(found.parts, left_out))


@contextmanager
def _shapes(found: tuned.Tuned, target: Target) -> Iterator[shapes.Shapes]:
    """Plan with a file for a while."""
    shipped = tuned.shapes_of(target.device, target.dtype)
    other = tuned.with_parts(shipped, found, target.device, "tuned.json")
    with tuned.replaced(shipped, other):
        yield other


def without_spills(found: tuned.Tuned, target: Target, progress: Progress) -> tuned.Tuned:
    """Return a file whose resident shapes are for calls without options only, where a kernel for options would spill.

    The kernels of `grid` are compiled for that, again after each change.
    """
    from ksieve.backends.cuda.jit.spec import kernel_spec

    while True:
        with _shapes(found, target) as known:
            launched = {
                kernel_spec(launch): launch
                for plan in grid(known, target)
                if not plan.problem.options.plain
                for launch in launches(plan)
                if launch.family in known.resident
            }
            short = [explain.entry_of(launched[spec]) for spec in unfit(launched, progress)]
            places = {
                (family, number)
                for family, entries in known.resident.items()
                for number, entry in enumerate(entries)
                if not entry.plain and any(entry is one for one in short)
            }
        if not places:
            return found
        resident = {
            family: [entry | ({"plain": True} if (family, number) in places else {}) for number, entry in enumerate(of)]
            for family, of in found.parts["resident"].items()
        }
        found = tuned.Tuned(found.about, {**found.parts, "resident": resident})


def count(parts: Parts) -> int:
    """Return the number of entries of a file."""
    return sum(sum(map(len, of.values())) if isinstance(of, Mapping) else len(of) for of in parts.values())


def without(parts: Mapping[str, Any], left_out: Iterable[tuple[str, str, int]]) -> Parts:
    """Return the parts of a file without some of its entries."""
    dropped = set(left_out)

    def kept(part: str, family: str, entries: Sequence[Entry]) -> list[Entry]:
        return [entry for number, entry in enumerate(entries) if (part, family, number) not in dropped]

    found: Parts = {}
    for part, listed in parts.items():
        if isinstance(listed, Mapping):
            found[part] = {family: some for family, of in listed.items() if (some := kept(part, family, of))}
        else:
            found[part] = kept(part, part, listed)
    return found


def grid(known: shapes.Shapes, target: Target) -> Iterator[Plan]:
    """Plans of the shapes at which entries begin and end, with few options: where an entry is used, one shows it."""
    entries = [e for listed in (known.resident, known.streamed) for of in listed.values() for e in of]
    rows = {1, 2, 100_000} | {entry.most_rows + step for entry in entries for step in (0, 1)}
    rows |= {entry.fewest_rows for entry in entries} | {target.device.sm_count // splits for splits in SPLITS}
    rows |= {stride.most_rows + step for stride in known.strides for step in (0, 1)}
    widths = {entry.resident_width for entry in entries} | {entry.widest for entry in entries}
    widths |= {split.narrowest for split in known.splits} | {stride.narrowest for stride in known.strides}
    widths |= {2 * target.k * stride.ratio for stride in known.strides} | {131_072, 524_288, 2_097_152, 8_388_608}
    widths |= {LINES_RANK * stride.ratio for stride in known.strides}
    for m, n, k, options in product(
        sorted(rows - {0}),
        sorted(width for width in widths if 0 < width <= cuda.MAX_WIDTH),
        (512, target.k),
        ASKED,
    ):
        if k <= n:
            yield choose.choose(Problem(m, n, n, k, target.dtype, Device("cuda", 0), options), target.device)
