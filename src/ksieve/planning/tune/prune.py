"""What is kept of a file of `ksieve tune`: entries that decide plans, for calls whose kernels do not spill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any

from ksieve.core.arrays import Device
from ksieve.core.options import PLAIN, Options
from ksieve.core.problem import Problem
from ksieve.planning import choose, choose_cuda, explain, tuned
from ksieve.planning.length_bins import launches
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import Geometry, Shapes, Split, Stride
from ksieve.planning.switch_points import LINES_RANK, SPLITS
from ksieve.planning.tune.run import Progress, Target, unfit
from ksieve.planning.tune.table import Entry, Parts
from ksieve.planning.tuned import Tuned

ASKED = (
    PLAIN, Options(windows="ends"), Options(order="value"), Options(tie_break="low"),
    Options(transform="pages", page_size=64, raw=True),
)  # fmt: skip
"""Options whose kernels are others: some launch shapes spill with windows, some with slots in order or page tables."""


Made = Geometry | Split | Stride


def unused(known: Shapes, target: Target) -> list[Made]:
    """Return the entries that decide no plan of `grid`, nor are the first stride, which is for all other rows.

    `known`: what the planner uses now for the target, measured on a device of as many multiprocessors.
    """
    device = target.device
    shared: list[Made] = [*known.splits, *known.strides[1:]]
    left = {id(entry): entry for entry in (*known.listed, *shared)}
    for plan in grid(known, target):
        problem = plan.problem
        left.pop(id(explain.entry_of(plan)), None)
        if plan.policy is not None:
            ratio = problem.width // max(problem.k, LINES_RANK)
            left.pop(id(known.stride_for(problem.rows, problem.width, ratio, device)), None)
            if 2 * problem.rows <= device.sm_count:
                left.pop(id(known.split_for(problem.width)), None)
    return list(left.values())


def used(found: Tuned, target: Target) -> Tuned:
    """Return a file without the entries that decide no plan."""
    with _shapes(found, target) as known:
        left_out = set(map(id, unused(known, target)))
    return _each(found, known, lambda entry, made: None if id(made) in left_out else entry)


@contextmanager
def _shapes(found: Tuned, target: Target) -> Iterator[Shapes]:
    """Plan with a file for a while."""
    shipped = tuned.shapes_of(target.device, target.dtype)
    other = tuned.with_parts(shipped, found, target.device, "tuned.json")
    with tuned.replaced(shipped, other):
        yield other


def _each(found: Tuned, known: Shapes, change: Callable[[Entry, Made], Entry | None]) -> Tuned:
    """Return a file with each entry as changed, of which `known` has what it makes; None leaves the entry out."""

    def changed(entries: Any, made: Any) -> Any:
        if isinstance(entries, Mapping):
            return {family: some for family, of in entries.items() if (some := changed(of, made[family]))}
        return [new for entry, one in zip(entries, made, strict=True) if (new := change(entry, one)) is not None]

    return Tuned(found.about, {part: changed(of, getattr(known, part)) for part, of in found.parts.items()})


def without_spills(found: Tuned, target: Target, progress: Progress) -> Tuned:
    """Return a file whose resident shapes are for calls without options only, where a kernel for options would spill.

    The kernels of `grid` are compiled for that, again after each change.
    """
    from ksieve.backends.cuda.jit.spec import kernel_spec

    with _shapes(found, target) as known:
        launched = {
            kernel_spec(launch): launch
            for plan in grid(known, target)
            if not plan.problem.options.plain
            for launch in launches(plan)
            if launch.family in known.resident
        }
        entries = map(explain.entry_of, (launched[spec] for spec in unfit(launched, progress)))
        short = {id(entry) for entry in entries if entry is not None and not entry.plain}
    if not short:
        return found
    changed = _each(found, known, lambda entry, made: entry | ({"plain": True} if id(made) in short else {}))
    return without_spills(changed, target, progress)


def count(parts: Parts) -> int:
    """Return the number of entries of a file."""
    return sum(sum(map(len, of.values())) if isinstance(of, Mapping) else len(of) for of in parts.values())


def grid(known: Shapes, target: Target) -> Iterator[Plan]:
    """Plans of the shapes at which entries begin and end, with few options: where an entry is used, one shows it."""
    entries = known.listed
    rows = {1, 2, 100_000} | {entry.most_rows + step for entry in entries for step in (0, 1)}
    rows |= {entry.fewest_rows for entry in entries} | {target.device.sm_count // splits for splits in SPLITS}
    rows |= {stride.most_rows + step for stride in known.strides for step in (0, 1)}
    widths = {entry.resident_width for entry in entries} | {entry.widest for entry in entries}
    widths |= {split.narrowest for split in known.splits} | {stride.narrowest for stride in known.strides}
    widths |= {2 * target.k * stride.ratio for stride in known.strides} | {131_072, 524_288, 2_097_152, 8_388_608}
    widths |= {LINES_RANK * stride.ratio for stride in known.strides}
    for m, n, k, options in product(
        sorted(rows - {0}),
        sorted(width for width in widths if 0 < width <= choose_cuda.MAX_WIDTH),
        (512, target.k),
        ASKED,
    ):
        if k <= n:
            yield choose.choose(Problem(m, n, n, k, target.dtype, Device("cuda", 0), options), target.device)
