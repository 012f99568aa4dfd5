"""`ksieve.distributed` over NCCL, a process and a GPU for each rank: the answers of one GPU on whole rows."""

from __future__ import annotations

import itertools
import tempfile

import pytest
import torch

import ksieve
import ksieve.distributed as ranks
import rank_cases
from flat_calls import ask
from gpu import runner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")]
several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

LAYOUTS = (ranks.Contiguous(), ranks.Interleaved(1), ranks.Interleaved(64))
SCHEDULES = (None, ranks.Pairs(), ranks.Samples(8), ranks.Samples(32), ranks.Digits(8))


def worker(rank, world, folder, name):
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    globals()[name].scenario(rank, world)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def on_every_gpu(scenario):
    """Make a test of what each rank does."""

    @several
    def test():
        with tempfile.TemporaryDirectory() as folder:
            world = torch.cuda.device_count()
            torch.multiprocessing.spawn(worker, (world, folder, scenario.__name__), world)

    test.scenario = scenario
    return test


def whole_rows(seed, rows, width, dtype, kind):
    """The same rows on every rank."""
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(rows, width, generator=generator, device="cuda")
    if kind == "few values":
        x = (2 * x).round()
    elif kind == "not finite":
        wild = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0], device="cuda")
        some = torch.randint(0, 5, x.shape, generator=generator, device="cuda")
        x = torch.where(torch.rand(x.shape, generator=generator, device="cuda") < 0.4, wild[some], x)
    return x.to(dtype)


def lengths_of(seed, x):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, x.shape[1] + 2, x.shape[:1], generator=generator).int().cuda()


def shard_of(x, plan):
    places = plan.layout.positions(torch.arange(plan.width, device="cuda"), plan.rank, plan.widths)
    return x[:, places].contiguous(), places


def held(whole, places, sentinel=-1):
    """What of a selection from whole rows lies at these positions: ascending, then the sentinel; and counts."""
    mine = torch.isin(whole, places.int())
    kept = torch.where(mine, whole, 1 << 30).sort(1).values
    return torch.where(kept == 1 << 30, sentinel, kept), mine.sum(1).int()


@pytest.mark.parametrize("schedule", rank_cases.SCHEDULES, ids=str)
@pytest.mark.parametrize("layout", rank_cases.LAYOUTS)
def test_kernels_equal_the_operations_on_one_gpu(layout, schedule):
    for kind in rank_cases.KINDS:
        for rows in (5, 300):  # the kernels for few rows and for many
            assert rank_cases.check_kernels(layout, schedule, kind, "cuda", rows)


@on_every_gpu
def test_every_layout_and_schedule(rank, world):
    for number, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16)):
        for kind in ("normal", "few values", "not finite"):
            x = whole_rows(number, 37, 40_000, dtype, kind)
            lengths = lengths_of(number, x)
            for ties, largest in (("low", True), ("high", False)):
                options = {"tie_break": ties, "largest": largest, "nan": ("last", "highest")[number % 2]}
                right = ask(x, lengths, 2048, sorted="index", **options)
                for layout in LAYOUTS:
                    for schedule in SCHEDULES:
                        plan = ranks.plan(
                            rows=37, width=layout.widths(x.shape[1], world)[rank], k=2048, dtype=dtype, device="cuda",
                            layout=layout, schedule=schedule, **options,
                        )  # fmt: skip
                        shard, places = shard_of(x, plan)
                        found, counts = ranks.topk(shard, global_lengths=lengths, plan=plan)
                        wanted, many = held(right, places)
                        assert torch.equal(found, wanted) and torch.equal(counts, many), (dtype, kind, layout, schedule)


@on_every_gpu
def test_global_output_and_pages(rank, world):
    x = whole_rows(7, 9, 30_000, torch.float32, "few values")
    right = ksieve.topk(x, k=300, sorted="index", tie_break="low")
    for schedule in SCHEDULES:
        common = {"rows": 9, "k": 300, "device": "cuda", "schedule": schedule, "layout": ranks.Interleaved(16)}
        width = ranks.Interleaved(16).widths(x.shape[1], world)[rank]
        plan = ranks.plan(**common, width=width, output="global")
        shard, places = shard_of(x, plan)
        assert torch.equal(ranks.topk(shard, plan=plan), right)
        plan = ranks.plan(**common, width=width)
        table = torch.randperm(9 * (-(-width // 16)), device="cuda").int().view(9, -1)
        found, counts = ranks.topk(shard, plan=plan, transform=ksieve.PageTable(table, 16))
        local, many = held(right, places)
        index = torch.full((x.shape[1],), -1, dtype=torch.long, device="cuda")
        index[places] = torch.arange(width, device="cuda")
        at = index[local.clamp(min=0).long()]
        wanted = torch.where(local < 0, -1, table.gather(1, at.clamp(min=0) // 16) * 16 + at % 16)
        assert torch.equal(found, wanted.int()) and torch.equal(counts, many)


@on_every_gpu
def test_a_thousand_replays_of_a_graph(rank, world):
    rows, width, k = 16, 20_000, 512
    for schedule in (ranks.Pairs(), ranks.Samples(16)):
        plan = ranks.plan(
            rows=rows, width=ranks.Contiguous().widths(width, world)[rank], k=k, device="cuda", schedule=schedule
        )
        x = whole_rows(3, rows, width, torch.float32, "few values")
        shard, places = shard_of(x, plan)
        lengths = torch.full((rows,), width, dtype=torch.int32, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            ranks.topk(shard, global_lengths=lengths, plan=plan)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found, counts = ranks.topk(shard, global_lengths=lengths, plan=plan)
        for replay in range(500):
            x = whole_rows(replay, rows, width, torch.float32, ("normal", "few values", "not finite")[replay % 3])
            shard.copy_(x[:, places])
            lengths.copy_(lengths_of(replay, x))
            found.fill_(77)
            graph.replay()
            wanted, many = held(ksieve.topk(x, lengths, k, sorted="index", tie_break="low"), places)
            assert torch.equal(found, wanted) and torch.equal(counts, many), replay
        del graph


@on_every_gpu
def test_ranks_that_disagree(rank, world):
    """With plans whose messages are alike, eager and in graphs; a rank that fails; and without a plan."""
    rows, width, k = 12, 20_000, 512
    x = whole_rows(5, rows, width, torch.float32, "few values")
    whole = ksieve.topk(x, k=k, sorted="index", tie_break="low")
    other = {"num_rows": 6 + 2 * (rank == 1)}
    given = {"rows": rows, "width": ranks.Contiguous().widths(width, world)[rank], "k": k, "device": "cuda"}
    for schedule, output in itertools.product((ranks.Pairs(), ranks.Samples(16), ranks.Digits(8)), ("owned", "global")):
        plan = ranks.plan(**given, schedule=schedule, output=output)
        shard, places = shard_of(x, plan)
        disagree(plan, shard, held(whole, places) if output == "owned" else (whole,), other, rank == 1)
    for odd, error, message in (
        (other, ksieve.ArgumentError, "^num_rows: got 6 on rank 0 and 8 on rank 1; takes the same on every rank$"),
        ({"max_k": 4} if rank == 1 else {}, ksieve.ArgumentError if rank == 1 else ksieve.BackendError, "max_k: got 4"),
    ):
        with pytest.raises(error, match=message):
            ranks.topk(shard, k=k, **odd)
    assert all(map(torch.equal, ranks.topk(shard, k=k), held(whole, places)))


def disagree(plan, shard, right, other, is_odd):
    def call(scores=shard, **changes):
        answer = ranks.topk(scores, plan=plan, **changes)
        return answer if isinstance(answer, tuple) else (answer,)

    def check(answer, agreed):
        torch.cuda.synchronize()
        assert plan.disagreed == (not agreed), plan
        plan.flag(shard.device).zero_()
        empty = [torch.full_like(part, fill) for part, fill in zip(right, (-1, 0), strict=False)]
        assert all(map(torch.equal, answer, right if agreed else empty)), plan

    check(call(), True)
    check(call(**other), False)
    check(call(next_n=1 + is_odd), False)
    check(call(), True)
    if is_odd:
        with pytest.raises(ksieve.ArgumentError, match=r"^local_scores: got float32 of shape"):
            call(shard[:, 1:].contiguous())
        torch.cuda.synchronize()
        assert plan.disagreed
        plan.flag(shard.device).zero_()
    else:
        check(call(), False)
    stream, graphs = torch.cuda.Stream(), (torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph())
    with torch.cuda.stream(stream):
        call(**other)
    stream.synchronize()
    with torch.cuda.graph(graphs[0], stream=stream):
        none = call(**other)
    with torch.cuda.graph(graphs[1], stream=stream):
        same = call()
    plan.flag(shard.device).zero_()
    for graph, answer in zip(graphs * 3, (none, same) * 3, strict=True):
        for part in answer:
            part.fill_(77)
        graph.replay()
        check(answer, answer is same)
