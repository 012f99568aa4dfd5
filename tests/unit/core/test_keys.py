"""Ordered keys by brute force: every coarse bin with its neighbours, every float16, every special value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksieve.core import keys


def as_f32(bits):
    return np.asarray(bits, dtype=np.uint32).view(np.float32)


def half_bin(x):
    """Coarse bin from the definition, one value at a time, with NumPy's own float16 rounding."""
    if np.isnan(x):
        return 2047
    with np.errstate(over="ignore"):
        bits = int(np.float16(x).view(np.uint16)) if x != 0 else 0
    return (bits if bits >> 15 else bits ^ 0x7FFF) >> 5


def test_order_key_inverts_over_a_grid_of_all_exponents():
    """That it orders scores is proved for every step of their exponents in `test_order_of_ranked_scores`."""
    bits = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16))[:, None] + np.uint32([0, 1, 0x7FFF, 0x8000, 0xFFFF])
    x = as_f32(bits.ravel())
    x = x[~np.isnan(x)]
    np.testing.assert_array_equal(keys.score_of_key(keys.order_key(x)), x)  # as scores: -0.0 comes back as +0.0
    assert np.isnan(keys.score_of_key(keys.NAN_KEY))


def test_all_float16_values():
    half = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    x = keys.widen(half)
    assert x.dtype == np.float32
    number = ~np.isnan(half)
    np.testing.assert_array_equal(x[number], half[number])
    expected = np.array([half_bin(v) for v in x])
    np.testing.assert_array_equal(keys.coarse_bin(x), expected)
    np.testing.assert_array_equal(keys.order_key(half), keys.order_key(x))


def test_all_bfloat16_bits_widen_exactly():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    expected = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(keys.widen(bits).view(np.uint32) >> 16, bits)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(keys.widen(bits)[number], expected[number])
    np.testing.assert_array_equal(keys.widen(bits.view(ml_dtypes.bfloat16))[number], expected[number])


def test_cutoff_of_every_bin_and_its_neighbours():
    """``coarse_bin(x) <= b`` exactly when ``order_key(x) <= BIN_CUTOFF_KEY[b]``, one float32 either side."""
    cutoff = keys.BIN_CUTOFF_KEY.astype(np.int64)
    assert cutoff.shape == (2048,) and (np.diff(cutoff) >= 0).all()
    near = np.unique(np.clip(cutoff[:, None] + np.arange(-3, 4), 0, keys.NAN_KEY)).astype(np.uint32)
    x = keys.score_of_key(near)
    order, bins = keys.order_key(x), keys.coarse_bin(x)
    np.testing.assert_array_equal(bins, [half_bin(v) for v in x])
    for b in range(2048):
        np.testing.assert_array_equal(bins <= b, order <= keys.BIN_CUTOFF_KEY[b], err_msg=f"bin {b}")


bit_patterns = st.integers(0, 2**32 - 1)


@given(bit_patterns, bit_patterns)
def test_keys_order_like_scores(a, b):
    x, y = as_f32([a])[0], as_f32([b])[0]
    ka, kb = (int(keys.order_key(v)) for v in (x, y))
    if np.isnan(x) or np.isnan(y):
        assert (ka == kb) == (np.isnan(x) and np.isnan(y)) and (ka < kb) == bool(np.isnan(y) and not np.isnan(x))
    else:
        assert ((ka < kb), (ka == kb)) == (bool(x > y), bool(x == y))
    if ka <= kb:
        assert keys.coarse_bin(x) <= keys.coarse_bin(y)
