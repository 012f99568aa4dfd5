"""Leading strides: every kernel family addresses scores, numbers and outputs in place, and writes nothing between."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import ksieve
from flat_calls import NAMES, ask
from gpu import runner, served
from gpu.variants import ALL, Variant, banded

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


ORDERED = {"sorted": True, "tie_break": "low", "values": torch.float32}
CALLS = {
    "plain": lambda width: {},
    "lengths": lambda width: {"lengths": column(0, width)},
    "lengths of int64": lambda width: {"lengths": spread(-9, width + 9, torch.int64)},
    "windows": lambda width: {"starts": spread(0, width // 3), "ends": column(0, width), "values": torch.float32},
    "own k": lambda width: {"ks": spread(0, K + 1), "max_k": K},
    "pages": lambda width: {**pages(), "sorted": "index", "raw": torch.int32},
    "offsets": lambda width: {"offsets": column(0, 1 << 30), "index_dtype": "int64", "values": torch.float32},
    "order": lambda width: {**ORDERED, "lengths": column(0, width)},
    "tail": lambda width: {"tail": spread(0, 4 * width), "expand": 4, "counts": torch.int32},
    "positions": lambda width: {"positions": places(width), "counts": torch.int32},
    "block table": lambda width: {"block_table": places(width)[..., : width // 20], "lengths": column(0, width)},
    "blocks": lambda width: {"block_size": 8, "lengths": column(0, width), "sorted": "index"},
    "forced": lambda width: {"force_first": 1, "force_last": 2, "lengths": spread(0, width)},
}  # fmt: skip
FAMILIES = ("persistent-64", "persistent-exact", "split-4", "row", "cluster", "cooperative", "warp")
SAMPLED, SHARED, WARP = ("persistent-64", "split-4"), ("cooperative", "warp"), ("warp",)
REFUSED = dict.fromkeys(("blocks", "forced", "positions", "block table"), SAMPLED + SHARED)
REFUSED |= {"own k": WARP, "tail": WARP, "order": SHARED, "pages": SHARED}
"""Families that the planner does not take."""


def places(width):
    generator = torch.Generator().manual_seed(3)
    found = torch.randint(-width // 4, 5000, (HEADS, TOKENS, width), dtype=torch.int32, generator=generator)
    return found.transpose(0, 1)


def scores(dtype, layout, width=WIDTH):
    generator = torch.Generator().manual_seed(1)
    held = torch.randn(HEADS, TOKENS + 1, width + 3, generator=generator).to(getattr(torch, dtype))
    if layout == "expanded":
        return held[0, :TOKENS, None, :width].expand(TOKENS, HEADS, width)
    if layout == "padded":
        return held.view(-1)[: TOKENS * (HEADS * (width + 3))].view(TOKENS, HEADS, -1)[:, :, 1 : width + 1]
    return held[:, 1:, 2 : width + 2].transpose(0, 1)


def output(dtype, columns):
    """Slots of a poisoned buffer, heads first; and the buffer."""
    shape = (HEADS, TOKENS, columns + 4) if columns else (HEADS, TOKENS, 3)
    held = torch.full(shape, POISON, dtype=dtype, device=runner.DEVICE)
    inside = held[:, :, 2 : columns + 2] if columns else held[:, :, 1]
    return inside.transpose(0, 1), held


def run(name, planned, dtype, layout):
    """Run a call on strided arrays; compare with the CPU's answer for contiguous copies."""
    width = min(WIDTH, 2000) if planned == "warp" else WIDTH  # a warp holds no wider row
    x, call = scores(dtype, layout, width), CALLS[name](width)
    keywords = {key: value for key, value in call.items() if key in NAMES}
    wanted = {"out": getattr(torch, call.get("index_dtype", "int32"))}
    wanted |= {key: x.dtype if key == "values" else torch.int32 for key in ("values", "raw") if key in call}
    plan = PLANS[planned](TOKENS * HEADS, width, K, dtype=dtype, options=served.options_of(call))
    outputs = {n: output(kind, plan.problem.columns) for n, kind in wanted.items()}
    if "counts" in call:
        outputs["counts"] = output(torch.int32, 0)
    given = {n: v for n, v in keywords.items() if n not in outputs}
    device = {n: runner.on_device(v.to(runner.DEVICE) if isinstance(v, torch.Tensor) else v) for n, v in given.items()}
    device |= {n: runner.on_device(out) for n, (out, _) in outputs.items()}
    numbers = [call.get(name) for name in ("lengths", "ks")]
    lengths, ks = (None if v is None else runner.on_device(v.to(runner.DEVICE)) for v in numbers)
    held = runner.on_device(x.to(runner.DEVICE) if runner.HOST else strided_on_device(x))
    ask(held, lengths, K if ks is None else ks, plan=plan, workspace=runner.dirty_workspace(plan), **device)
    expected = {n: torch.empty(TOKENS, HEADS, plan.problem.columns, dtype=out.dtype) for n, (out, _) in outputs.items()}
    if "counts" in call:
        expected["counts"] = torch.empty(TOKENS, HEADS, dtype=torch.int32)
    copies = {n: v.contiguous() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
    lengths, ks = (None if v is None else v.contiguous() for v in numbers)
    ask(x.contiguous(), lengths, K if ks is None else ks, **copies, **expected)
    for n, (out, buffer) in outputs.items():
        got, right = out.cpu(), expected[n]
        if "sorted" not in call and n != "counts":
            got, right = got.sort(-1).values, right.sort(-1).values
        if dtype == "bfloat16" and planned in ("row", "cluster"):  # on chip any of several equal scores are taken
            assert ksieve.verify(x.contiguous(), lengths, out.cpu()), n
        else:
            assert torch.equal(got, right), n
        out.fill_(POISON)
        assert bool((buffer == POISON).all()), f"{n}: written between its rows"


def strided_on_device(x):
    """The same view of the same storage on the device: a plain copy there is compact."""
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).to(runner.DEVICE)
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


PLANS = {name: ALL[name].plan for name in FAMILIES}
PLANS |= {"one_cta": Variant("resident", "resident_block").plan, "binned": banded}
CASES = [
    (call, name, "float32", "transposed") for call in CALLS for name in FAMILIES if name not in REFUSED.get(call, ())
]
CASES += [(call, "one_cta", "float32", "transposed") for call in ("plain", "windows", "offsets")]
CASES += [("lengths", name, dtype, layout) for name in ("persistent-64", "split-4", "row", "cluster")
          for dtype, layout in (("bfloat16", "padded"), ("float16", "expanded"))]  # fmt: skip
CASES.append(("lengths", "binned", "float32", "transposed"))


def calls_ahead():
    yield from [partial(run, *case) for case in CASES]


@pytest.mark.parametrize(("call", "name", "dtype", "layout"), CASES)
def test_every_family(call, name, dtype, layout, tally):
    run(call, name, dtype, layout)
    tally.add(name, TOKENS * HEADS, [])


def test_no_slots():
    """Nothing is launched, and counts are cleared where they lie."""
    counts, buffer = output(torch.int32, 0)
    x = runner.on_device(scores("float32", "padded") if runner.HOST else scores("float32", "padded").to(runner.DEVICE))
    out = torch.empty(TOKENS, HEADS, 0, dtype=torch.int32, device=runner.DEVICE)
    ask(x, None, 0, out=runner.on_device(out), counts=runner.on_device(counts))
    assert runner.HOST or not counts.any()  # the emulated driver does not clear memory
    counts.fill_(POISON)
    assert bool((buffer == POISON).all())


@pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")
@pytest.mark.parametrize("name", FAMILIES[:5])
def test_a_graph_replays_with_other_content(name, tally):
    x = strided_on_device(scores("float32", "transposed"))
    lengths = torch.zeros(TOKENS, 1, dtype=torch.int32, device="cuda")
    out, buffer = output(torch.int32, K)
    plan = ALL[name].plan(TOKENS * HEADS, WIDTH, K)
    workspace = plan.workspace()
    given = {"plan": plan, "out": out, "workspace": workspace}
    graph, _ = runner.captured(lambda: ask(x, lengths.expand(TOKENS, HEADS), **given))
    for turn in range(20):
        x.copy_(torch.randn(x.shape, device="cuda"))
        lengths.random_(-5, WIDTH + 20)
        buffer.fill_(POISON)
        graph.replay()
        assert ksieve.verify(x, lengths.expand(TOKENS, HEADS), out)
        out.fill_(POISON)
        assert bool((buffer == POISON).all()), turn
    tally.add(name, 20 * TOKENS * HEADS, [])
