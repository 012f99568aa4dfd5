"""The PyTorch operators: registered correctly, traceable without graph breaks, and equal to the eager call."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ksieve  # noqa: E402
from flat_calls import ask, plan_of  # noqa: E402
from ksieve.core.options import Options  # noqa: E402
from ksieve.core.table import INPUTS  # noqa: E402
from ksieve.frontends.torch import ops as torch_ops  # noqa: E402
from torch_cases import compiled, fresh_dynamo, vector  # noqa: E402

__all__ = ["fresh_dynamo"]
K = 8
plans_traced = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12),
    reason="a plan becomes a constant of a program from PyTorch 2.12 on",
)


@pytest.fixture
def rows():
    rng = np.random.default_rng(3)
    scores = rng.permuted(np.arange(4 * 3000, dtype=np.float32)).reshape(4, 3000)
    return torch.from_numpy(scores), torch.tensor([3000, 5, 0, 100], dtype=torch.int32)


def same_sets(a, b):
    assert a.dtype == b.dtype == torch.int32 and a.shape == b.shape
    assert torch.equal(a.sort(dim=1).values, b.sort(dim=1).values)


def checked(scores, plan, options, outputs, **arrays):
    """Let PyTorch check one call of `topk_options`."""
    text = "" if options is None else torch_ops.json.dumps(torch_ops.asdict(options))
    inputs = [arrays.get(name) for name in ("num_rows", "ks", *INPUTS)]
    torch.library.opcheck(torch.ops.ksieve.topk_options.default, (scores, K, plan, text, *inputs), outputs)


def test_operators_pass_opcheck(rows):
    scores, lengths = rows
    for x, ls in ((scores, lengths), (scores, None), (scores[:, :2900], lengths), (scores.bfloat16(), lengths)):
        torch.library.opcheck(torch.ops.ksieve.topk.default, (x, ls, K))
    out = torch.empty((4, K), dtype=torch.int32)
    live = torch.tensor([2], dtype=torch.int32)
    text = torch_ops.encode_plan(ksieve.plan(rows=4, width=3000, k=K))
    for plan, arrays in ((None, {"lengths": lengths}), (text, {"num_rows": live})):
        checked(scores, plan, None, {"out": out}, **arrays)


def test_compiled_lengths_of_64_bits_and_an_int_of_rows():
    scores, lengths = torch.randn(4, 300), torch.tensor([300, 2**40, -(2**63), 7])

    def program(x, lengths):
        return ksieve.topk(x, lengths, k=K, num_rows=3, largest=False)

    same_sets(compiled(program)(scores, lengths), program(scores, lengths))
    windows = {"starts": torch.tensor([0, 5, 9, 1], dtype=torch.int32), "ends": lengths}
    same_sets(compiled(lambda x: ask(x, k=K, **windows))(scores), ask(scores, k=K, **windows))


@plans_traced
def test_a_compiled_program_follows_the_plan_it_is_given(rows, monkeypatch):
    seen, decode = [], torch_ops.decode_plan

    def record(text):
        seen.append(decode(text))
        return seen[-1]

    monkeypatch.setattr(torch_ops, "decode_plan", record)
    program = compiled(lambda x, lengths, plan: ksieve.topk(x, lengths, plan=plan))
    plans = [ksieve.plan(rows=4, width=3000, k=K), ksieve.plan(rows=9, width=5000, k=K, policy="direct")]
    for plan in (*plans, plans[0]):
        same_sets(program(*rows, plan), ksieve.topk(*rows, k=K))
    assert seen == [plans[0], plans[1], plans[0]]


class Selector(torch.nn.Module):
    def forward(self, x, lengths):
        return ksieve.topk(x, lengths, k=K)


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_dynamic_shapes(rows, strict):
    batch, width = torch.export.Dim("batch"), torch.export.Dim("width")
    shapes = {"x": {0: batch, 1: width}, "lengths": {0: batch}}
    program = torch.export.export(Selector(), rows, dynamic_shapes=shapes, strict=strict)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert [node.target for node in calls] == [torch.ops.ksieve.topk.default]
    other = torch.randn(7, 999)
    full = torch.full((7,), 999, dtype=torch.int32)
    same_sets(program.module()(other, full), ksieve.topk(other, full, k=K))


def test_an_exported_program_is_saved_and_loaded(rows, tmp_path):
    torch.export.save(torch.export.export(Selector(), rows), tmp_path / "selector.pt2")
    same_sets(torch.export.load(tmp_path / "selector.pt2").module()(*rows), ksieve.topk(*rows, k=K))


# ---- options -----------------------------------------------------------------------------------------------


def equal_answers(found, want):
    found, want = (x if isinstance(x, tuple) else (x,) for x in (found, want))
    assert len(found) == len(want)
    for a, b in zip(found, want, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


def test_a_compiled_program_fills_counts():
    x, table = torch.randn(4, 3000), torch.arange(400, 0, -1).int().view(4, 100)

    def program(x, counts):
        return ask(x * 2, k=K, block_table=table, deterministic=True, counts=counts)

    counts, wanted = torch.zeros(4, dtype=torch.int32), torch.full((4,), 9, dtype=torch.int32)
    equal_answers(compiled(program)(x, counts), program(x, wanted))
    assert torch.equal(counts, wanted)


@plans_traced
def test_a_plan_with_options_compiles_and_fills_the_callers_arrays(rows):
    scores, lengths = rows
    options = Options(order="value", values=True, tie_break="low", index_dtype="int64")
    plan = plan_of(rows=4, width=3000, k=K, options=options)
    out, values = torch.full((4, K), -99), torch.empty((4, K))

    def program(x, lengths, out, values):
        return ask(x, lengths, plan=plan, out=out, values=values)

    want = ask(scores, lengths, plan=plan, values=True)
    equal_answers(compiled(program)(scores, lengths, out, values), want)
    equal_answers((out, values), want)


def test_the_operator_with_options_passes_opcheck(rows):
    scores, lengths = rows
    starts, ends, table = vector(5, 0, 7, 9), vector(900, 800, 3, 3000), torch.arange(8, dtype=torch.int32).view(2, 4)
    served = Options(windows="ends", order="value", values=True, raw=True, transform="pages", page_size=1024, next_n=2)
    out, raw, values = (torch.empty((4, K), dtype=dtype) for dtype in (torch.int32, torch.int32, torch.float32))
    outs = {"out": out, "values": values, "raw": raw}
    checked(scores, None, served, outs, starts=starts, ends=ends[:2], page_table=table)
    own = {"num_rows": vector(3), "ks": vector(1, 2, 3, 99), "lengths": lengths}
    checked(scores.bfloat16(), None, Options(per_row_k=True, order="index"), {"out": out}, **own)
    served = Options(block_size=8, force_last=1, expand=8, tail=True, counts=True)
    outs = {"out": torch.empty((4, 8 * K + 7), dtype=torch.int32), "counts": vector(0, 0, 0, 0)}
    checked(scores, None, served, outs, lengths=lengths, tail=lengths)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, n: ksieve.topk(x.double(), n, k=K), "scores: got torch.float64"),
        (lambda x, n: ksieve.topk(x, n.short(), k=K), "lengths: got torch.int16"),
        (lambda x, n: ksieve.topk(x, n, k=K, sorted="best"), "sorted: got 'best'"),
        (
            lambda x, n: ksieve.topk(x, n, k=K, bounds=ksieve.RowBounds(ends=n)),
            "ends: got an array together with lengths",
        ),
        (lambda x, n: ksieve.topk(x, n, k=n), "max_k: got None"),
        (lambda x, n: ksieve.topk(x, n, k=K, transform=ksieve.Offsets(n.long())), "offsets: got torch.int64"),
        (lambda x, n: ask(x, n, k=K, values=x[:, :K].double()), "values: got torch.float64"),
        (lambda x, n: ksieve.topk(x, n, k=K, smallest=True), "unexpected keyword argument"),
        (lambda x, n: ksieve.topk(x, n, k=K, blocks=ksieve.Blocks(8, expand=4)), "expand: got 4; takes 8"),
        (lambda x, n: ksieve.topk(x, n, k=K, blocks=ksieve.Blocks(expand=4, tail=n.long())), "tail: got torch.int64"),
        (
            lambda x, n: ksieve.topk(x, n, k=K, gathered=ksieve.SelectedBlocks(n)),
            "block_table: got torch.int32 of 1 dimension",
        ),
    ],
)
def test_bad_arguments_are_named_while_tracing(rows, change, message):
    with pytest.raises(Exception, match=message):
        compiled(change)(*rows)
