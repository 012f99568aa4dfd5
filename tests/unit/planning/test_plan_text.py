"""A plan read from the text of an exported program is one that the planner makes, whatever the text says."""

from __future__ import annotations

import json

import pytest

from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError
from ksieve.planning.plan_text import decode_plan, encode_plan
from parts import but_for

torch = pytest.importorskip("torch")
import ksieve.frontends.torch.ops  # noqa: E402, F401 - registers the operator
from flat_calls import plan_of  # noqa: E402
from ksieve.core.options import Options  # noqa: E402

PLANS = {
    "cpu": {"rows": 4, "width": 3000, "k": 64},
    "cpu sampled": {"rows": 4, "width": 200_000, "k": 64, "policy": "paper-128"},
    "cpu options": {"rows": 4, "width": 3000, "k": 64, "options": Options(order="value", values=True)},
    "bands": {"rows": 20_000, "width": 50_000, "k": 512, "device": DEVICES["h200"]},
    "cluster": {"rows": 64, "width": 200_000, "k": 512, "device": DEVICES["h200"]},
    "split": {
        "rows": 2, "width": 2_000_000, "k": 2048, "device": DEVICES["h200"], "family": "stream_split", "splits": 12,
    },
    "segments": {
        "rows": 1_000_000, "width": 150_000_000, "k": 8, "device": DEVICES["h200"],
        "options": Options(windows="segments", index_base="start"),
    },
    "forced": {"rows": 300, "width": 90_000, "k": 512, "device": DEVICES["h100"], "family": "stream_unsampled"},
}  # fmt: skip
ODD = [0, -1, 1, 2, 16_383, 2**20, 2**31, 2**62, 2**70, 1e18, 2.5, float("nan"), None, True, "x", [], {}]


def leaves(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from leaves(inner, (*path, key))


def damages(text):
    """Places and odd values for them: every value, but for what a list has again, such as a bin, each in its turn."""
    seen = set()
    for number, path in enumerate(leaves(json.loads(text))):
        field = tuple(name for name in path if isinstance(name, str))
        yield from ((path, value) for value in ([ODD[number % len(ODD)]] if field in seen else ODD))
        seen.add(field)


def changed(text, path, value):
    facts = json.loads(text)
    at = facts
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(facts)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_comes_back_as_it_was(name):
    plan = plan_of(**PLANS[name])
    assert decode_plan(encode_plan(plan)) == plan


@pytest.mark.parametrize("name", but_for(["cpu sampled", "split"], PLANS))
def test_a_damaged_text_is_refused_or_a_plan_that_the_planner_makes(name):
    text = encode_plan(plan_of(**PLANS[name]))
    taken = set()
    for path, value in damages(text):
        if changed(text, path, value) == changed(text, ("reason",), json.loads(text)["reason"]):
            continue  # it is the value that stands there
        try:
            plan = decode_plan(changed(text, path, value))
        except ArgumentError as error:
            assert error.argument == "plan"
        else:
            taken.add(path[0])
            asked = plan.problem
            assert isinstance(asked.rows, int) and (asked.pitch >= asked.width or asked.pitch == 0)
    assert taken <= {"problem", "device", "policy", "reason", "bins"}


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", "null", "[" * 10**5, '{"problem": ' + "9" * 5000 + "}", "5"])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(ArgumentError, match=r"^plan: got a text"):
        decode_plan(text)


def test_a_changed_plan_in_an_operator_call_is_refused_before_anything_is_written():
    scores, out = torch.randn(4, 3000), torch.full((4, 64), -7, dtype=torch.int32)
    text = changed(encode_plan(plan_of(**PLANS["cpu"])), ("capacity",), 2**62)
    with pytest.raises(ArgumentError, match=r"^plan: got a text whose numbers differ"):
        torch.ops.ksieve.topk_options(scores, 64, text, "", out=out)
    assert (out == -7).all()
