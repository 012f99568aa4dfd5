"""Tensors of every kind and layout, the comparison of a selection with that of `torch.topk`, and compiled calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch

SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -1.0)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def numbers(rng, shape, dtype, kind):
    """Scores of a kind: all different, tied, or half of them NaN, infinite or zero.

    NaN is positive: where k is the whole row, `torch.topk` on CUDA sorts by bits, and puts a negative NaN, as PyTorch's
    conversion to bfloat16 makes them, behind -inf.
    """
    size = int(np.prod(shape))
    whole = rng.permutation(size).astype(np.float32) - size // 2
    if kind == "ties":
        whole = rng.integers(-2, 3, size).astype(np.float32)
    elif kind == "special":
        whole = np.where(rng.random(size) < 0.5, rng.choice(np.float32(SPECIAL), size), whole)
    x = torch.from_numpy(whole.reshape(shape)).to(dtype)
    return torch.where(x.isnan(), x.abs(), x)


def strided(rng, x):
    """The same elements in another layout: as they are, axes in another order, every second one, or a slice."""
    layout = rng.choice(["contiguous", "permuted", "stepped", "sliced"])
    if layout == "permuted":
        order = rng.permutation(x.dim()).tolist()
        return x.permute(order).contiguous().permute(np.argsort(order).tolist())
    if layout == "stepped":
        return torch.stack([x, x], -1).flatten(-2)[..., ::2]
    if layout == "sliced":
        return torch.nn.functional.pad(x, (3, 2))[..., 3 : x.shape[-1] + 3]
    return x


def bits(x):
    """Elements as integers: all NaN are one, and so are both zeros."""
    plain = torch.where(x == 0, 0, torch.where(x.isnan(), torch.nan, x))
    return plain.view(torch.int16 if x.element_size() == 2 else torch.int32)


def assert_alike(found, x, k, dim, largest, in_order):
    wanted = torch.topk(x, k, dim, largest, True)
    assert type(found) is type(wanted) and found.values is found[0] and found.indices is found[1]
    values, indices = found
    assert values.dtype == x.dtype and indices.dtype == torch.int64
    assert values.shape == indices.shape == wanted.values.shape
    assert values.is_contiguous() and indices.is_contiguous()
    assert torch.equal(bits(x.gather(dim, indices)), bits(values))
    ordered = values if in_order else torch.topk(values, k, dim, largest, True).values
    assert torch.equal(bits(ordered), bits(wanted.values))
    distinct = indices.movedim(dim, -1).sort(-1).values
    assert (distinct.diff(dim=-1) > 0).all()
