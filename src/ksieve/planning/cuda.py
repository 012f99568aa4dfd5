"""Plans for CUDA devices: which kernel family owns which rows, and in which launch shape.

Pure arithmetic on host-known facts; the numbers that were tuned are in `ksieve.planning.thresholds` and
`ksieve.planning.shapes`, what needs how much memory in `ksieve.planning.memory`. The families and what they assume are
described at the top of their sources in `ksieve/kernels`.
"""

from __future__ import annotations

from dataclasses import replace

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, shown
from ksieve.core.policy import LINES_16, LINES_64, LINES_128, QUADS_16, SamplingPolicy, resolve_policy
from ksieve.core.problem import Problem
from ksieve.planning import shapes
from ksieve.planning.memory import (
    CANDIDATE_BYTES,
    RESERVED_SHARED,
    SHARED_ROWS,
    bytes_behind,
    fewest_stored,
    held_positions,
    ring_stages,
    room_of,
    sort_bytes,
    storage_of,
    tied,
    with_workspace,
)
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import Geometry
from ksieve.planning.thresholds import (
    BAND,
    BANDED_ROWS,
    CLUSTER,
    CROWDED,
    CROWDED_RATIO,
    DENSE_LINES,
    FEWEST_SPLITS,
    HELD_RANK,
    LINES_RANK,
    MANY_SHORT,
    MOST_BANDS,
    SAMPLED_RATIO,
    SEGMENT,
    SHORTEST_CLUSTERED,
    SHORTEST_SAMPLED,
    SPARSE_LINES,
    SPARSE_ROWS,
    SPLIT_IN_FOUR,
    SPLIT_IN_TWO,
    SPLITS,
    WHOLE_QUARTERS,
    WHOLE_WAVES,
    WIDE_CLUSTERS,
    WIDEST_BANDED,
)

MAX_WIDTH = (1 << 31) - (1 << 20)
"""Widest row: scan positions are 32-bit and run past the end by up to one batch of loads."""

SAMPLED = ("persistent_sampled", "split_sampled")
MAX_SPLITS = 256


def choose(
    problem: Problem,
    device: DeviceInfo,
    family: str | None,
    policy: SamplingPolicy | str | None,
    splits: int | None = None,
    kept: bool = True,
) -> Plan:
    """Choose a CUDA plan; see `planner.choose`."""
    if family is not None and (not isinstance(family, str) or family not in shapes.families()):
        raise ArgumentError("family", shown(family), f"one of {list(shapes.families())} on a CUDA device")
    if problem.width > MAX_WIDTH:
        raise ArgumentError("scores", f"width {problem.width}", f"width of at most {MAX_WIDTH} on a CUDA device")
    chosen = resolve_policy(policy) if policy is not None else _default_policy(problem, device, family, kept)
    if chosen is not None and chosen.boundary == "exact" and chosen.rescue_margin is not None:
        raise ArgumentError("policy", f"{chosen.name}: an exact boundary with a rescue", "either of the two on CUDA")
    if splits is not None and (type(splits) is not int or splits not in range(1, MAX_SPLITS + 1)):
        raise ArgumentError("splits", shown(splits), f"an int from 1 to {MAX_SPLITS}")
    if family is None:
        family, reason = _choose_family(problem, device, chosen, kept)
        plan = _plan(problem, device, family, chosen, splits, reason)
        return _banded(plan) if policy is None else plan
    return _plan(problem, device, family, chosen, splits, "family forced by the caller")


def geometry_of(device: DeviceInfo, family: str, roomy: bool = False) -> Geometry:
    """Launch shape of a family on a device; with `roomy`, fewer resident CTAs and more registers for each.

    Raises
    ------
    ArgumentError
        If the device cannot run the family.
    """
    found = shapes.of(device)
    if family not in found.usual or (family in SHARED_ROWS and device.capability < (9, 0)):
        raise ArgumentError("family", repr(family), "a device of compute capability 9.0 or later")
    return found.roomy[family] if roomy and family in found.roomy else found.usual[family]


def _roomy(problem: Problem, policy: SamplingPolicy | None) -> bool:
    """Whether a specialisation would spill with two resident CTAs of 512 threads."""
    return problem.dtype != "float32" or (policy is not None and policy.boundary == "coarse")


def _geometry(problem: Problem, device: DeviceInfo, family: str, policy: SamplingPolicy | None) -> Geometry:
    """Launch shape of a family for a problem; with fewer resident CTAs if only then its slots can be sorted on chip."""
    roomy = _roomy(problem, policy)
    geometry = geometry_of(device, family, roomy)
    found = shapes.of(device)
    if geometry is found.usual[family] and _many_short(problem, device, family):
        geometry = found.short[family]
    elif geometry is found.usual[family] and family in found.alone and problem.rows <= device.sm_count:
        geometry = found.alone[family]
    elif family in found.resident and not roomy:
        geometry = _held_geometry(problem, device, family) or geometry
    needed = bytes_behind(geometry.held, geometry.threads, 1) + sort_bytes(problem)
    if needed > device.shared_per_sm // geometry.ctas_per_sm - RESERVED_SHARED and needed <= device.shared_per_block:
        return replace(geometry, ctas_per_sm=1)
    return geometry


def _held_geometry(problem: Problem, device: DeviceInfo, family: str) -> Geometry | None:
    """Launch shape that keeps rows of a width on chip, if there is one: the last of the narrowest for any more rows.

    If the last of `row_exact` says for how many rows it is, more are kept for the sake of many slots alone. With fewer
    resident CTAs where only so the positions of a row's slots can be collected.
    """

    def alone(geometry: Geometry) -> Geometry:
        return replace(geometry, ctas_per_sm=1, beside=0)

    def possible(geometry: Geometry) -> bool:
        if geometry.holders > CLUSTER and device.sm_count < WIDE_CLUSTERS:
            return False
        if geometry.registers and (tied(problem) or problem.options.order != "any"):
            return False
        if family == "row_exact" and problem.rows < geometry.fewest_rows:
            return False
        if geometry.plain and not problem.options.plain:
            return False
        if family == "cooperative_exact" and not _gathered(problem, device, geometry):
            return False
        if family == "cooperative_exact" and geometry.holders > device.sm_count * geometry.ctas_per_sm:
            return False  # its CTAs wait for each other, so all of them must run at once
        if geometry.beside and tied(problem) and room_of(alone(geometry), device, problem.dtype) < 0:
            return False  # tie-breaks need the whole row in the ring
        stored = CANDIDATE_BYTES * fewest_stored(problem) if family == "cluster_exact" and tied(problem) else 0
        return problem.width <= geometry.held and stored <= room_of(geometry, device, problem.dtype)

    fitting = [g for g in shapes.of(device).resident_of(family, device) if possible(g)]
    same = [g for g in fitting if g.held == fitting[0].held]
    found = next((g for g in same if not g.most_rows or problem.rows <= g.most_rows), same[-1] if same else None)
    if found is None:
        return None
    if family == "row_exact" and 0 < found.most_rows < problem.rows and problem.k <= HELD_RANK:
        return None

    def resident(ctas: int) -> Geometry:
        return replace(found, ctas_per_sm=ctas, most_rows=found.most_rows * ctas // found.ctas_per_sm)

    whole = alone(resident(1))
    if found.beside and tied(problem):
        return whole
    fewer = [resident(ctas) for ctas in (found.ctas_per_sm, *range(found.ctas_per_sm - 1, 1, -1))]
    return next((g for g in (*fewer, whole) if held_positions(room_of(g, device, problem.dtype)) >= problem.k), None)


def _gathered(problem: Problem, device: DeviceInfo, geometry: Geometry) -> bool:
    """Whether CTAs may hold a row together over the workspace: its slots have no order and none of equal scores is
    preferred, it waits for the call before, and a cluster could store its candidates, which is what statistics are of.
    """
    options = problem.options
    plain = options.order == "any" and not tied(problem) and not options.overlap
    spills = geometry.beside > 0 and options.rewritten  # ptxas would
    stored = CANDIDATE_BYTES * fewest_stored(problem)
    return plain and not spills and stored <= room_of(geometry_of(device, "cluster_exact"), device, problem.dtype)


def _many_short(problem: Problem, device: DeviceInfo, family: str) -> bool:
    """Whether a problem has many short rows, for which many small CTAs are faster."""
    found = shapes.of(device)
    if family not in found.short or geometry_of(device, family, problem.dtype != "float32") is not found.usual[family]:
        return False
    return problem.rows >= MANY_SHORT and problem.width <= found.short[family].widest


def _default_policy(problem: Problem, device: DeviceInfo, family: str | None, kept: bool) -> SamplingPolicy | None:
    """Sampling policy by row width; None where sampling does not pay."""
    width, k = problem.width, problem.k
    if family is not None and family not in SAMPLED:
        return None
    if family is None and (_held_alone(problem, device) or _cooperates(problem, device, kept)):
        return None
    ratio = CROWDED_RATIO if problem.rows >= CROWDED else SAMPLED_RATIO
    if family is None and (width < SHORTEST_SAMPLED or ratio * k > width):
        return None  # a forced family samples at any width; rows too short for the samples go direct on the device
    reach = width // max(k, LINES_RANK)
    if reach < DENSE_LINES:
        return QUADS_16
    if reach < LINES_64.stride:
        return LINES_16
    return LINES_128 if width >= SPARSE_LINES and problem.rows <= SPARSE_ROWS * device.sm_count else LINES_64


def _choose_family(problem: Problem, device: DeviceInfo, policy: SamplingPolicy | None, kept: bool) -> tuple[str, str]:
    """Family of a shape, and the reason as text."""
    rows, width = problem.rows, problem.width
    if policy is not None:
        splits = _splits(problem, device)
        if splits >= (2 if width >= SPLIT_IN_TWO else 4 if width >= SPLIT_IN_FOUR else FEWEST_SPLITS):
            return "split_sampled", f"{rows} long rows leave multiprocessors idle: {splits} CTAs share a row"
    if policy is not None:
        if rows >= device.sm_count:
            return "persistent_sampled", f"{rows} rows fill the device: one CTA owns a row"
        return "persistent_sampled", f"{rows} rows of {width} scores: merging split rows would cost more than it saves"
    if _cooperates(problem, device, kept):
        holders = _geometry(problem, device, "cooperative_exact", None).holders
        return "cooperative_exact", f"{rows} rows of {width} scores: {holders} CTAs keep a row on chip together"
    if _clustered(problem, device):
        holders = _geometry(problem, device, "cluster_exact", None).holders
        return "cluster_exact", f"{rows} rows of {width} scores: a cluster of {holders} CTAs keeps a row on chip"
    if _resident(problem, device):
        return "row_exact", f"rows of {width} scores stay on chip and are read once"
    clusters_pay = device.capability >= (9, 0) and rows * CLUSTER <= device.sm_count and width > problem.k
    if clusters_pay and _cluster_stores(problem, device):
        return "cluster_exact", f"{rows} rows too short to sample: a cluster of {CLUSTER} CTAs shares a row"
    return "persistent_exact", "rows too short to sample, or k too large for a resident frontier: exact boundary"


def _resident(problem: Problem, device: DeviceInfo) -> bool:
    """Whether one CTA can keep a row on chip: then its boundary costs no second read."""
    return problem.width <= _geometry(problem, device, "row_exact", None).held


def _clustered(problem: Problem, device: DeviceInfo) -> bool:
    """Whether rows are few and short enough for clusters to keep on chip, which saves a merge over global memory.

    Not those that one CTA keeps with registers to spare.
    """
    if device.capability < (9, 0) or problem.width < SAMPLED_RATIO * problem.k or problem.width <= SHORTEST_CLUSTERED:
        return False
    geometry = _geometry(problem, device, "cluster_exact", None)
    fits = problem.width <= geometry.held and problem.rows <= geometry.most_rows
    return fits and _cluster_stores(problem, device)


def _held_alone(problem: Problem, device: DeviceInfo) -> bool:
    """Whether one CTA or a cluster can keep a row on chip: that takes no workspace."""
    return _resident(problem, device) or _clustered(problem, device)


def _cooperates(problem: Problem, device: DeviceInfo, kept: bool) -> bool:
    """Whether CTAs that are no cluster keep rows on chip, and are all resident: they wait for each other.

    Zeroing a workspace in front of each call may take longer than that saves, where another family needs none.
    """
    if device.capability != (9, 0) or problem.width < SAMPLED_RATIO * problem.k:
        return False
    if not kept and _held_alone(problem, device):
        return False
    geometry = _geometry(problem, device, "cooperative_exact", None)
    fits = problem.width <= geometry.held < 2 * problem.width
    pays = geometry.fewest_rows <= problem.rows <= geometry.most_rows
    return fits and pays and problem.rows * geometry.holders <= device.sm_count * geometry.ctas_per_sm


def _cluster_stores(problem: Problem, device: DeviceInfo) -> bool:
    """Whether a cluster has room on chip for all the candidates of a row: it has no spill slice."""
    geometry = _geometry(problem, device, "cluster_exact", None)
    return storage_of(problem, device, geometry, "cluster_exact", None).spill == 0


def _splits(problem: Problem, device: DeviceInfo) -> int:
    """CTAs per row that give each multiprocessor one; 0 when whole rows already do."""
    return next((s for s in SPLITS if problem.rows * s <= device.sm_count and s * SEGMENT <= problem.width), 0)


def sample_ranks(plan: Plan) -> tuple[int, int]:
    """Sample ranks of a plan's boundaries, primary and rescue; 0 for one that it does not have."""
    if plan.policy is None:
        return 0, 0
    return plan.policy.primary_rank(plan.problem.k), plan.policy.rescue_rank(plan.problem.k) or 0


def _plan(
    problem: Problem,
    device: DeviceInfo,
    family: str,
    policy: SamplingPolicy | None,
    splits: int | None,
    reason: str,
) -> Plan:
    if family not in SAMPLED:
        policy = None
    elif policy is None:
        raise ArgumentError("policy", "'direct'", f"a sampling policy for family {family!r}")
    if splits is not None and family != "split_sampled":
        raise ArgumentError("splits", splits, f"nothing for family {family!r}: only split_sampled splits rows")
    geometry = _geometry(problem, device, family, policy)
    if family == "cooperative_exact" and not geometry.held:
        raise ArgumentError("family", repr(family), "another family: these rows cannot be held by several CTAs")
    if family == "cluster_exact" and 0 < geometry.held < problem.width:
        raise ArgumentError("geometry", f"held={geometry.held}", f"0, or at least the width of {problem.width}")
    storage = storage_of(problem, device, geometry, family, policy)
    if storage.spill and family == "cluster_exact":
        raise ArgumentError("family", repr(family), f"another family: k={problem.k} does not fit shared memory")
    workers = device.sm_count * geometry.ctas_per_sm
    ctas, per_row = min(problem.rows, workers), 1
    mostly_whole = 4 * problem.k >= WHOLE_QUARTERS * problem.width
    if geometry.registers and mostly_whole and problem.rows <= WHOLE_WAVES * workers:
        ctas = problem.rows
    if family == "split_sampled":
        per_row = splits or _splits(problem, device) or SPLITS[-1]
        ctas = problem.rows * per_row
    elif family in SHARED_ROWS:
        per_row = geometry.holders if geometry.held else CLUSTER
        ctas = per_row * problem.rows
        if family == "cooperative_exact":
            ctas = per_row * min(problem.rows, workers // per_row)
    plan = Plan(
        problem,
        device,
        family,
        policy,
        storage.shared + storage.spill,
        held=geometry.held,
        splits=per_row,
        ctas=ctas,
        threads=geometry.threads,
        ctas_per_sm=geometry.ctas_per_sm,
        shared_capacity=storage.shared,
        stages=ring_stages(geometry, problem.dtype),
        beside=geometry.beside,
        registers=geometry.registers,
        columns=storage.columns,
        reason=reason,
    )
    return with_workspace(plan)


def _banded(plan: Plan) -> Plan:
    """Add launches for bins of shorter rows, if there are enough rows."""
    problem, device = plan.problem, plan.device
    if problem.rows < BANDED_ROWS or problem.width > WIDEST_BANDED or tied(problem):
        return plan
    bands = []
    for limit in (BAND * (i + 1) for i in range(MOST_BANDS)):
        asked = replace(problem, width=limit)
        if limit >= problem.width or _geometry(asked, device, "row_exact", None).held != limit:
            break
        band = _plan(asked, device, "row_exact", None, None, f"rows of up to {limit} scores stay on chip")
        if band.ctas_per_sm < _geometry(replace(asked, k=1), device, "row_exact", None).ctas_per_sm:
            break  # where k leaves room for fewer rows at a time, nothing has been measured
        bands.append(band)
    if not bands:
        return plan
    dealt = tuple(replace(band, band=i) for i, band in enumerate(bands))
    return with_workspace(replace(plan, bands=dealt, band=len(bands)))
