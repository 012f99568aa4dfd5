"""Scores are compared by their bits: a thread that flushes subnormals to zero gets the same answers."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve
from flat_calls import ask
from ksieve.core import keys
from ksieve.core.policy import SamplingPolicy
from ksieve_lab.study.ranked import RankedRow

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def flushing():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush-to-zero mode that PyTorch sets")
    yield
    torch.set_flush_denormal(False)


def subnormals(count: int) -> np.ndarray:
    return np.arange(1, count + 1, dtype=np.uint32).view(np.float32)


@pytest.mark.parametrize("sign", [0, 1 << 31])
def test_keys_tell_subnormals_apart(sign):
    bits = np.array([1, 2, 3, 0x7FFFFF], np.uint32) | np.uint32(sign)
    wanted = bits ^ np.uint32(0 if sign else 0x7FFFFFFF)
    np.testing.assert_array_equal(keys.order_key(bits.view(np.float32)), wanted)
    zeros = np.array([0, 1 << 31], np.uint32).view(np.float32)
    assert keys.order_key(zeros).tolist() == [0x7FFFFFFF] * 2
    assert (keys.coarse_bin(bits.view(np.float32)) == (1024 if sign else 1023)).all()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("options", [{}, {"sorted": True}, {"tie_break": "high"}, {"deterministic": True}])
def test_the_largest_subnormals_are_selected(backend, options):
    found = ask(subnormals(10)[None], k=3, backend=backend, **options)[0].tolist()
    assert sorted(found) == [7, 8, 9]
    if options.get("sorted"):
        assert found == [9, 8, 7]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("width", [16, 9000])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_right_answers_are_exact_and_wrong_ones_refuted(library, width, dtype):
    bits = np.random.default_rng(width).permutation(width).astype(np.uint32) % 100
    order = np.argsort(-bits.astype(np.int64), kind="stable")
    if library == "torch":
        small = torch.from_numpy(bits.astype(np.int32 if dtype == "float32" else np.int16)[None].copy())
        scores = small.view(getattr(torch, dtype))
    else:
        unsigned = bits.astype(np.uint32 if dtype == "float32" else np.uint16)[None]
        scores = unsigned if dtype == "bfloat16" else unsigned.view(dtype)
    right = order[None, :5].astype(np.int32)
    assert ksieve.verify(scores, None, right)
    wrong = right.copy()
    wrong[0, 4] = order[-1]
    assert not ksieve.verify(scores, None, wrong)


def test_a_verdict_names_subnormal_scores():
    first = ksieve.verify(subnormals(10)[None], None, np.array([[0, 1, 2]], np.int32)).first
    assert first is not None
    assert first.worst == (0, 2.0**-149)
    assert first.best_left == (9, 10 * 2.0**-149)


def test_the_device_path_of_verify_takes_bits():
    from ksieve.checking.ops import TorchOps

    bits = np.array([0, 1 << 31, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00000, 0x7F7FFFFF], np.uint32)
    x = torch.from_numpy(bits.view(np.int32)[None].copy()).view(torch.float32)
    np.testing.assert_array_equal(TorchOps(x).level(x).numpy(), keys.level(bits.view(np.float32))[None])


def test_study_counts_subnormals():
    row = RankedRow(subnormals(64), np.arange(63, 59, -1))
    assert row.count_keys(keys.order_key(subnormals(64)[[30]])).tolist() == [34]


def test_tables_are_right_when_made_in_this_mode():
    np.testing.assert_array_equal(keys._bin_cutoff_keys(), keys.BIN_CUTOFF_KEY)


def test_verify_takes_the_largest_float_without_a_warning():
    import warnings

    scores = np.array([[np.finfo(np.float32).max, 1, 2]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ksieve.verify(scores, None, np.array([[0]], np.int32))


def test_a_policy_looks_at_subnormals():
    row = subnormals(4096)[None]
    found = ask(row, k=16, policy=SamplingPolicy("exact", 4, boundary="exact", min_rank=1))
    assert sorted(found[0].tolist()) == list(range(4080, 4096))
