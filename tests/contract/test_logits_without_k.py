"""Kept sets and samples of whole rows on the CPU, against a written-out definition and against the oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest

import logits_oracle as oracle
from contract.test_logits import SCANNED, WITHOUT_K, hard_rows, scores_of
from ksieve import logits
from ksieve.core.keys import widen
from ksieve.model import logits as model

P, LEAST, UNIFORM = (None, 1e-3, 0.5, 0.9, 0.999999, 1), (None, 0, 1e-3, 0.3, 1), (0, 0.3, 0.7, 0.999, 1)
TEMPERATURES = (0.01, 0.7, 1, 1.3, 100, 2.0**-100, 2.0**100)


def answer(row, temperature, p, min_p, first, uniform):
    """Kept tokens, their masses, and the token drawn of one row of float32, in integers of Python."""
    order = np.lexsort((np.arange(row.size), -row.astype(np.float64)))[: np.count_nonzero(row > -np.inf)]
    if np.isnan(row).any() or not order.size:
        return [], [], -1
    exact, factor = model.factors(np.float32([temperature]))
    masses = list(map(int, model.masses(row[order][None], factor)[0][0]))
    wide, limit = row[order].astype(np.float64), -np.inf
    if min_p:
        limit = float(model.log2(np.float64([np.float32(min_p)]))[0])
    with np.errstate(invalid="ignore"):
        enough = int(np.count_nonzero(np.where(wide == wide[0], 0.0, (wide - wide[0]) * exact) >= limit))
    of = enough if first else len(masses)
    count, sums = of, np.cumsum(masses, dtype=object)
    if p is not None and p < 1:
        least = math.ceil(float(np.float32(p)) * float(sums[of - 1]))
        count = next(i for i in range(of) if sums[i] >= least) + 1
    count = min(count, enough)
    drawn = min(int(float(np.float32(uniform)) * float(sums[count - 1])) + 1, sums[count - 1])
    return order[:count].tolist(), masses[:count], int(order[next(i for i in range(count) if sums[i] >= drawn)])


def limits(rng):
    """Arguments of a random call."""
    given = {"p": P[rng.integers(6)], "min_p": LEAST[rng.integers(5)], "min_p_first": bool(rng.random() < 0.4)}
    return given | {"temperature": float(rng.choice(TEMPERATURES))}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_written_out_definition(dtype):
    rng, scanned = np.random.default_rng(12), 0
    hard = np.stack(list(hard_rows(2000).values()))
    for i in range(120):
        scores = scores_of(rng, 12, int(rng.choice([1, 50, 64, 65, 400, 2500])), dtype)
        if dtype == "float32" and i % 8 == 0:
            scores = hard
        given, uniform, capacity = limits(rng), float(rng.choice(UNIFORM)), int(rng.choice([1, 7, 64, 1024]))
        kept, drawn = logits.kept(scores, capacity=capacity, **given), logits.sample(scores, uniform=uniform, **given)
        scanned += np.count_nonzero((kept.flags | drawn.flags) & SCANNED)
        own = {name: given[name] for name in ("temperature", "p", "min_p")}
        for r, row in enumerate(widen(scores)):
            tokens, masses, token = answer(row, first=given["min_p_first"], uniform=uniform, **own)
            assert (kept.counts[r], drawn.tokens[r]) == (len(tokens), token), (i, r, given)
            listed = min(len(tokens), capacity)
            assert kept.tokens[r].tolist() == [*tokens[:listed], *[-1] * (capacity - listed)]
            right = [np.float32(mass / float(sum(masses))) for mass in masses[:listed]]
            assert kept.probabilities[r].tolist() == [*right, *[0] * (capacity - listed)]
            assert bool(kept.flags[r] & logits.Flags.CAPACITY) == (len(tokens) > capacity)
    assert scanned > 300


def rows_of(width):
    """Flat and peaked rows, and plateaus."""
    rng = np.random.default_rng(width)
    normal = rng.standard_normal(width)
    kinds = [normal * scale for scale in (1e-3, 0.1, 1, 3, 10)] + [np.round(normal * 4) / 4, np.sort(normal) * 5]
    kinds += [np.full(width, 3.0), np.where(normal > 1, 9, normal), -np.log(np.arange(1, width + 1)), normal * 30 + 1e4]
    kinds.append(np.where(np.arange(width) == width // 3, 20, normal))
    return np.stack(kinds).astype(np.float32)


def test_sets_and_samples_of_a_vocabulary_against_the_oracle():
    scores, rng, near, compared = rows_of(1 << 17), np.random.default_rng(7), 0, 0
    for temperature in (0.01, 0.7, 1, 100):
        for p, min_p in ((None, None), (0.5, None), (0.9, 0.01), (0.99, None), (None, 0.2)):
            given, uniform = {"p": p, "min_p": min_p, "temperature": temperature}, float(rng.random(dtype=np.float32))
            kept, drawn = logits.kept(scores, capacity=8, **given), logits.sample(scores, uniform=uniform, **given)
            for r, row in enumerate(scores):
                of = oracle.Row(row, row.size, {"temperature": np.float32(temperature)})
                own = np.float32(1 if p is None else p), np.float32(min_p or 0)
                tokens, sums, margin = of.kept(*own)
                compared += 2
                if kept.counts[r] != len(tokens):
                    assert margin < WITHOUT_K
                    near += 1
                    continue
                assert kept.tokens[r].tolist() == [*tokens[:8], *[-1] * (8 - len(tokens))]
                token, margin = of.draw(uniform, tokens, sums, whole=True)
                if drawn.tokens[r] != token:
                    assert margin < WITHOUT_K
                    near += 1
    assert near < compared // 20


def test_equal_scores_are_kept_and_drawn_by_position():
    scores = np.full((2, 1 << 17), -5, np.float32)
    scores[1, ::2] = -np.inf
    for p, count in ((2.0**-17, 1), (2.0**-16, 2), (0.5, 1 << 16), (0.75, 3 << 15), (1, 1 << 17)):
        assert logits.kept(scores, p=p, capacity=3).counts.tolist() == [count, -(-count // 2)]
    for uniform, token in ((0, 0), (0.5, 1 << 16), (0.5 - 2.0**-20, (1 << 16) - 1), (1, (1 << 17) - 1)):
        assert logits.sample(scores, uniform=uniform).tokens.tolist() == [token, token | 1]


def test_rows_are_read_again_only_where_their_best_scores_decide_nothing():
    rng = np.random.default_rng(3)
    flat, peaked = rng.standard_normal((2, 5000)).astype(np.float32)
    peaked[77] = 20
    scores = np.stack([flat, peaked, np.where(np.arange(5000) < 40, flat, -np.inf)])

    def scanned(found):
        return [bool(flag & SCANNED) for flag in found.flags]

    assert scanned(logits.kept(scores, p=0.9, capacity=50)) == [True, False, False]
    assert scanned(logits.kept(scores, min_p=0.1, capacity=1024)) == [False, False, False]
    assert scanned(logits.kept(scores, capacity=50)) == [True, True, False]
    assert scanned(logits.sample(scores, p=0.9, uniform=0.5)) == [True, False, False]
    assert scanned(logits.sample(scores, uniform=0.5)) == [True, False, False]
    assert scanned(logits.sample(scores, 50, uniform=0.5)) == [False] * 3
    wide = logits.kept(scores, p=0.9, capacity=1024)
    listed = logits.kept(scores, p=0.9, capacity=5)
    assert wide.counts[0] > 1024 and listed.counts.tolist() == wide.counts.tolist()
    assert listed.probabilities.tobytes() == wide.probabilities[:, :5].tobytes()


def test_rows_without_numbers():
    inf, nan = np.inf, np.nan
    rows = np.float32([[nan, 1, 2], [inf, 0, inf], [-inf] * 3, [-inf, 5, -inf], [0, 1, 2]])
    rows = np.concatenate([rows, np.full((5, 100), -inf, np.float32)], 1)
    rows[1, 3:] = 9  # more than the slots: the row is read again
    found = logits.kept(rows, capacity=4, lengths=np.int32([103, 103, 103, 103, 0]))
    assert found.counts.tolist() == [0, 103, 0, 1, 0]
    assert found.flags.tolist() == [1, 32 | 8 | SCANNED, 2, 0, 2]
    assert found.probabilities[1].tolist() == [0.5, 0.5, 0, 0]
    for p, uniform, token in ((0.5, 0.9, 0), (0.6, 0.9, 2), (None, 0.4, 0), (None, 1, 2)):
        assert logits.sample(rows[:4], p=p, uniform=uniform).tokens.tolist() == [-1, token, -1, 1]
