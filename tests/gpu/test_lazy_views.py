"""Lazy views of PyTorch, whose memory holds other numbers than they show, are never read by their pointer."""

from __future__ import annotations

import pytest

import ksieve
from flat_calls import ask
from ksieve.core.errors import ArgumentError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("name", ["scores", "lengths", "num_rows", "out"])
def test_lazy_views_are_refused_by_the_fast_path_too(name, planned):
    arrays = {
        "scores": torch.randn(4, 4096, device="cuda"),
        "lengths": torch.full((4,), 4000, dtype=torch.int32, device="cuda"),
        "num_rows": torch.full((1,), 4, dtype=torch.int32, device="cuda"),
        "out": torch.zeros(4, 64, dtype=torch.int32, device="cuda"),
    }
    plan = ksieve.plan(rows=4, width=4096, k=64, device="cuda") if planned else None
    for _ in range(3):  # the second call takes the fast path
        ask(k=64, plan=plan, **arrays)
    with pytest.raises(ArgumentError, match=rf"^{name}: .*resolve_neg"):
        ask(k=64, plan=plan, **(arrays | {name: torch._neg_view(arrays[name])}))
