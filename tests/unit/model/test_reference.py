"""The model against the sorting oracle, and every route, count and boundary of it forced and checked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import CASES, FAMILIES, POLICIES, TINY, WIDE_CASES, build, clamp, scores_of
from ksieve.core import keys
from ksieve.core.policy import LINES_64, PAPER_128, PEAK, SamplingPolicy
from ksieve.core.stats import STATS_COLUMNS, Route, Stats
from ksieve.model import reference
from ksieve_lab.oracle import assert_exact, ranks


@st.composite
def drawn_policies(draw):
    """A policy small enough for rows of a few hundred scores."""
    group = draw(st.sampled_from([1, 2, 4, 8]))
    return SamplingPolicy(
        "drawn",
        draw(st.sampled_from([1, 2, 4, 16])),
        margin=draw(st.sampled_from([0.25, 0.75, 1.0, 1.5, 3.0])),
        rescue_margin=draw(st.sampled_from([None, 3.0, 5.0])),
        group=group,
        sigmas=draw(st.sampled_from([0.0, 3.0])),
        peaks=group % PEAK == 0 and draw(st.booleans()),
        boundary=draw(st.sampled_from(["coarse", "exact"])),
        min_rank=draw(st.integers(1, 4)),
        jitter=draw(st.booleans()),
    )


policies = st.one_of(st.sampled_from(POLICIES), drawn_policies())


@st.composite
def problems(draw):
    """A small matrix of any family with ragged lengths."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 400))
    k = draw(st.one_of(st.integers(1, 40), st.sampled_from([width, max(width - 1, 1), width + 1])))
    dtype = draw(st.sampled_from(["float32", "float16", "bfloat16"]))
    scores = scores_of(family, rows, width, k, dtype, seed=draw(st.integers(0, 1 << 16)))
    pitch = width + draw(st.sampled_from([0, 0, 1, 7]))
    held = np.zeros((rows, pitch), dtype=scores.dtype)
    held[:, :width] = scores
    lengths = draw(st.lists(st.integers(-3, width + 3), min_size=rows, max_size=rows))
    lengths = [width if draw(st.booleans()) else n for n in lengths]
    return held[:, :width], np.array(lengths, dtype=np.int32), k


def tightened(policy, rank, tau, groups, seen):
    """Move a boundary up among the statistics of the groups at an end, if all of these are better than it."""
    each = policy.group // PEAK
    few, most = math.ceil((rank // 4) / each) + 1, math.floor((rank - rank // 4) / each)
    numbers = np.unique(groups)
    for order in (numbers, numbers[::-1]):
        if most >= few and (seen[np.isin(groups, order[:most])] < tau).all():
            tau = int(seen[np.isin(groups, order[:few])].max())
    return tau


def check_trace(scores, lengths, k, policy, capacity, held, stats):
    """Recompute what a row's columns must be from the definitions, not from the model's own steps."""
    x = ranks(scores)
    valid = clamp(lengths, *scores.shape)
    for r in range(len(stats)):
        t, length = stats.row(r), int(valid[r])
        row = keys.widen(scores)[r, :length]
        route = Route(t["route"])
        committed = [t[f"committed{j}"] for j in range(4)]
        frontier = [t[f"frontier{j}"] for j in range(4)]
        assert sum(committed) + t["filled"] == min(length, k)
        if length <= k:
            assert route is Route.SHORT and committed[0] == length and t["scans"] == t["sampled"] == 0
            assert t["tau0"] == t["tau1"] == -1
            continue
        quota = k - committed[0]
        assert frontier[0] >= quota > 0
        for j in range(3):
            assert frontier[j + 1] <= frontier[j] and committed[j + 1] + frontier[j + 1] <= frontier[j]
        measure = keys.coarse_bin(row) if policy and policy.boundary == "coarse" else keys.order_key(row)
        measure = measure.astype(np.int64)
        view = policy.view(r, length) if policy else np.empty(0, np.int64)
        seen = measure[view]
        if policy and policy.peaks:
            groups = view // PEAK
            seen = np.array([seen[groups == g].min() for g in np.unique(groups)], dtype=np.int64)
        if policy is None or not policy.usable(seen.size, k):
            assert route is Route.DIRECT and t["sampled"] == 0 and t["tau0"] == t["tau1"] == -1
            base = 1 if length <= held else 2
        else:
            assert route is not Route.DIRECT and t["sampled"] == view.size
            ranked = [int(np.sort(seen)[rank - 1]) for rank in (policy.primary_rank(k), policy.rescue_rank(k)) if rank]
            taus = ranked.copy()
            if policy.peaks and policy.boundary == "exact":
                taus[0] = tightened(policy, policy.primary_rank(k), taus[0], view[::PEAK] // policy.group, seen)
            counts = [int((measure <= tau).sum()) for tau in taus]
            signed = [int(np.uint32(tau).astype(np.int32)) for tau in taus]
            assert [t["tau0"], t["tau1"]] == [*signed, -1][:2]
            if counts[0] >= k:
                assert route is Route.CERTIFIED and [t["admitted0"], t["admitted1"]] == [counts[0], -1]
                base = 1
            elif len(counts) == 2 and counts[1] >= k:
                assert route is Route.RESCUED and [t["admitted0"], t["admitted1"]] == counts
                base = 2
            else:
                assert route is (Route.RECOVERED_AFTER_BAND if len(counts) == 2 else Route.RECOVERED)
                assert [t["admitted0"], t["admitted1"]] == [*counts, -1][:2]
                base = 2 + len(counts)
            if route in (Route.CERTIFIED, Route.RESCUED):
                tau, count = taus[route - 1], counts[route - 1]
                strict = int((measure < tau).sum())
                again = (seen == ranked[route - 1]).sum() > 1
                repeated = policy.boundary == "exact" and (again or tau == keys.NAN_KEY)
                if not repeated:
                    start = [0, count]
                elif strict >= k:
                    start = [0, strict]
                else:
                    start = [strict, count - strict]
                assert [committed[0], frontier[0]] == start
        if route in (Route.DIRECT, Route.RECOVERED, Route.RECOVERED_AFTER_BAND):
            bins = keys.coarse_bin(row)
            edge = int(np.sort(bins)[k - 1])
            assert [committed[0], frontier[0]] == [int((bins < edge).sum()), int((bins == edge).sum())]
        extra = t["scans"] - base
        assert 0 <= extra <= 3 and (extra == 0 or frontier[0] > capacity)
        if extra == 0 and frontier[0] > capacity and frontier[0] != quota:
            boundary = np.sort(x[r, :length])[::-1][k - 1]
            assert np.unique(x[r, :length]).size == 1 or frontier[0] == (x[r, :length] == boundary).sum()


TABLE = [(case, POLICIES[n % len(POLICIES)], n % 2 * 1000) for n, case in enumerate(CASES)]
TABLE += [(case, PAPER_128, 16_384) for case in WIDE_CASES]
"""Cases with a policy each, and how many candidates beside k are stored."""


@pytest.mark.parametrize(("case", "policy", "slack"), TABLE, ids=[str(case) for case, _, _ in TABLE])
def test_case_table(case, policy, slack):
    inputs = build(case)
    lengths = np.full(case.rows, case.width) if inputs.lengths is None else inputs.lengths
    indices, stats = reference.select(inputs.scores, lengths, case.k, policy=policy, capacity=case.k + slack)
    assert_exact(inputs.scores, inputs.lengths, case.k, indices)
    check_trace(inputs.scores, lengths, case.k, policy, case.k + slack, 0, stats)


@settings(max_examples=400)
@given(problems(), policies, st.sampled_from([0, 1, 3, 1 << 40]), st.sampled_from([0, 100, 1 << 30]))
def test_exact_and_truthful_on_anything(problem, policy, slack, held):
    scores, lengths, k = problem
    capacity = k + slack
    indices, stats = reference.select(scores, lengths, k, policy=policy, capacity=capacity, resident_width=held)
    assert indices.dtype == np.int32
    assert_exact(scores, lengths, k, indices)
    check_trace(scores, lengths, k, policy, capacity, held, stats)


@settings(max_examples=150)
@given(problems(), policies, st.integers(2, 9), st.sampled_from([0, 5, 1 << 40]))
def test_merged_segments_equal_the_whole(problem, policy, splits, slack):
    scores, lengths, k = problem
    whole, one = reference.select(scores, lengths, k, policy=policy, capacity=k + slack)
    merged, many = reference.select(scores, lengths, k, policy=policy, capacity=k + slack, splits=splits)
    np.testing.assert_array_equal(merged, whole)
    reads = [STATS_COLUMNS.index(name) for name in ("sampled", "scans")]
    rest = [c for c in range(len(STATS_COLUMNS)) if c not in reads]
    np.testing.assert_array_equal(many.raw[:, rest], one.raw[:, rest])
    np.testing.assert_array_equal(many.sampled, one.sampled * splits)
    # Segments whose candidates do not fit together are scanned once more, as one row.
    outgrown = (one.route == Route.CERTIFIED) & (one.frontier0 > k + slack) & (one.committed0 == 0)
    np.testing.assert_array_equal((many.scans - one.scans)[~outgrown], 0)
    assert set((many.scans - one.scans)[outgrown]) <= {0, 1}
    if policy is None or policy.boundary == "coarse":
        np.testing.assert_array_equal((many.scans - one.scans)[outgrown], 1)


@settings(max_examples=100)
@given(problems(), policies)
def test_capacity_changes_scans_alone(problem, policy):
    scores, lengths, k = problem
    plenty, free = reference.select(scores, lengths, k, policy=policy)
    tight, bound = reference.select(scores, lengths, k, policy=policy, capacity=k)
    np.testing.assert_array_equal(plenty, tight)
    scans = STATS_COLUMNS.index("scans")
    rest = [c for c in range(len(STATS_COLUMNS)) if c != scans]
    np.testing.assert_array_equal(bound.raw[:, rest], free.raw[:, rest])
    assert (bound.scans >= free.scans).all() and (bound.scans <= free.scans + 3).all()


LAST_BIT = np.where(np.arange(300) == 17, np.nextafter(np.float32(1), np.float32(2)), 1)
HALF = np.full(5000, 0.5)

ROWS = {
    "a certified tail of exactly k is the answer": (
        np.where(np.arange(400) < 40, 2.0, -2.0) + np.arange(400, 0, -1) * 1e-6, 40,
        SamplingPolicy("p", 4, margin=1.0, min_rank=1), {},
        {"admitted0": 40, "frontier0": 40, "filled": 40, "frontier1": 0, "committed1": 0, "scans": 1},
    ),
    # Better ones are committed, k is filled, and no scan follows.
    "an exact boundary counts 99,900 equal scores apart": (
        np.arange(100_000) % 1000 == 0, 400, SamplingPolicy("e", 4, boundary="exact"), {"capacity": 400},
        {"route": Route.CERTIFIED, "scans": 1, "committed0": 100, "frontier0": 99_900, "filled": 300},
    ),
    "one value is not scanned again, direct": (HALF, 100, None, {"capacity": 100}, {"scans": 2, "filled": 100}),
    "one value is not scanned again, sampled": (HALF, 100, TINY, {"capacity": 100}, {"scans": 1, "filled": 100}),
    "refinement resolves the last bit": (LAST_BIT, 1, None, {}, {"frontier2": 300, "frontier3": 1}),
}  # fmt: skip
"""What the definitions leave open: further scans, and what the digits after the first leave."""


@pytest.mark.parametrize("name", ROWS)
def test_a_row(name):
    row, k, policy, options, expected = ROWS[name]
    scores, lengths = np.asarray(row, np.float32)[None], np.array([len(row)])
    indices, stats = reference.select(scores, lengths, k, policy=policy, **options)
    assert_exact(scores, lengths, k, indices)
    check_trace(scores, lengths, k, policy, options.get("capacity", reference.UNBOUNDED), 0, stats)
    found = stats.row(0)
    assert {column: found[column] for column in expected} == expected


def test_stats_access():
    _, stats = reference.select(scores_of("normal", 3, 500, 20), [500, 10, 400], 20, policy=TINY)
    assert len(stats) == 3 and list(stats.row(1)) == list(STATS_COLUMNS)
    assert sum(stats.route_counts().values()) == 3 and stats.route_counts()[Route.SHORT] == 1
    np.testing.assert_array_equal(stats.score_reads([500, 10, 400])[1], 0)
    expected = stats.sampled[0] + stats.scans[0] * 500
    assert stats.score_reads([500, 10, 400])[0] == expected
    with pytest.raises(AttributeError):
        _ = stats.no_such_column
    with pytest.raises(ValueError, match="expected"):
        Stats(np.zeros((3, 5), dtype=np.int32))


def test_proposal_is_centred_on_the_requested_rank():
    """On exchangeable rows the realised rank of tau0 averages 1.5 k, plus at most a coarse bin."""
    rows, width, k = 40, 32_768, 512
    scores = scores_of("normal", rows, width, k)
    policy = SamplingPolicy("e", 64, boundary="exact", min_rank=1)
    _, stats = reference.select(scores, [width] * rows, k, policy=policy)
    mean, spread = stats.admitted0.mean() / (1.5 * k), 1 / math.sqrt(policy.primary_rank(k) * rows)
    assert abs(mean - 1) < 4 * spread


@pytest.mark.parametrize("k", [512, 1024, 2048, 4096])
def test_a_sorted_row_admits_its_best_periods_and_one_more(k):
    """Where a window at the end is better than the rest, and not sorted, enough of it is admitted."""
    rows, width = 8, 262_144
    normal = scores_of("normal", rows, width, k)
    ordered = np.sort(normal, axis=1)
    periods = 1 + math.ceil(LINES_64.primary_rank(k) // 4 * PEAK / LINES_64.group)
    for scores in (ordered, ordered[:, ::-1]):
        _, stats = reference.select(scores, [width] * rows, k, policy=LINES_64)
        assert (stats.admitted0 >= k).all()
        assert (stats.admitted0 <= periods * LINES_64.stride * LINES_64.group).all()
    behind = np.arange(width) >= width - np.arange(3, 3 + rows)[:, None] * 2 * k
    _, stats = reference.select(normal + 50 * behind.astype(np.float32), [width] * rows, k, policy=LINES_64)
    assert (stats.admitted0 >= k).all()
