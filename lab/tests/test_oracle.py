"""The oracle refutes every changed answer, with NumPy and with PyTorch, and agrees with `ksieve.verify` on indices."""

from __future__ import annotations

import numpy as np
import pytest

from cases import OPTION_CASES, build_call
from flat_calls import verified
from harness import serve_on
from ksieve_lab import oracle

JUDGED = ("starts", "ends", "index_base", "next_n", "largest", "nan", "sorted", "tie_break")
CASES = [case for case in OPTION_CASES if case["shape"][1] < 3000]


def on_torch(array):
    torch = pytest.importorskip("torch")
    if not isinstance(array, np.ndarray):
        return array
    tensor = torch.from_numpy(np.ascontiguousarray(array.view(np.int16) if array.dtype == np.uint16 else array))
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def answered(case, number):
    inputs, call = build_call(case, number)
    answer = serve_on("cpu", inputs.scores, inputs.k, call)
    return inputs.scores, inputs.k, call, {name: np.ascontiguousarray(array) for name, array in answer.items()}


def changed(array, rng):
    """One slot holds something else, or two slots hold each other's."""
    found = array.copy()
    row, one, two = rng.integers(len(found)), *rng.integers(found.shape[1], size=2)
    if rng.integers(2):
        found[row, [one, two]] = found[row, [two, one]]
    else:
        found[row, one] = rng.choice([found[row, two], -1, -2, 0, 1, found[row, one] + 1])
    return found


def test_what_is_written_for_a_position_is_judged():
    """An index beside its raw one, a used value and an unused slot have one right content each."""
    rng, seen = np.random.default_rng(0), 0
    for number, case in enumerate(CASES):
        scores, k, call, answer = answered(case, number)
        if not answer["indices"].size:
            continue
        oracle.assert_served(scores, k, call, answer)
        for name in ("indices",) * ("raw" in answer) + ("values",) * ("values" in answer):
            held = answer[name].view(f"i{answer[name].itemsize}")
            row, slot = (rng.integers(n) for n in held.shape)
            held[row, slot] ^= 1 << int(rng.integers(8 * held.itemsize - 1))
            assert not oracle.exact_rows(scores, k, call, answer)[row], (case, name)
            assert oracle.exact_rows(scores, k, call, answer).sum() == len(scores) - 1
            with pytest.raises(AssertionError, match=rf"(written|value|unused slots): 1 rows \[{row}\]"):
                oracle.assert_served(scores, k, call, answer)
            answer = answered(case, number)[3]
            seen += 1
    assert seen > 40


def test_it_agrees_with_verify_on_changed_indices():
    rng, verdicts = np.random.default_rng(1), [0, 0]
    for number, case in enumerate(CASES):
        scores, k, call, answer = answered(case | {"transform": "none"}, number)
        asked = {name: call[name] for name in JUDGED if name in call}
        for _ in range(6 * bool(answer["indices"].size)):
            indices = changed(answer["indices"], rng)
            ks = call.get("ks")
            found = verified(scores, call.get("lengths"), indices, k=ks, num_rows=call.get("live"), **asked)
            expected = oracle.exact_rows(scores, k, call, {"indices": indices})
            np.testing.assert_array_equal(found.reasons == 0, expected, err_msg=f"{case} {found}")
            verdicts[bool(found)] += 1
    assert min(verdicts) > 30, verdicts


def test_both_libraries_say_the_same():
    rng = np.random.default_rng(2)
    for number, case in enumerate(CASES):
        scores, k, call, answer = answered(case, number)
        for _ in range(3 * bool(answer["indices"].size)):
            given = {name: changed(array, rng) if rng.integers(2) else array for name, array in answer.items()}
            told = oracle.faults(scores, k, call, given)
            tensors = ({name: on_torch(array) for name, array in arrays.items()} for arrays in (call, given))
            assert oracle.faults(on_torch(scores), k, *tensors) == told, case


def test_pages_alone_tell_which_entries_were_selected():
    """Without raw indices: two pages are the same one, others are none; a better entry of either is missed."""
    scores = np.array([[9, 1, 5, 7, 3, 5]], np.float32)
    call = {"page_table": np.array([[4, 4, 2]], np.int32), "page_size": 2, "lengths": np.array([6], np.int32)}
    for indices, right in (
        ([8, 9], True), ([9, 8], True), ([8, 8], False), ([8, 4], False), ([8, 5], False), ([8, -1], False),
    ):  # fmt: skip
        assert oracle.exact_rows(scores, 2, call, {"indices": np.array([indices], np.int32)})[0] == right, indices
    ordered = call | {"sorted": True, "tie_break": "low"}
    for indices, right in (([8, 9, 8, 5], True), ([8, 9, 5, 8], False)):
        assert oracle.exact_rows(scores, 4, ordered, {"indices": np.array([indices], np.int32)})[0] == right
    with pytest.raises(ValueError, match="without raw"):
        oracle.exact_rows(scores, 1, call | {"expand": 2}, {"indices": np.array([[8, 9]], np.int32)})
