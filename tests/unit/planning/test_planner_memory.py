"""Memory of CUDA plans: where slots are sorted, how many are collected on chip, and what warps leave each other."""

from __future__ import annotations

import contextlib
import itertools
import re
from dataclasses import replace

import pytest

from flat_calls import plan_of
from frozen import frozen_shapes
from ksieve.backends.cuda.jit import spec
from ksieve.core.device import DEVICES
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError
from ksieve.core.options import Options
from ksieve.planning import length_bins, memory, shapes
from ksieve.planning.switch_points import WARP_ROWS
from parts import but_for

CUDA = sorted(name for name, device in DEVICES.items() if device.kind == "cuda")
DTYPES = sorted(SCORE_DTYPES)


@pytest.fixture(autouse=True, scope="module")
def frozen():
    with frozen_shapes():
        yield


# ---- where slots are sorted -------------------------------------------------------------------------------------

FAMILIES = (None, "resident_block", "resident_cluster", "stream_unsampled", "stream")
ORDERS = (
    *(Options(order="value", tie_break=ties, values=True) for ties in ("any", "low")),
    *(Options(order="index", tie_break=ties) for ties in ("any", "low")),
    Options(order="index", positions=True, force_last=3, forced_extra=True),
)
"""The last with forced entries that are found by their positions: they are sorted with the others."""


def sorted_bytes(plan):
    """Bytes of the sort of a row's slots, elements of 8 bytes or, where positions alone are sorted, of 4."""
    options = plan.problem.options
    slots = plan.problem.selection.k + (options.forced if options.positions else 0)
    elements = max(1 << (slots - 1).bit_length(), memory.SORT_CHUNK)
    return elements * (4 if options.order == "index" and not options.positions else 8)


def plans_in_order(name, dtype, expand):
    for options, width, k in itertools.product(ORDERS, (3000, 16_384, 131_072), (1, 1024, 2000, 2049, 4500, 10_000)):
        asked = {"width": width, "k": k, "dtype": dtype, "device": DEVICES[name]}
        for rows, family in itertools.product((1, 600), FAMILIES):
            with contextlib.suppress(ArgumentError):  # a family may not take the problem
                yield from length_bins.launches(
                    plan_of(**asked, rows=rows, family=family, options=replace(options, expand=expand))
                )


@pytest.mark.parametrize("name", but_for(["h200"], CUDA))
@pytest.mark.parametrize("dtype", DTYPES)
def test_entries_that_are_expanded_are_sorted_in_the_ring_or_in_the_workspace(name, dtype):
    """The kernel lists entries in the histogram, behind the ring, while it reads them from the sort."""
    on_chip = set()
    for plan in plans_in_order(name, dtype, 4):
        slots, ring = memory.sort_slots(plan), 16 * plan.stages * plan.threads
        assert sorted_bytes(plan) <= (8 * slots or ring), plan
        assert plan.family == "stream_split" or plan.workspace_bytes >= 8 * slots * plan.ctas, plan
        on_chip.add(slots == 0)
    assert on_chip == {True, False}


@pytest.mark.parametrize("name", ["a100", "h200"])
def test_other_slots_are_sorted_in_all_of_the_shared_memory(name):
    beyond = 0
    for plan in plans_in_order(name, "float32", 1):
        slots, ring = memory.sort_slots(plan), 16 * plan.stages * plan.threads
        scalars = memory.fixed_bytes(plan.resident_width, plan.threads, plan.columns)
        assert sorted_bytes(plan) <= (8 * slots or memory.shared_bytes(plan) - scalars), plan
        beyond += not slots and sorted_bytes(plan) > ring
    assert beyond, "some sorts need more than the ring"


# ---- slots that are collected on chip ---------------------------------------------------------------------------


def vectors_left():
    """Vectors of positions that the kernel keeps free behind the slots of a row, of as many as a vector has scores."""
    text = (spec.SOURCES / "resident" / "descriptor.cuh").read_text(encoding="utf-8")
    (left,) = re.findall(r"&& k <= kCollected - (\d+) \* kVector;", text)
    (collected,) = re.findall(r"constexpr int kCollected = (.*);", text)
    assert collected == "kBins + kSharedCapacity * static_cast<int>(sizeof(u64) / sizeof(int))"
    return int(left)


def collected(shared_capacity, dtype):
    """Most slots of a row for which the kernel's `fits` holds."""
    return memory.HISTOGRAM_BYTES // 4 + 2 * shared_capacity - vectors_left() * (16 // SCORE_DTYPES[dtype].size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slots_of_a_resident_row_are_those_that_the_kernel_takes(dtype):
    for room in (0, 255, 256, 5000, 100_000):
        shared_capacity = room // memory.STORED_STEP * memory.STORED_STEP // memory.CANDIDATE_BYTES
        assert memory.resident_slots(room, dtype) == collected(shared_capacity, dtype)


@pytest.mark.parametrize("dtype", but_for(["float32"], DTYPES))
@pytest.mark.parametrize("name", but_for(["h200"], [name for name in CUDA if DEVICES[name].capability >= (9, 0)]))
def test_clusters_collect_all_slots_of_a_row_or_store_its_candidates(name, dtype):
    """Otherwise a row that is not resident has no room for its candidates, and slots are not written."""
    left = []
    for k in range(512, 32_768, 3):
        asked = {"rows": 1, "width": 32_768, "k": k, "dtype": dtype, "device": DEVICES[name]}
        with contextlib.suppress(ArgumentError):
            plan = plan_of(**asked, family="resident_cluster")
            if plan.capacity < k:
                left.append(collected(plan.shared_capacity, dtype) - k)
    assert 0 <= min(left) < 3, "the largest k of a launch shape is among these"


# ---- warps that keep a row each ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CUDA)
def test_warps_with_a_row_each_have_room_for_their_lists(name, dtype):
    """With as many CTAs as registers suffice for, a multiprocessor may have too little shared memory."""
    device = DEVICES[name]
    rows, fewer = WARP_ROWS * device.sm_count, 0
    for options, power in itertools.product((Options(), Options(values=True)), range(12)):
        asked = {"rows": rows, "width": 1 << power, "k": 8, "dtype": dtype, "device": device, "options": options}
        plan = plan_of(**asked, family="register_warp")
        block = memory.shared_bytes(plan) + memory.RESERVED_SHARED
        assert plan.ctas_per_sm >= 1 and plan.ctas_per_sm * block <= device.shared_per_sm, plan
        assert plan.ctas <= plan.ctas_per_sm * device.sm_count
        registers = plan.resident_width // memory.LANES + memory.WARP_REGISTERS
        registers += 0 if options.plain else memory.OPTION_REGISTERS
        most = min(
            memory.REGISTERS_PER_SM // (registers * plan.threads), shapes.of(device).usual["register_warp"].ctas_per_sm
        )
        fewer += plan.ctas_per_sm < most
        assert plan.ctas_per_sm == most or (plan.ctas_per_sm + 1) * block > device.shared_per_sm, "as many as fit"
    assert (fewer > 0) == (device.shared_per_sm < 128 << 10)
