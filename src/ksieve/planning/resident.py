"""Launch shapes that keep rows on chip: which of them fits a device, and which can run a problem."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from functools import lru_cache

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.core.problem import Problem
from ksieve.planning import tuned
from ksieve.planning.families import ONE_CTA
from ksieve.planning.memory import (
    CANDIDATE_BYTES,
    candidate_bytes_of,
    fewest_stored,
    register_slots,
    resident_slots,
    tied,
)
from ksieve.planning.shapes import Geometry, Shapes
from ksieve.planning.switch_points import NOT_MEASURED, RESIDENT_RANK

MOST_EACH = 64
"""Scores of a thread in a shape that is taken with a CTA fewer."""

ONE_FEWER = f"{NOT_MEASURED}one CTA fewer than was tuned for plain calls"
"""Source of a shape with more registers for options (docs/decisions/0048-one-cta-fewer-for-options.md)."""


def geometry_of(device: DeviceInfo, family: str, roomy: bool = False) -> Geometry:
    """Launch shape of a family on a device; with `roomy`, fewer resident CTAs and more registers for each.

    Raises `ArgumentError` if the device cannot run the family.
    """
    found = tuned.shapes_of(device)
    family = "resident_block" if family == "register_block" and family in found.resident else family
    if family not in found.usual:
        raise ArgumentError("family", repr(family), "a device of compute capability 9.0 or later")
    return found.roomy[family] if roomy and family in found.roomy else found.usual[family]


def resident_geometry(problem: Problem, device: DeviceInfo, families: tuple[str, ...]) -> Geometry | None:
    """Launch shape that keeps rows of a width on chip, if there is one: the last of the narrowest for any more rows.

    If the last of `resident_block` says for how many rows it is, more are kept on chip only for a large k. With fewer
    resident CTAs where only so the positions of a row's slots can be collected.
    """
    known, family = tuned.shapes_of(device, problem.dtype), families[-1]
    one_cta = family in ONE_CTA
    candidates = _fitted(known, device, families, problem.options.lean, problem.options.positions)
    found, narrowest = None, 0
    for geometry, room in candidates[bisect_left(candidates, problem.width, key=lambda c: c[0].resident_width) :]:
        if found is not None and geometry.resident_width > narrowest:
            break
        if _possible(problem, device, known, family, geometry, room):
            found, narrowest = (geometry, room), geometry.resident_width
            if not geometry.most_rows or problem.rows <= geometry.most_rows:
                break
    if found is None:
        return None
    geometry, room = found
    if one_cta and 0 < geometry.most_rows < problem.rows and problem.k <= RESIDENT_RANK:
        return None

    def resident(ctas: int) -> Geometry:
        most = geometry.most_rows and max(geometry.most_rows * ctas // geometry.ctas_per_sm, 1)
        return replace(geometry, ctas_per_sm=ctas, most_rows=most)

    if geometry.overflow_vectors and tied(problem):
        return _alone(resident(1))
    if resident_slots(room, problem.dtype) >= problem.k:
        return geometry
    fewer = [resident(ctas) for ctas in range(geometry.ctas_per_sm - 1, 1, -1)]
    return next(
        (
            shape
            for shape in (*fewer, _alone(resident(1)))
            if resident_slots(candidate_bytes_of(shape, device, problem.dtype), problem.dtype) >= problem.k
        ),
        None,
    )


@lru_cache(maxsize=512)
def _fitted(
    known: Shapes, device: DeviceInfo, families: tuple[str, ...], lean: bool, positions: bool
) -> tuple[tuple[Geometry, int], ...]:
    """Resident shapes of some families, narrowest first, with the bytes that each leaves for candidates.

    They have fewer resident CTAs where a multiprocessor has less shared memory than the one they were measured on. So
    they have for options (not `lean`) on another architecture, and for `positions`: ptxas would spill from 64
    registers, which suffice for what was measured. A shape of many small CTAs for plain calls alone, of any number of
    rows, has one CTA fewer for options. Its threads of up to `MOST_EACH` scores then do not spill. Without it, no shape
    may be left for these rows. So has one of four CTAs whose rows are not all in the ring, where values and tie-breaks
    are read; they then are.
    """

    def fitted(shape: Geometry) -> tuple[Geometry, int]:
        many = shape.ctas_per_sm > 2 and shape.resident_width <= MOST_EACH * shape.threads
        spills = many and shape.plain and not shape.most_rows and not shape.overflow_vectors
        if not lean and (spills or (shape.overflow_vectors and shape.ctas_per_sm > 3)):
            shape = replace(shape, ctas_per_sm=shape.ctas_per_sm - 1, overflow_vectors=0, plain=False, source=ONE_FEWER)
        derived = "resident" in known.derived and not lean
        tight = (positions or derived) and shape.threads * shape.ctas_per_sm >= 1024
        for ctas in range(shape.ctas_per_sm - bool(tight), 0, -1):
            fewer = replace(shape, ctas_per_sm=ctas)
            if (room := candidate_bytes_of(fewer, device, known.dtype)) >= 0:
                return fewer, room
        return shape, candidate_bytes_of(shape, device, known.dtype)

    listed = [fitted(g) for family in families if family in known.resident for g in known.of_family(family, device)]
    return tuple(sorted(listed, key=lambda found: found[0].resident_width))  # keeps the families' order


def _alone(geometry: Geometry) -> Geometry:
    """Return the shape with a multiprocessor for each CTA, and so the whole row in its ring."""
    return replace(geometry, ctas_per_sm=1, overflow_vectors=0)


def _possible(problem: Problem, device: DeviceInfo, known: Shapes, family: str, geometry: Geometry, room: int) -> bool:
    """Whether a resident shape, which has room for the rows and `room` bytes for candidates, can run a problem."""
    if family == "resident_cluster" and geometry.ctas_per_row > known.cluster_limit(device):
        return False
    if geometry.registers and (tied(problem) or problem.options.order != "any"):
        return False
    if geometry.registers and problem.k > register_slots(geometry, problem.dtype):
        return False
    if family in ONE_CTA and problem.rows < geometry.fewest_rows:
        return False
    if geometry.plain and not problem.options.lean:
        return False
    if family == "resident_grid" and not _grid_may_hold(problem, device, geometry):
        return False
    if family == "resident_grid" and geometry.ctas_per_row > device.sm_count * geometry.ctas_per_sm:
        return False  # its CTAs wait for each other, so all of them must run at once
    if geometry.overflow_vectors and tied(problem) and candidate_bytes_of(_alone(geometry), device, problem.dtype) < 0:
        return False  # tie-breaks need the whole row in the ring
    stored = CANDIDATE_BYTES * fewest_stored(problem) if family == "resident_cluster" and tied(problem) else 0
    return stored <= room


def _grid_may_hold(problem: Problem, device: DeviceInfo, geometry: Geometry) -> bool:
    """Whether CTAs of a grid may share the rows. There is no order and no tie-break, and the call waits for the one
    before. A cluster could store the candidates, since it makes statistics.
    """
    options = problem.options
    plain = options.order == "any" and not tied(problem) and not options.overlap
    spills = geometry.overflow_vectors > 0 and options.rewritten  # ptxas would
    stored = CANDIDATE_BYTES * fewest_stored(problem)
    return (
        plain
        and not spills
        and stored <= candidate_bytes_of(geometry_of(device, "resident_cluster"), device, problem.dtype)
    )
