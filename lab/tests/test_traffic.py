"""The paper's traffic table and expected-traffic formula against traces of the model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import FAMILIES, POLICIES, TINY, scores_of
from ksieve.core.errors import ArgumentError
from ksieve.core.policy import PAPER_128, SamplingPolicy
from ksieve.core.stats import STATS_COLUMNS, Route, Stats
from ksieve.model import reference
from ksieve_lab.read_counts import ROUTE_SCANS, check_traffic, expected_traffic


def test_formula_is_the_mean_of_the_table():
    """Without a band, and with one, for any mix of routes; and P/s under a KV split."""
    assert expected_traffic(64, 0, 0) == ROUTE_SCANS[Route.CERTIFIED] + 1 / 64
    assert expected_traffic(64, 0, 1) == ROUTE_SCANS[Route.RECOVERED] + 1 / 64
    assert expected_traffic(128, 1, 0) == ROUTE_SCANS[Route.RESCUED] + 1 / 128
    assert expected_traffic(128, 1, 1) == ROUTE_SCANS[Route.RECOVERED_AFTER_BAND] + 1 / 128
    assert expected_traffic(128, 0, 0, splits=8) == ROUTE_SCANS[Route.CERTIFIED] + 8 / 128


@settings(max_examples=150)
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.integers(1, 5),
    st.integers(1, 500),
    st.integers(1, 60),
    st.sampled_from(POLICIES),
    st.sampled_from([0, 1 << 40]),
    st.sampled_from([0, 200]),
    st.integers(1, 4),
    st.integers(0, 1000),
)
def test_every_trace_is_explained(family, rows, width, k, policy, slack, held, splits, seed):
    scores = scores_of(family, rows, width, k, seed=seed)
    lengths = np.random.default_rng(seed).integers(0, width + 1, rows)
    _, stats = reference.select(
        scores, lengths, k, policy=policy, capacity=k + slack, resident_width=held, splits=splits
    )
    traffic = check_traffic(stats, lengths, policy, splits=splits, resident_width=held)
    assert traffic.ok, traffic
    if slack:
        assert traffic.rescans == 0
    if traffic.rows:
        assert traffic.realised == pytest.approx(traffic.predicted + traffic.rounding + traffic.rescans)


def test_measured_probabilities_predict_measured_traffic():
    """A mix of all four sampled routes; lengths divisible by the stride leave nothing to rounding."""
    policy = SamplingPolicy("mix", 4, margin=0.9, rescue_margin=1.1, min_rank=1)
    rows, width, k = 200, 400, 40
    scores = scores_of("normal", rows, width, k)
    lengths = np.full(rows, width)
    _, stats = reference.select(scores, lengths, k, policy=policy)
    assert set(stats.route_counts()) == {Route.CERTIFIED, Route.RESCUED, Route.RECOVERED_AFTER_BAND}
    traffic = check_traffic(stats, lengths, policy)
    counts = stats.route_counts()
    assert traffic.p_band == (counts[Route.RESCUED] + counts[Route.RECOVERED_AFTER_BAND]) / rows
    assert traffic.p_exact == counts[Route.RECOVERED_AFTER_BAND] / rows
    assert traffic.rounding == traffic.rescans == 0
    assert traffic.realised == pytest.approx(traffic.predicted)
    assert traffic.rows == rows


@pytest.mark.parametrize("column", ["scans", "sampled"])
def test_a_wrong_count_is_found(column):
    scores = scores_of("normal", 6, 400, 20)
    _, stats = reference.select(scores, [400] * 6, 20, policy=TINY)
    raw = stats.raw.copy()
    raw[4, STATS_COLUMNS.index(column)] += 5
    traffic = check_traffic(Stats(raw), [400] * 6, TINY)
    assert traffic.mismatched == (4,) and not traffic.ok


def test_fewer_scans_than_the_route_needs_is_found():
    _, stats = reference.select(scores_of("normal", 3, 400, 20), [400] * 3, 20, policy=None)
    raw = stats.raw.copy()
    raw[1, STATS_COLUMNS.index("scans")] = 1
    assert check_traffic(Stats(raw), [400] * 3, None).mismatched == (1,)
    assert (
        check_traffic(Stats(raw), [400] * 3, None, resident_width=400).ok is True
    )  # 2 scans of a held row: one rescan


def test_bad_arguments():
    _, stats = reference.select(scores_of("normal", 3, 400, 20), [400] * 3, 20, policy=TINY)
    with pytest.raises(ArgumentError, match=r"lengths: got shape \(2,\)"):
        check_traffic(stats, [400, 400], TINY)
    with pytest.raises(ArgumentError, match=r"lengths: got -1; takes lengths clamped"):
        check_traffic(stats, [400, 400, -1], TINY)
    with pytest.raises(ArgumentError, match=r"policy: got None; takes the policy of row 0"):
        check_traffic(stats, [400] * 3, None)


def test_the_papers_wide_policy_reads_little_more_than_the_row():
    rows, width, k = 8, 131_072, 2048
    scores = scores_of("endpoint", rows, width, k)
    _, stats = reference.select(scores, [width] * rows, k, policy=PAPER_128)
    traffic = check_traffic(stats, [width] * rows, PAPER_128)
    assert traffic.ok and traffic.rows == rows and traffic.rounding == 0
    assert traffic.realised == pytest.approx(1 + 1 / 128 + traffic.p_band + 2 * traffic.p_exact)
