"""`ksieve.topk` under ``torch.func`` and with gradients under ``torch.compile``, against `torch.topk`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import ksieve  # noqa: E402
from flat_calls import ask  # noqa: E402
from ksieve import dispatch  # noqa: E402
from ksieve.core.table import INPUTS  # noqa: E402
from ksieve.frontends.torch import ops as torch_ops  # noqa: E402
from torch_cases import compiled, fresh_dynamo, vector  # noqa: E402

__all__ = ["fresh_dynamo"]
K, ROWS, WIDTH = 8, 4, 48


def ours(x):
    return ask(x, k=K, sorted=True, values=True)[1]


def theirs(x):
    return torch.topk(x, K).values


def cubes(select):
    return lambda x: (select(x) ** 3).sum()


def tangents(x):
    return torch.linspace(-1, 1, x.numel()).view_as(x)


TRANSFORMED = {
    "grad": lambda select: torch.func.grad(cubes(select)),
    "vmap": torch.vmap,
    "vmap of vmap": lambda select: lambda x: torch.vmap(torch.vmap(select))(x.view(2, 3, ROWS, WIDTH)),
    "vmap of the last axis": lambda select: lambda x: torch.vmap(select, in_dims=-1)(x.movedim(0, -1)),
    "grad of vmap": lambda select: torch.func.grad(cubes(torch.vmap(select))),
    "vmap of grad": lambda select: torch.vmap(torch.func.grad(cubes(select))),
    "jvp": lambda select: lambda x: torch.func.jvp(select, (x,), (tangents(x),))[1],
    "jvp of vmap": lambda select: lambda x: torch.func.jvp(torch.vmap(select), (x,), (tangents(x),))[1],
    "vjp": lambda select: lambda x: torch.func.vjp(select, x)[1](torch.ones(*x.shape[:-1], K))[0],
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": lambda select: lambda x: torch.func.hessian(cubes(select))(x[:2]),
    "functionalize": torch.func.functionalize,
    "functionalize of grad": lambda select: torch.func.functionalize(torch.func.grad(cubes(select))),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_equal_those_of_torch(name):
    transform = TRANSFORMED[name]
    x = torch.randn((6, ROWS, WIDTH) if "vmap" in name else (ROWS, WIDTH))
    assert torch.equal(transform(ours)(x), transform(theirs)(x))


@pytest.mark.parametrize("name", ["grad", "vmap", "grad of vmap", "vmap of grad", "jvp", "vjp"])
def test_compiled_transforms_equal_those_of_torch(name):
    transform = TRANSFORMED[name]
    x = torch.randn((6, ROWS, WIDTH) if "vmap" in name else (ROWS, WIDTH))
    assert torch.equal(compiled(transform(ours))(x), transform(theirs)(x))


CALLS = {
    "lengths": {"lengths": vector(48, 3, 0, 8)},
    "ends": {"ends": vector(48, 3, 0, 8)},
    "windows": {"starts": vector(5, 40, 0, 60), "index_base": "start", "raw": True},
    "a k for each row": {"k": vector(3, 0, 8, 99), "max_k": K},
    "next_n": {"lengths": vector(30, 7), "next_n": 2},
    "pages": {"page_table": torch.arange(12, dtype=torch.int32).view(2, 6), "page_size": 8, "next_n": 2},
    "mapped": {"page_table": torch.arange(48, dtype=torch.int32)[None], "row_to_request": vector(0, 0, 1, 0)},
    "offsets": {"offsets": vector(1, 2, 3, 4), "index_dtype": "int64", "deterministic": True, "raw": True},
    "live rows": {"num_rows": vector(2)},
    "ties": {"tie_break": "high", "deterministic": True},
    "blocks": {"block_size": 5, "force_last": 1, "expand": 5, "lengths": vector(48, 3, 0, 33)},
    "blocks and offsets": {"block_size": 5, "force_first": 1, "forced_extra": True, "expand": 5, "sorted": "index",
                           "raw": True, "offsets": vector(1, 2, 3, 4)},
    "pools": {"expand": 4, "tail": vector(192, 7, 0, 34)},
    "positions": {"positions": torch.arange(4 * 48).flip(0).int().view(4, 48) - 9, "force_first": 1},
    "candidates": {"block_table": torch.arange(48).int().view(4, 12) - 2, "lengths": vector(48, 3, 0, 33)},
}  # fmt: skip


def call(x, options):
    return ask(x, **({"k": K, "sorted": "value", "values": True} | options))


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_a_compiled_program_with_options_has_the_gradient_of_the_call(options):
    x = torch.randint(0, 9, (ROWS, WIDTH)).float().requires_grad_()
    answers = []
    for program in (call, compiled(call)):
        found = program(x, options)
        weights = torch.arange(1.0, found[1].numel() + 1).view_as(found[1])
        loss = (torch.where(found[1].isfinite(), found[1], 0) * weights).sum()
        answers.append((*(part.detach() for part in found), *torch.autograd.grad(loss, x)))
    assert len(answers[0]) == len(answers[1]) and answers[0][-1].any()
    for a, b in zip(*answers, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("batched", ["scores", "options", "both"])
@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_vmap_equals_a_loop_whatever_is_batched(options, batched):
    names = [name for name, value in options.items() if isinstance(value, torch.Tensor)]
    if batched != "scores" and not names:
        pytest.skip("no array to batch")
    # Elements differ in their scores, and in the rows of each array.
    x = torch.randint(0, 30, (3, ROWS, WIDTH)).float()
    arrays = [torch.stack([options[name].roll(n, 0) for n in range(3)]) for name in names]
    scores_dim = None if batched == "options" else 0
    arrays_dims = [None if batched == "scores" else 0] * len(names)
    given = [
        x if scores_dim == 0 else x[0],
        *(a if dim == 0 else a[0] for a, dim in zip(arrays, arrays_dims, strict=True)),
    ]

    def program(x, *arrays):
        return call(x, options | dict(zip(names, arrays, strict=True)))

    found = torch.vmap(program, in_dims=(scores_dim, *arrays_dims))(*given)
    for n in range(3):
        one = program(*(x if dim is None else x[n] for x, dim in zip(given, (scores_dim, *arrays_dims), strict=True)))
        assert len(one) == len(found)
        for a, b in zip(found, one, strict=True):
            assert a.dtype == b.dtype and torch.equal(a[n], b)


def test_vmap_appends_the_batch_to_the_rows(monkeypatch):
    seen, run = [], dispatch.select

    def record(scores, *args, **keywords):
        seen.append(tuple(scores.shape))
        return run(scores, *args, **keywords)

    def program(x, plan=None):
        return ksieve.topk(x, k=K, plan=plan)

    x = torch.randn(5, ROWS, WIDTH)
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "select", record)
        torch.ops.ksieve.topk(x[0], None, K)
        assert seen == [(ROWS, WIDTH)]
        torch.vmap(program)(x)
        plan = ksieve.plan(rows=ROWS, width=WIDTH, k=K)
        torch.vmap(lambda x: program(x, plan))(x)
    # The call that finds a tensor of a transform is the first of each.
    sizes = [shape for shape in seen[1:] if len(shape) == 2]
    assert sizes == [(ROWS, WIDTH), (5 * ROWS, WIDTH), (ROWS, WIDTH), *[(ROWS, WIDTH)] * 5]


def test_rows_of_one_axis_are_batched():
    x = torch.randn(7, WIDTH)
    assert torch.equal(torch.vmap(ours)(x), theirs(x))
    assert torch.equal(torch.vmap(torch.func.grad(cubes(ours)))(x), torch.vmap(torch.func.grad(cubes(theirs)))(x))


@pytest.mark.parametrize("shape", [(3, 4, 0), (3, 0, 5)])
def test_a_batch_without_scores(shape):
    found = torch.vmap(lambda x: ksieve.topk(x, k=2))(torch.empty(shape))
    assert found.shape == (*shape[:-1], 2) and (found == -1).all()


def test_the_operator_passes_opcheck():
    x = torch.randn(ROWS, WIDTH)
    torch.library.opcheck(torch.ops.ksieve.select.default, (x, K, None, ""))
    _, text, *_ = torch_ops.encode((("index_dtype", "int64"),), ("raw", "offsets"), None, False, False, False, None)
    inputs = [vector(1, 2, 3, 4) if name == "offsets" else None for name in ("num_rows", "ks", *INPUTS)]
    torch.library.opcheck(torch.ops.ksieve.select.default, (x, K, None, text, *inputs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 2.5}, "k: got"),
        ({"k": 3, "stats": True}, "stats: got True"),
        ({"k": 3, "lengths": vector(1, 2, 3)}, "lengths: got shape"),
        ({"k": 3, "sorted": "best"}, "sorted: got 'best'"),
        ({"k": 3, "counts": vector(1, 2, 3, 4)}, "counts: got a tensor inside torch.func"),
    ],
)
def test_bad_arguments_are_named_inside_a_transform(options, message):
    with pytest.raises(ksieve.ArgumentError, match=message):
        torch.vmap(lambda x: ask(x, **options))(torch.randn(2, ROWS, WIDTH))
