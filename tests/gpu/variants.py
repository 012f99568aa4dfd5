"""Every way that a row can be worked on: kernel families with their policies, splits and storage, as forced plans."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from flat_calls import plan_of
from ksieve.backends.cuda.jit import bundle, cache
from ksieve.backends.cuda.jit.compile import Cubin, Sources
from ksieve.backends.cuda.jit.spec import KernelSpec, kernel_spec
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.options import PLAIN, Options
from ksieve.core.policy import LINES_64, PAPER_64, PAPER_128, SamplingPolicy
from ksieve.planning.choose_cuda import one_cta
from ksieve.planning.families import QUEUED
from ksieve.planning.length_bins import launches
from ksieve.planning.memory import with_workspace
from ksieve.planning.plan import Plan
from ksieve.planning.switch_points import BINNED_ROWS

EXACT = SamplingPolicy("exact-grouped-64", 64, group=4, boundary="exact")
EXACT_128 = SamplingPolicy("exact-128", 128, boundary="exact")
"""Ranks its samples in shared memory, also those of a million scores beside a second resident block."""
GROUPED = SamplingPolicy("grouped-64-rescue", 64, rescue_margin=1.75, group=4)
PEAKS = SamplingPolicy("peaks-32x4", 32, group=4, peaks=True, boundary="exact")
PEAKS_COARSE = SamplingPolicy("peaks-64x4-rescue", 64, rescue_margin=1.75, group=4, peaks=True)


EITHER = "one CTA"
"""Stands for both families of one CTA: the planner chooses between them."""


@dataclass(frozen=True)
class Variant:
    """A kernel family with everything that selects a code path inside it."""

    name: str
    family: str
    policy: SamplingPolicy | None = None
    splits: int | None = None
    many: int = 0
    """Rows that the launch shape is for, where there are fewer."""

    def plan(
        self,
        rows: int,
        width: int,
        k: int,
        *,
        pitch: int | None = None,
        dtype: str = "float32",
        options: Options = PLAIN,
        **changes: Any,
    ) -> Plan:
        """Force a plan; `changes` are fields of it to replace, such as a smaller shared capacity."""
        make = functools.partial(
            plan_of,
            rows=max(rows, self.many),
            width=width,
            k=k,
            pitch=pitch,
            dtype=dtype,
            device="cuda",
            options=options,
        )
        family = self.family
        if family == EITHER:
            chosen = make()
            family = one_cta(chosen.problem, chosen.device)
        plan = make(family=family, policy=self.policy, splits=self.splits)
        if rows < self.many:
            changes = {"problem": replace(plan.problem, rows=rows), "ctas": min(rows, plan.ctas)} | changes
        return with_workspace(replace(plan, **changes)) if changes else plan


MANY = 200
"""Rows of which multiprocessors have more than one, and not yet so many that small CTAs take them."""

MANY_SHORT = 512
"""Rows of which more and smaller CTAs take care, if they are short."""

VARIANTS: dict[str, Variant] = {
    v.name: v
    for v in (
        Variant("persistent-64", "stream", PAPER_64),
        Variant("persistent-128", "stream", PAPER_128),
        Variant("persistent-grouped", "stream", GROUPED),
        Variant("persistent-tied", "stream", EXACT, many=MANY),
        Variant("persistent-peaks", "stream", PEAKS, many=MANY),
        Variant("split-2", "stream_split", PAPER_64, 2),
        Variant("split-4", "stream_split", PAPER_128, 4),
        Variant("split-8", "stream_split", PAPER_64, 8),
        Variant("split-8-tied", "stream_split", EXACT_128, 8),
        Variant("split-32-lines", "stream_split", LINES_64, 32),
        Variant("persistent-lines", "stream", LINES_64),
        Variant("split-2-peaks", "stream_split", PEAKS_COARSE, 2),
        Variant("row", EITHER),
        Variant("cluster", "resident_cluster"),
        Variant("persistent-exact", "stream_unsampled"),
    )
}
"""Rows stay on chip in "row" and "cluster" as far as their launch shapes for the width go; others are streamed."""

ALL = VARIANTS | {v.name: v for v in (Variant("cooperative", "resident_grid"), Variant("warp", "register_warp"))}
"""And those that have no other rows: no longer than their launch shapes hold, and of few options."""


def small_storage(plan: Plan, shared: int, spill: int = 0) -> Plan:
    """The same plan with room for few candidates, so that frontiers overflow into the spill and into rescans."""
    if plan.policy is not None and plan.policy.boundary == "exact":
        # The samples are ranked where the candidates will be: without room for them the row is not sampled at all.
        samples = plan.problem.width // plan.policy.stride + plan.policy.group - plan.columns * plan.threads
        shared = max(shared, -(-samples // 256) * 256)
    return with_workspace(replace(plan, capacity=shared + spill, shared_capacity=shared))


def overflowing(plan: Plan, shared: int = 256) -> Plan:
    """The same with a spill for as many where the family has one."""
    if plan.family == "resident_cluster" and plan.stages * plan.threads < 512:
        shared = 1024  # the counts of a cluster (kernels/resident/cluster_scope.cuh) have no room in such a ring
    if plan.family == "stream_split":  # all that are selected may be of one worker, which stores them without a spill
        shared = max(shared, -(-plan.problem.selection.k // 256) * 256)
    return small_storage(plan, shared, 256 if plan.family in QUEUED else 0)


def crowded(variant: Variant, planned: int, rows: int, width: int, k: int, *, ctas: int, **options: Any) -> Plan:
    """The launch shape of `planned` rows for fewer `rows` on few CTAs, each of which meets many of them."""
    plan = variant.plan(planned, width, k, **options)
    return with_workspace(replace(plan, problem=replace(plan.problem, rows=rows), ctas=ctas))


def banded(rows: int, width: int, k: int, *, ctas: int | None = None, **asked: Any) -> Plan:
    """The launches that many rows are dealt to, for fewer `rows`, with `ctas` CTAs each."""
    plan = plan_of(rows=BINNED_ROWS, width=width, k=k, device="cuda", **asked)
    fewer = {"ctas": ctas} if ctas else {}
    bands = tuple(replace(band, **fewer) for band in plan.bins)
    return with_workspace(replace(plan, problem=replace(plan.problem, rows=rows), bins=bands, **fewer))


def possible(variant: Variant, *shape: int, **options: Any) -> list[Plan]:
    """The plan of a shape, or nothing where the planner refuses it: a test will meet the refusal and fail alone."""
    try:
        return [variant.plan(*shape, **options)]
    except ArgumentError:
        return []


def precompile(plans: Iterable[tuple[Plan, bool]], calls: Iterable[Callable[[], object]] = ()) -> int:
    """Compile what (plan, with statistics) pairs and calls need into the disk cache, on all cores; how many kernels."""
    wanted = {kernel_spec(part, stats=stats) for plan, stats in plans for part in launches(plan)}
    compiled(wanted)
    left = list(calls)
    while left:  # a call stops at the first kernel that is not there, and is made again when it is
        lacking: set[KernelSpec] = set()
        left = [call for call in left if _lacks(call, lacking)]
        if lacking <= wanted:  # nothing is new, or nothing can be kept
            break
        compiled(lacking)
        wanted |= lacking
    return len(wanted)


def compiled(specs: Collection[KernelSpec]) -> None:
    """Compile these on all cores."""
    for _, found in cache.compile_all(specs):
        if isinstance(found, BackendError):
            raise found


def _lacks(call: Callable[[], object], lacking: set[KernelSpec]) -> bool:
    """Make a call; whether it met a kernel that is not there. Any other failure is its test's to report."""
    met: set[KernelSpec] = set()

    def kept(spec: KernelSpec, sources: Sources | None = None) -> tuple[Cubin, bool]:
        if sources is not None:
            return cache.obtain(spec, sources)
        if (found := cache.kept(spec)) is None:
            met.add(spec)
            raise BackendError("compiled later")
        return found, False

    with mock.patch.object(bundle, "obtain", kept), contextlib.suppress(Exception):
        call()
    lacking |= met
    return bool(met)
