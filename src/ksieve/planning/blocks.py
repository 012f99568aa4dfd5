"""Plans for CUDA devices of rows whose entries are blocks of scores (`Options.block_size`).

A row is read once and pooled to its entries, which are fewer. A family keeps entries on chip; the scores take the time.
So CTAs share the rows of small calls. Of many rows, a multiprocessor reads several at a time, and selects from some
meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ksieve.core.device import DeviceInfo
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, shown
from ksieve.core.policy import SamplingPolicy
from ksieve.core.problem import Problem
from ksieve.planning import memory, shapes
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import Geometry, Shapes
from ksieve.planning.switch_points import BLOCKS_SHARED, NOT_MEASURED, STUDIED_SLICES

FAMILIES = ("resident_block", "resident_cluster", "stream_unsampled")
"""Families that pool blocks: to the rings of one CTA or of a cluster, and to the workspace."""

TILES = (
    (256, 4, (2048, 4096, 8192)),
    (512, 2, (12_288, 16_384, 20_480, 24_576, 32_768, 40_960, 49_152)),
)
"""Threads of a CTA, most CTAs of a multiprocessor, and the entries that one keeps on chip."""

REWRITTEN = ((256, 3, (2048, 4096, 8192)), (256, 2, (12_288, 16_384)), (512, 1, (24_576, 32_768)))
"""The same where the epilogue writes the slots of a row that one CTA has."""

_SOURCE = NOT_MEASURED + "the registers of resident shapes, and shared memory for two CTAs a multiprocessor"


def choose(
    problem: Problem,
    device: DeviceInfo,
    known: Shapes,
    family: str | None,
    policy: SamplingPolicy | str | None,
    splits: int | None,
) -> Plan:
    """Choose a plan for rows of blocks; see `ksieve.planning.choose.choose`. `known`: the device's shapes."""
    if policy is not None and policy != "direct":
        name = policy.name if isinstance(policy, SamplingPolicy) else shown(policy)
        raise ArgumentError("policy", name, "'direct', or nothing, with block_size: blocks are not sampled")
    if splits is not None:
        raise ArgumentError("splits", splits, "nothing with block_size")
    possible = [f for f in FAMILIES if f in known.usual]
    if family is not None and family not in possible:
        raise ArgumentError("family", repr(family), f"one of {possible} with block_size on this device")
    inner = problem.selection
    asked = replace(inner, k=max(inner.k, 1))
    size = problem.options.block_size
    if family in (None, "resident_cluster") and "resident_cluster" in possible:
        shape = _clustered(problem, asked, device, known, family is not None)
        if shape is not None:
            what = (
                f"a cluster of {shape.ctas_per_row} CTAs keeps the blocks of a row of {problem.width:,} scores on chip"
            )
            return _plan(problem, asked, device, "resident_cluster", shape, what)
    if family in (None, "resident_block"):
        shape = next(_resident(asked, device, 1), None)
        if shape is not None:
            what = f"rows of {asked.width} blocks of {size} scores stay on chip and are read once"
            return _plan(problem, asked, device, "resident_block", shape, what)
    if family in (None, "stream_unsampled"):
        what = "blocks are pooled to the workspace: too many to stay on chip, or ties have a preference"
        shape = replace(known.usual["stream_unsampled"], ctas_per_sm=2, source=_SOURCE)
        return _plan(problem, asked, device, "stream_unsampled", shape, what)
    takes = f"another family: {asked.width} blocks a row, with this k and tie-break, cannot be kept on chip"
    raise ArgumentError("family", repr(family), takes)


def studied(plan: Plan) -> Plan:
    """Return the plan of the statistics build: candidates are counted where all blocks of a row are in memory."""
    known = shapes.of(plan.device, plan.problem.dtype)
    found = choose(plan.problem, plan.device, known, "stream_unsampled", None, None)
    most = max(STUDIED_SLICES // memory.slice_bytes(plan.problem), 1)
    return memory.with_workspace(replace(found, ctas=min(found.ctas, most)))


def _resident(asked: Problem, device: DeviceInfo, ctas_per_row: int) -> Iterator[Geometry]:
    """Launch shapes whose CTAs keep the entries of a row on chip, with the most CTAs a multiprocessor each."""
    if memory.tied(asked):
        return
    options = asked.options
    rewritten = options.finished or options.index_dtype == "int64"  # ptxas would spill in 64 registers
    tight = ctas_per_row == 1 and rewritten
    for threads, most, tiles in REWRITTEN if tight else TILES:
        for tile in tiles:
            if tile * ctas_per_row < asked.width:
                continue
            for ctas in range(most, 0, -1):
                shape = Geometry(
                    threads, ctas, resident_width=tile * ctas_per_row, ctas_per_row=ctas_per_row, source=_SOURCE
                )
                room = memory.candidate_bytes_of(shape, device, asked.dtype)
                # A cluster adds up counts where candidates would be, since its ring keeps the entries.
                least = memory.HISTOGRAM_BYTES if ctas_per_row > 1 else 0
                ring = memory.HISTOGRAM_BYTES + 4 * tile
                if (
                    room >= max(least, memory.sort_bytes(asked) - ring)
                    and memory.resident_slots(room, asked.dtype) >= asked.k
                ):
                    yield shape
                    break


def _clustered(problem: Problem, asked: Problem, device: DeviceInfo, known: Shapes, forced: bool) -> Geometry | None:
    """Shape of the clusters that share rows: of few rows as many CTAs as are idle, of long ones the fewest with room.

    None where one CTA for each row does as well.
    """
    limit = known.cluster_limit(device)
    sizes = [c for c in (2, 4, 8, 16) if c <= limit]
    found = {c: shape for c in sizes if (shape := next(_resident(asked, device, c), None)) is not None}
    if not found:
        return None
    scores = problem.width * SCORE_DTYPES[problem.dtype].size
    idle = [c for c in found if problem.rows * c <= device.sm_count and scores >= c * BLOCKS_SHARED]
    if idle:
        return replace(found[idle[-1]], ctas_per_sm=1)
    alone = next(_resident(asked, device, 1), None)
    if alone is not None and alone.ctas_per_sm > 1 and not forced:
        return None
    crowded = [c for c in found if found[c].ctas_per_sm > 1]
    if alone is not None and not crowded and not forced:
        return None
    return found[crowded[0] if crowded else min(found)]


def _plan(problem: Problem, asked: Problem, device: DeviceInfo, family: str, shape: Geometry, reason: str) -> Plan:
    storage = memory.storage_of(asked, device, shape, family, None)
    storage = replace(storage, spill=0) if shape.resident_width else storage
    per_row, workers = shape.ctas_per_row, device.sm_count * shape.ctas_per_sm
    ctas = per_row * problem.rows if family == "resident_cluster" else min(problem.rows, workers)
    return memory.plan_of(problem, device, family, None, shape, storage, ctas=ctas, per_row=per_row, reason=reason)
