"""Values that are returned carry no gradient, which is said once in a process."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

import ksieve
from ksieve.core import arguments

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def unsaid(monkeypatch):
    monkeypatch.setattr(arguments, "_warned", False, raising=False)


def said(program):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        program()
    return [w for w in found if w.category.__name__ == "GradientWarning"]


def scores(requires_grad=True):
    return torch.randn(4, 64, requires_grad=requires_grad)


def test_values_of_scores_that_require_grad_say_so_once():
    x = scores()
    found = said(lambda: [ksieve.topk(x, k=8, return_values=True) for _ in range(3)])
    assert len(found) == 1 and "gather" in str(found[0].message)
    assert issubclass(found[0].category, UserWarning) and found[0].category is ksieve.GradientWarning


def test_a_plan_with_values_says_so_too():
    plan = ksieve.plan(rows=4, width=64, k=8, options=ksieve.Options(values=True))
    assert len(said(lambda: ksieve.topk(scores(), plan=plan))) == 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_said_where_no_gradient_is_recorded(mode):
    x = scores()

    def program():
        with mode():
            ksieve.topk(x, k=8, return_values=True)

    assert not said(program)
    assert not said(lambda: ksieve.topk(scores(requires_grad=False), k=8, return_values=True))
    assert not said(lambda: ksieve.topk(x, k=8))


def test_a_compiled_program_says_it_once_and_stays_whole():
    x = scores()
    program = torch.compile(
        lambda x: ksieve.topk(x, k=8, return_values=True, sorted=True), fullgraph=True, backend="aot_eager"
    )
    assert len(said(lambda: [program(x) for _ in range(3)])) == 1
    indices, values = program(x)
    assert torch.equal(values, x.detach().gather(1, indices.long())) and not values.requires_grad


def test_the_remedy_has_the_gradient():
    x = scores()
    indices = ksieve.topk(x, k=8)
    x.gather(1, indices.clamp(min=0).long()).sum().backward()
    assert int((x.grad == 1).sum()) == 4 * 8


def test_an_output_that_requires_grad_is_refused_before_it_is_written():
    values = torch.full((4, 8), -7.0, requires_grad=True)
    with pytest.raises(ksieve.ArgumentError, match=r"^values_out: .*detach"):
        ksieve.topk(scores(), k=8, values_out=values)
    assert (values == -7).all()
    with torch.no_grad():
        ksieve.topk(scores(), k=8, values_out=values)
    assert not (values == -7).any()


def test_a_warning_turned_into_an_error_comes_before_anything_is_written():
    out = torch.full((4, 8), -7, dtype=torch.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UserWarning, match="no gradient"):
                ksieve.topk(scores(), k=8, return_values=True, out=out)
    assert (out == -7).all()


def test_it_is_said_in_the_documentation():
    assert "gradient" in ksieve.topk.__doc__


def test_it_names_the_line_that_calls():
    code = "import torch, ksieve\nksieve.topk(torch.randn(2, 9, requires_grad=True), k=2, return_values=True)\n"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "<string>:2: GradientWarning" in found.stderr
