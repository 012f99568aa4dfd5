"""Valid lengths: each maker's definition, and the shapes where it degenerates."""

from __future__ import annotations

import numpy as np
import pytest

from ksieve_lab.workloads import LENGTHS

INT32 = np.iinfo(np.int32)


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize(("rows", "width"), [(0, 0), (0, 9), (3, 0), (5, 1), (40, 7), (9, 100_000)])
def test_any_shape_gives_int32_and_is_deterministic(name, rows, width):
    lengths = LENGTHS[name](rows, width, seed=4, k=16)
    assert lengths.dtype == np.int32 and lengths.shape == (rows,)
    assert np.array_equal(lengths, LENGTHS[name](rows, width, seed=4, k=16))
    if name != "adversarial":
        assert ((lengths >= 0) & (lengths <= width)).all()


def test_full_and_causal():
    assert LENGTHS["full"](3, 8).tolist() == [8, 8, 8]
    assert LENGTHS["causal"](3, 8).tolist() == [6, 7, 8]
    assert LENGTHS["causal"](5, 3).tolist() == [0, 0, 1, 2, 3]
    assert LENGTHS["causal"](8192, 131_072)[[0, -1]].tolist() == [131_072 - 8192 + 1, 131_072]


def test_ragged_and_uniform_span_their_range():
    ragged = LENGTHS["ragged"](5000, 1000, seed=1)
    assert (ragged.min(), ragged.max()) == (800, 1000)
    assert abs(ragged.mean() - 900) < 5
    uniform = LENGTHS["uniform"](20_000, 1000, seed=1)
    assert (uniform.min(), uniform.max()) == (0, 1000)
    assert abs(uniform.mean() - 500) < 10
    assert not np.array_equal(ragged, LENGTHS["ragged"](5000, 1000, seed=2))
    half = LENGTHS["ragged"](500, 1000, low=0.5, high=0.5)
    assert (half == 500).all()


def test_adversarial_lengths_have_every_case():
    lengths = set(LENGTHS["adversarial"](20, 1000, k=64).tolist())
    assert {0, -1, 1, 63, 64, 65, 999, 1000, 1001, INT32.min, INT32.max, -64} <= lengths
