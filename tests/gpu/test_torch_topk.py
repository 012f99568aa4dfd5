"""`ksieve.torch.topk` and gradients on the GPU, against `torch.topk`."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import torch

import ksieve
import ksieve.torch
from flat_calls import ask, plan_of
from gpu import runner
from ksieve.core.options import Options
from torch_cases import assert_alike, numbers, strided

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST = pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])


SHAPES = (
    ((300,), 0, 20), ((7, 3000), -1, 64), ((3000, 7), 0, 64), ((4, 5, 600), 2, 600), ((2, 900, 3), 1, 17),
    ((2, 3, 4, 5), -3, 2), ((3, 40_000), 1, 2048),
)  # fmt: skip
LARGE_K = (16_384, 16_385)


def calls_ahead():
    """What the tests call, for its kernels."""
    for dtype, largest in itertools.product(DTYPES, (True, False)):
        rng = np.random.default_rng(11)
        for shape, dim, k in SHAPES:
            x = strided(rng, numbers(rng, shape, dtype, "ties").to(runner.DEVICE))
            yield partial(ksieve.torch.topk, x, k, dim, largest)
    for k, largest in itertools.product(LARGE_K, (True, False)):
        yield partial(ksieve.torch.topk, torch.zeros(2, 70_000, device=runner.DEVICE), k, largest=largest)
    yield from [partial(test_gradients_equal_those_of_torch, dtype) for dtype in DTYPES]
    yield from [partial(test_transforms_equal_those_of_torch, name, None) for name in TRANSFORMED]
    yield test_a_plan_and_a_workspace_beside_a_gradient
    yield partial(ksieve.torch.topk, torch.zeros(8, 5000, device=runner.DEVICE), 50)


@LARGEST
@pytest.mark.parametrize("kind", ["distinct", "ties", "special"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shapes_dimensions_and_strides(dtype, kind, largest):
    rng = np.random.default_rng(11)
    for shape, dim, k in SHAPES:
        x = strided(rng, numbers(rng, shape, dtype, kind).to(runner.DEVICE))
        assert_alike(ksieve.torch.topk(x, k, dim, largest), x, k, dim, largest, True)


@LARGEST
@pytest.mark.parametrize("k", LARGE_K)
def test_orders_of_a_large_k(k, largest):
    x = numbers(np.random.default_rng(5), (2, 70_000), torch.float32, "special").to(runner.DEVICE)
    assert_alike(ksieve.torch.topk(x, k, largest=largest), x, k, -1, largest, True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_equal_those_of_torch(dtype):
    x = torch.randperm(4 * 500, device=runner.DEVICE).view(4, 500).to(torch.float32)
    x = (x / 8 if dtype == torch.float32 else x[:, :200] % 199).to(dtype).requires_grad_()
    weights = torch.arange(1, 4 * 9 + 1, device=runner.DEVICE, dtype=dtype).view(4, 9)
    found = ksieve.torch.topk(x, 9)
    (found.values * weights).sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x).scatter(1, found.indices, weights))


TRANSFORMED = {
    "vmap": torch.vmap,
    "grad": lambda f: torch.func.grad(lambda x: (f(x) ** 2).sum()),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(lambda x: (f(x) ** 2).sum())),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x.flip(-1),))[1],
}


@pytest.mark.parametrize("backend", [None, "aot_eager", "inductor"])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_equal_those_of_torch(name, backend):
    torch._dynamo.reset()
    x = torch.randn(3, 4, 700, device=runner.DEVICE)
    ours, theirs = (
        TRANSFORMED[name](lambda x, topk=topk: topk(x, 30).values) for topk in (ksieve.torch.topk, torch.topk)
    )
    program = ours if backend is None else torch.compile(ours, fullgraph=True, backend=backend)
    torch.testing.assert_close(program(x), theirs(x), rtol=0, atol=0)


def test_a_plan_and_a_workspace_beside_a_gradient():
    options = Options(values=True, transform="offsets", order="index", tie_break="low")
    plan = plan_of(rows=6, width=40_000, k=300, device="cuda", options=options)
    offsets = torch.arange(6, dtype=torch.int32, device=runner.DEVICE)
    x = torch.randn(6, 40_000, device=runner.DEVICE, requires_grad=True)
    call = {"plan": plan, "workspace": plan.workspace(), "offsets": offsets, "values": True}
    found, plain = ask(x, **call), ask(x.detach(), **call)
    assert all(torch.equal(a.detach(), b) for a, b in zip(found, plain, strict=True))
    found[1].sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x).scatter(1, (found[0] - offsets[:, None]).long(), 1.0))


def test_forward_and_backward_in_a_cuda_graph():
    x = torch.randn(8, 5000, device=runner.DEVICE, requires_grad=True)

    def step():
        return torch.autograd.grad(ksieve.torch.topk(x, 50).values.square().sum(), x)[0]

    graph, found = runner.captured(step)
    for seed in range(3):
        with torch.no_grad():
            x.copy_(torch.randn(8, 5000, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found, torch.autograd.grad(torch.topk(x, 50).values.square().sum(), x)[0])
