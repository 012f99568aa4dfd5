"""The suite refutes a changed answer and a write beside an output, on the CPU."""

from __future__ import annotations

import pytest
import torch

import ksieve
from flat_calls import plan_of
from gpu import runner, served

PAGES = {"page_table": torch.arange(40, dtype=torch.int32).view(2, 20).flip(1).contiguous(), "page_size": 16}
CALLS = {
    "out": {"lengths": torch.tensor([300, 299], dtype=torch.int32)},
    "values": {"values": True},
    "raw": {"raw": True, **PAGES},
    "counts": {"expand": 2, "counts": torch.zeros(2, dtype=torch.int32)},
}


@pytest.fixture
def ready(monkeypatch):
    """A call with the CPU's answer."""
    monkeypatch.setattr(runner, "DEVICE", "cpu")
    monkeypatch.setattr(runner, "dirty_workspace", lambda plan: None)
    scores = torch.randn(2, 300, generator=torch.Generator().manual_seed(1))

    def made(call):
        plan = plan_of(rows=2, width=300, k=20, options=served.options_of(call))
        return served.Served(plan, scores, call)

    return made


@pytest.mark.parametrize("name", CALLS)
def test_a_changed_answer_is_refuted(ready, monkeypatch, name):
    one, right = ready(CALLS[name]), ksieve.select
    assert served.check(one) == served.check(one, host=True) == []

    def wrong(*arguments, **keywords):
        found = right(*arguments, **keywords)
        keywords[name].view(2, -1)[1, 0] += 1
        return found

    monkeypatch.setattr(ksieve, "select", wrong)
    assert served.check(one)


@pytest.mark.parametrize("name", CALLS)
def test_a_write_beside_an_output_is_refuted(ready, monkeypatch, name):
    one, right = ready(CALLS[name]), ksieve.select
    memory = one.outputs[name].memory
    outside = (~one.outputs[name].inside).nonzero().flatten()
    for at in outside[[0, runner.GUARD - 1, runner.GUARD, -runner.GUARD - 1, -1]].tolist():

        def wrong(*arguments, at=at, **keywords):
            found = right(*arguments, **keywords)
            memory[at] = 0
            return found

        monkeypatch.setattr(ksieve, "select", wrong)
        assert served.check(one) == [f"run 0: memory around {name} was written"]
