"""Plans for rows of blocks: which family has them on chip, with how much memory, and what is refused."""

from __future__ import annotations

import itertools

import pytest

from flat_calls import plan_of
from ksieve import ArgumentError
from ksieve.backends.cuda.jit.spec import kernel_spec
from ksieve.core.device import DEVICES
from ksieve.core.options import Options
from ksieve.planning import blocks, explain, length_bins
from ksieve.planning.memory import EXTRA_VECTORS, HISTOGRAM_BYTES, fixed_bytes, shared_bytes, sort_slots

H200 = DEVICES["h200"]


def plan(rows, width, k, size, device=H200, family=None, policy=None, dtype="float32", **options):
    return plan_of(
        rows=rows, width=width, k=k, dtype=dtype, device=device, family=family, policy=policy,
        options=Options(block_size=size, **options),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "width", "k", "size", "options", "family", "ctas", "workspace"),
    [
        (4096, 131_072, 2048, 8, {}, "resident_block", 2, 0),
        (4096, 131_072, 16, 128, {"force_first": 1, "force_last": 1}, "resident_block", 4, 0),
        (1024, 1_048_576, 2048, 8, {"force_last": 1}, "resident_cluster", 2, 0),
        (1024, 1_048_576, 16, 128, {}, "resident_block", 4, 0),
        (1, 131_072, 2048, 8, {}, "resident_cluster", 1, 0),
        (64, 131_072, 2048, 8, {}, "resident_cluster", 1, 0),
        (512, 131_072, 2048, 8, {"tie_break": "low"}, "stream_unsampled", 2, 256 + 264 * 65_792),
        (8, 10_000_000, 2048, 2, {}, "stream_unsampled", 2, 256 + 8 * 20_000_256),
    ],
)
def test_what_takes_rows_of_blocks(rows, width, k, size, options, family, ctas, workspace):
    found = plan(rows, width, k, size, **options)
    assert (found.family, found.ctas_per_sm, found.workspace_bytes) == (family, ctas, workspace), str(found)
    assert shared_bytes(found) <= H200.shared_per_sm // ctas - 1024
    assert found.problem.width == width and found.problem.selection.width == -(-width // size)
    assert "not measured" in found.reason


def test_every_device_takes_them():
    for name, device in DEVICES.items():
        if device.kind != "cuda":
            continue
        for width, size, dtype in ((131_072, 8, "float32"), (1_048_576, 3, "bfloat16"), (5000, 256, "float16")):
            found = plan(200, width, 64, size, device, dtype=dtype, force_last=1)
            assert shared_bytes(found) <= device.shared_per_block, name
            defines = dict(kernel_spec(found).defines)
            assert (defines["KSIEVE_BLOCK_SIZE"], defines["KSIEVE_DTYPE"]) == (size, 0)
            assert defines.get("KSIEVE_SOURCE_DTYPE", 0) == ("float32", "float16", "bfloat16").index(dtype)


@pytest.mark.parametrize("tile", sorted({tile for _, _, tiles in blocks.TILES for tile in tiles}))
@pytest.mark.parametrize("name", [name for name, device in DEVICES.items() if device.kind == "cuda"])
def test_there_is_room_for_the_positions_of_all_slots(name, tile):
    """Also where nearly all entries of a row are selected: positions lie in the histogram and behind the ring."""
    for rows, entries, options in itertools.product((1, 64, 4096), (tile, tile - 1), ({}, {"values": True})):
        for k in (entries // 8, entries // 2, entries * 3 // 4, entries - 9, entries - 1):
            found = plan(rows, 8 * entries, k, 8, DEVICES[name], **options)
            slots = HISTOGRAM_BYTES // 4 + 2 * found.shared_capacity - 4 * EXTRA_VECTORS
            assert slots >= k if found.resident_width else found.capacity >= k, str(found)
            assert found.ctas_per_sm * (shared_bytes(found) + 1024) <= DEVICES[name].shared_per_sm, str(found)


def test_statistics_are_made_in_little_memory():
    found = length_bins.stats_plan(plan(1024, 1_048_576, 2048, 8))
    assert (found.family, found.resident_width) == ("stream_unsampled", 0)
    assert found.capacity >= 2048 and found.workspace_bytes < 1 << 26


def test_forced_entries_leave_fewer_slots_to_the_selection():
    for extra, k in ((False, 61), (True, 64)):
        asked = Options(force_first=1, force_last=2, forced_extra=extra)
        found = plan_of(rows=4096, width=131_072, k=64, device=H200, options=asked)
        assert (found.problem.k, found.problem.selection.k, found.problem.columns) == (64, k, k + 3)
        assert found.policy is not None and found.bins == ()


def test_forced_entries_of_any_position_are_sorted_with_the_others():
    """So there is room for them, in shared memory or in the workspace."""
    for forced, elements in ((0, 4096), (1, 8192), (5000, 16_384)):
        asked = Options(force_last=forced, forced_extra=True, positions=True, order="value")
        found = plan_of(rows=4096, width=262_144, k=4096, device=H200, options=asked)
        room = shared_bytes(found) - fixed_bytes(found.resident_width, found.threads, found.columns)
        assert sort_slots(found) == (elements if room < 8 * elements else 0)


def test_reads_and_refusals_are_told():
    asked = Options(block_size=8)
    first, *others = explain.considered(plan(4096, 131_072, 2048, 8).problem, H200)
    assert first.reads == 1
    assert {c.family: c.verdict for c in others}["stream"].startswith("refused: one of ['resident_block'")
    for name, given in (
        ("family", {"family": "stream"}),
        ("policy", {"policy": "paper-64"}),
        ("splits", {"splits": 2}),
    ):
        with pytest.raises(ArgumentError, match=f"^{name}: got .*with block_size"):
            plan_of(rows=4, width=4096, k=8, device=H200, options=asked, **given)
    with pytest.raises(ArgumentError, match=r"^family: got 'resident_block'; takes another family: 524288"):
        plan(4, 1_048_576, 16, 2, family="resident_block")
