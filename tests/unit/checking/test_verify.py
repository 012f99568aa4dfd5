"""Verdicts: right on every exact answer, right about every corruption, on every kind of array and source."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import DTYPES, FAMILIES, clamp, first_k, scores_of
from ksieve import ArgumentError, KsieveError, VerificationError, verify
from ksieve.checking.verdict import Reason
from ksieve.core.keys import widen
from ksieve_lab.oracle import exact_rows
from verdicts import Source, on_torch, same


@st.composite
def answers(draw):
    """A small problem with an exact answer in random order, then up to three arbitrary slot changes."""
    rows, width, k = draw(st.integers(1, 5)), draw(st.integers(1, 60)), draw(st.integers(1, 20))
    seed, dtype = draw(st.integers(0, 1 << 16)), draw(st.sampled_from(DTYPES))
    scores = scores_of(draw(st.sampled_from(sorted(FAMILIES))), rows, width, k, dtype, seed)
    lengths = np.array(draw(st.lists(st.integers(-2, width + 2), min_size=rows, max_size=rows)))
    answer = first_k(scores, lengths, k)
    for r, needed in enumerate(np.minimum(clamp(lengths, rows, width), k)):
        answer[r, :needed] = np.random.default_rng(seed + r).permutation(answer[r, :needed])
    for _ in range(draw(st.integers(0, 3))):
        answer[draw(st.integers(0, rows - 1)), draw(st.integers(0, k - 1))] = draw(st.integers(-3, width + 2))
    return scores, lengths, k, answer


@settings(max_examples=600)
@given(answers(), st.sampled_from([1, 2000, 1 << 26]))
def test_agrees_with_the_sorting_oracle(problem, block_bytes):
    scores, lengths, k, answer = problem
    verdict = verify(scores, lengths, answer, block_bytes=block_bytes)
    expected = exact_rows(scores, k, {"lengths": lengths}, {"indices": answer})
    np.testing.assert_array_equal(verdict.reasons == 0, expected)
    assert verdict.ok == (verdict.failed == 0) == bool(verdict)
    valid = np.arange(scores.shape[1]) < clamp(lengths, *scores.shape)[:, None]
    assert verdict.nan_scores == int((np.isnan(widen(scores)) & valid).sum())
    same(verdict, on_torch(scores, lengths, answer, block_bytes))


def base():
    """Row scores 99 down to 0: the top 5 are positions 0 to 4."""
    scores = np.tile(np.arange(99, -1, -1, dtype=np.float32), (4, 1))
    lengths = np.array([100, 3, 0, 50], dtype=np.int32)
    return scores, lengths, first_k(scores, lengths, 5)


@pytest.mark.parametrize(
    ("row", "slots", "reason", "text"),
    [
        (0, {2: 100}, Reason.OUT_OF_RANGE, "row 0 (length 100), out of range: slot 2 holds 100, outside [0, 100)"),
        (0, {4: -2}, Reason.OUT_OF_RANGE, "row 0 (length 100), out of range: slot 4 holds -2, outside [0, 100)"),
        (0, {4: 1}, Reason.DUPLICATE, "row 0 (length 100), duplicate: position 1 stands in slots 1 and 4"),
        (
            0, {3: -1}, Reason.MISSING,
            "row 0 (length 100), missing: slot 3 holds the sentinel -1 with valid positions left, the best of them "
            "3 with score 96.0",
        ),
        (
            1, {0: -1, 3: 0}, Reason.MISPLACED,
            "row 1 (length 3), misplaced: slot 0 holds the sentinel -1 and later slots hold positions",
        ),
        (
            0, {1: 7}, Reason.NOT_LARGEST,
            "row 0 (length 100), not largest: slot 1 holds position 7 with score 92.0, but position 1 with score "
            "98.0 is not selected",
        ),
    ],
)  # fmt: skip
def test_each_reason_is_found_and_explained(row, slots, reason, text):
    scores, lengths, answer = base()
    for slot, position in slots.items():
        answer[row, slot] = position
    verdict = verify(scores, lengths, answer)
    assert verdict.failed_rows.tolist() == [row] and verdict.reasons[row] == reason
    assert verdict.reason_counts() == {reason: 1}
    assert set(verdict.first.slots) & set(slots)
    assert str(verdict.first) == text
    assert str(verdict).startswith(f"NOT exact: 1 of 4 rows failed, k=5 (1 {reason}); no NaN")
    assert not verdict
    with pytest.raises(VerificationError) as error:
        verdict.raise_if_failed()
    assert isinstance(error.value, KsieveError)
    assert str(error.value) == str(verdict) and error.value.verdict is verdict


def test_first_offending_row_and_all_counts():
    scores, lengths, answer = base()
    answer[3, 0], answer[1, 0], answer[0, 0] = 49, 1, 9
    verdict = verify(scores, lengths, answer)
    assert verdict.failed == 3 and verdict.failed_rows.tolist() == [0, 1, 3]
    assert verdict.first.row == 0 and verdict.first.worst == (9, 90.0) and verdict.first.best_left == (0, 99.0)
    assert verdict.reason_counts() == {Reason.DUPLICATE: 1, Reason.NOT_LARGEST: 2}


def test_an_exact_verdict_reads_well():
    scores, lengths, answer = base()
    verdict = verify(scores, lengths, answer)
    assert str(verdict) == "exact: all 4 rows checked, k=5; no NaN; no ties at rank k"
    verdict.raise_if_failed()
    one = verify(scores[:1], lengths[:1], answer[:1])
    assert str(one).startswith("exact: all 1 row checked")


def test_ties_and_nan_are_counted():
    scores = np.array([[3, 1, 1, 1], [1, 2, 3, 4], [np.nan, 5, np.nan, np.nan]], dtype=np.float32)
    answer = np.array([[0, 2], [3, 2], [1, 3]])
    verdict = verify(scores, None, answer)
    assert verdict and (verdict.tied_rows, verdict.nan_scores, verdict.nan_selected) == (2, 3, 1)
    assert str(verdict) == "exact: all 3 rows checked, k=2; 3 NaN scores (1 selected); 2 rows tied at rank k"
    answer[2, 0] = 0
    verdict = verify(scores, None, answer)
    assert verdict.reasons.tolist() == [0, 0, Reason.NOT_LARGEST]
    assert "score nan, but position 1 with score 5.0 is not selected" in str(verdict)


def test_a_source_that_hands_out_other_rows_is_refused():
    source = Source(np.zeros((20, 50), dtype=np.float32))
    source.rows_block = lambda begin, end: np.zeros((end - begin - 1, 50), dtype=np.float32)
    with pytest.raises(ArgumentError) as error:
        verify(source, None, np.zeros((20, 1), np.int32), block_bytes=8 * 200)
    assert str(error.value) == (
        "scores: got a block of shape (7, 50) on cpu for rows 0 to 8; takes blocks of shape (8, 50) on cpu"
    )


def test_arrays_of_other_libraries_on_the_host():
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

    scores, lengths, answer = base()
    same(verify(Foreign(scores), Foreign(lengths), Foreign(answer)), verify(scores, lengths, answer))


@pytest.mark.parametrize("shape", [(0, 7), (3, 0), (0, 0)])
def test_matrices_without_elements(shape):
    scores = np.zeros(shape, dtype=np.float32)
    verdict = verify(scores, None, np.full((shape[0], 2), -1))
    assert verdict and verdict.rows == shape[0]
    if shape[0]:
        assert verify(scores, None, np.zeros((shape[0], 2), np.int32)).failed == 3
