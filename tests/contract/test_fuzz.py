"""Tens of thousands of random rows through the CPU backend, judged by sorting; a share of them also by the model.

``KSIEVE_FUZZ_SEED`` draws other rows, ``KSIEVE_FUZZ_ROWS`` more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import ksieve
from cases import DTYPES, FAMILIES, POLICIES, clamp, scores_of
from flat_calls import ask
from harness import model_arguments
from ksieve import Route
from ksieve.model import reference
from ksieve_lab.oracle import assert_exact

SEED = int(os.environ.get("KSIEVE_FUZZ_SEED", "1"))
ROWS = int(os.environ.get("KSIEVE_FUZZ_ROWS", "60000"))


def draw(rng):
    """One batch: rows of one family, but lengths of every kind, a random policy and often a tiny capacity."""
    width = int(rng.choice([1, 2, 5, 17, 64, 100, 255, 400, 900, 5003, 40_001]))
    rows = min(int(rng.integers(100, 900)), 1 + 400_000 // width)
    k = int(min(rng.integers(1, 2 * width + 2), rng.integers(1, 200) if width < 5000 else rng.integers(1, 3000)))
    dtype = str(rng.choice(DTYPES))
    dense = scores_of(str(rng.choice(sorted(FAMILIES))), rows, width, k, dtype, seed=int(rng.integers(1 << 30)))
    held = np.zeros((rows, width + int(rng.choice([0, 0, 1, 6]))), dtype=dense.dtype)
    scores = held[:, :width]
    scores[...] = dense
    around_k = k + rng.integers(-2, 3, rows)
    anywhere = rng.integers(-2, width + 3, rows)
    lengths = np.choose(rng.integers(0, 4, rows), [np.full(rows, width), np.full(rows, width), around_k, anywhere])
    policy = POLICIES[rng.integers(len(POLICIES))]
    plan = ksieve.plan(rows=rows, width=width, k=k, dtype=dtype, policy=policy or "direct")
    return scores, lengths.astype(np.int32), replace(plan, capacity=k + int(rng.choice([0, 1, 7, 100_000])))


@pytest.mark.extended
def test_random_rows():
    rng = np.random.default_rng(SEED)
    done, batches, routes = 0, 0, Counter()
    while done < ROWS:
        scores, lengths, plan = draw(rng)
        k = plan.problem.k
        where = f"seed {SEED}, batch {batches}, {scores.dtype}, k {k}, {plan.policy}, capacity {plan.capacity}"
        indices, stats = ask(scores, lengths, plan=plan, stats=True)
        try:
            assert_exact(scores, lengths, k, indices)
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from None
        routes.update(stats.route_counts())
        if batches % 5 == 0:
            valid = clamp(lengths, *scores.shape)
            _, model = reference.select(scores, valid, k, **model_arguments(plan))
            np.testing.assert_array_equal(stats.raw, model.raw, err_msg=where)
        done += len(indices)
        batches += 1
    assert done >= ROWS
    if ROWS >= 60_000:
        assert set(routes) == set(Route), "every route must have been taken"
        assert min(routes.values()) > ROWS // 2000, routes
