"""Inputs made for one path each, which the general grid meets by luck: what is forced is said at each test."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import ksieve
from gpu import material, runner, served
from gpu.served import Asked
from gpu.variants import MANY, MANY_SHORT, VARIANTS, Variant, crowded, small_storage
from ksieve.backends.cuda.jit import spec
from ksieve.core.policy import PAPER_128, QUADS_16, SamplingPolicy, with_stride
from ksieve.planning.memory import BATCH, with_workspace
from ksieve.planning.switch_points import SPLITS

pytestmark = pytest.mark.gpu

WHOLE = SamplingPolicy("whole", 1, margin=1.0, boundary="exact", min_rank=1)
"""Sees every score, so that its boundary is the k-th best score itself."""
WHOLE_COARSE = SamplingPolicy("whole-coarse", 1, margin=1.0, min_rank=1)
LAVISH_TIED = SamplingPolicy("lavish-tied", 64, margin=9.0, group=4, boundary="exact")
LAVISH_RESCUE = SamplingPolicy("lavish-rescue", 64, margin=9.0, rescue_margin=10.0)
"""Boundaries many times too low."""

SEEING_ALL = {
    "persistent-whole": Variant("persistent-whole", "stream", WHOLE),
    "persistent-whole-coarse": Variant("persistent-whole-coarse", "stream", WHOLE_COARSE),
    "split-2-whole": Variant("split-2-whole", "stream_split", WHOLE, 2),
}
OWNERS = {name: VARIANTS[name] for name in ("row", "persistent-exact", "persistent-64", "persistent-tied")}
OWNERS["persistent-quads"] = Variant("persistent-quads", "stream", QUADS_16)
"""Variants whose CTAs own whole rows, one after another."""
DIRECT = ("row", "cluster", "persistent-exact")
COLUMNS = ("persistent-64", "persistent-tied", "persistent-peaks", "split-2")

K, CTAS = 300, 3
PLANNED = (64, MANY, MANY_SHORT)
"""Rows that have a multiprocessor each, that share them, and of which more and smaller CTAs take care."""
DTYPES = ("float32",) if runner.HOST else ("float32", "float16", "bfloat16")


def both(plan, scores, lengths):
    """A plan's answers and counts, for whole rows and for these lengths."""
    return [Asked(plan, scores, call, stats=True) for call in ({}, {"lengths": lengths})]


# ---- many rows per CTA --------------------------------------------------------------------------------------


def owner_width(name, planned):
    """Widest rows of the launch shape. Held rows of "row" are followed by streamed ones in the wider of two."""
    if name == "row":
        return 8192 if planned == MANY_SHORT else 32_808
    return 16_424


def successions(rows, held, width):
    """Lengths by which a CTA meets short rows, rows that the ring holds and longer ones in every order."""
    short = itertools.cycle([0, K, 5, -1, K - 1])
    resident = itertools.cycle([held, held - 1, K + 1, held - 7, held - 8, 2 * K, held - 4, held - 9, held // 2 + 3])
    longer = itertools.cycle([held + 1, width, held + 7, held + 8, held + 9, held + 31, held + 3])
    kinds = (short, resident, longer)
    order = [1, 1, 0, 1, 2, 0, 0, 2, 2]  # each kind after each
    return torch.tensor(
        [min(next(kinds[order[row // CTAS % len(order)]]), width) for row in range(rows)], dtype=torch.int32
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("planned", PLANNED)
@pytest.mark.parametrize("name", OWNERS)
@served.judged("{name}")
def test_rows_of_all_lengths_follow_each_other(name, planned, dtype):
    """Lengths around the ring's size, and what a CTA fetches of its next row while it works on one."""
    width = owner_width(name, planned)
    plan = crowded(OWNERS[name], planned, len(material.NAMES), width, K, ctas=CTAS, dtype=dtype)
    bits = material.narrow(material.stack(width, K), dtype)
    lengths = successions(len(bits), plan.resident_width or 16_384, width).to(runner.DEVICE)
    for offset, padding in ((0, 0), (1, 3), (5, 2)):
        scores = material.place(bits, dtype, runner.DEVICE, offset=offset, padding=padding)
        yield Asked(plan, scores, {"lengths": lengths}, stats=True)


# ---- columns -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(runner.HOST, reason="rows of 128 MiB")
@pytest.mark.parametrize("extra", [0, 1])
@served.judged("persistent-64")
def test_places_in_columns_reach_the_end_of_the_widest_rows(extra):
    """The best scores lie at the end, where local indices are greatest: 16-bit ones, or one score too far for them."""
    shared = Variant("persistent-shared", "stream", many=MANY)
    threads = shared.plan(2, 1 << 25, 2048).threads
    plan = shared.plan(2, (1 << 16) * (threads - 1) + extra, 2048)
    assert plan.threads == threads and dict(spec.kernel_spec(plan).defines)["KSIEVE_LOCAL_INDEX16"] == (extra == 0)
    scores = torch.randn(2, plan.problem.width, device=runner.DEVICE)
    scores[:, -6000:] += 9
    lengths = torch.tensor([plan.problem.width, plan.problem.width - 3], dtype=torch.int32, device=runner.DEVICE)
    return [Asked(plan, scores, {"lengths": lengths})]


# ---- every kind of boundary ---------------------------------------------------------------------------------

INFINITY_KEY, NAN_ORDINAL = 0x007FFFFF, 0xFF800000 - 0x007FFFFF
NAN_BITS = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32)
BOUNDARIES = [
    sign * value
    for value in (
        0.0, 2.0**-149, 2.0**-126, 2.0**-101, 2.0**-100, 2.0**-99, 0.3, 1.0, 3.0, 2.0**127,
        3.4028234663852886e38, np.inf,
    )
    for sign in (1, -1)
] + [np.nan]  # fmt: skip


def ordinal(value):
    """Place of a score among all distinct ones, best first; NaN comes last."""
    if value != value:
        return NAN_ORDINAL
    bits = int(np.float32(value + 0.0).view(np.uint32))
    key = bits if bits >> 31 else bits ^ 0x7FFFFFFF
    return key - INFINITY_KEY - (key > 1 << 31)


def scores_at(ordinals, rng):
    """Bit patterns of scores by their places; zeros and NaN of either sign."""
    keys = np.clip(ordinals, 0, NAN_ORDINAL) + INFINITY_KEY
    keys += keys > 0x7FFFFFFF
    bits = np.where(keys >> 31, keys, keys ^ 0x7FFFFFFF).astype(np.uint32)
    bits[bits == 0] = rng.choice(np.array([0, 1 << 31], np.uint32), int((bits == 0).sum()))
    nan = keys > 0xFF800000
    bits[nan] = rng.choice(NAN_BITS, int(nan.sum()))
    return bits


def around_boundaries(width, k):
    """Rows of neighbouring floats whose k-th best is each boundary or next to it: met once, then three times."""
    rng = np.random.default_rng(4)
    places = np.arange(width, dtype=np.int64) - (k - 1)
    around = [
        ordinal(value) + near + places // copies for value in BOUNDARIES for near in (-1, 0, 1) for copies in (1, 3)
    ]
    return rng.permuted(np.stack([scores_at(row, rng) for row in around]), axis=1).view(np.int32)


@pytest.mark.parametrize("name", SEEING_ALL)
@served.judged("{name}")
def test_every_kind_of_boundary(name):
    """Admission at its very edge: counts tell a score more or less than the boundary from the next float."""
    width, k = 3003, 200
    bits = around_boundaries(width, k)
    scores = material.place(bits, "float32", runner.DEVICE, offset=1, padding=2)
    plan = SEEING_ALL[name].plan(len(bits), width, k, pitch=width + 2)
    return both(plan, scores, cut_by_some(bits))


def cut_by_some(bits):
    rows, width = bits.shape
    return (width - torch.arange(rows, dtype=torch.int32) % 9).to(runner.DEVICE)


# ---- full columns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COLUMNS)
@served.judged("{name}")
def test_few_threads_meet_all_candidates(name):
    """Batches of hits that no longer fit their thread's column go to the list, and some beyond its end."""
    width, k, together = 65_536, 1000, 64
    plan = VARIANTS[name].plan(8, width, k)
    period = plan.threads * 4  # scores that all threads look at together
    assert plan.columns * plan.splits * together // 4 < k, "columns hold all of them"
    rng = np.random.default_rng(8)
    scores = rng.standard_normal((8, width), dtype=np.float32)
    line = 32 if plan.threads <= 256 else 0  # by which threads of small CTAs move on: kernels/common/storage.cuh
    position = np.arange(width)
    position -= line * (position // (BATCH * period))
    hits = (position + 192 * np.arange(8)[:, None]) % period < together
    scores[hits] += 12
    scores[1::2] = np.where(hits[1::2], np.sort(scores[1::2], axis=1)[:, ::-1], scores[1::2])  # the best come first
    placed = material.place(scores.view(np.int32), "float32", runner.DEVICE)
    for made in (plan, small_storage(plan, 1024)):
        yield from both(made, placed, cut_by_some(scores))


# ---- far too many candidates --------------------------------------------------------------------------------

LAVISH = {
    "persistent-lavish": Variant("persistent-lavish", "stream", LAVISH_TIED),
    "persistent-lavish-rescue": Variant("persistent-lavish-rescue", "stream", LAVISH_RESCUE),
    "split-2-lavish": Variant("split-2-lavish", "stream_split", LAVISH_TIED, 2),
}
BETTER = 6000
"""Scores above a plateau that the boundary then is, of 65,536."""


@pytest.mark.parametrize("name", LAVISH)
@served.judged("{name}")
def test_a_proposal_that_admits_many_times_what_can_be_stored(name):
    """The frontier is narrowed and scanned again; so too where all that is left is set apart, NaN among it."""
    plan = small_storage(LAVISH[name].plan(8, 65_536, 1000, columns=2), 1024)
    assert BETTER - plan.columns * plan.threads > 2 * plan.capacity, "the frontier fits"
    rng = np.random.default_rng(23)
    scores = rng.standard_normal((8, 65_536), dtype=np.float32)
    better = rng.permuted(np.arange(65_536) < BETTER * np.ones((5, 1)), axis=1)
    plateaus = np.array([0.25, 0.0, -3.0, -np.inf, np.nan], np.float32)[:, None]
    scores[3:] = np.where(better, 1 + np.abs(scores[3:]), plateaus)
    scores[1] = np.sort(scores[1])[::-1]
    scores[2] = np.sort(scores[2])
    placed = material.place(scores.view(np.int32), "float32", runner.DEVICE, offset=2, padding=1)
    return both(plan, placed, cut_by_some(scores))


# ---- long lists ---------------------------------------------------------------------------------------------

LONG = {
    "persistent-long": Variant("persistent-long", "stream", QUADS_16),
    "split-3-long": Variant("split-3-long", "stream_split", QUADS_16, 3),
    "split-4-long": Variant("split-4-long", "stream_split", PAPER_128, 4),
    "split-33-long": Variant("split-33-long", "stream_split", with_stride("bursts", 32), 33),
}
LONG_K, LONG_WIDTH, LONG_SPILL = 15_000, 33_000, 71_680


@pytest.mark.parametrize("name", LONG)
@served.judged("{name}")
def test_a_list_that_the_last_cta_reads_where_it_was_published(name):
    """More candidates than are held on chip; too few, so that a band is added; plateaus; CTAs without a segment."""
    plan = LONG[name].plan(8, LONG_WIDTH, LONG_K)
    plan = with_workspace(replace(plan, capacity=plan.shared_capacity + LONG_SPILL))
    rng = np.random.default_rng(31)
    scores = rng.standard_normal((8, LONG_WIDTH), dtype=np.float32)
    scores[1] = np.sort(scores[1])[::-1]
    scores[2] = np.round(scores[2], 1)
    scores[3] = np.maximum(scores[3], np.float32(0.3))
    position = np.arange(LONG_WIDTH)
    for row, bias in ((4, 0.3), (5, 3.0), (6, -3.0)):  # what a view without jitter sees is better, or worse
        scores[row] += bias * (position % 128 == PAPER_128.phase(row))
    if plan.family == "stream_split":
        assert plan.columns * plan.threads + plan.shared_capacity < LONG_K, "all of them are on chip"
    placed = material.place(scores.view(np.int32), "float32", runner.DEVICE, offset=1, padding=3)
    short = torch.tensor([LONG_K + 1, LONG_K, 0, 20_000, 15_500, 32_999, 16_000, 1], dtype=torch.int32)
    return both(plan, placed, short.to(runner.DEVICE))


@pytest.mark.parametrize(("rows", "width", "k"), [(1, 8_500_000, 100), (3, 1_100_003, 3000)])
@served.judged("planned")
def test_a_row_that_all_multiprocessors_share(rows, width, k):
    """More CTAs than powers of two, and a view that is made sparser: as planned."""
    if runner.HOST and rows == 1:
        pytest.skip("minutes without a GPU")
    plan = ksieve.plan(rows=rows, width=width, k=k, device="cuda")
    assert plan.family == "stream_split" and plan.splits > SPLITS[0] // rows
    rng = np.random.default_rng(77)
    scores = rng.standard_normal((rows, width), dtype=np.float32)
    scores[0, width // 2 :] += np.float32(0.5)
    placed = material.place(scores.view(np.int32), "float32", runner.DEVICE, offset=1, padding=1)
    lengths = torch.tensor([width - 3 * k, width, 2 * k][:rows], dtype=torch.int32).to(runner.DEVICE)
    return both(plan, placed, lengths)


# ---- coarse counts ------------------------------------------------------------------------------------------


def mixed(rows, width):
    """NaN of both signs, both zeros, both infinities, a plateau and ordinary scores in all proportions."""
    rng = np.random.default_rng(15)
    values = np.array([0x7FC00000, 0xFFC00000, 0, 1 << 31, 0x7F800000, 0xFF800000, 0x3DCCCCCD], np.uint32)
    bits = rng.standard_normal((rows, width), dtype=np.float32).view(np.uint32)
    for row in range(rows):
        share = rng.dirichlet(np.full(len(values) + 1, 0.4)).cumsum()
        kind = np.searchsorted(share[:-1], rng.random(width))
        bits[row] = np.where(kind < len(values), values[np.minimum(kind, len(values) - 1)], bits[row])
        if row % 3:  # what a warp meets first is one value throughout
            bits[row, : 64 * (row % 5) * 8] = values[row % len(values)]
    return bits.view(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DIRECT)
@served.judged("{name}")
def test_coarse_counts_of_special_values(name, dtype):
    """Bins of rows whose scores mostly share one, of the fill behind a row, and of NaN whatever its sign."""
    for width, k in ((9001, 500), (40_003, 500)):
        bits = material.narrow(mixed(40, width), dtype)
        for offset, padding in ((0, 0), (3, 1)):
            scores = material.place(bits, dtype, runner.DEVICE, offset=offset, padding=padding)
            plan = runner.plan_for(VARIANTS[name], scores, k)
            yield Asked(plan, scores, {"lengths": cut_by_some(bits)}, stats=True)
