"""Kernels of `ksieve.distributed` ahead of its calls: none that a call needs is missing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from cuda_fakes import fake_backend  # noqa: E402
from ksieve import dispatch  # noqa: E402
from ksieve.backends.cuda import ranks as kernels  # noqa: E402
from ksieve.backends.cuda.jit.spec import compiled_options  # noqa: E402
from ksieve.core import call as calls  # noqa: E402
from ksieve.core.groups import flat, grouped  # noqa: E402
from ksieve.core.options import Options  # noqa: E402
from ksieve.core.problem import Device, Problem  # noqa: E402
from ksieve.distributed import Contiguous, Digits, Pairs, Samples, Shape, fused, plans, prepare, ranks  # noqa: E402
from ksieve.distributed.schedules import LINKS  # noqa: E402

ROWS, WIDTH, K = 4, 40, 8
RANKINGS = ({}, {"largest": False}, {"nan": "highest"})


def plan_of(device="cpu", schedule=Pairs(), output="owned", **options):  # noqa: B008
    shape = Shape(ROWS, K, 1, WIDTH)
    options = Options(**{"tie_break": "low"} | options)
    return plans.ShardPlan(
        0, (WIDTH,), Contiguous(), shape, "float32", device, options, output, "row", schedule, LINKS["nvlink"]
    )


class _SeenError(Exception):
    pass


def asked_by(monkeypatch, plan, **bounds):
    """Options of the selection that a call makes on its rank."""
    seen = []

    def select(scores, *, k, lengths=None, **keywords):
        seen.append(calls.parse(scores, lengths, k, given=flat(keywords)).problem.options)
        raise _SeenError

    monkeypatch.setattr(ranks, "distributed", lambda: torch.distributed)
    monkeypatch.setattr(ranks, "select", select)
    with pytest.raises(_SeenError):
        ranks.topk(torch.zeros(ROWS, WIDTH), plan=plan, **grouped(bounds))
    return seen[0]


@pytest.mark.parametrize("covered", [True, False])
def test_the_options_of_a_rank_s_own_selection(monkeypatch, covered):
    monkeypatch.setattr(fused, "covers", lambda _: covered)
    built = [compiled_options(o) for o in kernels.selections("any" if covered else "value")]
    vector = torch.ones(ROWS, dtype=torch.int32)
    found = []
    for ranking, tie_break in itertools.product(RANKINGS, ("low", "high")):
        for bounds in ({}, {"local_lengths": vector}, {"global_lengths": vector}, {"starts": vector, "ends": vector},
                       {"starts": vector, "global_lengths": vector.long()}, {"num_rows": 2}):  # fmt: skip
            options = asked_by(monkeypatch, plan_of(tie_break=tie_break, **ranking), **bounds)
            found.append(compiled_options(options))
            assert found[-1] in built, (options, bounds)
    assert all(options in found for options in built)


def test_sizes_for_any_number_of_ranks():
    ks = (1, 300, 2048, 4096, 5000)
    built = set(kernels.rank_kernels("sm_90a", ks, ["float32", "bfloat16"]))
    for k, world, step in itertools.product(ks, (1, 2, 8, 128), (None, 4, 32)):
        shape = Shape(ROWS, k, world, 1 << 20)
        schedule = Pairs() if step is None or step > k else Samples(step)
        plan = replace(plan_of("cuda", schedule), shape=shape, dtype="bfloat16")
        if fused.covers(plan):
            slots = max(k, schedule.slots(shape) if isinstance(schedule, Samples) else 0)
            for stem, ranking, few in itertools.product(
                kernels.STEMS, ("largest", "smallest", "nan_first"), (False, True)
            ):
                spec = kernels.rank_kernel(stem, "sm_90a", slots=slots, dtype="bfloat16", ranking=ranking, few=few)
                assert spec in built, (k, world, schedule)
    assert len(built) == 6 * 3 * 3 * 2 * 2, "six sizes, for few rows and for many"


@pytest.fixture
def driver(monkeypatch):
    yield from fake_backend(monkeypatch)


@pytest.mark.parametrize(
    ("schedule", "output", "between"),
    [(Pairs(), "owned", 2), (Samples(4), "owned", 3), (Digits(8), "owned", 0), (Pairs(), "global", 0)],
    ids=str,
)
def test_prepare_loads_the_kernels_of_a_plan(driver, schedule, output, between):
    plan = plan_of("cuda", schedule, output, nan="highest")
    assert prepare(plan) is plan
    assert sum(entry.startswith("ksieve_distributed_") for _, entry, _ in driver.loads) == between
    count = len(driver.loads)
    order = "any" if between else "value"
    for options in kernels.selections(order):
        if options.nan == "highest":
            dispatch.choose(Problem(ROWS, WIDTH, WIDTH, K, "float32", Device("cuda", 0), options)).prepare()
    for stem in kernels.STEMS[:: 4 - between] if between else ():
        slots = max(K, schedule.slots(plan.shape) if isinstance(schedule, Samples) else 0)
        kernels.load(stem, rows=ROWS, slots=slots, dtype="float32", ranking="nan_first", index=0)
    assert prepare(plan) is plan and len(driver.loads) == count > between


def test_on_the_cpu_there_is_nothing_to_prepare(driver):
    assert prepare(plan_of()).device == "cpu" and not driver.loads
