"""Plans for CUDA devices: which kernel family owns which rows, and in which launch shape.

Pure arithmetic on host-known facts; the numbers that were tuned are in `ksieve.planning.switch_points` and
`ksieve.planning.shapes`, what needs how much memory in `ksieve.planning.memory`. The families and what they assume are
described at the top of their sources in `ksieve/kernels`.
"""

from __future__ import annotations

from dataclasses import replace

from ksieve.core.device import DeviceInfo
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, shown
from ksieve.core.policy import SamplingPolicy, resolve_policy, with_stride
from ksieve.core.problem import MAX_WIDTH, Problem
from ksieve.planning import blocks, memory, shapes, tuned
from ksieve.planning import switch_points as points
from ksieve.planning.families import BY_POSITION, IN_REGISTERS, ONE_CTA, SAMPLED, SHARED_ROWS
from ksieve.planning.plan import FORCED, Plan
from ksieve.planning.resident import geometry_of, resident_geometry
from ksieve.planning.shapes import Geometry, Shapes


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
    if problem.options.positions and family is not None and family not in BY_POSITION:
        raise ArgumentError("family", f"{family!r} with positions", f"one of {list(BY_POSITION)}, or None")
    if problem.width > MAX_WIDTH:
        raise ArgumentError("scores", f"width {problem.width}", f"width of at most {MAX_WIDTH} on a CUDA device")
    if problem.options.block_size > 1:
        return blocks.choose(problem, device, _known(problem, device), family, policy, splits)
    if problem.options.forced:
        inner = problem.selection
        plan = choose(replace(inner, k=max(inner.k, 1)), device, family, policy, splits, kept)
        return memory.with_workspace(replace(plan, problem=problem, bins=(), bin=None))
    chosen = resolve_policy(policy) if policy is not None else _default_policy(problem, device, family, kept)
    if chosen is not None and problem.options.positions:
        raise ArgumentError("policy", f"{chosen.name} with positions", "None or 'direct': no row of them is sampled")
    if chosen is not None and chosen.boundary == "exact" and chosen.rescue_margin is not None:
        raise ArgumentError("policy", f"{chosen.name}: an exact boundary with a rescue", "either of the two on CUDA")
    if splits is not None and (type(splits) is not int or splits not in range(1, points.MOST_SPLITS + 1)):
        raise ArgumentError("splits", shown(splits), f"an int from 1 to {points.MOST_SPLITS}")
    if family is None:
        family, reason = _choose_family(problem, device, chosen, kept)
        plan = _plan(problem, device, family, chosen, splits, reason)
        return _binned(plan) if policy is None else replace(plan, reason=f"{plan.reason}; policy {FORCED}")
    return _plan(problem, device, family, chosen, splits, f"family {FORCED}")


def _known(problem: Problem, device: DeviceInfo) -> Shapes:
    """Launch shapes of a device for a problem's dtype."""
    return tuned.shapes_of(device, problem.dtype)


def _geometry(problem: Problem, device: DeviceInfo, family: str, policy: SamplingPolicy | None) -> Geometry:
    """Launch shape of a family for a problem; with fewer resident CTAs if only then its slots can be sorted on chip."""
    found = _known(problem, device)
    roomy = policy is not None and policy.boundary == "coarse"  # it would spill in the shapes that were measured
    roomy |= problem.dtype != shapes.DTYPE and family == "stream_split" and not problem.options.lean
    geometry = geometry_of(device, family, roomy)
    if family == "register_warp":
        return _warp_geometry(problem, device, geometry)
    if family in found.streamed and not roomy:
        suiting = (shape for shape in found.of_family(family, device) if shape.suits(problem.rows, problem.width))
        geometry = next(suiting, geometry)
    elif family in found.resident and not roomy:
        geometry = resident_geometry(problem, device, (family,)) or geometry
    needed = memory.fixed_bytes(geometry.resident_width, geometry.threads, 1) + memory.sort_bytes(problem)
    if (
        needed > device.shared_per_sm // geometry.ctas_per_sm - memory.RESERVED_SHARED
        and needed <= device.shared_per_block
    ):
        return replace(geometry, ctas_per_sm=1)
    return geometry


def _warp_geometry(problem: Problem, device: DeviceInfo, usual: Geometry) -> Geometry:
    """Launch shape whose warps keep a row each, of the next power of two. It has no resident width for rows that are
    too wide, for an order, or for a tie-break.
    """
    item = SCORE_DTYPES[problem.dtype].size
    width = max(1 << (problem.width - 1).bit_length(), memory.LANES * memory.VECTOR_BYTES // item)
    if width > usual.resident_width or memory.tied(problem) or problem.options.order != "any":
        return replace(usual, resident_width=0)
    segments = problem.options.windows == "segments" and not problem.options.rewritten
    more = memory.SEGMENT_REGISTERS if segments else 0 if problem.options.lean else memory.OPTION_REGISTERS
    registers = width // memory.LANES + memory.WARP_REGISTERS + more
    most = points.SEGMENT_CTAS if segments else usual.ctas_per_sm
    ctas = min(memory.REGISTERS_PER_SM // (registers * usual.threads), most)
    shape = replace(usual, resident_width=width, ctas_per_sm=ctas)
    while memory.candidate_bytes_of(shape, device, problem.dtype) < memory.CANDIDATE_BYTES * memory.warp_lists(shape):
        shape = replace(shape, ctas_per_sm=shape.ctas_per_sm - 1)
    return shape


def _default_policy(problem: Problem, device: DeviceInfo, family: str | None, kept: bool) -> SamplingPolicy | None:
    """Sampling policy by row width; None where sampling does not pay."""
    width, k = problem.width, problem.k
    if problem.options.positions or (family is not None and family not in SAMPLED):
        return None
    if family is None and not _better_streamed(problem, device) and _on_chip(problem, device, kept):
        return None
    ratio = points.CROWDED_RATIO if problem.rows >= points.CROWDED else points.SAMPLED_RATIO
    if family is None and (width < points.SHORTEST_SAMPLED or ratio * k > width):
        return None  # a forced family samples at any width; rows too short for the samples go direct on the device
    found = _known(problem, device).stride_for(problem.rows, width, width // max(k, points.LINES_RANK), device)
    return _bounded(resolve_policy(found.policy), problem)


def _choose_family(problem: Problem, device: DeviceInfo, policy: SamplingPolicy | None, kept: bool) -> tuple[str, str]:
    """Family of a shape, and the reason as text."""
    rows, width = problem.rows, problem.width
    if policy is not None:
        splits = _splits(problem, device, policy)
        paying = _known(problem, device).split_for(width)
        if paying is not None and 2 * splits > paying.fewest:  # round up to the next power of two
            return "stream_split", f"{rows:,} long rows leave multiprocessors idle: {splits} CTAs share a row"
        if rows >= device.sm_count:
            return "stream", f"{rows:,} rows fill the device: one CTA owns a row"
        return "stream", f"{rows:,} rows of {width:,} scores: merging split rows would cost more than it saves"
    narrow = width <= points.WARP_WIDTH and rows >= points.WARP_ROWS * device.sm_count
    if narrow and _geometry(problem, device, "register_warp", None).resident_width:
        return "register_warp", f"{rows:,} rows of {width:,} scores: a warp keeps each in registers"
    if found := _on_chip(problem, device, kept):
        return found
    clusters = "resident_cluster" in _known(problem, device).usual
    if clusters and rows * points.CLUSTER <= device.sm_count and width > problem.k and _cluster_stores(problem, device):
        return "resident_cluster", f"{rows:,} rows too short to sample: a cluster of {points.CLUSTER} CTAs shares a row"
    if problem.options.positions:
        return "stream_unsampled", "scores have positions of their own: exact boundary"
    return "stream_unsampled", "rows too short to sample, or k too large for a resident frontier: exact boundary"


def _on_chip(problem: Problem, device: DeviceInfo, kept: bool) -> tuple[str, str] | None:
    """Family whose CTAs keep rows on chip, which costs no second read, and the reason as text; None if no row fits.

    Zeroing the workspace of a grid in front of each call may take longer than that saves, where another family needs
    none.
    """
    rows = f"{problem.rows:,} rows of {problem.width:,} scores"
    one = problem.width <= _geometry(problem, device, "resident_block", None).resident_width
    cluster = _fits_cluster(problem, device)
    if (kept or not (one or cluster)) and _fits_grid(problem, device):
        ctas = _geometry(problem, device, "resident_grid", None).ctas_per_row
        return "resident_grid", f"{rows}: {ctas} CTAs keep a row on chip together"
    if cluster:
        ctas = _geometry(problem, device, "resident_cluster", None).ctas_per_row
        return "resident_cluster", f"{rows}: a cluster of {ctas} CTAs keeps a row on chip"
    return (
        (one_cta(problem, device), f"rows of {problem.width:,} scores stay on chip and are read once") if one else None
    )


def one_cta(problem: Problem, device: DeviceInfo) -> str:
    """Of the families whose CTAs keep a row each, the one with the better shape."""
    segments = problem.options.windows == "segments" and problem.rows > points.WARP_ROWS * device.sm_count
    if segments or "register_block" not in _known(problem, device).resident:
        return "resident_block"
    found = resident_geometry(problem, device, ONE_CTA)
    return "register_block" if found is not None and found.registers else "resident_block"


def _better_streamed(problem: Problem, device: DeviceInfo) -> bool:
    """Whether rows that fit on chip take less time sampled and streamed.

    Streamed candidates keep their keys, which give values, and the places of equal scores. A row that fills a
    multiprocessor reads the scores of values again, which delays the next one; with a tie-break it takes the exact
    route.
    """
    options, row = problem.options, problem.width * SCORE_DTYPES[problem.dtype].size
    many = problem.rows * row > device.sm_count * device.shared_per_sm
    if options.tie_break != "any":
        return row > points.TIED_RESIDENT or (many and row >= points.TIED_BYTES)
    valued = options.values and options.order == "any" and options.expand == 1 and problem.rows < points.BINNED_ROWS
    return valued and many and row >= points.VALUED_BYTES and problem.rows > device.sm_count


def _fits_cluster(problem: Problem, device: DeviceInfo) -> bool:
    """Whether rows are few and short enough for clusters to keep on chip, which saves a merge over global memory.

    Not rows that one CTA keeps with registers to spare, nor rows with a tie-break, which clusters only slow down.
    """
    if problem.options.tie_break != "any":
        return False
    if problem.width < points.SAMPLED_RATIO * problem.k or problem.width <= points.SHORTEST_CLUSTERED:
        return False
    if "resident_cluster" not in _known(problem, device).usual:
        return False
    geometry = _geometry(problem, device, "resident_cluster", None)
    fits = problem.width <= geometry.resident_width and problem.rows <= geometry.most_rows
    return fits and _cluster_stores(problem, device)


def _fits_grid(problem: Problem, device: DeviceInfo) -> bool:
    """Whether CTAs that are no cluster keep rows on chip, and are all resident: they wait for each other."""
    if "resident_grid" not in _known(problem, device).usual or problem.width < points.SAMPLED_RATIO * problem.k:
        return False
    geometry = _geometry(problem, device, "resident_grid", None)
    fits = problem.width <= geometry.resident_width < 2 * problem.width
    pays = geometry.fewest_rows <= problem.rows <= geometry.most_rows
    return fits and pays and problem.rows * geometry.ctas_per_row <= device.sm_count * geometry.ctas_per_sm


def _cluster_stores(problem: Problem, device: DeviceInfo) -> bool:
    """Whether a cluster has room on chip for all the candidates of a row: it has no spill slice."""
    geometry = _geometry(problem, device, "resident_cluster", None)
    return memory.storage_of(problem, device, geometry, "resident_cluster", None).spill == 0


def _splits(problem: Problem, device: DeviceInfo, policy: SamplingPolicy) -> int:
    """CTAs per row that give each multiprocessor one; 0 when whole rows already do."""
    usual = next(
        (s for s in points.SPLITS if problem.rows * s <= device.sm_count and s * points.SEGMENT <= problem.width), 0
    )
    if not usual or problem.width <= points.WIDEST_USUAL:
        return usual
    return _huge_splits(problem, device, policy, _geometry(problem, device, "stream_split", policy), usual)


def _bounded(policy: SamplingPolicy | None, problem: Problem) -> SamplingPolicy | None:
    """Return a policy whose view can be ranked on chip, or that admits as many candidates as it ranks samples.

    Every CTA of a row ranks the whole view, and what its columns cannot hold it reads from memory again. A sparser view
    admits more candidates, which the last CTA has to read. Their sum is least where both are about as many.
    """
    if policy is None:
        return None
    kind, k = "bursts" if policy.peaks else "quads", problem.k
    while (ranked := memory.statistics_bound(problem.width, policy)) > points.MOST_STATISTICS:
        if ranked <= policy.primary_rank(k) * policy.stride - k:
            break
        policy = with_stride(kind, 2 * policy.stride)
    return policy


def _huge_splits(problem: Problem, device: DeviceInfo, policy: SamplingPolicy, geometry: Geometry, usual: int) -> int:
    """Return the CTAs a row that run at once, not only powers of two: 64 leave half of 132 multiprocessors idle.

    Fewer where the slices for their candidates would take more memory than the rows, and more than `MOST_SLICES`.
    """
    rows, count = max(problem.rows, 1), device.sm_count
    slice_bytes = memory.CANDIDATE_BYTES * memory.storage_of(problem, device, geometry, "stream_split", policy).spill
    room = max(SCORE_DTYPES[problem.dtype].size * problem.width * rows, points.MOST_SLICES)
    asked = (min(ctas // rows, points.MOST_SPLITS) for ctas in (count * geometry.ctas_per_sm, count))
    return next((s for s in asked if s > usual and rows * s * slice_bytes <= room), usual)


def sample_ranks(plan: Plan) -> tuple[int, int]:
    """Sample ranks of a plan's boundaries, primary and rescue; 0 for one that it does not have."""
    if plan.policy is None:
        return 0, 0
    k = max(plan.problem.selection.k, 1)
    return plan.policy.primary_rank(k), plan.policy.rescue_rank(k) or 0


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
    if splits is not None and family != "stream_split":
        raise ArgumentError("splits", splits, f"nothing for family {family!r}: only stream_split splits rows")
    geometry = _geometry(problem, device, family, policy)
    if family == "register_warp" and not geometry.resident_width:
        widest = geometry_of(device, family).resident_width
        takes = f"another family: warps hold rows of up to {widest:,} scores, in any order and without tie-breaks"
        raise ArgumentError("family", repr(family), takes)
    if family == "register_block" and not geometry.registers:
        takes = "another family: registers hold rows of up to 16,384 scores, in any order and without tie-breaks"
        raise ArgumentError("family", repr(family), takes)
    if family == "resident_grid" and not geometry.resident_width:
        raise ArgumentError("family", repr(family), "another family: these rows cannot be kept on chip by several CTAs")
    if family == "resident_cluster" and 0 < geometry.resident_width < problem.width:
        raise ArgumentError(
            "geometry", f"resident_width={geometry.resident_width}", f"0, or at least the width of {problem.width}"
        )
    storage = memory.storage_of(problem, device, geometry, family, policy)
    if storage.spill and family == "resident_cluster":
        raise ArgumentError("family", repr(family), f"another family: k={problem.k} does not fit shared memory")
    workers = device.sm_count * geometry.ctas_per_sm
    ctas, per_row = min(problem.rows, workers), 1
    mostly_whole = 4 * problem.k >= points.WHOLE_QUARTERS * problem.width
    if family == "register_warp":
        ctas = min(-(-problem.rows * memory.LANES // geometry.threads), workers)
    elif geometry.registers and mostly_whole and problem.rows <= points.WHOLE_WAVES * workers:
        ctas = problem.rows
    if family == "stream_split" and policy is not None:
        per_row = splits or _splits(problem, device, policy) or points.SPLITS[-1]
        ctas = problem.rows * per_row
    elif family in SHARED_ROWS:
        per_row = geometry.ctas_per_row if geometry.resident_width else points.CLUSTER
        ctas = per_row * problem.rows
        if family == "resident_grid":
            ctas = per_row * min(problem.rows, workers // per_row)
    return memory.plan_of(problem, device, family, policy, geometry, storage, ctas=ctas, per_row=per_row, reason=reason)


def _binned(plan: Plan) -> Plan:
    """Add launches for bins of shorter rows, if there are enough rows."""
    problem, device = plan.problem, plan.device
    if problem.rows < points.BINNED_ROWS or problem.width > points.WIDEST_BINNED or memory.tied(problem):
        return plan
    if plan.family in IN_REGISTERS:
        return plan  # it takes every row, and would select rows of the other launches again
    bins: list[Plan] = []
    for limit in (points.BIN_WIDTH * (i + 1) for i in range(points.MOST_BINS)):
        asked = replace(problem, width=limit)
        family = one_cta(asked, device)
        if limit >= problem.width or _geometry(asked, device, family, None).resident_width != limit:
            break
        launch = _plan(asked, device, family, None, None, f"rows of up to {limit} scores stay on chip")
        if launch.ctas_per_sm < _geometry(replace(asked, k=1), device, family, None).ctas_per_sm:
            break  # where k leaves room for fewer rows at a time, nothing has been measured
        bins.append(launch)
    if not bins:
        return plan
    numbered = tuple(replace(launch, bin=i) for i, launch in enumerate(bins))
    return memory.with_workspace(replace(plan, bins=numbered, bin=len(bins)))
