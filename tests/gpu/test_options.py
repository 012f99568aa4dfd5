"""Serving options on the device: every pair of them on every family, exact bytes wherever the answer is unique.

Small calls are judged row by row by `oracle.assert_served`, large ones against a stable sort on the device; statistics
equal the model's. Everything written lies between guard bytes.
"""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest
import torch

import cases
from flat_calls import ask, plan_of
from gpu import material, runner, served
from gpu.served import Asked, Served, same_bytes
from gpu.variants import ALL, VARIANTS, overflowing
from harness import to_cuda
from ksieve.core.errors import ArgumentError

pytestmark = pytest.mark.gpu

NAMES = ("persistent-64", "persistent-128", "persistent-tied", "persistent-peaks", "persistent-lines", "split-2",
         "split-8-tied", "split-32-lines", "row", "cluster", "persistent-exact")  # fmt: skip
"""Every family, every kind of boundary."""

ALL_NAMES = (*NAMES, "cooperative", "warp")
"""And those that take no order."""

ONE_OF_EACH = ("persistent-peaks", "split-8-tied", "row", "cluster", "persistent-exact")

ORDERS = tuple(itertools.product(("value", "index"), ("low", "high")))
"""Deterministic calls: an order and a tie-break."""

WIDE = ((20_003, 512), (20_003, 100), (70_001, 2048), (262_144, 2048))
LARGEST_K = 16_384
DTYPES = ("float32", "float16", "bfloat16")
PAIRS = cases.OPTION_CASES
RUNS, TURNS, BATCHES = 1000, 40, (1, 2, 7, 64, 1000, 8192)
ROW_WIDTH = 16_384
if runner.HOST:
    WIDE, RUNS, TURNS, BATCHES, ROW_WIDTH = ((5003, 100),), 3, 2, (1, 5), 3000
    PAIRS = [*PAIRS[:6], PAIRS[7], PAIRS[19]]  # with two that a warp takes


def device_call(call):
    """The same call with its arrays and live rows on the device."""
    arrays = {name: np.array(value, order="C") for name, value in call.items() if isinstance(value, np.ndarray)}
    on_device = {name: torch.from_numpy(array).to(runner.DEVICE) for name, array in arrays.items()}
    return call | on_device | served.live(call.get("live"))


def pair(number):
    """A combination of the pairwise table: k, scores and the call."""
    inputs, host = cases.build_call(PAIRS[number])
    host = {n: v for n, v in host.items() if not n.endswith("_out") and n != "out"}
    scores = to_cuda(inputs.scores, inputs.offset, runner.DEVICE)
    return inputs.k, scores, device_call(host)


def wide_calls(rows, width, k, seed=0):
    """Deterministic calls with many options each, tensors on the device; together they use every option."""
    generator = torch.Generator(device=runner.DEVICE).manual_seed(rows + width + k + seed)

    def integers(count, low, high):
        drawn = torch.randint(low, high, (count,), device=runner.DEVICE, generator=generator)
        return drawn.to(torch.int32)

    size = 64
    pages = -(-width // size)
    table = torch.randperm(pages * rows, device=runner.DEVICE, generator=generator).to(torch.int32).view(rows, pages)
    wild = torch.tensor([-(2**31), 2**31 - 1, -1, width + 1, 0, k, k + 1], dtype=torch.int32, device=runner.DEVICE)
    starts, ends, lengths = (integers(rows, *bounds) for bounds in ((0, 50), (width // 2, width + 1), (0, width + 1)))
    lengths[: len(wild)] = wild[:rows]
    ends[-len(wild) :] = wild[-rows:]
    return {
        "plain": {"lengths": lengths},
        "windows": {"starts": starts, "lengths": lengths},
        "ends": {"starts": starts, "ends": ends, "index_base": "start", "values": True},
        "pages": {
            "starts": starts, "ends": ends, "page_table": table, "page_size": size, "raw": True,
            "index_dtype": "int64",
        },
        "mapped": {
            "page_table": table[:, : pages - 1], "page_size": size, "ks": integers(rows, -3, k + 3), "raw": True,
            "row_to_request": integers(rows, -1, rows + 1), "values": True,
        },
        "offsets": {"lengths": lengths, "offsets": integers(rows, -(2**31), 2**31 - 1), "ks": integers(rows, 0, k + 1)},
        "tokens": {"lengths": lengths[: rows // 4].clone(), "next_n": 4, "starts": starts, "overlap": True},
    }  # fmt: skip


def wide_scores(width, k, dtype="float32", offset=1, padding=3):
    """All value families; a multiple of four rows."""
    bits = material.on_device(width, k, 1, dtype, runner.DEVICE)
    return material.place(bits[: len(bits) // 4 * 4], dtype, runner.DEVICE, offset=offset, padding=padding)


def possible_plan(name, scores, k, call):
    try:
        return served.plan_for(ALL[name], scores, k, call)
    except ArgumentError:
        return None  # such as a k that no cluster can hold


def in_orders(**more):
    """Deterministic calls of whole rows."""
    return [more | {"sorted": order, "tie_break": tie_break, "values": True} for order, tie_break in ORDERS]


def asked(name, scores, k, calls, **more):
    """Cases of these calls; only those that the family takes."""
    for call in calls:
        if plan := possible_plan(name, scores, k, call):
            yield Asked(plan, scores, call, **more)


def forced(name, scores, k, calls, **more):
    """Cases of these calls, all of which the family has to take."""
    return [Asked(served.plan_for(ALL[name], scores, k, call), scores, call, **more) for call in calls]


def order_of(*what):
    return ORDERS[zlib.crc32(repr(what).encode()) % len(ORDERS)]


@pytest.mark.parametrize("name", ALL_NAMES)
@served.judged("options {name}")
def test_every_pair_of_options(name):
    """Small rows, any order, any tie-break."""
    found = 0
    for number in range(len(PAIRS)):
        k, scores, call = pair(number)
        for one in asked(name, scores, k, [call], stats=number % 3 == 0):
            found += 1
            yield one
    assert found or runner.HOST, "no pair that it takes"


def wide(name, width, k, dtype="float32", offset=1, padding=3):
    """Deterministic calls with many options each."""
    scores = wide_scores(width, k, dtype, offset, padding)
    what, calls = (width,) if dtype == "float32" else (dtype,), wide_calls(len(scores), width, k)
    orders = {form: dict(zip(("sorted", "tie_break"), order_of(form, name, *what), strict=True)) for form in calls}
    return asked(name, scores, k, [call | orders[form] for form, call in calls.items()])


@pytest.mark.parametrize(("width", "k"), WIDE)
@pytest.mark.parametrize("name", NAMES)
@served.judged("options {name}")
def test_wide_rows_have_one_right_answer(name, width, k):
    return wide(name, width, k)


@pytest.mark.parametrize(("width", "k"), WIDE)
@served.judged("options cooperative")
def test_rows_held_together_with_options_but_an_order(width, k):
    """Several rows in turn on the same CTAs."""
    scores = wide_scores(width, k)[::3].contiguous()
    scores = scores[: len(scores) // 4 * 4]
    calls = [call | {"overlap": False} for call in wide_calls(len(scores), width, k).values()]
    return forced("cooperative", scores, k, calls)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("name", NAMES)
@served.judged("options {name}")
def test_narrow_scores(name, dtype):
    return wide(name, *WIDE[0], dtype, offset=3, padding=1)


@pytest.mark.parametrize("name", NAMES)
@served.judged("options {name}")
def test_storage_for_few_candidates(name):
    """Ties that find no room are collected by one more traversal, which the statistics count."""
    scores = wide_scores(5003, 64)
    return [one._replace(plan=overflowing(one.plan)) for one in forced(name, scores, 64, in_orders(), stats=True)]


@pytest.mark.parametrize("name", NAMES)
@served.judged("options {name}")
def test_a_hundred_thousand_zeros(name):
    """Plateaus far larger than any storage, of zeros of both signs with few other scores; the model's counts too."""
    rows, width, k = (4, 131_072, 2048) if not runner.HOST else (4, 9000, 200)
    generator = torch.Generator(device=runner.DEVICE).manual_seed(5)
    scores = torch.zeros(rows, width, device=runner.DEVICE)
    scores[:, ::3] = -0.0
    for row, share in enumerate((0.0, 0.005, 0.2)):
        chosen = torch.rand(width, device=runner.DEVICE, generator=generator) < share
        scores[row, chosen] = torch.rand(int(chosen.sum()), device=runner.DEVICE, generator=generator)
    scores[3] = torch.nan
    for one in forced(name, scores, k, in_orders()):
        yield one._replace(stats=one.call["sorted"] == "index")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ONE_OF_EACH)
@served.judged("options {name}")
def test_windows_start_anywhere_and_scores_stay_untouched(name, dtype):
    width, k = (9001, 300) if not runner.HOST else (2001, 50)
    scores = wide_scores(width, k, dtype, offset=1, padding=5)
    row = torch.arange(len(scores), dtype=torch.int32, device=runner.DEVICE)
    bounds, before = {"starts": row, "lengths": width - 20 + row % 11}, scores.clone()
    orders = {"sorted": "index", "tie_break": "low"}, {"sorted": "value", "tie_break": "high"}
    calls = [bounds | {"index_base": base} | order for base, order in itertools.product(("row", "start"), orders)]
    yield from forced(name, scores, k, calls[:: 3 if runner.HOST else 1], runs=1)
    assert same_bytes(scores, before).all()


@pytest.mark.parametrize("name", NAMES)
@served.judged("options {name}")
def test_the_largest_k_of_an_order(name):
    """Slots that fill shared memory when they are sorted."""
    width, k = (70_001, LARGEST_K) if not runner.HOST else (3001, 1000)
    scores = wide_scores(width, 512 if not runner.HOST else 100)[:8]
    return asked(name, scores, k, in_orders(index_dtype="int64"))


@pytest.mark.parametrize("k", [100_000, 1 << 17])
@served.judged("options persistent-exact")
def test_a_k_too_large_to_sort_is_transformed_in_place(k):
    """64-bit slots over the positions that they are made from."""
    k, width = (700, 3001) if runner.HOST else (k, 300_001)
    offsets = torch.tensor([5, -7, 2**31 - 1], dtype=torch.int32, device=runner.DEVICE)
    call = {"offsets": offsets, "index_dtype": "int64", "raw": True, "values": True}
    return forced("persistent-exact", torch.randn(3, width, device=runner.DEVICE), k, [call], runs=1)


@pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_graphs_replay_calls_with_options(name, overlap, tally):
    """Several calls in one graph, each reading what the one before has written."""
    rows, width, k = 32, 20_003, 512
    scores = wide_scores(width, k)[:rows]
    rows = len(scores)
    first = torch.randint(0, 40, (rows,), device="cuda").to(torch.int32)
    ends = torch.full((rows,), width, dtype=torch.int32, device="cuda")
    order = {"sorted": "index", "tie_break": "low", "overlap": overlap}
    one = Served(
        served.plan_for(VARIANTS[name], scores, 1, call := {"starts": first, "ends": ends} | order), scores, call
    )
    # The second call's windows start where the first one found the greatest score, so that it must have waited.
    chained = {"starts": torch.empty(rows, dtype=torch.int32, device="cuda"), "ends": ends, "values": True}
    two = Served(served.plan_for(VARIANTS[name], scores, k, chained | order), scores, chained | order)
    one.outputs["out"].out = chained["starts"].view(rows, 1)
    for ready in (one, two):
        ready.plan.prepare()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(4):
            one.run()
            two.run()
    wrong = []
    for turn in range(TURNS):
        first.random_(0, width)
        ends.random_(-5, width + 5)
        two.poison()
        graph.replay()
        wrong += [f"turn {turn}: {text}" for ready in (one, two) for text in served.faults(ready)]
        wrong += two.outside()
    tally.judge(f"options {name}", TURNS * rows, wrong)


@pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_overlapping_launches_wait_for_each_other(name, tally):
    """A chain of launches on a stream, each reading its windows from the output of the one before."""
    width, k, links = 9001, 64, 200
    scores = torch.randn(48, width, device="cuda")
    order = {"sorted": "index", "tie_break": "low"}
    buffers = [torch.zeros(48, dtype=torch.int32, device="cuda") for _ in range(links + 1)]
    answers = []
    for overlap in (False, True):
        call = {"starts": buffers[0], "index_base": "start", "overlap": overlap} | order
        plan = served.plan_for(VARIANTS[name], scores, k, call).prepare()
        workspace = plan.workspace()
        out = [torch.zeros(48, k, dtype=torch.int32, device="cuda") for _ in range(links)]
        ends = [torch.full((48,), width, dtype=torch.int32, device="cuda")] * links
        torch.cuda.synchronize()
        for link in range(links):
            starts = out[link - 1].view(-1)[:48] if link else buffers[0]
            ask(
                scores, plan=plan, starts=starts, ends=ends[link], out=out[link], workspace=workspace,
                index_base="start", **order,
            )  # fmt: skip
        answers.append(torch.stack(out))
    wrong = [] if torch.equal(*answers) else [f"{name}: overlapping launches differ"]
    tally.judge(f"options {name}", 2 * links * 48, wrong)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_thousand_runs_under_load_give_the_same_bytes(name, tally):
    width, k = (40_001, 1024) if not runner.HOST else (3001, 100)
    scores = wide_scores(width, k)
    lengths = torch.full((len(scores),), width - 5, dtype=torch.int32, device=runner.DEVICE)
    # What `deterministic` stands for, in the words that the independent answer knows.
    call = {"lengths": lengths, "sorted": "index", "tie_break": "low", "values": True}
    ready = Served(served.plan_for(VARIANTS[name], scores, k, call), scores, call)
    ready.run()
    first = {output: guarded.out.clone() for output, guarded in ready.outputs.items()}
    wrong = torch.zeros((), dtype=torch.int64, device=runner.DEVICE)
    busy = None if runner.HOST else torch.cuda.Stream()
    ballast = torch.randn(4096, 4096, device=runner.DEVICE) if busy else None
    for run in range(RUNS):
        if busy is not None and run % 4 == 0:
            with torch.cuda.stream(busy):
                for _ in range(1 + run % 3):
                    ballast.copy_(ballast.flip(run % 2) if run % 8 else (ballast @ ballast).clamp(-1, 1))
        ready.poison()
        ready.run()
        for output, guarded in ready.outputs.items():
            wrong += (~same_bytes(guarded.out, first[output])).sum()
    if busy is not None:
        busy.synchronize()  # its memory goes to whoever asks next, who may be our workspace
    found = [f"{int(wrong)} rows differed in {RUNS} runs"] if int(wrong) else []
    found += [] if RUNS < 100 else served.check(ready, runs=1)
    tally.judge(f"options {name}", RUNS * len(scores), found)


def batches():
    """Calls of one k in every batch: the planner's choice, and every forced family; (batch, arguments, plan, name)."""
    k = 1024 if not runner.HOST else 100
    for batch in BATCHES:
        scores = torch.empty(batch, ROW_WIDTH, device=runner.DEVICE)
        for name, tie_break in itertools.product((None, *(NAMES if batch <= 64 else ())), ("low", "high")):
            call = {"deterministic": True, "tie_break": tie_break, "values": True}
            call |= {"sorted": "value"} if tie_break == "high" else {}
            if name is None:
                options = served.options_of(call)
                plan = plan_of(rows=batch, width=ROW_WIDTH, k=k, device="cuda", options=options)
            else:
                plan = served.plan_for(VARIANTS[name], scores, k, call)
            yield batch, call, plan, name or plan.family


def kernels():
    return [(plan, False) for _, _, plan, _ in batches()]


def test_one_row_in_every_batch_and_family_gives_the_same_bytes(tally):
    """Ties and plateaus among the row's scores; batches of 1 to 8192, the planner's choice and every forced family."""
    generator = torch.Generator(device=runner.DEVICE).manual_seed(7)
    row = torch.randint(-300, 300, (ROW_WIDTH,), device=runner.DEVICE, generator=generator) / 64
    row[::97] = torch.nan
    row[::5] = 0.0
    seen: dict[str, torch.Tensor] = {}
    wrong, total = [], 0
    for batch, asked in itertools.groupby(batches(), key=lambda each: each[0]):
        scores = torch.randn(batch, ROW_WIDTH, device=runner.DEVICE, generator=generator)
        at = (batch * 5) // 7
        scores[at] = row
        for _, call, plan, name in asked:
            ready, k = Served(plan, scores, call), plan.problem.k
            ready.run()
            total += 1
            for output, guarded in ready.outputs.items():
                mine = guarded.out[at].clone()
                first = seen.setdefault(f"{call['tie_break']} {output}", mine)
                if not bool(same_bytes(mine[None], first[None]).all()):
                    wrong.append(f"batch {batch}, {name}, {call['tie_break']}: {output} differs")
    for tie_break, order in (("low", "index"), ("high", "value")):
        asked, out = {"tie_break": tie_break, "sorted": order}, seen[f"{tie_break} out"][None]
        wrong += [f"{tie_break}: {text}" for text in runner.refuted(row[None], None, out, k, **asked)]
    tally.judge("options batch invariance", total, wrong)
