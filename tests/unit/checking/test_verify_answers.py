"""Verdicts on every option: all answers of small rows by definition, and the model's answers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from answers import RANKINGS, VALUES, random_row
from cases import DTYPES, scores_of
from ksieve import verify
from ksieve.checking.verdict import Reason
from ksieve.core.options import Options
from ksieve.core.windows import windows
from verdicts import of_model, on_torch, same

CHECKS = [verify, on_torch]
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
        finding = verify(
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


MODEL = [
    (dtype, family, ranking, order, tie_break)
    for i, (family, ranking) in enumerate(product(["few_values", "some_nan", "random_bits", "normal"], RANKINGS))
    for dtype, order, tie_break in [
        (DTYPES[i % 3], ["any", "value", "index"][i // 2 % 3], ["low", "high", "any"][i % 3]),
        (DTYPES[i % 3 - 1], "any", "any"),
    ]
]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("width", [50, 5000])
@pytest.mark.parametrize(("dtype", "family", "ranking", "order", "tie_break"), MODEL)
def test_the_models_answers_are_exact_and_a_swap_is_not(dtype, family, ranking, order, tie_break, width, check):
    rows, slots, n = 12, 9, 3
    rng = np.random.default_rng(len(family) + width)
    scores = scores_of(family, rows, width, slots, dtype, seed=width)
    starts, ends = rng.integers(-5, width, rows).astype(np.int32), rng.integers(0, width + 9, rows // n)
    ks = rng.integers(-1, slots + 2, rows)
    ranks = RANKINGS[ranking]
    options = Options(
        windows="ends", next_n=n, index_base="start", per_row_k=True, order=order, tie_break=tie_break, **ranks
    )
    answer = of_model(scores, slots, options, ends, starts, ks)
    call = {"starts": starts, "ends": ends, "next_n": n, "index_base": "start", "k": ks, "tie_break": tie_break}
    call |= {"sorted": order != "any" and order, **ranks}
    assert check(scores, None, answer, **call)
    begin, length = windows(options, rows, width, lengths=ends, starts=starts)
    used = np.minimum(length, np.clip(ks, 0, slots))
    for r in np.flatnonzero(length > used + 1)[:4]:
        if used[r]:
            # The worst of the row in place of one that was selected: refuted, unless all scores are equal.
            wrong = answer.copy()
            left = np.setdiff1d(np.arange(length[r]), answer[r, : used[r]])
            keys = _places(scores[r, begin[r] : begin[r] + length[r]], ranking)
            worst, best = left[np.argmax(keys[left])], answer[r, 0]
            wrong[r, 0] = worst
            verdict = check(scores, None, wrong, **call)
            assert verdict.ok == bool(keys[worst] == keys[best] and tie_break == "any" and order == "any")
            assert verdict.ok or verdict.failed_rows.tolist() == [r]


def _places(scores, ranking):
    """Numbers that order scores, a better one less, equal scores alike."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        wide = (_of_bfloat16(scores) if scores.dtype == np.uint16 else scores).astype(np.float64)
    numbers = np.clip(np.where(np.isnan(wide), 0, wide), -1e300, 1e300) * (1 if ranking == "smallest" else -1)
    return np.where(np.isnan(wide), -np.inf if ranking == "nan_first" else np.inf, numbers)


def _of_bfloat16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)
