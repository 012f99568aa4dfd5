"""Ordered keys by brute force: every coarse bin with its neighbours, every float16, every special value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksieve.core import keys

F32_MAX = np.float32(np.finfo(np.float32).max)
SPECIALS = np.array(
    [np.inf, F32_MAX, 65536, 65520, 65519.996, 65504, 1, 2**-14, 6e-8, 1e-38, 1e-45, 0.0, -0.0], dtype=np.float32
)


def as_f32(bits):
    return np.asarray(bits, dtype=np.uint32).view(np.float32)


def half_bin(x):
    """Coarse bin from the definition, one value at a time, with NumPy's own float16 rounding."""
    if np.isnan(x):
        return 2047
    with np.errstate(over="ignore"):
        bits = int(np.float16(x).view(np.uint16)) if x != 0 else 0
    return (bits if bits >> 15 else bits ^ 0x7FFF) >> 5


def test_specials_in_order():
    ladder = np.concatenate([SPECIALS, -SPECIALS[::-1], [np.float32(np.nan)]]).astype(np.float32)
    order = keys.order_key(ladder).astype(np.int64)
    steps = np.diff(order)
    zeros = (ladder[1:] == 0) & (ladder[:-1] == 0)
    assert (steps[zeros] == 0).all() and zeros.sum() == 3
    assert (steps[~zeros] > 0).all()


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF])
def test_every_nan_has_the_worst_key(bits):
    assert keys.order_key(as_f32(bits)) == keys.NAN_KEY > keys.order_key(np.float32(-np.inf))
    assert keys.coarse_bin(as_f32(bits)) == 2047


def test_order_key_is_monotone_and_inverts_over_a_grid_of_all_exponents():
    bits = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16))[:, None] + np.array(
        [0, 1, 0x7FFF, 0x8000, 0xFFFF], dtype=np.uint32
    )
    x = as_f32(bits.ravel())
    x = x[~np.isnan(x)]
    order = keys.order_key(x)
    np.testing.assert_array_equal(np.argsort(order, kind="stable"), np.argsort(-x, kind="stable"))
    np.testing.assert_array_equal(keys.score_of_key(order), x)  # equal as scores: -0.0 comes back as +0.0
    assert np.isnan(keys.score_of_key(keys.NAN_KEY))


def test_all_float16_values():
    half = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    x = keys.widen(half)
    assert x.dtype == np.float32
    number = ~np.isnan(half)
    np.testing.assert_array_equal(x[number], half[number])
    expected = np.array([half_bin(v) for v in x])
    np.testing.assert_array_equal(keys.coarse_bin(x), expected)
    order, bins = keys.order_key(x[number]), keys.coarse_bin(x[number])
    assert (np.diff(bins[np.argsort(order, kind="stable")]) >= 0).all()
    np.testing.assert_array_equal(keys.order_key(half), keys.order_key(x))


def test_all_bfloat16_bits_widen_exactly():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    expected = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(keys.widen(bits).view(np.uint32) >> 16, bits)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(keys.widen(bits)[number], expected[number])
    np.testing.assert_array_equal(keys.widen(bits.view(ml_dtypes.bfloat16))[number], expected[number])


def test_widen_does_not_copy_float32():
    x = np.ones(3, dtype=np.float32)
    assert keys.widen(x) is x


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


def test_cutoff_agrees_on_every_rounding_midpoint():
    """Both sides of all 63,488 boundaries between adjacent float16 values, infinity's at 65520 included."""
    half = np.arange(0x7C00, dtype=np.uint16)
    low = half.view(np.float16).astype(np.float64)
    high = np.where(half == 0x7BFF, 65536.0, (half + np.uint16(1)).view(np.float16).astype(np.float64))
    middle = ((low + high) / 2).astype(np.float32)
    x = np.concatenate([middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, F32_MAX)])
    x = np.concatenate([x, -x])
    bins = keys.coarse_bin(x)
    np.testing.assert_array_equal(bins, [half_bin(v) for v in x])
    order = keys.order_key(x)
    assert (order <= keys.BIN_CUTOFF_KEY[bins]).all()
    above = bins > 0
    assert (order[above] > keys.BIN_CUTOFF_KEY[bins[above] - 1]).all()


def test_digits_compose_the_key():
    order = keys.order_key(np.random.default_rng(0).standard_normal(1000).astype(np.float32))
    digits = [keys.digit(order, j).astype(np.uint32) for j in range(3)]
    for d, width in zip(digits, keys.DIGIT_BITS, strict=True):
        assert (d < 1 << width).all()
    whole = (digits[0] << np.uint32(21)) | (digits[1] << np.uint32(10)) | digits[2]
    np.testing.assert_array_equal(whole, order)
    assert sum(keys.DIGIT_BITS) == 32


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
