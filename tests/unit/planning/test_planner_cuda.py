"""The planner on CUDA devices: policies by row width, splits by idle multiprocessors, storage that fits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import ksieve
from flat_calls import plan_of
from frozen import frozen_shapes
from ksieve import dispatch
from ksieve.core.device import DEVICES, DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.core.options import Options
from ksieve.core.problem import Device, Problem
from ksieve.planning import choose as planner
from ksieve.planning import length_bins, memory, resident, shapes, switch_points, tuned
from ksieve.planning.families import ONE_CTA, SHARED_ROWS
from ksieve.planning.switch_points import (
    BIN_WIDTH,
    BINNED_ROWS,
    RESIDENT_RANK,
    SHORTEST_CLUSTERED,
    WARP_ROWS,
    WARP_WIDTH,
    WIDEST_BINNED,
)

H200 = DEVICES["h200"]
with frozen_shapes():
    HOPPER = shapes.of_class("hopper")
RESIDENT = HOPPER.resident
HELD = RESIDENT["resident_block"][-1].resident_width
SPLIT_IN_TWO = HOPPER.splits[-1].narrowest
SPARSE_LINES = HOPPER.strides[-1].narrowest
CUDA = sorted(name for name, device in DEVICES.items() if device.kind == "cuda")


@pytest.fixture(autouse=True, scope="module")
def frozen():
    with frozen_shapes():
        yield


@pytest.mark.parametrize(
    ("width", "bands", "family"),
    [
        (BIN_WIDTH, 0, "resident_block"),
        (BIN_WIDTH + 1, 1, "resident_block"),
        (2 * BIN_WIDTH, 1, "resident_block"),
        (4 * BIN_WIDTH, 3, "resident_block"),
        (4 * BIN_WIDTH + 1, 4, "resident_block"),
        (WIDEST_BINNED, 4, "resident_block"),
        (WIDEST_BINNED + 1, 0, "stream"),
    ],
)
def test_many_rows_are_dealt_by_their_length(width, bands, family):
    plan = ksieve.plan(rows=BINNED_ROWS, width=width, k=2048, device=H200)
    assert plan.family == family and [band.resident_width for band in plan.bins] == [
        BIN_WIDTH * (i + 1) for i in range(bands)
    ]
    assert not ksieve.plan(rows=BINNED_ROWS - 1, width=width, k=2048, device=H200).bins
    parts = length_bins.launches(plan)
    if not bands:
        assert parts == (plan,) and plan.bin is None
        return
    assert [part.bin for part in parts] == [bands, *range(bands), bands]
    assert (parts[0].family, parts[0].ctas, parts[-1]) == ("length_bins", bands + 1, plan)
    assert len({part.lists_at for part in parts}) == 1 and plan.lists_at % memory.HEADER_BYTES == 0
    room = max(memory.with_workspace(length_bins.stats_plan(part)).workspace_bytes for part in parts[1:])
    assert plan.lists_at >= max(room, plan.workspace_zeroed)
    assert plan.workspace_bytes == plan.lists_at + memory.HEADER_BYTES + plan.problem.rows * (bands + 1) * 8
    assert all(f"up to {band.resident_width:,}" in str(plan) for band in plan.bins)


@pytest.mark.parametrize(
    "asked",
    [
        {"device": DEVICES["a100"]},
        {"family": "stream"},
        {"policy": "lines-16"},
        {"k": 8192},
        {"options": Options(tie_break="low")},
    ],
    ids=str,
)
def test_what_has_one_launch_however_many_rows(asked):
    """Bands are for rows that registers hold, and never in the way of what a caller forces."""
    usual = {"rows": BINNED_ROWS, "width": WIDEST_BINNED, "k": 2048, "device": H200}
    assert plan_of(**usual).bins
    plan = plan_of(**usual | asked)
    assert plan.bins == () and plan.bin is None


@pytest.mark.parametrize(
    ("rows", "width", "k", "family", "policy"),
    [
        (64, 2048, 512, "register_block", None),
        (4096, 8192, 512, "resident_block", None),
        (1, SHORTEST_CLUSTERED, 2048, "register_block", None),
        (1, SHORTEST_CLUSTERED + 1, 2048, "resident_cluster", None),
        (32, 16_384, 2048, "resident_cluster", None),
        (33, 16_384, 2048, "register_block", None),
        (48, 32_768, 2048, "resident_cluster", None),
        (49, 32_768, 2048, "resident_block", None),
        (511, HELD, 512, "resident_block", None),
        (512, HELD, 512, "stream", "lines-64"),
        (4096, 65_536, RESIDENT_RANK + 1, "resident_block", None),
        (4096, 65_537, 2048, "stream", "lines-16"),
        (4096, 65_536, 1024, "stream", "lines-64"),
        (64, HELD + 1, 2048, "resident_cluster", None),
        (65, 131_072, 2048, "stream", "lines-64"),
        (30, 131_073, 2048, "resident_cluster", None),
        (31, 131_073, 2048, "resident_grid", None),
        (34, 131_073, 2048, "stream", "lines-64"),
        (15, 262_145, 2048, "resident_cluster", None),
        (16, 262_145, 2048, "resident_grid", None),
        (16, 262_144, 30_000, "stream_split", "quads-16"),
        (17, 262_145, 2048, "stream_split", "lines-64"),
        (34, 262_145, 2048, "stream", "lines-64"),
        (66, SPLIT_IN_TWO - 1, 2048, "stream", "lines-128"),
        (66, SPLIT_IN_TWO, 2048, "stream_split", "lines-128"),
        (3, 1_048_576, 2048, "resident_cluster", None),
        (8, 1_048_576, 2048, "resident_grid", None),
        (9, 1_048_576, 2048, "stream_split", "lines-128"),
        (1, 1_048_577, 2048, "stream_split", "lines-128"),
        (4096, 4096, 2048, "resident_block", None),
        (17, SPARSE_LINES, 2048, "stream_split", "lines-128"),
        (132, SPARSE_LINES, 512, "stream", "lines-128"),
        (133, SPARSE_LINES, 2048, "stream", "lines-64"),
        (1, 24_576, 12_289, "resident_block", None),
        (1, 33_000, 16_500, "resident_cluster", None),
        (1, 66_000, 60_000, "stream_unsampled", None),
        (400, 65_536, 40_000, "stream_unsampled", None),
    ],
)
def test_the_choice_follows_the_shape(rows, width, k, family, policy):
    plan = ksieve.plan(rows=rows, width=width, k=k, device=H200)
    assert (plan.family, plan.policy and plan.policy.name) == (family, policy)


@pytest.mark.parametrize(
    ("rows", "width", "k", "options", "family"),
    [
        (4096, 32_768, 2048, Options(tie_break="low"), "stream"),
        (4096, 32_768, 2048, Options(tie_break="high", order="value", values=True), "stream"),
        (512, 16_384, 512, Options(tie_break="low"), "stream"),
        (256, 16_384, 512, Options(tie_break="low"), "resident_block"),  # all rows fit at once
        (4096, 16_383, 512, Options(tie_break="low"), "resident_block"),
        (4096, 32_768, 10_000, Options(tie_break="low"), "resident_block"),  # too short to sample
        (32, 16_384, 2048, Options(tie_break="low"), "resident_block"),  # no cluster
        (64, 32_768, 2048, Options(tie_break="low"), "resident_block"),
        (64, 32_769, 2048, Options(tie_break="low"), "stream"),
        (4096, 32_768, 2048, Options(values=True), "stream"),
        (128, 32_768, 2048, Options(values=True), "resident_block"),
        (4096, 32_767, 2048, Options(values=True), "resident_block"),
        (64, 131_072, 2048, Options(values=True), "resident_cluster"),  # no more rows than multiprocessors
        (128, 65_536, 2048, Options(values=True), "resident_block"),
        (256, 65_536, 2048, Options(values=True), "stream"),
        (4096, 32_768, 2048, Options(values=True, order="value"), "resident_block"),
        (4096, 32_768, 2048, Options(values=True, expand=4), "resident_block"),
        (BINNED_ROWS, 32_768, 2048, Options(values=True), "resident_block"),
        (4096, 32_768, 2048, Options(transform="pages", page_size=64), "resident_block"),
    ],
)
def test_tie_breaks_and_values_are_streamed(rows, width, k, options, family):
    assert plan_of(rows=rows, width=width, k=k, device=H200, options=options).family == family


@pytest.mark.parametrize("name", ["h100", "h20", "b200"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_rows_stay_on_chip_where_float32_rows_do(name, dtype):
    """With the same kernel family, whole in the ring, and with room for the positions of k slots."""
    device = DEVICES[name]
    for rows, width in itertools.product((1, 16, 64, 132, 512, 4096), (4096, 8192, 16_384, 32_768, 65_536, 131_072)):
        asked = {"rows": rows, "width": width, "k": min(2048, width // 2), "device": device}
        plan, other = plan_of(**asked, dtype=dtype), plan_of(**asked)
        assert plan.resident_width or not other.resident_width, (rows, width)
        if plan.resident_width:
            per_row = plan.splits if plan.family in SHARED_ROWS else 1
            assert plan.stages * plan.threads * 8 * per_row == plan.resident_width and not plan.overflow_vectors
            assert plan.ctas_per_sm * (memory.shared_bytes(plan) + 1024) <= device.shared_per_sm
            assert "not measured" in plan.reason


def test_registers_take_no_more_slots_than_they_have_room_for():
    """Positions lie in the ring, which is half as large as that of float32 scores, and in the histogram behind it."""
    asked = {"rows": 64, "width": 16_384, "device": H200, "dtype": "bfloat16"}
    most = (16_384 * 2 + memory.HISTOGRAM_BYTES) // 4
    assert plan_of(**asked, k=most).family == "register_block"
    assert plan_of(**asked, k=most + 1).family == "resident_block"
    assert plan_of(**asked | {"dtype": "float32"}, k=most + 1).family == "register_block"


def test_options_of_16_bit_rows_keep_their_ctas():
    asked = {"rows": 4096, "width": 8192, "k": 512, "dtype": "bfloat16", "device": H200}
    assert plan_of(**asked).ctas_per_sm == 4
    assert plan_of(**asked, options=Options(order="index")).ctas_per_sm == 4
    assert plan_of(**asked, options=Options(positions=True)).ctas_per_sm == 3


@pytest.mark.parametrize(
    ("rows", "width", "k", "options", "registers"),
    [
        (64, 4096, 2048, Options(), True),
        (2112, 4096, 3072, Options(), True),
        (2113, 4096, 2048, Options(), False),
        (8192, 2049, 2048, Options(), True),
        (64, 16_384, 2048, Options(), True),
        (64, 16_385, 2048, Options(), False),
        (64, 4096, 2048, Options(windows="ends", values=True), True),
        (64, 4096, 2048, Options(order="index"), False),
        (64, 4096, 2048, Options(tie_break="low"), False),
    ],
)
def test_few_short_rows_stay_in_registers(rows, width, k, options, registers):
    asked = {"rows": rows, "width": width, "k": k, "device": H200, "options": options}
    plan = plan_of(**asked)
    assert plan.family == ("register_block" if registers else "resident_block")
    assert length_bins.stats_plan(plan).family == "resident_block", "statistics are of the paper's digits"
    assert plan_of(**asked, family="resident_block").family == "resident_block"
    if registers or (width <= 16_384 and options.plain):
        assert plan_of(**asked, family="register_block").family == "register_block"
    else:
        with pytest.raises(ArgumentError, match=r"family: got 'register_block'; takes another family: registers hold"):
            plan_of(**asked, family="register_block")


@pytest.mark.parametrize(("family", "width"), [("resident_block", 65_536), ("resident_cluster", 1_048_576)])
def test_parts_that_no_ring_holds_whole_are_streamed_for_statistics_and_ties(family, width):
    plan = ksieve.plan(rows=4, width=width, k=2048, device=H200, family=family)
    assert (plan.resident_width, plan.overflow_vectors) == (width, 8)
    studied = length_bins.stats_plan(plan)
    assert (studied.resident_width, studied.stages, studied.overflow_vectors) == (0, shapes.STAGES, 0)
    assert studied.capacity >= 2048 and memory.shared_bytes(studied) <= H200.shared_per_block
    tied = plan_of(rows=4, width=width, k=2048, device=H200, family=family, options=Options(tie_break="low"))
    assert tied.resident_width < width and tied.overflow_vectors == 0


@pytest.mark.parametrize(
    ("width", "k", "tie_break", "shape"),
    [
        (16_384, 2048, "any", (256, 3, 0)),
        (16_384, 2300, "any", (256, 2, 0)),
        (16_384, 16_000, "any", (256, 1, 0)),
        (32_768, 3500, "any", (512, 2, 4)),
        (32_768, 4000, "any", (512, 1, 0)),
        (32_768, 2048, "low", (512, 1, 0)),
    ],
)
def test_a_held_row_has_room_for_its_positions(width, k, tie_break, shape):
    """More slots, fewer rows at a time; and a row whose ties are broken lies in the ring as a whole."""
    options = Options(tie_break=tie_break)
    plan = plan_of(rows=8192, width=width, k=k, device=H200, family="resident_block", options=options)
    assert (plan.threads, plan.ctas_per_sm, plan.overflow_vectors) == shape
    in_histogram = memory.HISTOGRAM_BYTES // 4
    assert in_histogram + 2 * plan.shared_capacity >= k + 4 * memory.EXTRA_VECTORS


@pytest.mark.parametrize(
    ("rows", "width", "ctas"),
    [(528, 2049, 528), (529, 2049, 529), (529, 2730, 529), (529, 2731, 528), (4224, 2049, 4224), (4225, 2049, 528)],
)
def test_rows_that_are_mostly_selected_whole_have_a_cta_each(rows, width, ctas):
    """Up to `WHOLE_WAVES` times as many as fit; others follow each other on CTAs that stay."""
    assert ksieve.plan(rows=rows, width=width, k=2048, device=H200).ctas == ctas


@pytest.mark.parametrize(
    "asked",
    [
        {"options": Options(order="index")},
        {"options": Options(tie_break="low")},
        {"options": Options(overlap=True)},
        {"width": 1_048_577},
    ],
    ids=str,
)
def test_what_ctas_do_not_hold_together(asked):
    usual = {"rows": 1, "width": 1_048_576, "k": 2048, "device": H200}
    assert plan_of(**usual).family == "resident_grid"
    assert plan_of(**usual | asked).family != "resident_grid"
    with pytest.raises(ArgumentError, match="family: got 'resident_grid'; takes another family"):
        plan_of(**usual | asked, family="resident_grid")


def test_parts_that_need_all_registers_are_not_finished():
    pages = Options(transform="pages", page_size=64)
    assert ksieve.plan(rows=8, width=1_048_576, k=2048, device=H200).family == "resident_grid"
    assert plan_of(rows=8, width=1_048_576, k=2048, device=H200, options=pages).family == "stream_split"
    assert plan_of(rows=1, width=1_048_576, k=2048, device=H200, options=pages).family == "resident_grid"


def test_clusters_of_sixteen_need_room_side_by_side():
    fewer = replace(H200, sm_count=16 * shapes.GPCS - 1)
    assert ksieve.plan(rows=1, width=262_144, k=2048, device=H200).splits == 16
    assert ksieve.plan(rows=1, width=262_144, k=2048, device=fewer).splits == 4
    assert ksieve.plan(rows=5, width=1_048_576, k=2048, device=fewer).family == "stream_split"
    assert (
        ksieve.plan(rows=1, width=1_048_576, k=2048, device=fewer, family="resident_cluster").splits
        == switch_points.CLUSTER
    )


def test_a_cluster_holds_whole_rows_or_nothing():
    shipped = shapes.of(H200)
    usual = shipped.usual | {"resident_cluster": replace(shipped.usual["resident_cluster"], resident_width=4096)}
    known = replace(shipped, usual=usual, resident={**shipped.resident, "resident_cluster": ()})
    with tuned.replaced(shipped, known):
        assert ksieve.plan(rows=1, width=4096, k=512, device=H200, family="resident_cluster").resident_width == 4096
        with pytest.raises(
            ArgumentError, match=r"geometry: got resident_width=4096; takes 0, or at least the width of 4097"
        ):
            ksieve.plan(rows=1, width=4097, k=512, device=H200, family="resident_cluster")


@pytest.mark.parametrize("threads", [256, 512])
def test_narrow_columns_have_a_place_for_every_score_of_a_thread(threads):
    widest = max(w for w in range((1 << 16) * (threads - 1) - 8, (1 << 16) * threads) if _narrow(w, threads))
    vectors = -(-(widest + 7) // (threads * 8))  # of 8 scores, in a row that starts up to 7 of them late
    assert vectors * 8 <= 1 << 16
    assert not _narrow(widest + 1, threads)
    assert memory.entry_bytes("stream_split", 4096, threads) == memory.CANDIDATE_BYTES


def _narrow(width, threads):
    return memory.entry_bytes("stream", width, threads) == memory.NARROW_BYTES


def test_splits_are_forced_or_refused():
    asked = {"rows": 4, "width": 131_072, "k": 512, "device": H200}
    free = plan_of(**asked, family="stream_split")
    forced = plan_of(**asked, family="stream_split", splits=3)
    assert (forced.splits, forced.ctas) == (3, 12) and free.splits > 3
    for bad in (0, 257, True):
        with pytest.raises(ArgumentError, match="splits: got"):
            plan_of(**asked, family="stream_split", splits=bad)
    with pytest.raises(ArgumentError, match="only stream_split splits rows"):
        plan_of(**asked, family="stream", splits=2)


@pytest.mark.parametrize(
    ("rows", "width", "kept", "other"),
    [
        (1, 1_048_576, "resident_grid", "resident_cluster"),
        (2, 1_048_576, "resident_grid", "resident_cluster"),
        (32, 262_144, "resident_grid", "resident_grid"),
        (8, 1_048_576, "resident_grid", "resident_grid"),
        (16, 1_048_576, "stream_split", "stream_split"),
        (1, 131_072, "resident_cluster", "resident_cluster"),
    ],
)
def test_a_workspace_is_not_zeroed_for_what_another_family_does_without(rows, width, kept, other):
    """A call without a plan may be captured, and then zeroes its workspace each time."""
    asked = ksieve.plan(rows=rows, width=width, k=2048, device=H200).problem
    assert planner.choose(asked, H200).family == kept
    assert planner.choose(asked, H200, kept=False).family == other
    assert dispatch._choose(asked, H200, None).family == other, "which is what a call without a plan takes"


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_many_narrow_rows_belong_to_a_warp_each(name, dtype):
    device = DEVICES[name]
    least = WARP_ROWS * device.sm_count
    for width, held in ((1, 0), (100, 128), (256, 256), (257, 512), (WARP_WIDTH, WARP_WIDTH)):
        asked = {"rows": least, "width": width, "k": 8, "dtype": dtype, "device": device}
        plan = plan_of(**asked)
        assert plan.family == "register_warp" and "a warp keeps each" in plan.reason
        assert plan.resident_width == max(held, 128 if dtype == "float32" else 256)
        assert plan.workspace_bytes == plan.workspace_zeroed == 0
        assert plan.ctas == min(-(-least // 8), plan.ctas_per_sm * device.sm_count)
        assert length_bins.stats_plan(plan).family == "resident_block", "statistics are of the paper's digits"
        others = [{"rows": least - 1}, {"policy": "paper-64"}]
        others += [{"options": option} for option in (Options(order="value"), Options(tie_break="low"))]
        assert "register_warp" not in {plan_of(**asked | other).family for other in others}
        assert plan_of(**asked | {"rows": 1}, family="register_warp").ctas == 1
        assert plan_of(**asked, options=Options(values=True, windows="ends")).family == "register_warp"
    for refused in ({"width": 2049}, {"options": Options(order="index")}, {"options": Options(tie_break="high")}):
        with pytest.raises(ArgumentError, match=r"takes another family: warps hold rows of up to 2,048 scores"):
            plan_of(**{"rows": least, "width": 99, "k": 8, "device": device} | refused, family="register_warp")


@pytest.mark.parametrize("count", [16, 78, 108, 132, 144])
def test_row_limits_follow_the_number_of_multiprocessors(count):
    device = replace(H200, sm_count=count)
    plans = [ksieve.plan(rows=rows, width=12_288, k=512, device=device) for rows in (count, count + 1, 8 * count + 1)]
    assert [(plan.family, plan.threads, plan.ctas_per_sm) for plan in plans] == [
        ("register_block", 512, 1),
        ("resident_block", 512, 2),
        ("resident_block", 256, 3),
    ]


def test_a_device_that_no_file_covers_is_refused():
    with pytest.raises(ArgumentError, match=r"^device: got compute capability 7\.5; takes a CUDA device of .* 8\.0"):
        ksieve.plan(rows=4, width=4096, k=64, device=replace(H200, capability=(7, 5)))


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (DeviceInfo("cuda", name="x", capability=(9, 0), sm_count=132), "shared_per_sm: got 0; takes an int of"),
        (replace(H200, shared_per_block=1024), "shared_per_block: got 1024; takes an int of at least 101376"),
        (replace(H200, sm_count=-1), "sm_count: got -1; takes an int of at least 1"),
        (replace(H200, sm_count=1 << 20), "sm_count: got 1048576; takes at most 65536: no device has more"),
        (replace(H200, sm_count=1.5), "sm_count: got 1.5; takes an int"),
        (replace(H200, capability=9), r"capability: got 9; takes a tuple of two ints, such as \(9, 0\)"),
        (replace(H200, capability=(9, -1)), "capability: got -1; takes an int of at least 0"),
        (replace(H200, name=None), "name: got NoneType; takes a name"),
        (replace(H200, index="0"), "index: got '0'; takes an int"),
        (DeviceInfo("cpu", threads=-5), "threads: got -5; takes an int of at least 1"),
        (DeviceInfo("tpu"), "kind: got 'tpu'; takes 'cpu' or 'cuda'"),
    ],
    ids=str,
)
def test_facts_that_no_device_has_are_refused(device, message):
    with pytest.raises(ArgumentError, match=rf"^device\.{message}"):
        ksieve.plan(rows=64, width=1000, k=2048, device=device)


def test_numbers_of_numpy_in_the_facts_are_ints():
    """As int32 a product of two of them would wrap."""
    device = replace(H200, sm_count=np.int32(132), shared_per_sm=np.int32(H200.shared_per_sm))
    asked = {"rows": 4096, "width": 131_072, "k": 512}
    plan = plan_of(**asked, device=device)
    assert plan == plan_of(**asked, device=H200) and type(plan.device.sm_count) is int


def test_the_papers_own_card_has_plans_of_its_own():
    few, many = (ksieve.plan(rows=r, width=131_072, k=2048, device=DEVICES["h20"]) for r in (1, 512))
    assert (few.family, few.splits) == ("resident_cluster", 8) and (many.family, many.ctas) == ("stream", 156)


RESIDENT_DEVICES = [name for name, device in DEVICES.items() if device.capability >= (9, 0)]
GRID = [(rows, 2**power + 1) for rows in (1, 8, 30, 79, 300, 2500) for power in range(11, 21, 2)]
GRID += [(rows, 2**power) for rows in (2, 64, 133, 600) for power in range(12, 21, 2)]
GRID += [(rows, width) for rows in (9, 600, 100_000) for width in (1, 100, 128, 200, 1000, WARP_WIDTH)]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("options", [Options(), Options(values=True), Options(order="index", tie_break="low")], ids=str)
def test_plans_of_every_known_device_fit_it(name, options):
    device = DEVICES[name]
    threads = 1536 if device.capability in ((8, 9), (12, 0)) else 2048
    families = set()
    for (rows, width), k in itertools.product(GRID, (16, 2048)):
        asked = plan_of(rows=rows, width=width, k=k, device=device, options=options)
        for plan in length_bins.launches(asked):
            families.add(plan.family)
            block = memory.shared_bytes(plan)
            assert block <= device.shared_per_block, plan
            assert (block + memory.RESERVED_SHARED) * plan.ctas_per_sm <= device.shared_per_sm, plan
            assert plan.threads * plan.ctas_per_sm <= threads, plan
            if plan.family == "resident_cluster":
                assert plan.splits <= shapes.of(device).cluster_limit(device), plan
            if plan.family in ("resident_grid", "register_warp"):
                assert 0 < plan.ctas <= device.sm_count * plan.ctas_per_sm, plan
            derived = plan.family in (*ONE_CTA, *SHARED_ROWS) and plan.resident_width and name not in MEASURED
            if derived and plan.resident_width != shapes.of(device).usual["resident_block"].resident_width:
                assert "derived from" in plan.reason and f"for {device.sm_count} in place of 132" in plan.reason, plan
    if name in RESIDENT_DEVICES and options.plain:
        assert {"register_block", "resident_block", "resident_grid"} <= families
        assert "resident_cluster" in families
    assert ("register_warp" in families) == (options.order == "any")


MEASURED = ("h100", "h200")


def test_a_new_shape_fits_no_launch_shape_again():
    """Engines bring new numbers of rows with each prefill: what depends on the device alone is computed once."""
    options = Options(windows="ends", index_base="start", nan="highest")

    def plan(rows, width):
        return planner.choose(
            Problem(rows, width, width, 2048, "bfloat16", Device("cuda", 0), options), DEVICES["h20"], kept=False
        )

    seen = {plan(rows, width).family for rows in (3, 70, 900, 7000) for width in (2000, 20_000, 200_000)}
    before = resident._fitted.cache_info()
    seen |= {plan(rows, width).family for rows in (4, 71, 901, 7001) for width in (2100, 21_000, 210_000)}
    after = resident._fitted.cache_info()
    assert len(seen) > 3 and after.hits > before.hits and after.misses == before.misses
