"""Leading strides: every kernel family addresses scores, numbers and outputs in place, and writes nothing between."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import ksieve
from gpu import runner
from gpu.variants import ALL, Variant, banded
from ksieve.core import arguments

pytestmark = pytest.mark.gpu

HEADS, TOKENS, WIDTH, K = (3, 5, 300, 16) if runner.HOST else (8, 48, 20_000, 512)
POISON = 99


def column(low, high, dtype=torch.int32):
    """(T, 1) expanded over heads."""
    generator = torch.Generator().manual_seed(high)
    return torch.randint(low, high, (TOKENS, 1), dtype=dtype, generator=generator).expand(TOKENS, HEADS)


def spread(low, high, dtype=torch.int32):
    """A transposed column of a larger array."""
    generator = torch.Generator().manual_seed(high)
    return torch.randint(low, high, (HEADS, TOKENS, 3), dtype=dtype, generator=generator)[:, :, 1].t()


def pages():
    table = torch.arange(100 * 40, dtype=torch.int32).view(40, 100) % 77
    return {"page_table": table, "page_size": 256, "row_to_request": spread(0, 44)}


CALLS = {
    "plain": dict,
    "lengths": lambda: {"lengths": column(0, WIDTH)},
    "lengths of int64": lambda: {"lengths": spread(-9, WIDTH + 9, torch.int64)},
    "windows": lambda: {"starts": spread(0, WIDTH // 3), "ends": column(0, WIDTH), "values_out": torch.float32},
    "own k": lambda: {"ks": spread(0, K + 1), "max_k": K},
    "pages": lambda: {**pages(), "sorted": "index", "raw_out": torch.int32},
    "offsets": lambda: {"offsets": column(0, 1 << 30), "out": torch.int64, "values_out": torch.float32},
    "order": lambda: {"sorted": True, "tie_break": "low", "values_out": torch.float32, "lengths": column(0, WIDTH)},
    "tail": lambda: {"tail": spread(0, 4 * WIDTH), "expand": 4, "counts_out": torch.int32},
    "positions": lambda: {"positions": places(), "counts_out": torch.int32},
    "block table": lambda: {"block_table": places()[..., : WIDTH // 20], "lengths": column(0, WIDTH)},
    "blocks": lambda: {"block_size": 8, "lengths": column(0, WIDTH), "sorted": "index"},
    "forced": lambda: {"force_first": 1, "force_last": 2, "lengths": spread(0, WIDTH)},
}  # fmt: skip
NAMES = ("persistent-64", "persistent-exact", "split-4", "row", "cluster", "cooperative", "warp")
SAMPLED, SHARED, WARP = ("persistent-64", "split-4"), ("cooperative", "warp"), ("warp",)
REFUSED = dict.fromkeys(("blocks", "forced", "positions", "block table"), SAMPLED + SHARED)
REFUSED |= {"own k": WARP, "tail": WARP, "order": SHARED, "pages": SHARED}
"""Families that the planner does not take."""


def places():
    generator = torch.Generator().manual_seed(3)
    found = torch.randint(-WIDTH // 4, 5000, (HEADS, TOKENS, WIDTH), dtype=torch.int32, generator=generator)
    return found.transpose(0, 1)


def scores(dtype, layout):
    generator = torch.Generator().manual_seed(1)
    held = torch.randn(HEADS, TOKENS + 1, WIDTH + 3, generator=generator).to(getattr(torch, dtype))
    if layout == "expanded":
        return held[0, :TOKENS, None, :WIDTH].expand(TOKENS, HEADS, WIDTH)
    if layout == "padded":
        return held.view(-1)[: TOKENS * (HEADS * (WIDTH + 3))].view(TOKENS, HEADS, -1)[:, :, 1 : WIDTH + 1]
    return held[:, 1:, 2 : WIDTH + 2].transpose(0, 1)


def output(dtype, columns):
    """Slots of a poisoned buffer, heads first; and the buffer."""
    shape = (HEADS, TOKENS, columns + 4) if columns else (HEADS, TOKENS, 3)
    held = torch.full(shape, POISON, dtype=dtype, device=runner.DEVICE)
    inside = held[:, :, 2 : columns + 2] if columns else held[:, :, 1]
    return inside.transpose(0, 1), held


def asked(call):
    """Split a call into the keyword arguments of topk, with its outputs as None, and the options of its plan."""
    keywords = {name: value for name, value in call.items() if name in arguments.NAMES}
    bounds = next((call[name] for name in ("lengths", "ends") if name in call), None)
    options = arguments.resolve(
        keywords,
        None,
        per_row_k="ks" in call,
        lengths="lengths" in call,
        length_dtype=None if bounds is None else str(bounds.dtype).removeprefix("torch."),
        out_dtype=str(call.get("out", torch.int32)).removeprefix("torch."),
    )
    return keywords, options


def run(name, plan_of, dtype="float32", layout="transposed"):
    """Run a call on strided arrays; compare with the CPU's answer for contiguous copies."""
    x, call = scores(dtype, layout), CALLS[name]()
    keywords, options = asked(call)
    wanted = {n: x.dtype if n == "values_out" else call.get(n, torch.int32) for n in ("out", "values_out", "raw_out")
              if n in call or n == "out"}  # fmt: skip
    plan = plan_of(TOKENS * HEADS, WIDTH, K, dtype=dtype, device=runner.PLAN_DEVICE, options=options)
    outputs = {n: output(kind, plan.problem.columns) for n, kind in wanted.items()}
    if "counts_out" in call:
        outputs["counts_out"] = output(torch.int32, 0)
    given = {n: v for n, v in keywords.items() if n not in outputs}
    device = {n: runner.on_device(v.to(runner.DEVICE) if isinstance(v, torch.Tensor) else v) for n, v in given.items()}
    device |= {n: runner.on_device(out) for n, (out, _) in outputs.items()}
    numbers = [call.get(name) for name in ("lengths", "ks")]
    lengths, ks = (None if v is None else runner.on_device(v.to(runner.DEVICE)) for v in numbers)
    held = runner.on_device(x.to(runner.DEVICE) if runner.HOST else strided_on_device(x))
    ksieve.topk(held, lengths, K if ks is None else ks, plan=plan, workspace=runner.dirty_workspace(plan), **device)
    expected = {n: torch.empty(TOKENS, HEADS, plan.problem.columns, dtype=out.dtype) for n, (out, _) in outputs.items()}
    if "counts_out" in call:
        expected["counts_out"] = torch.empty(TOKENS, HEADS, dtype=torch.int32)
    copies = {n: v.contiguous() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
    lengths, ks = (None if v is None else v.contiguous() for v in numbers)
    ksieve.topk(x.contiguous(), lengths, K if ks is None else ks, **copies, **expected)
    for n, (out, buffer) in outputs.items():
        got, right = out.cpu(), expected[n]
        if "sorted" not in call and n != "counts_out":
            got, right = got.sort(-1).values, right.sort(-1).values
        assert torch.equal(got, right), n
        out.fill_(POISON)
        assert bool((buffer == POISON).all()), f"{n}: written between its rows"


def strided_on_device(x):
    """The same view of the same storage on the device: a plain copy there is compact."""
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).to(runner.DEVICE)
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


CASES = [(call, name, "float32", "transposed") for call in CALLS for name in NAMES if name not in REFUSED.get(call, ())]
CASES += [("lengths", name, dtype, layout) for name in ("persistent-64", "split-4", "row", "cluster")
          for dtype, layout in (("bfloat16", "padded"), ("float16", "expanded"))]  # fmt: skip


def calls_ahead():
    for call, name, *more in CASES:
        yield partial(run, call, ALL[name].plan, *more)
    yield partial(run, "lengths", banded)


@pytest.mark.parametrize(("call", "name", "dtype", "layout"), CASES)
def test_every_family(call, name, dtype, layout, tally):
    run(call, ALL[name].plan, dtype, layout)
    tally.add(name, TOKENS * HEADS, [])


def test_rows_on_one_cta(tally):
    for call in ("plain", "windows", "offsets"):
        run(call, Variant("resident", "resident_block").plan)
        tally.add(call, TOKENS * HEADS, [])


def test_rows_that_are_binned_by_their_lengths(tally):
    run("lengths", banded)
    tally.add("binned", TOKENS * HEADS, [])


def test_no_slots():
    """Nothing is launched, and counts are cleared where they lie."""
    counts, buffer = output(torch.int32, 0)
    x = runner.on_device(scores("float32", "padded") if runner.HOST else scores("float32", "padded").to(runner.DEVICE))
    out = torch.empty(TOKENS, HEADS, 0, dtype=torch.int32, device=runner.DEVICE)
    ksieve.topk(x, None, 0, out=runner.on_device(out), counts_out=runner.on_device(counts))
    assert runner.EMULATED or not counts.any()  # the emulated driver does not clear memory
    counts.fill_(POISON)
    assert bool((buffer == POISON).all())


@pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")
@pytest.mark.parametrize("name", NAMES[:5])
def test_a_graph_replays_with_other_content(name, tally):
    x = strided_on_device(scores("float32", "transposed"))
    lengths = torch.zeros(TOKENS, 1, dtype=torch.int32, device="cuda")
    out, buffer = output(torch.int32, K)
    plan = ALL[name].plan(TOKENS * HEADS, WIDTH, K)
    workspace = plan.workspace()
    ksieve.topk(x, lengths.expand(TOKENS, HEADS), plan=plan, out=out, workspace=workspace)  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ksieve.topk(x, lengths.expand(TOKENS, HEADS), plan=plan, out=out, workspace=workspace)
    for turn in range(20):
        x.copy_(torch.randn(x.shape, device="cuda"))
        lengths.random_(-5, WIDTH + 20)
        buffer.fill_(POISON)
        graph.replay()
        assert ksieve.verify(x, lengths.expand(TOKENS, HEADS), out)
        out.fill_(POISON)
        assert bool((buffer == POISON).all()), turn
    tally.add(name, 20 * TOKENS * HEADS, [])
