"""Ranked rows and views against the definition: sort everything, count everything."""

from __future__ import annotations

import itertools
import re
import sys
import types

import numpy as np
import pytest

from ksieve.core.errors import BackendError
from ksieve.core.installation import install_command
from ksieve.core.keys import BIN_CUTOFF_KEY, coarse_bin, order_key
from ksieve.core.policy import PAPER_128, QUADS_16, SamplingPolicy
from ksieve.model import reference
from ksieve_lab.study import ranked, theory, views
from ksieve_lab.study.views import UNUSABLE, realised_ranks, regular_view


def rows_of(name: str, length: int = 1000) -> np.ndarray:
    rng = np.random.default_rng(7)
    normal = rng.standard_normal(length).astype(np.float32)
    return {
        "normal": normal,
        "ties": np.round(normal * 4) / 4,
        "relu": np.maximum(normal, 0),
        "equal": np.ones(length, np.float32),
        "nan": np.where(rng.random(length) < 0.3, np.float32(np.nan), normal),
        "infinite": np.where(rng.random(length) < 0.7, np.float32(-np.inf), normal),
        "ascending": np.sort(normal),
    }[name].astype(np.float32)


KINDS = ("normal", "ties", "relu", "equal", "nan", "infinite", "ascending")
VIEWS = (
    regular_view(16),
    SamplingPolicy("coarse", 8),
    SamplingPolicy("quads", 16, group=4, boundary="exact"),
    SamplingPolicy("lines", 4, group=32, boundary="exact", peaks=True),
    SamplingPolicy("coarse lines", 4, group=8, peaks=True),
    SamplingPolicy("jittered", 16, group=4, boundary="exact", jitter=True),
    SamplingPolicy("jittered lines", 4, group=8, peaks=True, jitter=True),
)
ROW_ID = 11
"""Row number that the jittered ones are looked at with."""


def definition(scores: np.ndarray, view: SamplingPolicy, phase: int, q: int) -> int:
    """Straight from the text: take the view, sort its statistics, count the row up to the q-th."""
    keys = order_key(scores)
    period = view.stride * view.group
    turn = view.offsets(ROW_ID, np.arange(scores.size // period + 1)) if view.jitter else np.zeros(scores.size, int)
    sampled = [
        i for i in range(scores.size) if (i // view.group) % view.stride == (phase + turn[i // period]) % view.stride
    ]
    source = coarse_bin(scores) if view.boundary == "coarse" else keys
    if view.peaks:
        statistics = [min(source[j] for j in sampled[i : i + 4]) for i in range(0, len(sampled), 4)]
    else:
        statistics = [source[i] for i in sampled]
    if len(statistics) < q:
        return UNUSABLE
    boundary = sorted(int(s) for s in statistics)[q - 1]
    return int((keys <= (BIN_CUTOFF_KEY[boundary] if view.boundary == "coarse" else boundary)).sum())


@pytest.mark.parametrize("keep", [40, 300, 5000])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", VIEWS, ids=lambda v: v.name)
def test_realised_ranks_are_those_of_the_definition(view, kind, keep):
    scores = rows_of(kind, 997)
    (row,) = ranked.rank_rows(scores[None], np.array([997]), keep)
    wanted = (1, 3, 10, 63)
    found = realised_ranks(row, view, wanted, row_id=ROW_ID)
    assert found.shape == (view.stride, 4)
    for phase in range(view.stride):
        assert list(found[phase]) == [definition(scores, view, phase, q) for q in wanted], phase
    shallow = realised_ranks(row, view, wanted, beyond=False, row_id=ROW_ID)
    kept_ranks = row.coarse_ranks() if view.boundary == "coarse" else row.ranks
    behind = (shallow != found) & (found != UNUSABLE)
    assert (found[behind] >= row.order.size).all(), "only what lies behind the kept scores may differ"
    assert (shallow[behind] == row.order.size + 1).all()
    assert np.array_equal(found == UNUSABLE, shallow == UNUSABLE)
    assert kept_ranks.size == min(keep, 997)


def sampled(view: SamplingPolicy, phase: int, length: int, row_id: int) -> np.ndarray:
    return np.flatnonzero(views.phases_of(np.arange(length), view, row_id) == phase)


@pytest.mark.parametrize("view", VIEWS, ids=lambda v: v.name)
@pytest.mark.parametrize("length", [1, 31, 128, 997])
def test_statistics_sizes(view, length):
    sizes = views.statistics_sizes(length, view, ROW_ID)
    every = [sampled(view, phase, length, ROW_ID) for phase in range(view.stride)]
    assert sum(map(len, every)) == length
    for phase, positions in enumerate(every):
        assert sizes[phase] == view.statistics(np.zeros(positions.size)).size


def test_regular_phases_are_the_policys_and_jittered_ones_begin_with_the_rows_own_view():
    regular, jittered = VIEWS[2], VIEWS[-2]
    for phase in range(16):
        assert np.array_equal(sampled(regular, phase, 997, 5), regular.view_of_phase(phase, 997))
    assert np.array_equal(sampled(jittered, 0, 997, 5), jittered.view(5, 997))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sparse_view_does_not_read_the_row_once_for_each_phase(monkeypatch, kind):
    scores, keyed, real = rows_of(kind, 20_000), [], ranked.order_key
    monkeypatch.setattr(ranked, "order_key", lambda x: keyed.append(np.size(x)) or real(x))
    (row,) = ranked.rank_rows(scores[None], np.array([scores.size]), 8)
    found = realised_ranks(row, regular_view(256), [1, 2])
    assert found.shape == (256, 2) and (found != UNUSABLE).all()
    assert sum(keyed) <= 8 * scores.size  # once each time that eight times as many are put in order


@pytest.mark.parametrize("policy", [PAPER_128, QUADS_16], ids=lambda p: p.name)
def test_ranks_are_what_the_model_admits(policy):
    scores = np.random.default_rng(3).standard_normal((4, 40_000)).astype(np.float32)
    _, stats = reference.select(scores, np.full(4, 40_000), 600, policy=policy)
    for r, row in enumerate(ranked.rank_rows(scores, np.full(4, 40_000), 3000)):
        ranks = realised_ranks(row, policy, [policy.primary_rank(600)], row_id=r)
        assert ranks[0 if policy.jitter else policy.phase(r), 0] == stats.admitted0[r]


@pytest.mark.parametrize("kind", KINDS)
def test_counts_over_the_complete_row(kind):
    scores = rows_of(kind)
    (row,) = ranked.rank_rows(scores[None], np.array([1000]), 50)
    thresholds = [3.0, 1.0, 0.1 + 1e-12, 0.0, -0.5, -9.0]
    assert list(row.count_at_least(thresholds)) == [int((scores.astype(float) >= t).sum()) for t in thresholds]


def test_rows_end_at_their_length():
    scores = np.arange(20, dtype=np.float32).reshape(2, 10)
    first, second = ranked.rank_rows(scores, np.array([4, 0]), 3)
    assert list(first.order) == [3, 2, 1]
    assert second.length == 0
    assert second.order.size == 0


def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CUDA path run on the host: what it asks of torch is the same there."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [997, 640, 30])
def test_cuda_ranking_equals_the_hosts(monkeypatch, kind, length):
    fake_cuda(monkeypatch)
    scores = np.stack([rows_of(kind, 997), rows_of("normal", 997)])
    lengths = np.array([length, 997])
    for a, b in zip(
        ranked.rank_rows(scores, lengths, 64, "cuda"), ranked.rank_rows(scores, lengths, 64, "cpu"), strict=True
    ):
        assert np.array_equal(a.keys, b.keys)
        assert np.array_equal(a.ranks, b.ranks)
        assert np.array_equal(order_key(a.scores[a.order]), a.keys)
        assert np.unique(a.order).size == a.order.size


def test_cuda_without_a_gpu_names_the_remedy(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendError, match="--backend cpu"):
        next(ranked.rank_rows(np.zeros((1, 4), np.float32), np.array([4]), 2, "cuda"))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BackendError, match=re.escape(install_command("torch"))):
        ranked.require_cuda()
    assert isinstance(torch, types.ModuleType)


# ---- formulas against brute force ---------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "samples"), [(5, 1), (6, 3), (7, 7), (8, 5), (9, 4)])
def test_exchangeable_moments_are_those_of_every_subset(length, samples):
    subsets = np.array(list(itertools.combinations(range(1, length + 1), samples)))
    for q in range(1, samples + 1):
        ranks = subsets[:, q - 1]  # combinations are ascending: the q-th smallest rank is the q-th largest score
        for requested in (1, length):
            wanted = ((ranks - requested) ** 2).mean()
            assert theory.exchangeable_square_error(q, length, samples, requested) == pytest.approx(wanted, rel=1e-12)
        for k in range(1, length + 1):
            wanted = (ranks < k).mean()
            assert theory.underfill_probability(k, q, length, samples) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_tail_of_one_gap_is_one_more_score():
    for p in (0.05, 0.5, 0.95):
        assert theory.tail_quantile(2048, [1.0], p) == [2049]


def test_tail_quantiles_are_those_of_the_geometric_law_by_summation():
    k, eps = 10, 8.0
    cumulative = np.cumsum((1 / eps) * (1 - 1 / eps) ** np.arange(400))
    for p in (0.05, 0.3, 0.5, 0.95, 0.999):
        assert theory.tail_quantile(k, eps, p) == k + 1 + int(np.searchsorted(cumulative, p))
