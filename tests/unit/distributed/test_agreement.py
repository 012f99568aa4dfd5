"""Ranks that disagree: each argument of `topk` and `plan`, other, missing or of no use on one rank; ranks that die."""

from __future__ import annotations

import inspect
import os
import re
import sys
from datetime import timedelta
from functools import partial

import pytest

import ksieve

torch = pytest.importorskip("torch")

import ksieve.distributed as ranks  # noqa: E402
import rank_cases  # noqa: E402
from ksieve.core.groups import grouped  # noqa: E402

ROWS, WIDTH, K = 4, 9, 3
SAME, OWN, NAMED = "every rank has its answer", "its own error, and that of the others", "the same error"


class Hostile:
    """An argument whose every use is an error of its own."""

    def __eq__(self, other):
        raise ZeroDivisionError("not to be compared")

    __hash__ = None


def ints(*shape):
    return torch.ones(shape, dtype=torch.int32)


def scores(rows=ROWS, width=WIDTH, dtype=None):
    return torch.arange(rows * width, dtype=torch.float32).reshape(rows, width).to(dtype)


class Case:
    """Values of an argument: what every rank gives; what one rank gives in its place, if ranks compare it; others that
    are of no use; what comes of a rank that leaves it out, if it can; and arguments that go with it.
    """

    def __init__(self, good, other, *wrong, missing=NAMED, **beside):
        self.good, self.other, self.wrong, self.missing, self.beside = good, other, wrong, missing, beside


FREE = object()
"""In place of a value: another array, process group or device is nothing that ranks compare."""

OF_BOTH = {
    "layout": Case(ranks.Interleaved(2), ranks.Interleaved(4), "rows", Hostile()),
    "output": Case("global", "owned", "all", Hostile()),
    "index_base": Case("shard", "row", "start"),
    "tie_break": Case("high", "low", "any", 3),
    "largest": Case(False, True, "no"),
    "nan": Case("highest", "last", "first", Hostile()),
    "group": Case(None, FREE, "x", 7, missing=SAME),
}
OPEN = {
    "local_scores": Case(
        scores(), scores(rows=5), None, scores().double(), scores().numpy(), scores()[0], scores().mT, missing=None
    ),
    "k": Case(3, 4, "3", 0, 1.5, ints(2), missing=OWN),
    "max_k": Case(3, 4, "3", 0, k=ints(ROWS), missing=OWN),
    "local_lengths": Case(ints(ROWS), FREE, ints(2), ints(ROWS).float(), [1] * ROWS),
    "global_lengths": Case(ints(ROWS), FREE, ints(2), 3),
    "starts": Case(ints(ROWS), FREE, ints(ROWS, 1), ends=ints(ROWS)),
    "ends": Case(ints(ROWS), FREE, ints(5), "x"),
    "next_n": Case(2, 4, 3, 0, True, "2"),
    "num_rows": Case(2, 4, True, "2", ints(2), Hostile()),
    "page_table": Case(ints(ROWS, 5), FREE, ints(5), ints(ROWS, 5).float()),
    "page_size": Case(4, 2, 3, 0, "4", page_table=ints(ROWS, 5)),
    "row_to_request": Case(ints(ROWS), FREE, ints(2), page_table=ints(ROWS, 5)),
}
CASES = {
    "topk": OPEN | OF_BOTH | {"plan": Case(None, FREE, "x", Hostile(), missing=None)},
    "topk with a plan": OPEN,
    "plan": OF_BOTH | {
        "rows": Case(ROWS, 5, "4", -1, missing=None),
        "width": Case(WIDTH, 7, "9", -1, 2**31, missing=None),
        "k": Case(K, 4, "3", 0, missing=None),
        "dtype": Case("float16", "bfloat16", "float64", 3),
        "device": Case("cpu", FREE, "cuda:x", "cuda:99", missing=SAME),
        "link": Case("network", ranks.Link(9, 45, 750, "a test"), "pigeon"),
        "schedule": Case(ranks.Samples(3), ranks.Digits(11), "x", ranks.Samples(4)),
    },
}  # fmt: skip
OUTCOMES = dict.fromkeys([("topk with a plan", name, "other") for name in ("local_scores", "k", "max_k")], OWN)
OUTCOMES |= dict.fromkeys([("topk with a plan", name, "missing") for name in ("k", "max_k")], SAME)
OUTCOMES["plan", "width", "other"] = SAME
"""Other outcomes than those of the table: a plan says by itself what fits it, and shards may be of any width."""


def grouped_but_base(given):
    """Keywords of a call with these arguments; its `index_base` is no field of a group."""
    own = {name: value for name, value in given.items() if name == "index_base"}
    return grouped({name: value for name, value in given.items() if name not in own}) | own


def make_call(kind, given, odd, rank):
    """A rank's call; arguments of rank 1 are its own."""
    given = odd if rank == 1 else given
    if kind == "plan":
        return str(ranks.plan(**{"rows": ROWS, "width": WIDTH, "k": K} | given))
    plan = {"plan": ranks.plan(rows=ROWS, width=WIDTH, k=K)} if kind == "topk with a plan" else {}
    ranks.topk(**{"local_scores": scores()} | plan | grouped_but_base(given))
    return None


def good_call(rank):
    return ranks.topk(torch.zeros(ROWS, WIDTH), k=K)[1].tolist()


def check(pool, name, outcome, call):
    """Every rank ends as it should, and the next call is right."""
    answers = pool.run(call)
    texts, kinds = [str(answer) for answer in answers], [type(answer) for answer in answers]
    if outcome == SAME:
        assert not any(isinstance(answer, Exception) for answer in answers), answers
    elif outcome == NAMED:
        assert set(kinds) == {ksieve.ArgumentError} and len(set(texts)) == 1, answers
        assert re.fullmatch(f"{name}: got .+ on rank 0 and .+ on rank 1; takes the same on every rank", texts[0]), texts
    else:
        of_others = set(texts[:1] + texts[2:])
        assert set(kinds[:1] + kinds[2:]) == {ksieve.BackendError} and len(of_others) == 1, answers
        assert f"rank 1: {kinds[1].__name__}: {texts[1]}"[:500] in of_others.pop()
        assert texts[1].startswith(f"{name}: got ") or kinds[1] in (ksieve.BackendError, ZeroDivisionError)
    assert pool.run(good_call) == [[K * (rank == 0)] * ROWS for rank in range(len(answers))]
    return answers


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, cases in CASES.items() for name in cases])
def test_an_argument_of_one_rank(processes, kind, name, world):
    """Ranks that give another value than rank 0, none, or one of no use."""
    case, pool = CASES[kind][name], processes(world)
    given = ({"k": K} if kind == "topk" else {}) | case.beside | {name: case.good}
    if case.other is not FREE:
        outcome = OUTCOMES.get((kind, name, "other"), NAMED)
        check(pool, name, outcome, partial(make_call, kind, given, given | {name: case.other}))
    if case.missing is not None:
        without = {other: value for other, value in given.items() if other != name}
        outcome = OUTCOMES.get((kind, name, "missing"), case.missing)
        check(pool, name, outcome, partial(make_call, kind, given, without))
    for wrong in case.wrong:
        check(pool, name, OWN, partial(make_call, kind, given, given | {name: wrong}))


def test_no_argument_is_forgotten():
    """The table of what ranks state has every argument of the signatures, and so has that of this file."""
    from ksieve.distributed.agreement import ARGUMENTS

    signatures = {kind: set(inspect.signature(call).parameters) for kind, call in
                  {"topk": ranks.topk, "plan": ranks.plan}.items()}  # fmt: skip
    groups = {"bounds": {"starts", "ends", "next_n"}, "transform": {"page_table", "page_size", "row_to_request"}}
    for keyword, members in groups.items():
        signatures["topk"] = signatures["topk"] - {keyword} | members
    assert set(ARGUMENTS) == signatures["topk"] | signatures["plan"]
    assert {name for name, say in ARGUMENTS.items() if say is None} == {"group", "width"}
    assert {kind: set(CASES[kind]) for kind in signatures} == signatures


def test_a_misspelt_argument_is_an_error_where_it_stands():
    """Before any message: there is no process group."""
    for call in (ranks.topk, ranks.plan):
        with pytest.raises(TypeError, match="larges"):
            call(larges=True)


# ---- plans, and what fails behind the arguments --------------------------------------------------------------


def with_plans(first, odd, rank):
    """Calls with the plans of these arguments, or with none."""
    plans = [None if given is None else ranks.plan(**{"rows": ROWS, "width": WIDTH, "k": K} | given)
             for given in (first, odd)]  # fmt: skip
    plan = plans[rank == 1]
    return ranks.topk(scores(), plan=plan, **{"k": K} if plan is None else {})


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("name", "first", "odd", "words"),
    [
        ("plan", None, {}, ("None", "a plan")),
        ("plan", {}, None, ("a plan", "None")),
        ("k", {}, {"k": 4}, ("3", "4")),
        ("k", {"schedule": ranks.Pairs()}, {"k": 60, "schedule": ranks.Samples(4)}, ("3", "60")),
        ("k", {"schedule": ranks.Digits(8)}, {"k": 60}, ("3", "60")),
        ("k", {}, {"k": 200_000}, ("3", "200000")),
        ("output", {}, {"output": "global"}, ("'owned'", "'global'")),
        ("schedule", {"schedule": ranks.Digits(8)}, {"schedule": ranks.Pairs()}, ("Digits(bits=8)", "Pairs()")),
        ("schedule", {"schedule": ranks.Samples(2)}, {"schedule": ranks.Samples(3)}, ("Samples(step=2)", "(step=3)")),
    ],
)
def test_ranks_with_other_plans(processes, name, first, odd, words, world):
    """Their first messages are of other sizes and kinds."""
    said = str(check(processes(world), name, NAMED, partial(with_plans, first, odd))[0])
    assert f"got {words[0]} on rank 0 and " in said and f"{words[1]} on rank 1" in said


def with_other_widths(rank):
    """Two plans whose messages are alike, and whose positions are not."""
    first, other = (ranks.plan(rows=ROWS, width=WIDTH + widen * rank, k=K) for widen in (0, 1))
    return ranks.topk(scores(), plan=first) if rank != 1 else ranks.topk(scores(width=WIDTH + 1), plan=other)


def in_other_calls(rank):
    plan = ranks.plan(rows=ROWS, width=WIDTH, k=K)
    return ranks.topk(scores(), plan=plan) if rank == 1 else ranks.plan(rows=ROWS, width=WIDTH, k=K)


def with_a_fault(planned, fault, rank):
    """Rank 1 fails while it selects from its shard, behind all checks."""
    plan = {"plan": ranks.plan(rows=ROWS, width=WIDTH, k=K)} if planned else {"k": K}
    module = sys.modules["ksieve.distributed.ranks"]
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(module, "select", fault)
        return ranks.topk(scores(), **plan)


def raise_memory_error(*_, **__):
    raise MemoryError("none is left")


def test_widths_and_calls_are_compared(processes):
    check(processes(2), "width", NAMED, with_other_widths)
    said = str(check(processes(2), "plan", NAMED, in_other_calls)[0])
    assert said.startswith("plan: got being made on rank 0 and a plan on rank 1")


@pytest.mark.parametrize("planned", [False, True])
def test_a_rank_that_fails_behind_its_checks(processes, planned):
    first, odd, last = processes(3).run(partial(with_a_fault, planned, raise_memory_error))
    assert isinstance(odd, MemoryError)
    assert str(first) == str(last) == "this call cannot be made on all ranks; rank 1: MemoryError: none is left"
    assert processes(3).run(good_call) == [[K * (rank == 0)] * ROWS for rank in range(3)]


def without_one(rank):
    group = torch.distributed.new_group(timeout=timedelta(seconds=1))
    plan = ranks.plan(rows=ROWS, width=WIDTH, k=K, group=group)
    return None if rank == 1 else ranks.topk(scores(), plan=plan)


def test_a_rank_that_does_not_come(processes):
    """The others end by the group's own timeout, and other groups go on."""
    answers = processes(3).run(without_one)
    assert answers.pop(1) is None
    assert all(isinstance(answer, RuntimeError) for answer in answers), answers
    assert processes(3).run(good_call) == [[K * (rank == 0)] * ROWS for rank in range(3)]


# ---- what a call sends ---------------------------------------------------------------------------------------


LARGE = 2000, 90
COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_single", "all_reduce", "all_to_all_single", "barrier",
)  # fmt: skip


def counted(schedule, output, rows, k, rank):
    """Collectives of a call with a plan, those that the plan states, and the first position of each row."""
    plan, seen = ranks.plan(rows=rows, width=k + 7, k=k, schedule=schedule, output=output), []

    def counting(collective, *arguments, **keywords):
        seen.append(collective)
        return collective(*arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        for name in COLLECTIVES:
            if real := getattr(torch.distributed, name, None):
                patch.setattr(torch.distributed, name, partial(counting, real))
        found = ranks.topk(torch.zeros(rows, k + 7), plan=plan)
    return len(seen), len(plan.messages), (found if output == "global" else found[0])[:, 0].tolist()


@pytest.mark.parametrize("output", ["owned", "global"])
@pytest.mark.parametrize("schedule", [ranks.Pairs(), ranks.Samples(2), ranks.Digits(8)], ids=str)
def test_a_plan_s_call_takes_no_further_collective(processes, schedule, output):
    """The tag goes with the data of the first one, but for data of more than 1 MiB."""
    for rows, k in ((3, 5), (0, 5), (40, 2000), LARGE):
        for rank, answer in enumerate(processes(3).run(partial(counted, schedule, output, rows, k))):
            collectives, stated, firsts = answer
            assert firsts == [0 if output == "global" or not rank else -1] * rows
            assert collectives <= stated + (rows == LARGE[0])


@pytest.mark.parametrize("schedule", [ranks.Pairs(), ranks.Samples(4), ranks.Digits(8)], ids=str)
def test_on_a_device_other_tags_are_no_answer(schedule):
    """Over NCCL nothing is read back: operations compare the tags where no kernel does."""
    rank_cases.check_tags(schedule, kernels=False)


def as_over_nccl(schedule, odd, rank):
    """Calls whose host compares nothing: one in which rank 1 is odd, between two good ones."""
    agreement = sys.modules["ksieve.distributed.agreement"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement.Channel, "waits", lambda channel, kind: False)
        plan = ranks.plan(rows=ROWS, width=WIDTH, k=K, schedule=schedule)
        x, found = torch.zeros(ROWS, WIDTH), []
        for changes in ({}, odd[rank == 1], {}):
            try:
                answer = ranks.topk(**{"local_scores": x, "plan": plan} | grouped_but_base(changes))
                found.append((answer[0][:, 0].tolist(), answer[1].tolist(), plan.disagreed))
            except ksieve.ArgumentError as error:
                found.append((error.argument, None, plan.disagreed))
            plan.flag(x.device).zero_()
    return found


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    "odd",
    [
        ({"next_n": 2}, {"next_n": 4}),
        ({}, {"num_rows": 4}),
        ({}, {"next_n": 3}),
        ({}, {"local_scores": torch.zeros(5, WIDTH)}),
    ],
    ids=lambda odd: next(iter(odd[1])),
)
@pytest.mark.parametrize("schedule", [ranks.Pairs(), ranks.Samples(2), ranks.Digits(8)], ids=str)
def test_over_nccl_ranks_that_disagree_have_no_answer(processes, schedule, odd, world):
    """No rank waits, though one has raised."""
    for rank, (first, second, third) in enumerate(processes(world).run(partial(as_over_nccl, schedule, odd))):
        good = [0 if rank == 0 else -1] * ROWS, [K * (rank == 0)] * ROWS, False
        assert first == third == good
        fails = rank == 1 and ("local_scores" in odd[1] or odd[1].get("next_n") == 3)
        assert second == ((next(iter(odd[1])), None, True) if fails else ([-1] * ROWS, [0] * ROWS, True))


# ---- ranks that die: last, since their processes are started again ---------------------------------------------


def die(*_, **__):
    os._exit(1)


def die_at_once(rank):
    plan = ranks.plan(rows=ROWS, width=WIDTH, k=K)
    return die() if rank == 1 else ranks.topk(scores(), plan=plan)


@pytest.mark.parametrize(
    ("world", "call"),
    [(2, die_at_once), (3, partial(with_a_fault, False, die))],
    ids=["with a plan", "behind its checks"],
)
def test_a_rank_that_dies(processes, world, call):
    """The error of the others is that of the process group."""
    answers = processes(world).run(call)
    assert answers.pop(1) is None
    assert all(isinstance(answer, RuntimeError) for answer in answers), answers
