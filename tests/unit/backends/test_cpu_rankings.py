"""The CPU kernels' rankings: what they rank, and calls with `largest` and `nan`, against the model and by sorting."""

from __future__ import annotations

import numpy as np
import pytest

from cases import DTYPES
from ksieve.backends.cpu.converting import converter
from ksieve.core.keys import widen
from ksieve.core.ranking import RANKINGS, ranked


def every_pattern(dtype):
    if dtype != "float32":
        bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
        return bits if dtype == "bfloat16" else bits.view(np.float16)
    rng = np.random.default_rng(1)
    edges = np.array([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF], np.uint32)
    drawn = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    return np.concatenate([edges, edges | np.uint32(1 << 31), drawn]).view(np.float32)


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_converters_rank_every_score_as_the_model_does(dtype, ranking):
    scores = every_pattern(dtype)
    expected = widen(ranked(scores, ranking)).view(np.uint32)
    is_nan = np.isnan(expected.view(np.float32))
    address = scores.__array_interface__["data"][0]
    for first in range(0, scores.size, 4095):
        last = min(first + 4095, scores.size)
        wide = np.zeros(4096, np.uint32)
        converter(dtype, ranking)(address + scores.itemsize * first, last - first, wide.ctypes.data)
        tile, after = wide[: last - first], wide[last - first :]
        assert not after.any()
        np.testing.assert_array_equal(np.isnan(tile.view(np.float32)), is_nan[first:last])
        np.testing.assert_array_equal(
            np.where(is_nan[first:last], 0, tile), np.where(is_nan[first:last], 0, expected[first:last])
        )
