"""The suite's own judge, on the CPU: it accepts the sorting oracle's answers and catches every way to be wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oracle
from gpu import judge, material, runner


def judged(scores, lengths, k, indices):
    given = torch.from_numpy(scores)
    valid = judge.valid_lengths(torch.from_numpy(lengths), *scores.shape)
    return judge.exact_rows(given, valid, k, torch.from_numpy(indices.astype(np.int32)))


@pytest.mark.parametrize(("width", "k"), [(1, 1), (1, 5), (50, 50), (300, 20), (2000, 128)])
def test_accepts_what_sorting_finds_on_all_value_families(width, k):
    scores = material.stack(width, k, 2)
    lengths = material.lengths_for(len(scores), width, k)
    assert judged(scores, lengths, k, oracle.first_k(scores, lengths, k)).all()


def test_agrees_with_the_oracle_on_broken_answers():
    width, k = 300, 20
    scores = material.stack(width, k, 2)
    lengths = material.lengths_for(len(scores), width, k)
    rng = np.random.default_rng(3)
    for _ in range(30):
        answer = oracle.first_k(scores, lengths, k)
        rows, slots = np.arange(len(scores)), rng.integers(0, k, len(scores))
        answer[rows, slots] = rng.choice([-1, -2, 0, 1, width - 1, width, 2**31 - 1, 57], len(scores))
        expected = oracle.exact_rows(scores, lengths, k, answer)
        assert np.array_equal(judged(scores, lengths, k, answer).numpy(), expected)
        assert not expected.all()


def test_narrow_scores_are_judged_as_they_widen():
    scores = np.array([[1.0, 1.0009765625, 1.001953125]], np.float32)
    for dtype, right in (("float16", [2, 1]), ("bfloat16", [0, 1])):  # the bfloat16 values are one
        given = torch.from_numpy(material.narrow(scores, dtype)).view(getattr(torch, dtype))
        valid = judge.valid_lengths(None, 1, 3)
        for answer in ([2, 1], [0, 1]):
            ok = judge.exact_rows(given, valid, 2, torch.tensor([answer], dtype=torch.int32))
            assert bool(ok) == (answer == right or dtype == "bfloat16")


def test_live_rows_end_where_the_device_says():
    lengths = torch.tensor([5, -3, 9, 7], dtype=torch.int32)
    for live, expected in ((4, [5, 0, 8, 7]), (2, [5, 0, 0, 0]), (-1, [0] * 4), (9, [5, 0, 8, 7])):
        found = judge.valid_lengths(lengths, 4, 8, torch.tensor([live], dtype=torch.int32))
        assert found.tolist() == expected


def test_explanations_name_what_is_wrong():
    scores = torch.tensor([[5.0, 1.0, 3.0, 2.0]])
    valid = torch.tensor([3])
    for answer, words in (
        ([0, 3], "1 positions out of range, at slots [1]: [3]"),
        ([0, 0], "1 positions repeat others"),
        ([0, 1], "2 scores exceed the least selected one, 1 of them are selected"),
    ):
        assert words in judge.explain(scores, valid, 2, torch.tensor([answer], dtype=torch.int32), 0)
    assert "unused slots are not -1" in judge.explain(
        scores, valid, 5, torch.tensor([[0, 1, 2, 7, -1]], dtype=torch.int32), 0
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_writes_around_the_output_are_seen(rows, monkeypatch):
    monkeypatch.setattr(runner, "DEVICE", "cpu")
    target = runner.Guarded.make(rows, 4, padding=2)
    target.out.fill_(1)
    assert target.intact()
    for at in (runner.GUARD - 1, runner.GUARD + 4, runner.GUARD + rows * 6 - 1, target.buffer.numel() - 1):
        before = int(target.buffer[at])
        target.buffer[at] = 0
        assert not target.intact()
        target.buffer[at] = before
    assert target.intact()
