"""Each option of `verify` alone: verdicts, messages, shapes, sources and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ksieve
from cases import scores_of
from flat_calls import ask, verified
from ksieve import ArgumentError, verify
from ksieve.checking.verdict import Reason
from verdicts import Source, on_torch, same

CHECKS = [verified, on_torch]


def int32(*values):
    return np.array(values, np.int32)


# ---- one option at a time --------------------------------------------------------------------------------

TENS = np.tile(np.arange(90, -1, -10, dtype=np.float32), (4, 1))
"""Scores 90 down to 0."""


@pytest.mark.parametrize("check", CHECKS)
def test_no_length_wraps(check):
    answer = np.array([[3, 4]] * 4)
    for dtype in (np.int64, np.uint64):
        most = np.full(4, np.iinfo(dtype).max, dtype)
        assert check(TENS, most, answer, starts=int32(3, 3, 3, 3))
        assert check(TENS, None, answer, ends=most, starts=np.full(4, 3, dtype))
        assert check(TENS, None, np.full((4, 2), -1), starts=most)
    least = np.full(4, np.iinfo(np.int64).min)
    assert check(TENS, least, np.full((4, 2), -1), next_n=1) and check(TENS, None, answer - 3, starts=least)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64])
def test_vectors_of_any_integer_dtype(dtype):
    vectors = {name: np.full(4, n, dtype) for name, n in (("starts", 1), ("ends", 5), ("k", 1))}
    assert verified(TENS, None, np.array([[1, -1]] * 4), num_rows=dtype(4), **vectors)
    assert verified(TENS, None, np.array([[1, -1]] * 4), num_rows=np.array([4], dtype), **vectors)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("block_bytes", [1, 300, 1 << 20])
def test_next_n(check, block_bytes):
    """Blocks need not begin where a request does."""
    scores = np.arange(60, dtype=np.float32).reshape(6, 10)
    lengths = int32(5, 2)
    answer = np.array([[2], [3], [4], [-1], [0], [1]])
    assert check(scores, lengths, answer, next_n=3, block_bytes=block_bytes)
    assert check(scores, None, answer, ends=lengths, next_n=3, block_bytes=block_bytes)
    assert check(scores, None, np.array([[7], [8], [9]] * 2), next_n=3, block_bytes=block_bytes)
    wrong = np.array([[2], [2], [4], [0], [0], [1]])
    assert check(scores, lengths, wrong, next_n=3, block_bytes=block_bytes).failed_rows.tolist() == [1, 3]


@pytest.mark.parametrize("check", CHECKS)
def test_a_k_of_each_row(check):
    answer = np.array([[1, 0, -1], [0, -1, -1], [2, 1, 0], [-1, -1, -1]])
    assert check(TENS, None, answer, k=int32(2, 1, 99, -1))
    verdict = check(TENS, None, answer, k=int32(2, 2, 2, 0))
    assert verdict.reasons.tolist() == [0, Reason.MISSING, Reason.EXCESS, 0]
    assert str(verdict).startswith("NOT exact: 2 of 4 rows failed, k<=3 (1 missing, 1 excess)")
    assert str(check(TENS, None, answer, k=int32(2, 1, 3, 0))).startswith("exact: all 4 rows checked, k<=3;")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("live", [2, np.int64(2), np.array([2]), np.array(2, np.int32)])
def test_rows_that_are_not_live(check, live):
    nan = TENS.copy()
    nan[2:] = np.nan
    answer = np.array([[0, 1], [0, 1], [-1, -1], [-1, -1]])
    verdict = check(nan, int32(9, 9, 9, 9), answer, num_rows=live)
    assert verdict and verdict.rows == 4 and verdict.nan_scores == 0
    answer[3, 1] = 0
    verdict = check(nan, None, answer, num_rows=live)
    assert verdict.reasons.tolist() == [0, 0, 0, Reason.OUT_OF_RANGE]
    assert str(verdict.first) == "row 3 (past num_rows), out of range: slot 1 holds 0, not the sentinel"
    assert check(TENS, None, np.full((4, 2), -1), num_rows=-3) and not check(TENS, None, answer, num_rows=9)


def test_none_is_no_option():
    absent = dict.fromkeys(("starts", "ends", "index_base", "next_n", "num_rows", "largest", "nan", "sorted"))
    same(verify(TENS, None, TENS[:, :2].astype(int)), verified(TENS, None, TENS[:, :2].astype(int), **absent))


MESSAGES = [
    (
        {"starts": int32(2, 0, 0, 0)}, {0: 9}, Reason.NOT_LARGEST,
        "row 0 (start 2, length 8), not largest: slot 0 holds position 9 with score 0.0, but position 2 with score "
        "70.0 is not selected",
    ),
    (
        {"starts": int32(2, 0, 0, 0), "ends": int32(5, 9, 9, 9)}, {1: 1}, Reason.OUT_OF_RANGE,
        "row 0 (start 2, length 3), out of range: slot 1 holds 1, outside [2, 5)",
    ),
    (
        {"starts": int32(2, 0, 0, 0), "ends": int32(5, 9, 9, 9), "index_base": "start"}, {1: 3}, Reason.OUT_OF_RANGE,
        "row 0 (start 2, length 3), out of range: slot 1 holds 3, outside [0, 3)",
    ),
    (
        {"largest": False}, {1: 3}, Reason.NOT_LARGEST,
        "row 0 (length 10), not smallest: slot 1 holds position 3 with score 60.0, but position 8 with score 10.0 is "
        "not selected: smaller scores rank first",
    ),
    (
        {"k": int32(1, 2, 2, 2)}, {1: 1}, Reason.EXCESS,
        "row 0 (length 10, k 1), excess: slot 1 holds 1; slots from 1 on must hold the sentinel",
    ),
    (
        {"sorted": True}, {0: 1, 1: 0}, Reason.UNSORTED,
        "row 0 (length 10), unsorted: slot 0 holds position 1 with score 80.0, slot 1 position 0 with score 90.0: "
        "larger scores rank first",
    ),
    (
        {"sorted": "index", "largest": False}, {0: 9, 1: 8}, Reason.UNSORTED,
        "row 0 (length 10), unsorted: slot 0 holds position 9 with score 0.0, slot 1 position 8 with score 10.0: the "
        "order is by position",
    ),
]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("options", "slots", "reason", "text"), MESSAGES)
def test_messages(options, slots, reason, text, check):
    answer = ask(TENS, backend="reference", **{"k": 2} | options | ({"max_k": 2} if "k" in options else {}))
    assert check(TENS, None, answer, **options)
    for slot, value in slots.items():
        answer[0, slot] = value
    verdict = check(TENS, None, answer, **options)
    assert verdict.reason_counts() == {reason: 1} and str(verdict.first) == text
    assert reason.text(verdict.options.ranking) in str(verdict).partition("\n")[0]


TIES = np.array([[1, 5, np.nan, 5, 5, np.nan]], np.float32)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    ("answer", "options", "text"),
    [
        (
            [1, 4], {"tie_break": "low"},
            "wrong tie: slot 1 holds position 4 with score 5.0, but position 3 with an equal score is not selected, "
            "and tie_break is 'low'",
        ),
        (
            [3, 1], {"sorted": True},
            "unsorted: slot 0 holds position 3 with score 5.0, slot 1 position 1 with score 5.0: equal scores are "
            "ordered by position",
        ),
        (
            [3, 4], {"sorted": True, "tie_break": "high"},
            "unsorted: slot 0 holds position 3 with score 5.0, slot 1 position 4 with score 5.0: equal scores are "
            "ordered by descending position",
        ),
        (
            [1, 2], {"nan": "highest"},
            "not largest: slot 0 holds position 1 with score 5.0, but position 5 with score nan is not selected: NaN "
            "ranks first",
        ),
        (
            [0, 2], {"largest": False},
            "not smallest: slot 1 holds position 2 with score nan, but position 1 with score 5.0 is not selected: NaN "
            "ranks last",
        ),
        (
            [1, 3, 4, 2, 0], {"sorted": True},
            "unsorted: slot 3 holds position 2 with score nan, slot 4 position 0 with score 1.0: NaN ranks last",
        ),
    ],
)  # fmt: skip
def test_messages_about_ties_and_nan(answer, options, text, check):
    finding = check(TIES, None, np.array([answer]), **options).first
    assert str(finding) == f"row 0 (length 6), {text}"
    assert finding.as_dict()["scores"] == pytest.approx([TIES[0, p] for p in finding.positions], nan_ok=True)


# ---- shapes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("leading", [(), (1,), (6,), (2, 3), (3, 2, 1), (1, 2, 3, 1), (0, 3)])
def test_any_rank(check, leading):
    rng = np.random.default_rng(7)
    scores = rng.integers(0, 9, (*leading, 8)).astype(np.float32)
    starts, lengths, ks = (np.asarray(rng.integers(0, 5, leading), np.int32) for _ in range(3))
    call = {"starts": starts, "k": ks} if leading else {"starts": starts, "k": 3}
    answer = ask(scores, lengths, backend="reference", **call | ({"max_k": 3} if leading else {}))
    verdict = check(scores, lengths, answer, **call)
    assert verdict and verdict.rows == math.prod(leading)
    if answer.size:
        answer[..., 0] = 8
        assert check(scores, lengths, answer, **call).failed == verdict.rows


def test_a_pitch_between_rows_of_any_rank_is_read_in_place():
    torch = pytest.importorskip("torch")
    held = np.arange(2 * 3 * 16, dtype=np.float32).reshape(2, 3, 16)
    for scores in (held[..., :10], held[:, :1, :10], held[:1, :, 3:], torch.from_numpy(held)[..., :10]):
        answer = np.full((*scores.shape[:-1], 1), scores.shape[-1] - 1)
        assert verify(scores, None, answer)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_more_than_two_leading_strides_are_refused(library):
    torch = pytest.importorskip("torch")
    held = np.zeros((2, 4, 4, 10), np.float32)
    scores = torch.from_numpy(held) if library == "torch" else held
    remedy = {"torch": "scores.contiguous()", "numpy": "np.ascontiguousarray(scores)"}[library]
    with pytest.raises(ArgumentError) as error:
        verify(scores[:, :3, :3], None, np.zeros((2, 3, 3, 1), int))
    assert str(error.value) == (
        "scores: got shape (2, 3, 3, 10) with strides (160, 40, 10, 1); takes leading dimensions that merge to at most "
        "two, each with one stride: " + remedy
    )
    view = scores[..., ::2]
    with pytest.raises(ArgumentError, match=r"^scores: got .*ontiguous"):
        verify(view, None, np.zeros((*view.shape[:-1], 1), int))


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_lengths_of_requests_of_any_rank(shape):
    scores = np.arange(2 * 3 * 10, dtype=np.float32).reshape(2, 3, 10)
    answer = np.array([[[2], [3], [4]], [[-1], [0], [1]]])
    assert verify(scores, int32(5, 2).reshape(shape), answer, bounds=ksieve.RowBounds(next_n=3))


# ---- sources ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_bytes", [1, 4 * 40 * 5, 1 << 20])
def test_sources_take_every_option(block_bytes):
    scores = scores_of("some_nan", 12, 40, 4)
    rng = np.random.default_rng(3)
    starts, ends, ks = (rng.integers(0, most, n).astype(np.int32) for most, n in ((20, 12), (41, 4), (5, 12)))
    call = {"starts": starts, "ends": ends, "next_n": 3, "k": ks, "num_rows": 9, "largest": False, "sorted": True,
            "tie_break": "high"}  # fmt: skip
    answer, done = ask(scores, max_k=4, backend="reference", **call), []
    source = Source(scores, np.full(12, 7))
    assert verified(source, None, answer, block_bytes=block_bytes, progress=done.append, **call)
    assert done[-1] == 12 and done == sorted(done)
    answer[4] = answer[5]
    same(verified(source, None, answer, block_bytes=block_bytes, **call), verified(scores, None, answer, **call))


def test_rows_of_a_source_that_are_not_live_are_not_read():
    source = Source(np.zeros((10, 8), np.float32))
    read = source.rows_block
    source.rows_block = lambda begin, end: read(begin, end) if end <= 4 else pytest.fail("a row past num_rows was read")
    answer = np.where(np.arange(10)[:, None] < 4, 3, -1)
    assert verify(source, None, answer, num_rows=4)


def test_the_lengths_of_a_source():
    source = Source(TENS, np.array([2, 2, 2, 2]))
    assert verify(source, None, np.array([[3, 4]] * 4), bounds=ksieve.RowBounds(starts=int32(3, 3, 3, 3)))
    assert verify(source, None, np.array([[0, 1]] * 4), bounds=ksieve.RowBounds(ends=int32(9, 9, 9, 9)))
    with pytest.raises(ArgumentError) as error:
        verify(source, None, np.array([[0, 1]] * 4), bounds=ksieve.RowBounds(next_n=2))
    assert str(error.value) == (
        "lengths: got those of the source, one for each row; takes an array of one for each request"
    )


# ---- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": TENS[0]}, "indices: got shape (4, 2); takes shape (k,), one row for each row of scores"),
        ({"scores": TENS[None]}, "indices: got shape (4, 2); takes shape (1, 4, k), one row for each row of scores"),
        ({"starts": int32(1, 2)}, "starts: got shape (2,); takes shape (4,)"),
        ({"starts": TENS[:, 0]}, "starts: got dtype float32; takes an integer dtype"),
        (
            {"starts": np.zeros(len(TENS), ">i4")},
            "starts: got dtype >i4 (foreign byte order); takes an integer dtype: starts.astype(np.int32)",
        ),
        ({"starts": [0] * 4}, "starts: got list; takes a NumPy, PyTorch, CuPy or JAX array: np.array(starts) first"),
        ({"ends": int32(1)}, "ends: got shape (1,); takes shape (4,)"),
        ({"lengths": int32(1, 1, 1, 1), "next_n": 2}, "lengths: got shape (4,); takes shape (2,)"),
        ({"next_n": 3}, "next_n: got 3; takes a divisor of the scores' 4 rows"),
        ({"k": int32(1, 2)}, "k: got shape (2,); takes shape (4,)"),
        ({"k": np.zeros(4)}, "k: got dtype float64; takes an integer dtype"),
        ({"k": [1] * 4}, "k: got list [1, 1, 1, 1]; takes an int from 0 to 1048576"),
        ({"num_rows": int32(1, 2)}, "num_rows: got shape (2,); takes shape (1,) or ()"),
        ({"num_rows": 2.0}, "num_rows: got 2.0; takes an int, or an array of one integer"),
        ({"num_rows": True}, "num_rows: got True; takes an int, or an array of one integer"),
        ({"tie_break": "lowest"}, "tie_break: got 'lowest'; takes one of 'any', 'low', 'high'"),
        (
            {"indices": np.zeros((4, 2), np.uint32)},
            "indices: got dtype uint32; takes dtype int32 or int64: indices.astype(np.int64)",
        ),
        ({"k": 6}, "k: got 6; takes 2, the width of indices"),
        ({"lengths": np.zeros(4)}, "lengths: got dtype float64; takes an integer dtype"),
        ({"lengths": 7}, "lengths: got int; takes a NumPy, PyTorch, CuPy or JAX array"),
        ({"sentinel": 5}, "sentinel: got 5; takes an int that is no position, outside [0, 10)"),
        ({"sentinel": None}, "sentinel: got None; takes an int of 64 bits, such as -1"),
        ({"block_bytes": 0}, "block_bytes: got 0; takes an int of at least 1"),
    ],
)  # fmt: skip
def test_bad_options(change, message):
    arguments = {"scores": TENS, "indices": np.array([[0, 1]] * 4), **change}
    with pytest.raises(ArgumentError) as error:
        verified(**arguments)
    assert str(error.value) == message
