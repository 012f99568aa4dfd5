"""Memory of CUDA plans: what a CTA has on chip, how many candidates that leaves room for, and the workspace.

Pure arithmetic. Each number names the source whose structs it mirrors, and the kernels check the sums when they are
compiled. `ksieve.planning.choose_cuda` decides what is planned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ksieve.core.device import DeviceInfo
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.policy import PEAK, SamplingPolicy
from ksieve.core.problem import Problem
from ksieve.planning.families import QUEUED, SHARED_ROWS
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import DERIVED, TUNED, Geometry
from ksieve.planning.switch_points import COLUMN_SIGMAS, EXACT_CAPACITY, NOT_MEASURED, SORTED_PERIODS, TAIL_SIGMAS

HEADER_BYTES = 256
"""Leading workspace bytes that hold the row queue (kernels/common/workspace.cuh)."""

HISTOGRAM_BYTES = 8192
"""Shared memory of a CTA's histogram; output positions of resident rows come in its place."""

LANES = 32
"""Threads of a warp."""

VECTOR_BYTES = 16
"""Bytes of a thread's load."""

REGISTERS_PER_SM = 65_536
"""Registers of a multiprocessor, compute capability 8.0 and later."""

WARP_REGISTERS = 24
"""Registers of a thread besides its scores, where a warp keeps a row (kernels/register/warp.cuh)."""

OPTION_REGISTERS = 16
"""And besides these, for the options of a call."""

SEGMENT_REGISTERS = 8
"""The same, for segments without further options."""

BATCH = 2
"""Vectors of 16 bytes that a thread processes together."""

STATE_ROWS = 1024
"""Rows that room for states is made for at a time, so that plans for different batches can share a workspace."""

ROW_STATE_BYTES = 32
"""Workspace of a split row besides its candidates (kernels/common/workspace.cuh, RowState)."""

CANDIDATE_BYTES = 8
"""One candidate: ordered key and index."""

NARROW_BYTES = 6
"""One in a column: ordered key and a 16-bit position among the scores of the thread, which determines the index."""

HEIGHT_BYTES = 4
"""Shared memory per thread besides its column and its places in the ring: the height of the column, if it has one."""

ENTRY_BYTES = 4
"""Bytes of the best score of a block."""

SHARED_LIST = 256
"""Candidates that outgrow their columns for which shared memory is kept."""

MAX_COLUMNS = 32
"""A column's candidates are bits of a word when they are written out (kernels/stream/refine.cuh)."""

RESERVED_SHARED = 1024
"""Shared memory that CUDA keeps for itself per resident CTA."""

SCALAR_BYTES = 1056
"""Shared memory after the candidates and heights; slots are sorted before it (epilogue/epilogue.cuh)."""

DESCRIBED_BYTES = 12 * 96
"""The same for families that hold rows: they describe more rows ahead (kernels/common/storage.cuh, kDescriptors)."""

SAMPLE_BYTES = 2
"""And for each of their threads, what it samples."""

SORT_CHUNK = 128
"""Smallest number of elements of a sort (kernels/common/sort.cuh, kSortChunk)."""

EXTRA_VECTORS = 2
"""Output positions of a resident row that have room of their own besides its slots, as many as a vector has scores
each (resident/descriptor.cuh, fits)."""

SPILLED_STEP = 7168
"""Candidates that room for them is a multiple of where some may spill: plans for several k then share a kernel."""

STORED_STEP = 256
"""Room for candidates is a multiple of so many bytes where rows are resident."""

FEWEST = 32
"""Unresolved candidates that are ranked at once (kernels/common/params.cuh, kTailMax)."""

OWNER_BYTES = 16 + 8 * FEWEST
"""What such CTAs count together on rare routes (kernels/resident/grid_mailbox.cuh, Owner)."""

BARRIERS = 24
"""And at most so many barriers of theirs (kernels/resident/grid_mailbox.cuh, kBarriers)."""

BINNED_ROW_BYTES = 8
"""A row in the list of one launch: its number and its length (kernels/length_bins.cuh)."""


def candidate_bytes_of(geometry: Geometry, device: DeviceInfo, dtype: str) -> int:
    """Bytes of shared memory for the candidates of a CTA that has no columns."""
    room = min(device.shared_per_sm // geometry.ctas_per_sm - RESERVED_SHARED, device.shared_per_block)
    ring = 16 * ring_stages(geometry, dtype) * geometry.threads
    return room - HISTOGRAM_BYTES - ring - fixed_bytes(geometry.resident_width, geometry.threads, 0)


def resident_slots(room: int, dtype: str) -> int:
    """Most slots of a resident row whose positions the histogram and `room` bytes for candidates can take."""
    more = EXTRA_VECTORS * VECTOR_BYTES // SCORE_DTYPES[dtype].size
    return (HISTOGRAM_BYTES + room // STORED_STEP * STORED_STEP) // 4 - more


def register_slots(geometry: Geometry, dtype: str) -> int:
    """Most slots of a row in registers: the ring and the histogram after it take their positions."""
    return (16 * ring_stages(geometry, dtype) * geometry.threads + HISTOGRAM_BYTES) // 4


def sort_bytes(problem: Problem, more: int = 0) -> int:
    """Memory in which the slots of a row, and `more`, are sorted: keys and positions by value, else positions.

    Beside positions that the scores have of their own lie their indices.
    """
    if problem.options.order == "any":
        return 0
    elements = max(1 << (problem.k + more - 1).bit_length(), SORT_CHUNK)
    return elements * (8 if problem.options.order == "value" or problem.options.positions else 4)


def sort_slots(plan: Plan) -> int:
    """8-byte elements of the workspace in which each CTA sorts; 0 if its shared memory is large enough.

    Forced entries of which positions decide are sorted with the others (epilogue/epilogue.cuh, stage_forced). Entries
    that stand for several positions are listed in the histogram while they are read from the sort (write_expanded). So
    they are sorted before it, in the ring.
    """
    options = plan.problem.options
    needed = sort_bytes(plan.problem.selection, options.forced if options.positions else 0)
    if options.expand > 1:
        room = VECTOR_BYTES * plan.stages * plan.threads
    else:
        room = shared_bytes(plan) - fixed_bytes(plan.resident_width, plan.threads, plan.columns)
    return 0 if needed <= room else needed // 8


def fixed_bytes(resident_width: int, threads: int, columns: int) -> int:
    """Shared memory after the candidates: heights of columns and scalars."""
    of_rows = DESCRIBED_BYTES + SAMPLE_BYTES * threads if resident_width else 0
    return HEIGHT_BYTES * (threads if columns else 4) + SCALAR_BYTES + of_rows


@dataclass(frozen=True, slots=True)
class Storage:
    """Candidates that a CTA holds: in a column of shared memory for each thread, and in a list after the columns."""

    columns: int
    shared: int
    spill: int


def fewest_stored(problem: Problem) -> int:
    """Candidates that a family which does not sample stores, unless it holds its rows."""
    return _round_up(max(problem.k, EXACT_CAPACITY), 256)


def warp_lists(geometry: Geometry) -> int:
    """Candidates that the warps of a CTA list, where each keeps a row (kernels/register/warp.cuh, WarpList)."""
    return FEWEST * geometry.threads // LANES


def tied(problem: Problem) -> bool:
    """Whether candidates are stored in any case: the plan has a tie-break, or scores have positions of their own."""
    return problem.options.tie_break != "any" or problem.options.positions


def storage_of(
    problem: Problem, device: DeviceInfo, geometry: Geometry, family: str, policy: SamplingPolicy | None
) -> Storage:
    """Room for the candidates of a row.

    The list can hold all of them, since with periodic scores one thread may read them all. It has room for k, and for
    an admitted tail `TAIL_SIGMAS` standard deviations above its mean. The variance of the realised rank is about the
    requested rank times the stride (paper, equation "exchangeable"). Four covered exchangeable rows, but clumped ones
    overflowed and were scanned again, at twice the latency of a small call. Of a sorted row, every score that peaks
    stand for reaches the boundary with them.
    """
    if family == "register_warp":
        return Storage(0, warp_lists(geometry), 0)
    wanted = problem.k
    if policy is not None:
        mean = policy.primary_rank(problem.k) * policy.stride
        if policy.rescue_margin is not None:
            mean = (policy.rescue_rank(problem.k) or 0) * policy.stride
        wanted = max(wanted, math.ceil(mean + TAIL_SIGMAS * math.sqrt(mean * policy.stride)))
        if policy.peaks:
            wanted = max(wanted, PEAK * mean + SORTED_PERIODS * policy.stride * policy.group)
        if policy.boundary == "exact":
            wanted = max(wanted, statistics_bound(problem.width, policy))  # statistics are ranked in place
    else:
        wanted = fewest_stored(problem)
    wanted = _round_up(wanted, 256)
    room = candidate_bytes_of(geometry, device, problem.dtype)
    ring = 16 * ring_stages(geometry, problem.dtype)
    columns = 0
    if policy is not None:
        share = mean / geometry.threads
        columns = math.ceil(share + COLUMN_SIGMAS * math.sqrt(share))
        entry = entry_bytes(family, problem.width, geometry.threads)
        room -= fixed_bytes(0, geometry.threads, 1) - fixed_bytes(0, geometry.threads, 0)  # heights of columns
        columns = min(columns, MAX_COLUMNS, (room - SHARED_LIST * CANDIDATE_BYTES) // (entry * geometry.threads))
        room -= columns * entry * geometry.threads
        ring += columns * entry
    sortable = HISTOGRAM_BYTES + ring * geometry.threads
    if 0 < sort_bytes(problem) - sortable <= room:
        # Candidates make room to sort in.
        wanted = max(wanted, _round_up((sort_bytes(problem) - sortable) // CANDIDATE_BYTES, 256))
    step = STORED_STEP if geometry.resident_width else 256 * CANDIDATE_BYTES  # resident rows leave no more room
    shared = min(wanted, room // step * step // CANDIDATE_BYTES)
    resident = family in SHARED_ROWS and geometry.resident_width > 0 and not tied(problem)
    if resident and resident_slots(room, problem.dtype) >= problem.k:
        wanted = shared  # all of its rows are resident, and no candidate is stored
    if policy is not None and wanted > shared:
        wanted = _round_up(wanted, SPILLED_STEP)
    return Storage(columns, shared, wanted - shared)


def entry_bytes(family: str, width: int, threads: int) -> int:
    """Bytes of a column's entry. Segments that are joined mix the scores of many threads: those keep whole indices."""
    narrow = family == "stream" and width <= (1 << 16) * (threads - 1)
    return NARROW_BYTES if narrow else CANDIDATE_BYTES


def ring_stages(geometry: Geometry, dtype: str) -> int:
    """Stages of a CTA's ring of loads (common/load.cuh): what a resident row fills, or the geometry's number.

    Warps that keep a row each need no ring, and their geometry says one stage.
    """
    if not geometry.resident_width or geometry.stages == 1:
        return geometry.stages
    return (
        geometry.resident_width // geometry.ctas_per_row * SCORE_DTYPES[dtype].size // (16 * geometry.threads)
        - geometry.overflow_vectors
    )


def batches(plan: Plan) -> int:
    """Batches that a turn of the ring is loaded in: of `BATCH` vectors, or where their number is odd of one.

    Of twice as many where one CTA streams a row of 16-bit scores and two batches are left. A warp takes the hits of a
    batch one after another, as many as its fullest lane has. In larger batches lanes differ less. CTAs of 1,024 threads
    that share a row would spill registers.
    """
    streamed = plan.family in QUEUED and SCORE_DTYPES[plan.problem.selection.dtype].size == 2
    batch = 2 * BATCH if streamed and plan.stages % (2 * BATCH) == 0 and plan.stages > 2 * BATCH else BATCH
    return plan.stages if plan.stages % batch else plan.stages // batch


def statistics_bound(width: int, policy: SamplingPolicy) -> int:
    """Largest number of ranked samples of a row of `width` scores."""
    scores = math.ceil(width / (policy.stride * policy.group)) * policy.group
    return math.ceil(scores / PEAK) if policy.peaks else scores


def plan_of(
    problem: Problem,
    device: DeviceInfo,
    family: str,
    policy: SamplingPolicy | None,
    geometry: Geometry,
    storage: Storage,
    *,
    ctas: int,
    per_row: int,
    reason: str,
) -> Plan:
    """Make the plan of a launch shape and the storage that it leaves, with its workspace."""
    if geometry.source.startswith(DERIVED):
        reason += f"; launch shape {geometry.source.removeprefix(NOT_MEASURED)}: not measured"
    elif geometry.source.startswith((TUNED, NOT_MEASURED)):
        reason += f"; launch shape {geometry.source}"
    plan = Plan(
        problem,
        device,
        family,
        policy,
        storage.shared + storage.spill,
        resident_width=geometry.resident_width,
        splits=per_row,
        ctas=ctas,
        threads=geometry.threads,
        ctas_per_sm=geometry.ctas_per_sm,
        shared_capacity=storage.shared,
        stages=ring_stages(geometry, problem.selection.dtype),
        overflow_vectors=geometry.overflow_vectors,
        columns=storage.columns,
        reason=reason,
    )
    return with_workspace(plan)


def with_workspace(plan: Plan) -> Plan:
    """Size a plan's workspace from its other fields; needed again after `dataclasses.replace` changes one of them."""
    spill, sort = plan.spill_capacity, sort_slots(plan)
    if plan.family == "stream_split":
        states = HEADER_BYTES + _round_up(plan.problem.rows, STATE_ROWS) * ROW_STATE_BYTES
        lists = plan.problem.rows * (plan.capacity + plan.splits * spill + sort) * CANDIDATE_BYTES
        return replace(plan, workspace_bytes=states + lists, workspace_zeroed=states, lists_at=states)
    if plan.family == "resident_grid":
        together = plan.ctas // plan.splits
        turns = 1 if plan.problem.rows <= together else 2
        size = HEADER_BYTES + turns * together * mailbox_bytes(plan.splits)
        return replace(plan, workspace_bytes=size, workspace_zeroed=size)
    queue = plan.family in QUEUED or plan.passes_on
    if queue and plan.problem.options.block_size > 1:
        lists = _round_up(HEADER_BYTES + plan.ctas * (spill + sort) * CANDIDATE_BYTES, HEADER_BYTES)
        size = lists + plan.ctas * slice_bytes(plan.problem)
        return replace(plan, workspace_bytes=size, workspace_zeroed=HEADER_BYTES, lists_at=lists)
    size = HEADER_BYTES + plan.ctas * (spill + sort) * CANDIDATE_BYTES if queue or spill or sort else 0
    plan = replace(plan, workspace_bytes=size, workspace_zeroed=HEADER_BYTES if queue else 0)
    if not plan.bins:
        return plan
    # Launches come one after another and share what precedes their lists.
    lists = _round_up(max(size, *(with_workspace(launch).workspace_bytes for launch in plan.bins)), HEADER_BYTES)
    bins = tuple(replace(launch, lists_at=lists) for launch in plan.bins)
    size = lists + HEADER_BYTES + plan.problem.rows * (1 if plan.passes_on else len(bins) + 1) * BINNED_ROW_BYTES
    return replace(plan, workspace_bytes=size, lists_at=lists, bins=bins)


def slice_bytes(problem: Problem) -> int:
    """Workspace in which a CTA pools a row of blocks (kernels/common/workspace.cuh, block_slice)."""
    return _round_up((problem.width // problem.options.block_size + 1) * ENTRY_BYTES, HEADER_BYTES)


def mailbox_bytes(ctas: int) -> int:
    """Workspace in which the CTAs that share a row exchange messages (resident/grid_mailbox.cuh, GridMailbox)."""
    return _round_up(2 * HISTOGRAM_BYTES + 16 * ctas + 8 * FEWEST + 16 + OWNER_BYTES + 4 * (BARRIERS + 1), 16)


def shared_bytes(plan: Plan) -> int:
    """Dynamic shared memory of a plan's kernel."""
    column = plan.columns * entry_bytes(plan.family, plan.problem.selection.width, plan.threads)
    threads = (16 * plan.stages + column) * plan.threads
    behind = fixed_bytes(plan.resident_width, plan.threads, plan.columns)
    return HISTOGRAM_BYTES + threads + plan.shared_capacity * CANDIDATE_BYTES + behind


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
