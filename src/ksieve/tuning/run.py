"""``ksieve tune``: time launch shapes, splits and sampling strides on this GPU, and write the winners for the planner.

1. `questions` lists shapes of score matrices: widths of rows on chip and of longer ones, and row counts from one to
   many times the device. `candidates` lists what may answer them.
2. All kernels are compiled first, on all processors. Kernels that spill registers are left out.
3. `run` times the candidates of each question in one process, on the same inputs, and verifies their answers. Results
   are kept after each question, so that an interrupted run goes on where it stopped.
4. `ksieve.tuning.table` turns the winners into entries, each with its time, what came second, and by how much.
   It marks the shapes for calls without options.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ksieve.core.device import DeviceInfo
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.policy import LINES_16, LINES_64, LINES_128, QUADS_16
from ksieve.planning import shapes, tuned
from ksieve.planning.families import RESIDENT, SHARED_ROWS
from ksieve.planning.memory import CANDIDATE_BYTES, SHARED_LIST, candidate_bytes_of
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import Geometry
from ksieve.planning.switch_points import SEGMENT, SPLITS
from ksieve.tuning import tasks, timing
from ksieve.tuning.variants import PLANNED, Variant, compile_plans

if TYPE_CHECKING:
    from ksieve.backends.cuda.jit.spec import KernelSpec

ONE_CTA_WIDTHS = (
    3072, 4096, 8192, 12_288, 16_384, 20_480, 24_576, 28_672, 32_768, 36_864, 40_960, 45_056, 49_152, 57_344, 65_536,
)  # fmt: skip
SHARED_WIDTHS = (16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
FEW = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
WAVES = (0.5, 0.75, 1, 1.25, 2, 2.5, 3.1, 4, 8, 16, 32)
"""Row counts of one-CTA shapes, over the number of multiprocessors: some fill the device, some just do not."""

WIDER = " w"
"""In the name of a candidate, in front of its resident width where that is not the narrowest."""

STREAM_WIDTHS = (32_768, 131_072, 262_144, 524_288)
STREAM_WAVES = (0.5, 1, 1.9, 4, 16)
"""Widths and row counts, over the number of multiprocessors, of launch shapes for rows that do not stay on chip."""

STRIDE_WIDTHS = (32_768, 65_536, 98_304, 131_072, 262_144, 1_048_576)
STRIDE_WAVES = (1, 4)
"""The same of sampling strides."""

SPLIT_WIDTHS = (65_536, 131_072, 262_144, 524_288, 1_048_576, 2_097_152)
SPLIT_SHAPES_AT = (262_144, 1_048_576)
"""Widths of rows that CTAs share, and at which of them other launch shapes are tried. Rows are the most and the fewest
for 2 to 64 CTAs each (`split_rows`)."""

OVERFLOW = (0, 1, 2, 4, 5, 6, 8, 10)
"""Vectors outside the ring that are tried, fewest first."""

STREAMS = (Variant("stream", "stream"), Variant("stream_split", "stream_split"))
LAUNCHES = ((256, 2), (256, 3), (256, 4), (512, 1), (512, 2), (1024, 1))
"""Threads and CTAs for each multiprocessor that are tried for rows that do not stay on chip."""

STAGES = (4, 6, 8)
"""And loads in flight for each of these threads."""

POLICIES = tuple(policy.name for policy in (QUADS_16, LINES_16, LINES_64, LINES_128))
"""Sampling policies, the densest first."""

Question = tuple[int, int, int]
"""Rows, width and k."""

Times = Mapping[str, float]
Results = dict[str, dict[str, Any]]
Options = dict[Question, list[Variant]]
Progress = Callable[[int, int], None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """What is tuned for: a device, a score dtype, and the slots per row (half the width, where that is less)."""

    device: DeviceInfo
    dtype: str = shapes.DTYPE
    k: int = 2048

    def asked(self, rows: int, width: int) -> Question:
        """The question about a shape."""
        return rows, width, min(self.k, width // 2)


def questions(target: Target) -> list[Question]:
    """Return what is measured, that which decides most first."""
    count = target.device.sm_count

    def waves(of: Sequence[float], widths: Sequence[int]) -> list[tuple[int, int]]:
        return [(max(1, int(wave * count)), width) for width in widths for wave in of]

    found = waves(STREAM_WAVES, STREAM_WIDTHS) + waves(STRIDE_WAVES, STRIDE_WIDTHS)
    found += [(rows, width) for width in SPLIT_WIDTHS for s in SPLITS for rows in split_rows(s, count, width)]
    found += [(rows, width) for width in SHARED_WIDTHS for rows in FEW] + waves(WAVES, ONE_CTA_WIDTHS)
    asked = dict.fromkeys(target.asked(*shape) for shape in found)
    even = {width: i for i, width in enumerate((16_384, 65_536, 131_072, 8192, 32_768, 262_144, 4096, 1_048_576))}
    return sorted(asked, key=lambda shape: even.get(shape[1], len(even)))


def split_rows(splits: int, count: int, width: int) -> tuple[int, ...]:
    """The most and the fewest rows of a width that so many CTAs each are for: they fill the device, or half of it."""
    if splits * SEGMENT > width:
        return ()
    return (count // splits,) if splits == SPLITS[0] else (count // splits, count // (2 * splits) + 1)


def candidates(rows: int, width: int, target: Target) -> list[Variant]:
    """Return what a question about a shape may be answered with."""
    found = list(STREAMS) + list(_streamed(rows, width, target))
    for family in RESIDENT:
        found += [_variant(family, geometry) for geometry in _geometries(family, rows, width, target)]
    return found


def _variant(family: str, geometry: Geometry, splits: int = 0) -> Variant:
    """Candidate with a launch shape for any rows; its name and width say all of it (`tune_table.shape_of`)."""
    resident = family in RESIDENT
    names = ("resident_width", "ctas_per_row", "overflow_vectors") if resident else ("stages", "widest")
    changes = {name: getattr(geometry, name) for name in ("threads", "ctas_per_sm", *names)}
    words = [family, f"{geometry.threads}x{geometry.ctas_per_sm}"]
    words += [f"x{splits or geometry.ctas_per_row}"] if splits or family in SHARED_ROWS else []
    words += [f"+{geometry.overflow_vectors}"] if geometry.overflow_vectors else []
    words += [] if resident else [f"s{geometry.stages}"]
    limits = {"fewest_rows": 0, "most_rows": 0} | ({"plain": False} if resident else {})
    forced = (("splits", splits),) if splits else ()
    return Variant(" ".join(words), family, geometry=tuple({**changes, **limits}.items()), changes=forced)


def _streamed(rows: int, width: int, target: Target) -> Iterator[Variant]:
    """Launch shapes and strides of a wide row, or how many CTAs share it, for the questions that are about these."""
    device, count = target.device, target.device.sm_count
    found = (Geometry(*launch, stages) for launch, stages in itertools.product(LAUNCHES, STAGES))
    room = SHARED_LIST * CANDIDATE_BYTES
    listed = [shape for shape in found if candidate_bytes_of(shape, device, target.dtype) >= room]
    if width in STREAM_WIDTHS and 2 * rows >= count:
        yield from (_variant("stream", shape) for shape in listed)
    if width in STRIDE_WIDTHS and rows >= count:
        yield from (Variant(f"stream {policy}", "stream", policy) for policy in POLICIES)
    splits = next((s for s in SPLITS if rows in split_rows(s, count, width)), 0)
    if width in SPLIT_WIDTHS and splits:
        yield Variant(f"stream_split x{splits}", "stream_split", changes=(("splits", splits),))
        if width in SPLIT_SHAPES_AT:
            yield from (_variant("stream_split", shape, splits) for shape in listed if shape.stages > STAGES[0])


def _geometries(family: str, rows: int, width: int, target: Target) -> Iterator[Geometry]:
    """Launch shapes of the narrowest resident width of a family that has room for rows of `width` scores."""
    device = target.device
    shared = family in SHARED_ROWS
    if rows > FEW[-1] if shared else 4 * rows < device.sm_count:
        return
    resident = resident_width(family, width)
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
        found = [g for g in fitting if resident and possible(family, g, device, target.dtype)]
        # The ring as full as it gets, or one step less: with 8 vectors outside, rows are up to 8 % faster than with 6.
        # Where all of a row fits, 4 vectors outside are still up to 3 % faster.
        whole = bool(found) and not found[0].overflow_vectors
        yield from (g for g in found if g.overflow_vectors in (0, 4)) if whole else found[:2]


def possible(family: str, geometry: Geometry, device: DeviceInfo, dtype: str) -> bool:
    """Whether a resident shape can run on a device. ptxas may still need more registers."""
    share, outside = geometry.ctas_per_row, geometry.overflow_vectors
    if family == "resident_cluster" and share > shapes.of(device).cluster_limit(device):
        return False
    vector = 16 // SCORE_DTYPES[dtype].size
    vectors, rest = divmod(geometry.resident_width, vector * geometry.threads * share)
    if rest or not 8 <= vectors * vector <= 128:
        return False
    # kernels/resident/descriptor.cuh: a row is whole blocks, and most of a block's vectors are in the ring.
    blocks = math.gcd(vectors, outside)
    if outside and vectors // blocks <= 2 * (outside // blocks):
        return False
    # A tile of 128 KiB or more is copied in four chunks: each needs a stretch between vectors outside the ring.
    if 0 < outside < 3 and outside == blocks and 16 * geometry.threads * (vectors - outside) >= 128 << 10:
        return False
    return candidate_bytes_of(geometry, device, dtype) >= 0


def resident_width(family: str, width: int) -> int:
    """The narrowest width of a family's shapes that has room for rows of `width` scores; 0 if none has."""
    known = SHARED_WIDTHS if family in SHARED_ROWS else ONE_CTA_WIDTHS
    return next((w for w in known if w >= width), 0)


def planned(variant: Variant, question: Question, target: Target) -> Plan | None:
    """Return a candidate's plan; None where the planner refuses it, or changes its launch shape."""
    try:
        plan = variant.plan(*question, target.dtype, target.device)
    except ArgumentError:
        return None
    asked = dict(variant.geometry)
    return plan if all(getattr(plan, name) == asked[name] for name in ("threads", "ctas_per_sm") if asked) else None


def name_of(question: Question) -> str:
    """Key of a question in the results."""
    return f"{question[0]}x{question[1]}k{question[2]}"


def choice_of(question: Question, target: Target) -> str:
    """Name of the candidate that the planner's own choice is; empty if that is not a resident shape."""
    plan, width = PLANNED.plan(*question, target.dtype, target.device), question[1]
    if plan.family not in RESIDENT:
        return ""
    share = plan.splits if plan.family in SHARED_ROWS else 1
    shape = Geometry(
        plan.threads, plan.ctas_per_sm, resident_width=plan.resident_width, ctas_per_row=share,
        overflow_vectors=plan.overflow_vectors,
    )  # fmt: skip
    wider = f"{WIDER}{plan.resident_width}" if plan.resident_width != resident_width(plan.family, width) else ""
    return _variant(plan.family, shape).name + wider


def prepare(asked: Sequence[Question], target: Target, progress: Progress) -> Options:
    """Compile the kernels of all candidates; return each question's candidates that run as planned."""
    from ksieve.backends.cuda.jit.spec import kernel_spec

    options = {
        shape: [(v, plan) for v in candidates(*shape[:2], target) if (plan := planned(v, shape, target))]
        for shape in asked
    }
    plans = {kernel_spec(plan): plan for found in options.values() for _, plan in found}
    left_out = unfit(plans, progress)
    return {shape: [v for v, plan in found if kernel_spec(plan) not in left_out] for shape, found in options.items()}


def unfit(plans: Mapping[KernelSpec, Plan], progress: Progress) -> set[KernelSpec]:
    """Compile the kernels of plans; return those that do not compile, or cannot run as planned."""
    from ksieve.backends.cuda.jit import build

    made, found = compile_plans(plans.values(), progress), set()
    for spec, plan in plans.items():
        code = made[spec]
        if isinstance(code, BackendError):
            _log.warning("a launch shape is left out: %s", code)
        if isinstance(code, BackendError) or build.shortcomings(plan, spec, code.resources):
            found.add(spec)
    return found


def run(
    options: Options,
    target: Target,
    done: Results,
    *,
    rounds: int,
    end: float,
    progress: Progress,
    keep: Callable[[], None],
) -> None:
    """Measure the questions that `done` does not answer yet.

    `options`: from `prepare`. `done`: results by `name_of`, completed in place: ``us`` of each exact candidate, and
    ``choice``, the time of the planner's choice. A resident choice is a candidate too. `end`: time of
    ``time.monotonic`` from which no further question is begun. `keep`: called after each question.
    """
    device = tasks.require_device()
    for number, (shape, variants) in enumerate(options.items()):
        progress(number, len(options))
        if time.monotonic() > end:
            return
        times = _times(shape, variants, target.dtype, rounds, device)
        choice = times.pop(PLANNED.name, None)
        if choice and (name := choice_of(shape, target)):
            times.setdefault(name, choice)
        done[name_of(shape)] = {"us": times, "choice": choice}
        keep()
    progress(len(options), len(options))


def _times(
    question: Question, variants: Sequence[Variant], dtype: str, rounds: int, device: DeviceInfo
) -> dict[str, float]:
    """Median microseconds of the planner's choice and of the candidates whose answers were exact."""
    rows, width, k = question
    lengths = tasks.ragged(rows, width)
    matrices = tasks.allocate(rows, width, dtype, valid=tasks.valid_scores(lengths, width))
    if isinstance(matrices, str):  # no room
        return {}
    lengths = lengths.to(matrices[0].device)
    for number, matrix in enumerate(matrices):
        tasks.endpoint_structured(matrix, lengths, number)
    task, contenders = tasks.Task(matrices, lengths, k), []
    for variant in (PLANNED, *variants):
        with contextlib.suppress(ArgumentError):
            plan = variant.plan(rows, width, k, dtype, device)
            contenders.append(tasks.selector(variant, plan, task, judged=1))
    read_bytes = tasks.valid_scores(lengths, width) * matrices[0].element_size()
    found = timing.measure(contenders, len(matrices), read_bytes, rounds=rounds)
    return {one.name: one.median for one in found if one.exact and one.rounds}


def best_of(times: Times) -> str:
    """Name of the fastest candidate."""
    return min(times, key=lambda name: times[name])


def gain(done: Results, asked: Sequence[Question]) -> list[tuple[str, float, str, float]]:
    """Return for each measured question the planner's time, and the best candidate with its time."""
    rows = []
    for name in map(name_of, asked):
        found = done.get(name, {})
        if found.get("choice") and found["us"]:
            best = best_of(found["us"])
            rows.append((name, found["choice"], best, found["us"][best]))
    return rows


def about(target: Target) -> dict[str, Any]:
    """Return what a file is for: device, dtype and k."""
    return {"device": tuned.described(target.device), "dtype": target.dtype, "k": target.k}
