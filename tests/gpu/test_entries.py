"""Counts, expanded and forced entries, tails and positions, on every family: any pair of options.

The oracle judges each row of an answer; statistics equal the model's. Everything written lies between guard
bytes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cases import pairwise
from entry_calls import AXES, built, columns_of
from flat_calls import ask
from gpu import runner, served
from gpu.served import Asked, Served
from gpu.test_options import ALL_NAMES, asked, device_call, possible_plan
from gpu.variants import Variant, overflowing
from harness import to_cuda
from ksieve.planning.memory import sort_slots, with_workspace

pytestmark = pytest.mark.gpu

CASES = pairwise(
    AXES
    | {
        "rows": (4, 8), "width": (1, 70, 1000, 5003), "k": (1, 7, 64, 300), "expand": (None, 2, 7),
        "positions": (None, "positions", "block_table"), "block_size": (None,), "policy": (None,),
        "outputs": ("given",),
    }
)  # fmt: skip
if runner.HOST:
    NONE = {"force_first": None, "force_last": None, "forced_extra": None}
    FEW = (
        NONE | {"positions": None, "expand": 7, "tail": True, "sorted": False, "tie_break": None, "fill": False},
        NONE | {"positions": None, "expand": None, "sorted": False, "tie_break": None},
        NONE | {"positions": None, "expand": 2, "sorted": "value", "tie_break": "high"},
        NONE | {"positions": "positions", "expand": None, "sorted": "value", "tie_break": "high"},
        NONE | {"positions": "positions", "expand": 2, "tie_break": "low"},
        NONE | {"positions": "block_table", "expand": 7, "tail": True},
        {"positions": "positions", "sorted": "value", "tie_break": "high", "force_first": 1, "force_last": 2},
        {"positions": "positions", "expand": 2, "sorted": False, "force_first": 3, "forced_extra": True, "ks": False},
        {"positions": "block_table", "expand": 7, "tail": True, "sorted": "index", "force_last": 2, "ks": True},
    )
    CASES = [case | few | {"width": 300, "k": 16} for case, few in zip(CASES, FEW, strict=False)]


DTYPES = ("float32", "bfloat16")
ROWS_OWNED = ("row", "cluster", "persistent-exact")


def made(number):
    """A combination: host scores, k and arguments, then scores and arguments on the device."""
    x, k, call = built(CASES[number], number)
    call |= {"values": True, "raw": True, "counts": np.zeros(len(x), np.int32)}
    return x, k, call, to_cuda(x, number % 2, runner.DEVICE), device_call(call)


@pytest.mark.parametrize("name", ALL_NAMES)
@served.judged("entries {name}")
def test_every_pair_of_options(name):
    found = 0
    for number, case in enumerate(CASES):
        _, k, call, scores, on_device = made(number)
        for one in asked(name, scores, k, [on_device], stats=number % 3 == 0):
            assert one.plan.problem.columns == columns_of(k, call), case
            found += 1
            yield one
            if number % 4 == 0 and one.plan.family != "register_warp":
                yield one._replace(plan=overflowing(one.plan), stats=False)
    assert found or runner.HOST, "no pair that it takes"


@pytest.mark.parametrize("forced", [0, 3])
@served.judged("entries positions {forced}")
def test_positions_decide_ties(forced):
    """A call of those above, which the emulator runs in seconds; also of what is forced."""

    def is_such(case):
        more = (case["force_first"] or 0) + (case["force_last"] or 0)
        return case["positions"] == "positions" and case["tie_break"] and more == forced

    _, k, _, scores, call = made(next(n for n, case in enumerate(CASES) if is_such(case)))
    return asked("persistent-exact", scores, k, [call])


PRESENT = ("all", "end", "all", "all", "end", "best", "prefix", "hole", "none", "just enough", "one more", "beyond",
           "beyond inside", "one", "odd")  # fmt: skip
"""Which candidates of a row are there: all in front of an absent one (dense), or others too; "best": all but the best.

The first rows of a CTA are selected by their scores alone, until one of them selects an absent candidate.
"""
CALLS = (
    {"block_table": 8, "starts": True},
    {"block_table": 8, "largest": False},
    {"positions": 1, "expand": 2, "page_table": True, "page_size": 16, "starts": True},
    {"block_table": 8, "sorted": "value", "ks": True, "starts": True},
    {"positions": 1, "sorted": "index"},
    {"positions": 1},
)


@pytest.mark.parametrize("number", range(len(CALLS)))
@pytest.mark.parametrize("owner", ROWS_OWNED)
@served.judged("entries candidates {owner}")
def test_candidates_that_are_there(owner, number):
    """A row is selected by buckets if no absent candidate lies in front of one that is there; CTAs have many rows.

    Rows of a call of `CALLS`, one of each kind of `PRESENT` and then the dense ones again.
    """
    more, rng = CALLS[number], np.random.default_rng(number)
    name = "positions" if "positions" in more else "block_table"
    block, k = more[name], 16 if runner.HOST else 512
    width, kinds = (304 if runner.HOST else 16_000), (*PRESENT, "prefix", "all")
    rows, count = len(kinds), width // block
    past = 2**31 - 1 if block > 1 or "expand" in more else -1  # int32 cannot hold all that is to be written
    table = np.stack([rng.permutation(2 * count)[:count] for _ in kinds]).astype(np.int32)
    for row, kind in zip(table, kinds, strict=True):
        few = {"just enough": k // block, "one more": k // block + 1, "one": 1, "none": 0, "end": count - 1}
        first = few.get(kind, count * 3 // 4)
        if kind in ("hole", "beyond inside"):
            row[count // 3] = -1 if kind == "hole" else past
        elif kind == "odd":
            row[::2] = -5
        elif kind not in ("all", "best"):
            row[first:] = past if kind == "beyond" else -1 - row[first:]
    x = rng.standard_normal((rows, width)).astype(np.float32)
    x[::3] = np.round(x[::3] * 2)  # equal ones
    best = PRESENT.index("best")
    table[best, (x[best].argmax() if more.get("largest", True) else x[best].argmin()) // block] = -1
    call = more | {name: table, "values": True, "raw": True, "counts": np.zeros(rows, np.int32)}
    if "starts" in more:
        call["starts"] = np.arange(rows, dtype=np.int32) % 3 * 5
    if "ks" in more:
        call["ks"] = (k - np.arange(rows) % 4 * 5).astype(np.int32)
    if "page_table" in more:
        call["page_table"] = rng.integers(0, 99, (rows, 4 * width // 16 + 1)).astype(np.int32)
    for one in asked(owner, to_cuda(x, number % 2, runner.DEVICE), k, [device_call(call)]):
        few = {"ctas": 2} if one.plan.family == "resident_block" else {}
        yield one._replace(plan=with_workspace(replace(one.plan, **few)))


@pytest.mark.parametrize(("expand", "tail"), [(4, True), (7, True), (3, False), (64, False)])
@served.judged("entries on chip")
def test_entries_of_rows_on_chip(expand, tail):
    """Slots at every alignment, four at a time, of expanded entries and of what is behind the last whole one.

    Few CTAs have many rows each.
    """
    width, k, rows = (304, 17, 6) if runner.HOST else (16_384, 509, 64)
    rng = np.random.default_rng(expand)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    x[::2] = np.round(x[::2])  # equal ones
    offsets = rng.integers(0, 1000, rows).astype(np.int32)
    call = {"expand": expand, "offsets": offsets, "counts": np.zeros(rows, np.int32)}
    if tail:
        call["tail"] = (width * expand - np.arange(rows) * 5 % (width * expand // 2)).astype(np.int32)
        call["tail"][-1] = 3 * expand + 1  # fewer entries than slots
    on_device, scores = device_call(call), to_cuda(x, 0, runner.DEVICE)
    plan = served.plan_for(Variant("resident", "resident_block"), scores, k, on_device)
    return [Asked(with_workspace(replace(plan, ctas=2)), scores, on_device)]


MANY = [
    (name, call)
    for name in ("row", "cluster", "persistent-exact", "persistent-64", "split-4")
    for call in (
        {"sorted": "value", "tie_break": "low", "expand": 4, "k": 2500 if name != "row" else 4500},
        {"sorted": "index", "expand": 3, "k": 4500},
    )
]
"""With entries that no CTA sorts in its ring (planning/memory.py, sort_slots)."""


@pytest.mark.parametrize(("name", "call"), MANY, ids=lambda each: each if isinstance(each, str) else each["sorted"])
@served.judged("entries in order {name}")
def test_many_entries_in_order(name, call):
    """Entries are listed on chip while they are read where they were sorted: the two must not meet.

    They are sorted before they are expanded, where neither another family nor the ring does it.
    """
    x = np.random.default_rng(3).standard_normal((3, 5003)).astype(np.float32)
    scores = to_cuda(np.round(x * 64) / 64, 1, runner.DEVICE)
    given = {**call, "counts": np.zeros(3, np.int32)}
    return [one for one in asked(name, scores, given.pop("k"), [device_call(given)]) if sort_slots(one.plan)]


@pytest.mark.parametrize("name", ["persistent-exact", "warp", "row"])
@pytest.mark.parametrize("more", [{}, {"values": True, "sorted": "index"}, {"expand": 3}], ids=str)
def test_slots_that_are_not_used_are_left_as_they_are(name, more, tally):
    """Rows of fewer scores than slots cost the writing of those alone."""
    lengths = torch.tensor([300, 16, 15, 1, 0, 3], dtype=torch.int32, device=runner.DEVICE)
    scores = torch.arange(6 * 300, dtype=torch.float32, device=runner.DEVICE).reshape(6, 300)
    call = more | {"lengths": lengths, "counts": torch.zeros(6, dtype=torch.int32), "fill": False}
    plan = possible_plan(name, scores, 16, call)
    if plan is None:
        pytest.skip("sorts no rows of a warp")
    ready = Served(plan, scores, call)
    ready.poison()
    before = {key: value.copy() for key, value in ready.answer().items() if value is not None}
    ready.run()
    used = np.minimum(lengths.cpu().numpy(), 16)[:, None] * more.get("expand", 1)
    wrong = ready.outside()
    for key, value in ready.answer().items():
        if key in before and key != "counts":
            slot = np.arange(value.shape[1])
            # Entries that are expanded were selected to the last of the row's slots.
            rest = (slot >= used) & (slot < value.shape[1] - (16 if "expand" in more else 0))
            kept = value[rest].tobytes() == before[key][rest].tobytes()
            if not kept or (value == before[key])[slot < used].any():
                wrong.append(key)
    tally.add(f"entries unfilled {name}", 6, wrong)
    assert (ready.answer()["counts"] == used).all() and not wrong, wrong


@pytest.mark.parametrize("tail", [False, True])
def test_a_call_without_slots_counts_and_has_its_tail(tail, tally):
    """With k = 0 there is a launch for the tail alone."""
    rows, width, expand = 3, 40, 4
    scores = torch.zeros(rows, width, device=runner.DEVICE)
    lengths = np.array([7, 0, 163], np.int32)
    call = {"expand": expand, "counts": torch.full((rows,), 9, dtype=torch.int32, device=runner.DEVICE)}
    call |= {"tail": torch.from_numpy(lengths).to(runner.DEVICE)} if tail else {}
    columns = expand - 1 if tail else 0
    out = torch.full((rows, columns), 9, dtype=torch.int32, device=runner.DEVICE)
    ask(runner.on_device(scores), k=0, **runner.on_device(call | {"out": out}))
    own = lengths % expand if tail else 0 * lengths
    assert call["counts"].tolist() == own.tolist()
    right = [[n - m + i if i < m else -1 for i in range(columns)] for n, m in zip(lengths, own, strict=True)]
    assert out.tolist() == right
    tally.add("entries no slots", rows, [])


SHARED = (
    {"page_table": True, "page_size": 64, "ks": True},
    {"offsets": True, "starts": True, "index_base": "start", "index_dtype": "int64"},
    {"expand": 4, "tail": True, "fill": False},
    {"expand": 3, "page_table": True, "page_size": 1, "starts": True, "force_first": 2, "force_last": 1},
    {"expand": 4, "tail": True, "starts": True, "force_last": 2, "forced_extra": True, "index_dtype": "int64"},
    {"page_table": True, "page_size": 1, "force_first": 3, "forced_extra": True, "ks": True},
)
"""Calls whose slots are written from shared memory (kernels/epilogue/slots.cuh)."""


@pytest.mark.skipif(runner.PLANNED_FOR.capability < (9, 0), reason="no such families")
@pytest.mark.parametrize("number", range(len(SHARED)))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["register_block", "resident_cluster"])
@served.judged("entries shared {family} {dtype}")
def test_slots_written_from_shared_memory(family, dtype, number):
    """Rows of a call of `SHARED`: equal scores, zeros and NaN of either sign, one bin that is overfull, short rows."""
    more, rng = dict(SHARED[number]), np.random.default_rng(number)
    width, k, rows = (1000, 48, 8) if runner.HOST else (4001, 500, 64)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    x[1::8] = np.round(x[1::8])
    x[2::8] = 1 + rng.integers(0, 1 << 17, x[2::8].shape) * 2.0**-23
    x[3::8] = np.where(rng.random(x[3::8].shape) < 0.99, -0.0, 0.0)
    x[4::8].view(np.uint32)[rng.random(x[4::8].shape) < 0.3] = 0xFFC12345
    x = x if dtype == "float32" else (x.view(np.uint32) >> 16).astype(np.uint16)
    lengths = rng.integers(k + 1, width + 1, rows).astype(np.int32)
    lengths[5::8] = np.resize(np.roll((k, 0, 3, k + 1), -number), len(lengths[5::8]))
    lengths[::8] = width
    call = {"lengths": lengths, "counts": np.zeros(rows, np.int32)} | more
    call |= {"values": True, "raw": True}
    expand = more.get("expand", 1)
    if "tail" in more:
        call["tail"] = (
            lengths * expand + np.arange(3, rows + 3, dtype=np.int32) % expand
        )  # also behind the row's scores
    if "starts" in more:
        call["starts"] = (np.arange(rows) % 3 * 5).astype(np.int32)
    if "ks" in more:
        call["ks"] = (k - np.arange(rows) % 4 * 5).astype(np.int32)
    if "offsets" in more:
        call["offsets"] = rng.integers(-9, 9, rows).astype(np.int32)
    if "page_table" in more:  # positions behind the table have no entry
        pages = width * expand // more["page_size"] - 10
        call["page_table"] = rng.integers(0, 99, (rows, pages)).astype(np.int32)
    scores, on_device = to_cuda(x, number % 2, runner.DEVICE), device_call(call)
    return [Asked(served.plan_for(Variant(family, family), scores, k, on_device), scores, on_device)]
