"""Captures of kind "factors": the formula against float64 and exact sums, and the same bits however asked."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import safetensors.numpy
from conftest import ROOT

from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.core.policy import POLICIES
from ksieve.core.stats import Route
from ksieve.model import reference
from ksieve_lab.captures import factors
from ksieve_lab.captures.format import Capture
from ksieve_lab.captures.writer import write_factors

EXAMPLE = ROOT / "examples" / "indexer_capture.safetensors"


def make(rows=5, width=9000, heads=3, dim=16, key_dtype=np.int8, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((rows, heads, dim)).astype(np.float16)
    keys = rng.integers(-127, 128, (width, dim)) if key_dtype is np.int8 else rng.standard_normal((width, dim))
    parts = {"q": q, "keys": keys.astype(key_dtype), "weights": rng.random((rows, heads), dtype=np.float32)}
    if key_dtype is np.int8:
        parts["key_scale"] = rng.random(width, dtype=np.float32) / 127
    return parts


def direct(parts, rows=slice(None)):
    """The formula in float64, straight from its text."""
    dots = np.einsum("thd,nd->thn", parts["q"][rows].astype(float), parts["keys"].astype(float))
    scores = np.einsum("th,thn->tn", parts["weights"][rows].astype(float), np.maximum(dots, 0))
    return scores * parts.get("key_scale", np.float32(1))


@pytest.mark.parametrize("key_dtype", [np.int8, np.float16, np.float32])
def test_scores_are_the_formula_rounded_to_float32(tmp_path, key_dtype):
    parts = make(key_dtype=key_dtype)
    write_factors(tmp_path / "a.safetensors", **parts)
    with Capture(tmp_path / "a.safetensors") as capture:
        scores = capture.rows_block(0, 5)
        assert (capture.kind, capture.dtype, capture.rows, capture.width) == ("factors", "float32", 5, 9000)
    expected = direct(parts)
    assert scores.dtype == np.float32
    # float64 sums in different orders differ by 1e-15 relative at most here, so float32 by one rounding.
    assert (np.abs(scores - expected) <= np.spacing(expected.astype(np.float32)) * 0.5001 + 1e-14).all()
    assert ((scores == 0) == (expected == 0)).all()


def test_a_score_is_the_documented_sequence_of_float64_operations():
    parts = make(rows=2, width=40, key_dtype=np.float32)
    scores = factors.evaluate(parts["q"], parts["weights"], 40, lambda i, j: parts["keys"][i:j], None)
    for t in range(2):
        for i in range(40):
            total = 0.0
            for j in range(3):
                dot = 0.0
                for d in range(16):
                    dot += float(parts["q"][t, j, d]) * float(parts["keys"][i, d])
                total += float(parts["weights"][t, j]) * max(0.0, dot)
            assert np.float32(total) == scores[t, i]


@pytest.mark.parametrize("key_dtype", [np.int8, np.float16, np.float32])
def test_a_row_has_the_same_bits_in_any_block_and_tile(tmp_path, monkeypatch, key_dtype):
    write_factors(tmp_path / "a.safetensors", **make(rows=9, key_dtype=key_dtype))
    with Capture(tmp_path / "a.safetensors") as capture:
        whole = capture.rows_block(0, 9).tobytes()
        assert b"".join(capture.rows_block(r, r + 1).tobytes() for r in range(9)) == whole
        assert b"".join(b.scores.tobytes() for b in capture.iter_blocks(9000 * 4 * 4)) == whole
        monkeypatch.setattr(factors, "KEY_TILE", 1000)
        monkeypatch.setattr(factors, "_DOTS_BYTES", 8 * 3 * 1000 * 2)
        assert capture.rows_block(0, 9).tobytes() == whole


@pytest.mark.parametrize("key_dtype", [np.int8, np.float16])
def test_a_matrix_product_gives_the_bits_of_the_ordered_sum(monkeypatch, key_dtype):
    parts = make(key_dtype=key_dtype)
    # Multiples of 1/64 below 8: a grid on which float16 dot products are exact.
    parts["q"] = (np.round(parts["q"] * 64) / 64).astype(np.float16)
    if key_dtype is np.float16:
        parts["keys"] = (np.round(parts["keys"] * 64) / 64).astype(np.float16)
    used = []

    def any_order(q, keys, original=factors._dots_any_order):
        used.append(True)
        return original(q, keys)

    monkeypatch.setattr(factors, "_dots_any_order", any_order)

    def run():
        return factors.evaluate(
            parts["q"], parts["weights"], 9000, lambda i, j: parts["keys"][i:j], parts.get("key_scale")
        ).tobytes()

    fast = run()
    assert used
    monkeypatch.setattr(factors, "dot_is_exact", lambda *_: False)
    used.clear()
    assert run() == fast
    assert not used


def test_exactness_is_claimed_up_to_the_last_bit_and_no_further():
    int8, half = factors._grid(np.zeros(1, np.int8)), (-24, 65504.0)
    assert factors.dot_is_exact(half, int8, 64)
    assert not factors.dot_is_exact(half, int8, 128)
    assert factors.dot_is_exact((0, 1.0), (-53, 1.0), 1)
    assert not factors.dot_is_exact((0, 1.0), (-53, 1.0), 2)
    assert not factors.dot_is_exact(None, int8, 1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_grid_of_values_is_their_least_bit(dtype):
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, 2000, dtype=np.uint32)
    values = bits.view(np.float32) if dtype is np.float32 else (bits >> 16).astype(np.uint16).view(np.float16)
    values = values[np.isfinite(values)]
    for x in values[:300]:
        exponent, most = factors._grid(np.array([x, 0], dtype))
        if x == 0:
            continue
        steps = abs(Fraction(float(x))) / Fraction(2) ** exponent
        assert steps.denominator == 1 and steps.numerator % 2 == 1
        assert most == abs(float(x))
    exponent, most = factors._grid(values)
    assert all((Fraction(float(x)) / Fraction(2) ** exponent).denominator == 1 for x in values)
    assert most == np.abs(values.astype(float)).max()
    assert factors._grid(np.array([1, np.inf], dtype)) is None
    assert factors._grid(np.array([np.nan], dtype)) is None
    assert factors._grid(np.zeros(3, dtype)) == (0, 0.0)


def test_float32_extremes_are_summed_in_order_without_warnings(recwarn):
    q = np.array([[[1e38, 1.0, -1e38, 1e-38]]], np.float32)
    keys = np.array([[1e38, 3.0, 1e38, 1.0], [np.inf, 0, 0, 0], [np.nan, 0, 0, 0], [1, 1, 1, 1]], np.float32)
    scores = factors.evaluate(q, np.ones((1, 1), np.float32), 4, lambda i, j: keys[i:j], None)
    assert scores[0, 0] == np.float32(1e-38)  # in order: 1e76 + 3 loses the 3, - 1e76 leaves 0, + 1e-38 stays
    assert scores[0, 1] == np.inf and np.isnan(scores[0, 2])
    assert not recwarn.list


def test_zeros_are_positive_and_a_relu_plateau_is_exact():
    q = np.full((1, 2, 4), -1, np.float16)
    keys = np.ones((10, 4), np.int8)
    scores = factors.evaluate(q, np.array([[1, -1]], np.float32), 10, lambda i, j: keys[i:j], np.ones(10, np.float32))
    assert scores.tobytes() == np.zeros((1, 10), np.float32).tobytes()


def test_lengths_default_to_a_causal_window(tmp_path):
    parts = make(rows=4, width=10)
    write_factors(tmp_path / "a.safetensors", **parts)
    write_factors(tmp_path / "b.safetensors", **parts, lengths=np.array([-1, 0, 99, 3], np.int32), k=3)
    with Capture(tmp_path / "a.safetensors") as a, Capture(tmp_path / "b.safetensors") as b:
        assert a.lengths.tolist() == [7, 8, 9, 10]
        assert a.k is None
        assert b.lengths.tolist() == [-1, 0, 99, 3]
        assert b.k == 3
        assert b.describe()["factors"] == "3 heads of 16; queries F16, keys I8"


def test_bfloat16_factors_are_widened(tmp_path):
    parts = make(rows=2, width=50, key_dtype=np.float32)
    bits = {n: (parts[n].astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for n in ("q", "keys")}
    wide = {n: (b.astype(np.uint32) << 16).view(np.float32) for n, b in bits.items()}
    write_factors(tmp_path / "a.safetensors", **parts | bits)
    write_factors(tmp_path / "b.safetensors", **parts | wide)
    with Capture(tmp_path / "a.safetensors") as a, Capture(tmp_path / "b.safetensors") as b:
        assert a.rows_block(0, 2).tobytes() == b.rows_block(0, 2).tobytes()


@pytest.mark.parametrize("shape", [(0, 10, 2, 4), (3, 3, 1, 1), (1, 5, 0, 4), (1, 5, 2, 0)])
def test_empty_and_tiny_factors(tmp_path, shape):
    rows, width, heads, dim = shape
    parts = make(rows, width, heads, dim)
    write_factors(tmp_path / "a.safetensors", **parts)
    with Capture(tmp_path / "a.safetensors") as capture:
        block = capture.rows_block(0, rows)
    np.testing.assert_allclose(block, direct(parts), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((5, 3, 16))}, "q: got dtype float64; takes dtype float32, float16, bfloat16"),
        ({"q": np.zeros((5, 16), np.float16)}, "q: got shape (5, 16); takes 3 dimensions"),
        ({"keys": np.zeros((90, 8), np.int8)}, "keys: got shape (90, 8); takes shape (width, 16), as q has 16"),
        ({"keys": np.zeros((90, 16), np.int32)}, "keys: got dtype int32; takes dtype int8, float32, float16, bfloat16"),
        ({"weights": np.zeros((5, 2), np.float32)}, "weights: got shape (5, 2); takes shape (5, 3)"),
        ({"weights": np.zeros((5, 3), np.float16)}, "weights: got dtype float16; takes dtype float32"),
        ({"key_scale": None}, "key_scale: got none; takes float32 scales of shape (90,), which int8 keys need"),
        ({"key_scale": np.full(90, -1, np.float32)}, "key_scale: got a negative or non-finite scale; takes finite"),
        ({"lengths": np.zeros(5)}, "lengths: got dtype float64, shape (5,); takes dtype int32, shape (5,)"),
        ({"keys": np.zeros((4, 16), np.int8)}, "lengths: got none; takes lengths: 5 queries for 4 keys are no causal"),
    ],
)
def test_factors_that_do_not_fit_are_refused(tmp_path, change, message):
    with pytest.raises(ArgumentError) as error:
        write_factors(tmp_path / "a.safetensors", **make(width=90) | change)
    assert str(error.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((5, 3, 16))}, "tensor 'q' has dtype F64; takes F32 or F16 or BF16"),
        ({"k": np.zeros((9000, 15), np.int8)}, "tensor 'k' has shape (9000, 15); takes (width, 16)"),
        ({"w": np.zeros((4, 3), np.float32)}, "tensor 'w' has shape (4, 3); takes (5, 3)"),
        ({"k_scale": None}, "tensor 'k_scale' is missing; the file holds ['k', 'q', 'w']"),
        ({"k_scale": np.full(9000, np.nan, np.float32)}, "tensor 'k_scale' holds a negative or non-finite scale"),
        ({"k": np.zeros((3, 16), np.int8), "k_scale": np.ones(3, np.float32)}, "5 queries for 3 keys: a file without"),
        ({"w": None}, "not a score capture: it holds tensors ['k', 'k_scale', 'q']"),
    ],
)
def test_files_of_factors_that_do_not_fit(tmp_path, change, message):
    names = {"keys": "k", "weights": "w", "key_scale": "k_scale"}
    tensors = {names.get(n, n): a for n, a in make().items()} | change
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file({n: a for n, a in tensors.items() if a is not None}, path)
    with pytest.raises(FileFormatError) as error:
        Capture(path)
    assert str(error.value).startswith(f"{path}: {message}")


# ---- real factors -----------------------------------------------------------------------------------------


def test_the_example_is_small_complete_and_says_what_it_is():
    assert EXAMPLE.stat().st_size < 4_000_000
    with Capture(EXAMPLE) as capture:
        assert (capture.kind, capture.rows, capture.width, capture.k) == ("factors", 128, 54_272, 2048)
        assert capture.lengths.tolist() == list(range(53_256, 54_273, 8))
        assert {"title", "source", "model_licence", "text_licence", "cut"} <= set(capture.metadata)
        scores = capture.rows_block(0, 2)
        assert len(np.unique(scores[0])) > 50_000
        assert 0 < (scores == 0).mean() < 0.05
        assert factors.dot_is_exact(factors._grid(capture._matrix.q[:2]), factors._grid(capture._matrix.keys), 64)


# ---- the pages on captures ----------------------------------------------------------------------------------


DOC = (ROOT / "docs" / "guide" / "files.md").read_text(encoding="utf-8")


def test_its_programs_write_readable_captures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("scores.npy", np.random.default_rng(1).standard_normal((3, 5000)).astype(np.float32))
    programs = re.findall(r"```python\n(.*?)```", DOC, flags=re.DOTALL)
    assert len(programs) == 3
    for program in programs:
        exec(compile(program, "docs/guide/files.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "2 (1, 100000) [90000]"
    with Capture("four_rows.safetensors") as capture:
        assert (capture.rows, capture.width, capture.k, capture.kind) == (4, 5000, 512, "scores")
        assert capture.lengths.tolist() == [5000, 4000, 3000, 2000]
        expected = np.random.default_rng(0).standard_normal((4, 5000)).astype(np.float32)
        assert np.array_equal(capture.rows_block(0, 4), expected)


def test_the_bundled_capture_takes_every_route():
    with Capture(EXAMPLE) as capture:
        scores, lengths = capture.rows_block(0, capture.rows), capture.lengths
    routes = Counter()
    for policy in ("paper-64", "paper-128"):
        _, stats = reference.select(scores, lengths, 2048, policy=POLICIES[policy])
        routes.update(Route(r) for r in stats.route)
    assert routes.keys() == {Route.CERTIFIED, Route.RESCUED, Route.RECOVERED, Route.RECOVERED_AFTER_BAND}
    assert routes[Route.CERTIFIED] > 240
