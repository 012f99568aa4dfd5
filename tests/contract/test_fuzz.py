"""Tens of thousands of random rows through the CPU backend, with all options at once, judged by the oracle.

A share of them is judged by `ksieve.verify` too, and has the model's statistics; another share is made into calls that
are refused. ``KSIEVE_FUZZ_SEED`` draws other rows, ``KSIEVE_FUZZ_ROWS`` more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import any_call
import ksieve
from any_call import POISON, REFUSED, Draw, presented
from cases import POLICIES
from entry_calls import columns_of
from ksieve import ArgumentError, Route, dispatch
from ksieve.core.groups import grouped
from ksieve.core.table import BY_NAME, OUTPUTS
from ksieve_lab import oracle
from parts import but_for

SEED = int(os.environ.get("KSIEVE_FUZZ_SEED", "1"))
ROWS, PARTS = int(os.environ.get("KSIEVE_FUZZ_ROWS", "20000")), 2
WIDE = (400, 900, 5003, 40_001)


def plan_of(d, scores, given):
    """A plan of a random policy, often of a tiny capacity; none for some narrow calls, and where there are no slots."""
    if (scores.shape[-1] < WIDE[0] and d.often(0.3)) or not given.get("max_k", given["k"]):
        return None
    more = {name: value for name, value in given.items() if name not in ("num_rows", "out")}
    more.setdefault("index_dtype", given["out"].dtype.name if "out" in given else None)
    plan = ksieve.plan(scores, policy=d.one(*POLICIES) or "direct", **grouped(more))
    return replace(plan, capacity=plan.problem.k + d.one(0, 1, 7, 100_000))


def served(d, x, k, call, scores, leading, given, *, more):
    """Make a call; its statistics. Its answer is judged, and with `more` that of the model, whose counts are equal."""
    keywords = {name: value for name, value in given.items() if value is not None}
    plan = plan_of(d, scores, keywords)
    found = ksieve.select(scores, plan=plan, stats=more or d.often(), **grouped(keywords))
    for name in ("out", *OUTPUTS):
        if isinstance(array := given.get(name), np.ndarray):
            assert array is getattr(found, oracle.NAMES[name]) and not any_call.written_outside(array), name
    answer = judge(x, k, call, leading, found)
    if more and ("raw" in answer or not call.keys() & {"offsets", "page_table"}):
        verify(d, x, k, call, answer.get("raw", answer["indices"]), answer.get("counts"))
    if more and plan is not None:
        keywords |= {name: True for name in OUTPUTS if isinstance(keywords.get(name), np.ndarray)}
        lengths, slots, out, num_rows = (keywords.pop(name, None) for name in ("lengths", "k", "out", "num_rows"))
        other = dispatch.select(
            scores, lengths, slots, plan, out, None, num_rows, keywords, stats=True, backend="reference"
        )
        judge(x, k, call, leading, other)
        np.testing.assert_array_equal(found.stats.raw, other.stats.raw)
    return found.stats


def judge(x, k, call, leading, found):
    """The answer, one matrix for each part, of which the oracle finds nothing wrong."""
    answer = {name: part for name, part in found._asdict().items() if isinstance(part, np.ndarray)}
    assert answer.keys() == {"indices", *(name for name in OUTPUTS if call.get(name, False) is not False)}
    assert found.indices.shape == (*leading, columns_of(k, call)) and found.indices.dtype == call["index_dtype"]
    answer = {name: part.reshape(len(x), *part.shape[len(leading) :]) for name, part in answer.items()}
    oracle.assert_served(x, k, call, answer)
    return answer


def verify(d, x, k, call, raw, counts):
    """`ksieve.verify` accepts an answer, and one in which a slot is changed if and only if the oracle does."""
    call = {name: value for name, value in call.items() if name not in ("offsets", "page_table")}
    verdict = any_call.verdict(x, call, raw, counts)
    assert verdict, verdict
    if raw.size and call.get("fill") is not False:
        raw, row, slot = raw.copy(), *(d.rng.integers(n) for n in raw.shape)
        raw[row, slot] = d.one(-1, 0, 1, 2, 5, raw[row, 0], raw[row].max() + 1)
        assert bool(any_call.verdict(x, call, raw)) == oracle.exact_rows(x, k, call, {"indices": raw}).all()


def refuse(d, scores, leading, given):
    """Make a call one that is refused, by an error that names the option; its outputs are as they were."""
    name = "indptr" if given.get("indptr") is not None else d.one(*(each for each in REFUSED if each != "indptr"))
    changed = given | REFUSED[name](given, leading, scores.shape[-1])
    changed = {key: value for key, value in changed.items() if value is not None}
    outputs = [array for key in ("out", *OUTPUTS) if isinstance(array := changed.get(key), np.ndarray)]
    for array in outputs:
        array[...] = POISON
    with pytest.raises(ArgumentError, match=f"^{name}: "):
        ksieve.select(scores, **grouped(changed))
    assert all((array == POISON).all() for array in outputs)


@pytest.mark.parametrize("part", but_for([0], range(PARTS)))
def test_any_call(part):
    d, routes, options, done, batch = Draw(np.random.default_rng([SEED, part])), Counter(), set(), 0, 0
    most = min(1000, max(60, ROWS // 400))
    while done < ROWS // PARTS:
        wide = batch % 6 == 0
        x, k, call = any_call.draw(d, int(d.rng.integers(1, 12 if wide else most)), WIDE if wide else any_call.WIDTHS)
        scores, leading, given = presented(d, x, k, call)
        try:
            stats = served(d, x, k, call, scores, leading, given, more=batch % 8 == 1)
            if batch % 4 == 0:
                refuse(d, scores, leading, given)
        except Exception as error:
            shown = {name: value if np.ndim(value) == 0 else np.shape(value) for name, value in given.items()}
            where = f"seed {SEED}, part {part}, batch {batch}, scores {scores.shape} {x.dtype}"
            raise AssertionError(f"{where}, {shown}") from error
        routes.update(stats.route_counts() if stats else {})
        options.update(call, given)
        done += len(x)
        batch += 1
    assert set(BY_NAME) - {"overlap"} <= options, "an option that no call has"
    assert set(routes) == set(Route), "every route must have been taken"
