"""Segments in programs of PyTorch and JAX: groups are arguments, indices and gradients are those of the eager call."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve

torch = pytest.importorskip("torch")
from torch_cases import compiled, fresh_dynamo  # noqa: E402

__all__ = ["fresh_dynamo"]
LENGTHS = np.random.default_rng(4).integers(0, 90, 40)
INDPTR = np.append(5, 5 + LENGTHS.cumsum())
SCORES = np.random.default_rng(5).standard_normal(INDPTR[-1] + 3).astype(np.float32)


def ask(scores, indptr):
    return ksieve.select(scores, k=6, bounds=ksieve.Segments(indptr), values=True, sorted=True)


WANTED = ask(SCORES, INDPTR)
GRADIENT = np.zeros_like(SCORES)
GRADIENT[(INDPTR[:-1, None] + WANTED.indices)[WANTED.indices >= 0]] = 1


class Selector(torch.nn.Module):
    def forward(self, scores, bounds):
        return ksieve.topk(scores, k=6, bounds=bounds, sorted=True)


def test_programs_of_torch():
    scores, indptr = torch.from_numpy(SCORES), torch.from_numpy(INDPTR)
    found = compiled(lambda x, bounds: ask(x, bounds))(scores, indptr)
    np.testing.assert_array_equal(found.indices, WANTED.indices)
    np.testing.assert_array_equal(found.values, WANTED.values)
    bounds = ksieve.Segments(indptr, max_length=90)
    program = torch.export.export(Selector(), (scores, bounds)).module()
    np.testing.assert_array_equal(program(scores, bounds), WANTED.indices)
    both = torch.func.vmap(lambda x: Selector()(x, bounds))(torch.stack([scores, -scores]))
    np.testing.assert_array_equal(both[1], ask(-SCORES, INDPTR).indices)


def test_values_carry_a_gradient():
    for call in (ask, compiled(ask)):
        scores = torch.tensor(SCORES, requires_grad=True)
        values = call(scores, torch.from_numpy(INDPTR)).values
        values[values.isfinite()].sum().backward()
        np.testing.assert_array_equal(scores.grad, GRADIENT)


def test_programs_of_jax():
    jax = pytest.importorskip("jax")
    scores, indptr = jax.numpy.asarray(SCORES), jax.numpy.asarray(INDPTR, "int32")
    np.testing.assert_array_equal(jax.jit(ask)(scores, indptr).indices, WANTED.indices)

    def total(scores):
        values = ask(scores, indptr).values
        return jax.numpy.where(jax.numpy.isfinite(values), values, 0).sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(total))(scores), GRADIENT)
    both = jax.vmap(lambda x: ask(x, indptr).indices)(jax.numpy.stack([scores, -scores]))
    np.testing.assert_array_equal(both[1], ask(-SCORES, INDPTR).indices)
