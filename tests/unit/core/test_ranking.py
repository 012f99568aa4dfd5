"""Ranked scores: the order of the ranked scores is the order that was asked for, over every 16-bit score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ksieve.core.keys import order_key, widen
from ksieve.core.ranking import RANKINGS, Ranking, ranked


def wanted_order(wide: Any, ranking: Ranking) -> Any:
    """Numbers that increase from the best score to the worst, equal for equal scores."""
    numbers = np.where(np.isnan(wide), 0, wide).astype(np.float64)
    best_first = numbers if ranking == "smallest" else -numbers
    finite = np.clip(best_first, -1e300, 1e300)
    return np.where(np.isnan(wide), -np.inf if ranking == "nan_first" else np.inf, finite)


def scores_of(dtype: str) -> Any:
    """Every score of 16 bits, or float32 scores around every step of their exponents, NaNs of all kinds included."""
    if dtype == "uint16":
        return np.arange(1 << 16, dtype=np.uint16)
    if dtype == "float16":
        return np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    steps = np.arange(1 << 9, dtype=np.uint64)[:, None] << np.uint64(23)
    return ((steps + np.arange(-3, 4).astype(np.uint64)) & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16"])
@pytest.mark.parametrize("ranking", RANKINGS)
def test_order_of_ranked_scores(ranking: Ranking, dtype: str) -> None:
    scores = scores_of(dtype)
    found = ranked(scores, ranking)
    assert found.dtype == scores.dtype and found.shape == scores.shape
    _, places = np.unique(order_key(widen(found)), return_inverse=True)
    _, wanted = np.unique(wanted_order(widen(scores), ranking), return_inverse=True)
    assert np.array_equal(places.ravel(), wanted.ravel())


def test_shapes_and_the_largest() -> None:
    scores = np.float32([[1, 2], [3, 4]])
    assert ranked(scores, "largest") is scores
    assert ranked(scores.T, "smallest").tolist() == [[-1, -3], [-2, -4]]
    assert ranked(np.float32(7), "smallest").shape == ()
    assert scores.tolist() == [[1, 2], [3, 4]]
