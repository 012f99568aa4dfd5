"""`ksieve.torch.topk` against `torch.topk`: values bit for bit, indices that hold them, gradients, errors."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ksieve.torch  # noqa: E402
from ksieve.frontends.torch import ops as torch_ops  # noqa: E402
from torch_cases import assert_alike, fresh_dynamo, numbers, strided  # noqa: E402

__all__ = ["fresh_dynamo"]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("kind", ["distinct", "ties", "special"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_shapes_dimensions_and_strides(dtype, kind, largest):
    rng = np.random.default_rng(7)
    for _ in range(25):
        shape = tuple(int(n) for n in rng.integers(1, 12, rng.integers(1, 5)))
        dim = int(rng.integers(-len(shape), len(shape)))
        k, in_order = int(rng.integers(1, shape[dim] + 1)), bool(rng.integers(2))
        x = strided(rng, numbers(rng, shape, dtype, kind))
        assert_alike(ksieve.torch.topk(x, k, dim, largest, in_order), x, k, dim, largest, in_order)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_long_rows(dtype, largest):
    rng = np.random.default_rng(3)
    x = numbers(rng, (3, 50_000), dtype, "special")
    for k in (1, 300, 16_384, 16_385, 50_000):
        assert_alike(ksieve.torch.topk(x, k, largest=largest), x, k, -1, largest, True)


def test_expanded_and_overlapping_rows():
    x = torch.randn(40)
    for rows in (x.expand(5, 40), x.unfold(0, 10, 3), x.as_strided((3, 4), (0, 1)), x[:1].expand(3, 1)):
        k = min(3, rows.shape[-1])
        assert_alike(ksieve.torch.topk(rows, k), rows, k, -1, True, True)


def test_what_ksieve_selects_it_selects_where_it_lies(monkeypatch):
    seen, run = [], ksieve.torch.api.select

    def record(scores, **keywords):
        seen.append(scores.data_ptr())
        return run(scores, **keywords)

    monkeypatch.setattr(ksieve.torch.api, "select", record)
    x = torch.randn(3, 4, 50)
    for view, copied in (
        (x, False),
        (x[1:], False),
        (x[..., 2:40], False),
        (x[0, :, 3], True),
        (x.mT, True),
        (x[..., ::2], True),
    ):
        seen.clear()
        assert_alike(ksieve.torch.topk(view, 2), view, 2, -1, True, True)
        assert len(seen) == 1 and (seen[0] != view.data_ptr()) == copied
    for other in (x.double(), (x * 9).int(), torch.tensor(3.0), x.to("meta"), torch.zeros(2, 0)):
        seen.clear()
        assert ksieve.torch.topk(other, 0).values.dtype == other.dtype and not seen


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32, torch.uint8, torch.int8])
def test_other_dtypes_are_those_of_torch(dtype):
    x = (torch.randn(3, 20) * 50).abs().to(dtype)
    for a, b in zip(ksieve.torch.topk(x, 4, 0 - 1, False), torch.topk(x, 4, -1, False), strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


def error_of(program):
    with pytest.raises(Exception) as caught:
        program()
    return caught.type, str(caught.value).splitlines()[0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"k": 8},
        {"k": -1},
        {"k": 4, "dim": 0},
        {"k": 1, "dim": 2},
        {"k": 1, "dim": -3},
        {"k": 2.5},
        {"k": "x"},
        {"k": None},
        {"k": 1, "largest": 1},
        {"k": 1, "sorted": None},
        {"k": 1, "dim": 0.5},
        {"k": 2, "out": 3},
        {"k": 2, "out": (torch.empty(3, 2),)},
        {"k": 2, "out": (torch.empty(3, 2), torch.empty(3, 2))},
        {"k": 2, "out": (torch.empty(3, 2).half(), torch.empty(3, 2).long())},
    ],
    ids=" ".join,  # the names alone: an empty tensor shows other numbers in every process
)
def test_errors_are_those_of_torch(arguments):
    x = torch.randn(3, 7)
    rest = {"dim": -1, "largest": True, "sorted": True, "out": None} | arguments
    out, positional = rest.pop("out"), (rest.pop("k"), *rest.values())
    ours = error_of(lambda: ksieve.torch.topk(x, *positional, out=out))
    assert ours == error_of(lambda: torch.topk(x, *positional, out=out))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 5), (4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_nothing_to_select(shape, dtype):
    x = torch.ones(shape, dtype=dtype)
    for k in (0, 1):
        for dim in range(-max(len(shape), 1), max(len(shape), 1)):
            if k and 0 in shape and shape[dim] == 0:
                assert error_of(lambda k=k, d=dim: ksieve.torch.topk(x, k, d))[0] is RuntimeError
                continue
            found, wanted = ksieve.torch.topk(x, k, dim), torch.topk(x, k, dim)
            assert found.indices.shape == wanted.indices.shape and found.indices.dtype == torch.int64
            assert found.values.dtype == dtype and torch.equal(found.values, wanted.values)


def test_a_lazily_negated_view():
    x = torch.complex(torch.randn(3, 9), torch.randn(3, 9)).conj().imag
    assert x.is_neg()
    assert_alike(ksieve.torch.topk(x, 2), x, 2, -1, True, True)


# ---- out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_out_is_filled_and_returned(dim):
    x = torch.randn(6, 7)
    wanted = torch.topk(x, 3, dim)
    whole = torch.zeros(*wanted.values.shape, 2), torch.zeros(*wanted.values.shape, 2, dtype=torch.int64)
    for out in ([torch.empty_like(part) for part in wanted], [part[..., 1] for part in whole]):
        found = ksieve.torch.topk(x, 3, dim, out=tuple(out))
        assert found.values is out[0] and found.indices is out[1]
        assert torch.equal(out[0], wanted.values) and torch.equal(out[1], wanted.indices)
    assert not whole[0][..., 0].any() and not whole[1][..., 0].any()


def test_out_of_another_shape_is_resized_as_by_torch():
    x, values, indices = torch.randn(3, 7), torch.empty(0), torch.empty(0, dtype=torch.int64)
    ksieve.torch.topk(x, 2, out=(values, indices))
    assert torch.equal(values, torch.topk(x, 2).values) and indices.shape == (3, 2)


def test_out_and_gradients_are_refused_as_by_torch():
    x = torch.randn(3, 7, requires_grad=True)
    out = torch.full((3, 2), -7.0), torch.full((3, 2), -7)
    with pytest.raises(RuntimeError, match=r"out=\.\.\. arguments don't support automatic differentiation"):
        ksieve.torch.topk(x, 2, out=out)
    assert (out[0] == -7).all()
    with torch.no_grad():
        ksieve.torch.topk(x, 2, out=out)
    assert torch.equal(out[0], torch.topk(x, 2).values)


# ---- gradients, torch.func, torch.compile ------------------------------------------------------------------


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gradients_equal_those_of_torch(dim, largest):
    x = torch.randperm(3 * 4 * 5).float().view(3, 4, 5).mT.requires_grad_()
    weights = torch.randn(torch.topk(x, 2, dim).values.shape)
    ours, theirs = (
        torch.autograd.grad(((topk(x, 2, dim, largest).values * weights) ** 2).sum(), x, create_graph=True)[0]
        for topk in (ksieve.torch.topk, torch.topk)
    )
    assert torch.equal(ours, theirs)
    second = [torch.autograd.grad(g.sum(), x)[0] for g in (ours, theirs)]
    assert torch.equal(*second)


def values_of(topk, dim, largest):
    return lambda x: topk(x, 2, dim, largest).values


TRANSFORMED = {
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(lambda x: (f(x) ** 2).sum())),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x.cos(),))[1],
    "vmap of the last axis": lambda f: lambda x: torch.vmap(f, in_dims=-1)(x),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_equal_those_of_torch(name, largest, compiled):
    transform, x = TRANSFORMED[name], torch.randn(4, 5, 6)
    for dim in (0, -1):
        ours = transform(values_of(ksieve.torch.topk, dim, largest))
        if compiled:
            torch._dynamo.reset()
            ours = torch.compile(ours, fullgraph=True, backend="aot_eager")
        assert torch.equal(ours(x), transform(values_of(torch.topk, dim, largest))(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_graph_breaks(dynamic):
    program = torch.compile(
        lambda x, n: ksieve.torch.topk(x * 2, n, dim=0, largest=False),
        fullgraph=True,
        backend="aot_eager",
        dynamic=dynamic,
    )
    for shape, k in (((7, 5), 3), ((9, 4), 3), ((9, 4), 2)):
        x = torch.randn(shape)
        found, wanted = program(x, k), torch.topk(x * 2, k, 0, False)
        assert torch.equal(found.values, wanted.values) and torch.equal(found.indices, wanted.indices)


def test_compiled_with_a_gradient_and_with_dtypes_of_torch():
    for dtype in (torch.float32, torch.float64):
        torch._dynamo.reset()
        x = torch.randn(3, 8, dtype=dtype, requires_grad=True)
        program = torch.compile(lambda x: ksieve.torch.topk(x, 3).values, fullgraph=True, backend="aot_eager")
        ours, theirs = (torch.autograd.grad((f(x) ** 2).sum(), x)[0] for f in (program, lambda x: torch.topk(x, 3)[0]))
        assert torch.equal(ours, theirs)


class Chooser(torch.nn.Module):
    def forward(self, x):
        return tuple(ksieve.torch.topk(x, 2, 0, largest=False))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_with_dynamic_shapes(strict):
    sizes = {"x": {0: torch.export.Dim("rows"), 1: torch.export.Dim("columns")}}
    program = torch.export.export(Chooser(), (torch.randn(6, 5),), dynamic_shapes=sizes, strict=strict)
    assert torch.ops.ksieve.topk_options.default in [node.target for node in program.graph.nodes]
    x = torch.randn(9, 11)
    for a, b in zip(program.module()(x), torch.topk(x, 2, 0, False), strict=True):
        assert torch.equal(a, b)


def test_the_examples_of_the_module_run():
    import doctest

    assert doctest.testmod(ksieve.torch) == (0, 4)
    assert torch_ops.torch is ksieve.torch.torch is torch


class NoModules:
    @property
    def modules(self):
        raise AssertionError("another thread may import meanwhile, and change the table that Dynamo walks through")


@pytest.mark.parametrize("transform", [torch.vmap, lambda f: f], ids=["vmap", "plain"])
def test_what_dynamo_traces_does_not_look_into_the_table_of_modules(transform, monkeypatch):
    x = torch.randn(3, 4, 50)
    torch._dynamo.reset()
    monkeypatch.setattr(ksieve.api, "sys", NoModules())
    program = torch.compile(transform(lambda x: ksieve.torch.topk(x, 7).values), fullgraph=True, backend="eager")
    assert torch.equal(program(x), torch.topk(x, 7).values)
