"""The study's formulas against brute force: every subset of tiny populations, and laws by summation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ksieve_lab.study import theory


@pytest.mark.parametrize(("length", "samples"), [(5, 1), (6, 3), (7, 7), (8, 5), (9, 4)])
def test_exchangeable_moments_are_those_of_every_subset(length, samples):
    subsets = np.array(list(itertools.combinations(range(1, length + 1), samples)))
    for q in range(1, samples + 1):
        ranks = subsets[:, q - 1]  # combinations are ascending: the q-th smallest rank is the q-th largest score
        assert theory.exchangeable_mean(q, length, samples) == pytest.approx(ranks.mean(), rel=1e-12)
        assert theory.exchangeable_variance(q, length, samples) == pytest.approx(ranks.var(), rel=1e-12, abs=1e-12)
        for requested in (1, length):
            wanted = ((ranks - requested) ** 2).mean()
            assert theory.exchangeable_square_error(q, length, samples, requested) == pytest.approx(wanted, rel=1e-12)
        for k in range(1, length + 1):
            wanted = (ranks < k).mean()
            assert theory.underfill_probability(k, q, length, samples) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_tail_of_one_gap_is_one_more_score():
    for p in (0.05, 0.5, 0.95):
        assert theory.tail_quantile(2048, [1.0], p) == [2049]
    assert theory.tail_mean(2048, [1.0]) == [2049]


def test_tail_quantiles_are_those_of_the_geometric_law_by_summation():
    k, eps = 10, 8.0
    cumulative = np.cumsum((1 / eps) * (1 - 1 / eps) ** np.arange(400))
    for p in (0.05, 0.3, 0.5, 0.95, 0.999):
        assert theory.tail_quantile(k, eps, p) == k + 1 + int(np.searchsorted(cumulative, p))
