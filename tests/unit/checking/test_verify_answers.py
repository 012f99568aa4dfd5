"""Verdicts on every option: all answers of small rows by definition, and the model's answers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from answers import RANKINGS, VALUES, random_row
from flat_calls import verified
from ksieve.checking.verdict import Reason
from verdicts import on_torch, same

CHECKS = [verified, on_torch]
ORDERS = (False, "index", "value")
TIE_BREAKS = (None, "low", "high")


# ---- by definition ---------------------------------------------------------------------------------------


def check_all(row, before=0):
    """Check all answers of a row, which may stand behind other scores; the base of its indices is then "start"."""
    answers = row.answers()
    others = np.tile(VALUES, -(-before // VALUES.size))
    scores = np.tile(np.concatenate([others[:before], row.scores, others[:before]]), (len(answers), 1))
    arguments = row.arguments(len(answers))
    arguments["starts"] += before
    lengths = arguments.pop("lengths")
    wanted = [row.reason(answer) for answer in answers.tolist()]
    assert [reason == "exact" for reason in wanted] == [row.right(answer) for answer in answers.tolist()]
    verdicts = [check(scores, lengths, answers, **arguments) for check in CHECKS]
    for verdict in verdicts:
        found = [str(Reason(int(reason))) for reason in verdict.reasons]
        assert found == wanted, (row, answers[[a != b for a, b in zip(found, wanted, strict=True)]][:3])
        valid = row.scores[row.begin : row.begin + row.length]
        assert verdict.nan_scores == len(answers) * np.isnan(valid).sum()
    same(*verdicts)
    # The finding of every kind of fault can be written, for the first answer that has it.
    for reason in sorted(set(wanted) - {"exact"}):
        at = wanted.index(reason)
        finding = verified(
            scores[:1], lengths[:1], answers[at : at + 1], **arguments | {n: arguments[n][:1] for n in ("k", "starts")}
        ).first
        assert str(finding) and finding.as_dict()["reason"] == reason


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("order", "tie_break"), [*product(ORDERS, TIE_BREAKS)])
@pytest.mark.parametrize("ranking", RANKINGS)
def test_all_answers_of_a_small_row(ranking, order, tie_break, seed):
    base = ("row", "start")[seed // 2]
    check_all(random_row(seed, ranking=ranking, order=order, tie_break=tie_break, index_base=base))


@pytest.mark.parametrize("seed", [10, 11])
@pytest.mark.parametrize("tie_break", TIE_BREAKS)
@pytest.mark.parametrize("ranking", RANKINGS)
def test_all_answers_of_a_small_window_in_a_wide_row(ranking, tie_break, seed):
    """From 4,096 scores on rows are counted one by one."""
    check_all(random_row(seed, slots=2, ranking=ranking, tie_break=tie_break, index_base="start"), before=2100)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(6, 1 << 20),
    ranking=st.sampled_from(sorted(RANKINGS)),
    order=st.sampled_from(ORDERS),
    tie_break=st.sampled_from(TIE_BREAKS),
    base=st.sampled_from(["row", "start"]),
    sentinel=st.sampled_from([-1, 2**31 - 1]),
    shape=st.sampled_from([(1, 2), (3, 3), (6, 2), (7, 2)]),
)
def test_any_small_row(seed, ranking, order, tie_break, base, sentinel, shape):
    options = {"ranking": ranking, "order": order, "tie_break": tie_break, "index_base": base, "sentinel": sentinel}
    check_all(random_row(seed, *shape, **options))


# ---- answers of the model --------------------------------------------------------------------------------
