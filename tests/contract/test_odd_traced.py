"""Odd arguments of a call that PyTorch traces: the error names the argument, as outside of it."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve
from flat_calls import ask
from ksieve.core import groups

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


ODD = {
    "plan": ["x", 5, []],
    "k": ["x", 2.5, None, True, 0],
    "lengths": [[1], "x", torch.tensor([1.0, 2, 3, 4])],
    "out": [[1], 3, torch.zeros(3)],
    "workspace": ["x"],
    "num_rows": ["x", True],
    "starts": [[1]],
    "ends": ["x"],
    "page_table": [[1]],
    "offsets": [4],
    "values": [[1]],
    "raw": ["x"],
    "max_k": [3],
    "sorted": ["best", 5],
    "index_dtype": [5, "int16"],
    "next_n": ["x", 0],
    "tie_break": [7],
    "stats": [True, "x"],
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_argument_is_named_while_tracing(name):
    scores = torch.randn(4, 64)
    for value in ODD[name]:
        torch._dynamo.reset()
        given = {"k": 8, name: value}
        program = torch.compile(lambda x, g=given: ask(x, **g), fullgraph=True, backend="aot_eager")
        with pytest.raises(Exception, match=rf"ArgumentError.*{name}: got|^{name}: got"):
            program(scores)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10),
    reason="Dynamo replaces the message of the error by its own",
)
@pytest.mark.parametrize("keyword", ["smallest", "lenths"])
def test_an_unknown_keyword_says_what_to_write_while_tracing(keyword):
    program = torch.compile(lambda x: ksieve.topk(x, k=8, **{keyword: True}), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"largest=False|did you mean lengths"):
        program(torch.randn(4, 64))


@pytest.mark.parametrize("scores", [torch.randn(64), torch.randn(2, 4, 64)], ids=["vector", "three dimensions"])
def test_scores_are_a_matrix_while_tracing(scores):
    program = torch.compile(lambda x: ksieve.topk(x, k=8), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"scores: got . dimension\(s\); takes a matrix while tracing"):
        program(scores)


def test_lazy_views_are_resolved_for_a_compiled_program():
    scores = torch._neg_view(torch.randn(4, 64))
    program = torch.compile(lambda x: ksieve.topk(x, k=8), fullgraph=True, backend="aot_eager")
    assert ksieve.verify(scores.resolve_neg(), None, program(scores))


@pytest.mark.parametrize("dtype", [torch.int64, np.int64, "int64"])
def test_dtypes_are_constants_of_a_program(dtype):
    program = torch.compile(lambda x: ksieve.topk(x, k=8, index_dtype=dtype), fullgraph=True, backend="aot_eager")
    assert program(torch.randn(4, 64)).dtype is torch.int64


def test_groups_are_made_inside_a_program_before_any_is_known(monkeypatch):
    monkeypatch.setattr(groups, "_unregistered", {"torch", "jax", "jaxlib"})
    ends = torch.tensor([3, 64, 9, 0], dtype=torch.int32)

    def program(x, ends):
        return ksieve.topk(x, k=8, bounds=ksieve.RowBounds(ends=ends), sorted=True)

    x = torch.randn(4, 64)
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, ends), ksieve.topk(x, ends, 8, sorted=True))
