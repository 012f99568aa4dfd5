"""Traces of selections: the paper's invocation counts, budgets kept, every query of a request in exactly one row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksieve.core.errors import ArgumentError
from ksieve_lab.traces import serving as traces


@pytest.mark.parametrize(("name", "steps", "count"), [("245K", 4, 26), ("430K", 7, 71)])
def test_the_papers_requests_take_the_papers_invocations(name, steps, count):
    made = traces.invocations(traces.PAPER_REQUESTS[name])
    assert (len(made), made[-1].step + 1) == (count, steps)
    assert made[-1].width == traces.PAPER_REQUESTS[name]
    assert made[-1].lengths()[-1] == made[-1].width
    assert [i.rows for i in made if i.step == 0] == [24_032, 24_032, 17_472], "6.3e9 bytes hold 24,032 rows of 65,536"


@given(
    prompt=st.integers(0, 5000), cap=st.integers(1, 700), budget=st.integers(1, 4_000_000),
    decode=st.integers(0, 5), batch=st.integers(1, 3),
)  # fmt: skip
def test_every_query_is_selected_for_once(prompt, cap, budget, decode, batch):
    made = traces.invocations(prompt, step_tokens=cap, budget_bytes=budget, decode_steps=decode, batch=batch)
    prefill = [i for i in made if i.phase == "prefill"]
    seen = np.concatenate([i.lengths() for i in prefill]) if prefill else np.zeros(0, np.int32)
    assert np.array_equal(seen, np.tile(np.arange(1, prompt + 1), batch))
    assert sum(i.rows for i in made) == batch * (prompt + decode)
    for i in made:
        assert (i.lengths() <= i.width).all() and i.lengths().sum() == i.valid_scores
        if i.phase == "prefill":
            assert i.rows == 1 or i.rows * i.width * traces.SCORE_BYTES <= budget
    assert [(i.rows, i.width, i.lengths().tolist()) for i in made if i.phase == "decode"] == [
        (batch, prompt + 1 + t, [prompt + 1 + t] * batch) for t in range(decode)
    ]
    assert [i.step for i in made] == sorted(i.step for i in made)


@pytest.mark.parametrize(
    ("name", "value"),
    [("prompt", -1), ("prompt", 1 << 31), ("prompt", True), ("step_tokens", 0), ("budget_bytes", 0), ("batch", 0)],
)
def test_bad_numbers_are_named(name, value):
    with pytest.raises(ArgumentError, match=rf"^{name}: got"):
        traces.invocations(**({"prompt": 8} | {name: value}))
