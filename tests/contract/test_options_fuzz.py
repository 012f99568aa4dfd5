"""Calls with any options at all, drawn by Hypothesis, on the CPU and by the model, judged by sorting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import strategies as st  # noqa: E402
from test_options import same_bytes  # noqa: E402

import ksieve  # noqa: E402
from cases import DTYPES, FAMILIES, POLICIES, options_of, scores_of  # noqa: E402
from harness import HOST_BACKENDS, serve_on  # noqa: E402
from ksieve_lab.oracle import assert_served  # noqa: E402

INT32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def calls(draw):
    """Scores, k, the arguments of a call, and a plan with little storage."""
    next_n = draw(st.sampled_from([1, 1, 2, 3]))
    rows, width = next_n * draw(st.integers(0, 4)), draw(st.sampled_from([0, 1, 2, 17, 63, 64, 65, 200, 1000]))
    k = draw(st.one_of(st.integers(1, 70), st.integers(1, width + 2)))
    family, dtype = draw(st.sampled_from(sorted(FAMILIES))), draw(st.sampled_from(DTYPES))
    scores = scores_of(family, rows, width, k, dtype, seed=draw(st.integers(0, 99)))

    def vector(size, low, high):
        near = st.integers(low, high)
        return np.array(draw(st.lists(st.one_of(near, near, near, INT32), min_size=size, max_size=size)), np.int32)

    call = {"next_n": next_n, "index_base": draw(st.sampled_from(["row", "start"]))}
    bounds = draw(st.sampled_from([None, "lengths", "ends"]))
    if bounds:
        call[bounds] = vector(rows // next_n, -1, width + 2)
        if draw(st.booleans()):
            # 64-bit numbers whose low half is another length
            added = draw(st.sampled_from([0, 0, 2**32, -(2**33), 2**62, -(2**62)]))
            call[bounds] = call[bounds].astype(np.int64) + added
    if draw(st.booleans()):
        call["starts"] = vector(rows, -1, width + 1)
    if draw(st.booleans()):
        call["ks"] = vector(rows, 0, k)
    call["return_raw"] = True
    transform = draw(st.sampled_from(["none", "offsets", "pages", "mapped"]))
    if transform == "offsets":
        call["offsets"] = vector(rows, -5, 5)
    elif transform != "none":
        requests, pages = draw(st.integers(0, 4)), draw(st.integers(0, 9))
        call["page_table"] = vector(requests * pages, 0, 99).reshape(requests, pages)
        call["page_size"] = draw(st.sampled_from([1, 2, 64, 1 << 20]))
        if transform == "mapped":
            call["row_to_request"] = vector(rows, -1, 5)
    call["sorted"] = draw(st.sampled_from([False, "value", "index"]))
    call["tie_break"] = draw(st.sampled_from([None, "low", "high"]))
    call["return_values"] = draw(st.booleans())
    call["largest"] = draw(st.booleans())
    call["nan"] = draw(st.sampled_from([None, "last", "highest"]))
    call["index_dtype"] = draw(st.sampled_from(["int32", "int64"]))
    if draw(st.booleans()):
        call["live"] = draw(st.integers(0, rows))
    policy = draw(st.sampled_from(POLICIES))
    plan = ksieve.plan(rows=rows, width=width, k=k, dtype=dtype, policy=policy or "direct", options=options_of(k, call))
    return scores, k, call, replace(plan, capacity=k + draw(st.sampled_from([0, 1, 7, 9999])))


@hypothesis.given(calls())
@hypothesis.settings(max_examples=400)
def test_any_call(case):
    scores, k, call, plan = case
    answers = [serve_on(backend, scores, k, call, plan=plan, return_stats=True) for backend in HOST_BACKENDS]
    found, model = (answer.pop("stats").raw for answer in answers)
    np.testing.assert_array_equal(found, model)
    for answer in answers:
        assert_served(scores, k, call, answer)
    if plan.problem.options.deterministic:
        for one, other in zip(answers[0].values(), answers[1].values(), strict=True):
            same_bytes(one, other)
