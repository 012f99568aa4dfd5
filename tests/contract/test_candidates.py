"""`ksieve.running.Candidates` against `ksieve.topk` on whole rows (contract C69, C70)."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve
from answers import RANKINGS, reaches
from flat_calls import ask, finished
from ksieve import ArgumentError, Running, VerificationError
from ksieve.core.groups import grouped
from ksieve.core.keys import widen
from ksieve.running import Candidates

ROWS, WIDTH, K = 24, 9000, 32
CAPACITY, SHARE = 96, 64


def produce(scores, lengths, candidates, ranking="largest"):
    """What a producer's epilogue does: a score that reaches the cutoff is counted, and listed while there is room."""
    wide, of = widen(scores), candidates
    cutoff, counts, found, places = map(np.asarray, (of.cutoff, of.counts, of.scores, of.positions))
    for r, length in enumerate(lengths):
        kept = np.flatnonzero(reaches(wide[r, :length], cutoff[r], ranking))
        listed = np.random.default_rng(r).permutation(kept)[: of.capacity]
        counts[r] += len(kept)
        found[r, : len(listed)] = scores[r, listed]
        places[r, : len(listed)] = listed


def hostile_rows():
    """Rows, with what becomes of each in a first and in a second pass of the producer."""
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    scores[0] = 3  # all equal
    scores[1] = np.sort(scores[1])  # best scores last
    scores[2] = np.nan
    scores[3, ::2] = np.nan
    scores[4] = -np.inf
    scores[5, :200] = 50 + np.arange(200)  # best scores together
    scores[6] = 0
    scores[6, 4000 : 4000 + K - 1] = 1  # one too few, then all others equal
    scores[7, :] = np.inf
    return scores


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", ["plain", "own k", "blocks"])
def test_the_answer_of_whole_rows(case, dtype, ranking):
    scores = hostile_rows()
    scores = (scores.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else scores.astype(dtype)
    how, rng = RANKINGS[ranking], np.random.default_rng(5)
    lengths = rng.integers(WIDTH // 2, WIDTH + 1, ROWS).astype(np.int32)
    lengths[8:14] = 0, 1, K - 1, K, CAPACITY, CAPACITY + 1
    given = lengths.astype(np.int64)
    given[8], given[14], lengths[14] = -5, 2**31, WIDTH
    slots = {"k": rng.integers(0, K + 1, ROWS).astype(np.int32), "max_k": K} if case == "own k" else {"k": K}
    block = {"block_size": 4} if case == "blocks" else {}
    asked = grouped(slots | how | block | {"deterministic": True})
    running = Running(ROWS, max_tile=1024, dtype=scores.dtype, **asked)
    candidates = Candidates(running, WIDTH, capacity=CAPACITY, share=SHARE // (4 if block else 1))
    entries, ends = scores, lengths
    if block:  # the producer makes one score of each block
        numbers = ask(scores, lengths, k=WIDTH // 4, values=True, sorted="index", **block, **how)
        entries, ends = numbers[1], -(-lengths // 4)
    samples = entries.take(candidates.columns, axis=1)
    for wanted in range(2):
        candidates.propose(samples, given)
        resolved = []
        for _ in range(wanted + 1):
            produce(entries, ends, candidates, ranking)
            candidates.certify(check=True)
            resolved.append((candidates.left == 0).sum())
        assert 0 < resolved[-1] < ROWS
        assert resolved[-1] > resolved[0] or not wanted
        for begin in range(0, WIDTH, 1024):
            running.push(scores[:, begin : begin + 1024], begin, candidates.left)
        found = finished(running, values=True)
        expected = ask(scores, lengths, deterministic=True, values=True, **slots, **block, **how)
        for got, right in zip(found, expected, strict=True):
            assert got.tobytes() == right.tobytes()


def test_random_rows_need_no_tiles():
    scores = np.random.default_rng(0).standard_normal((64, 1 << 17)).astype(np.float32)
    running = Running(64, 512, 1, deterministic=True)
    candidates = Candidates(running, 1 << 17)
    candidates.propose(scores.take(candidates.columns, axis=1))
    for least in (60, 64):
        produce(scores, [1 << 17] * 64, candidates)
        candidates.certify()
        assert (candidates.left == 0).sum() >= least
    assert running.finish().tobytes() == ksieve.topk(scores, k=512, deterministic=True).tobytes()


@pytest.mark.parametrize("ranking", RANKINGS)
def test_nan_stands_for_no_number(ranking):
    """The cutoff is too high for k numbers of each row, and NaN would fill up what is missing."""
    rng, how = np.random.default_rng(0), RANKINGS[ranking]
    scores = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    scores[:, rng.permutation(WIDTH)[: K - 2]] = np.nan
    running = Running(ROWS, K, WIDTH, deterministic=True, **grouped(how))
    candidates = Candidates(running, WIDTH, capacity=CAPACITY)
    candidates.propose(scores.take(candidates.columns, axis=1))
    ordered = np.sort(scores if ranking == "smallest" else -scores, axis=1) * (1 if ranking == "smallest" else -1)
    candidates.cutoff[:] = ordered[:, 4]  # five numbers reach it
    produce(scores, [WIDTH] * ROWS, candidates, ranking)
    candidates.certify(check=True)
    assert (candidates.left == (0 if ranking == "nan_first" else WIDTH)).all()
    running.push(scores, 0, candidates.left)
    assert running.finish().tobytes() == ask(scores, k=K, deterministic=True, **how).tobytes()


def test_tensors():
    torch = pytest.importorskip("torch")
    scores = hostile_rows()
    running = Running(ROWS, K, 4096, dtype=torch.float32, deterministic=True)
    candidates = Candidates(running, WIDTH, capacity=CAPACITY)
    candidates.propose(torch.from_numpy(scores.take(candidates.columns, axis=1)))
    produce(scores, [WIDTH] * ROWS, candidates)
    candidates.certify(check=True)
    for begin in range(0, WIDTH, 4096):
        running.push(torch.from_numpy(scores[:, begin : begin + 4096].copy()), begin, candidates.left)
    assert running.finish().numpy().tobytes() == ksieve.topk(scores, k=K, deterministic=True).tobytes()


LIES = {
    "a position past the row": (lambda c: c.positions.__setitem__((15, 0), WIDTH), "positions outside [0, 9000)"),
    "a position twice": (lambda c: c.positions.__setitem__((15, 0), c.positions[15, 1]), "a position twice"),
    "a worse score": (lambda c: c.scores.__setitem__((15, 0), -9), "do not reach the cutoff"),
    "a NaN": (lambda c: c.scores.__setitem__((15, 0), np.nan), "do not reach the cutoff"),
    "a count of more than the row": (lambda c: c.counts.__setitem__(15, WIDTH + 1), "counts 9001"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_list_that_cannot_be_right(lie):
    scores = hostile_rows()
    candidates = Candidates(Running(ROWS, K, 1), WIDTH, capacity=CAPACITY)
    candidates.propose(scores.take(candidates.columns, axis=1))
    produce(scores, [WIDTH] * ROWS, candidates)
    act, text = LIES[lie]
    act(candidates)
    with pytest.raises(VerificationError) as caught:
        candidates.certify(check=True)
    assert str(caught.value).startswith("the producer's list of row 15")
    assert text in str(caught.value)


def test_errors():
    running = Running(2, 8, 4)
    with pytest.raises(ArgumentError, match=r"running: got int; takes a ksieve\.Running"):
        Candidates(3, 100)
    with pytest.raises(ArgumentError, match="capacity: got 8; takes an int of at least 9"):
        Candidates(running, 100, capacity=8)
    for seed in (-1, "a", True):
        with pytest.raises(ArgumentError, match=r"seed: got .*; takes an int of at least 0"):
            Candidates(running, 100, seed=seed)
    candidates = Candidates(running, 100, share=10)
    with pytest.raises(ArgumentError, match=r"certify: got no cutoffs yet; takes a call of propose"):
        candidates.certify()
    with pytest.raises(ArgumentError, match=r"samples: got shape \(2, 9\); takes shape \(2, 10\)"):
        candidates.propose(np.zeros((2, 9), np.float32))
    with pytest.raises(ArgumentError, match=r"lengths: got shape \(3,\); takes shape \(2,\)"):
        candidates.propose(np.zeros((2, 10), np.float32), np.zeros(3, np.int32))
