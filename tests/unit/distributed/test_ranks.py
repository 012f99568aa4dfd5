"""Processes over gloo: the answers of `ksieve.topk` on whole rows, the same bytes on any number of ranks."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import ksieve
from cases import scores_of
from ksieve import dispatch
from ksieve.core.device import DEVICES
from sharded import expected

torch = pytest.importorskip("torch")

import ksieve.distributed as ranks  # noqa: E402

LAYOUTS = (ranks.Contiguous(), ranks.Interleaved(1), ranks.Interleaved(7))
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def tensor_of(scores, dtype):
    if dtype == "bfloat16":
        return torch.from_numpy(scores.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(scores)


def shard(x, layout, rank, world):
    widths = layout.widths(x.shape[1], world)
    columns = torch.from_numpy(layout.positions(np.arange(widths[rank]), rank, widths))
    return x[:, columns].contiguous(), widths, columns


def check_owned(answer, want, columns, shown=None):
    indices, counts = answer
    assert indices.dtype is counts.dtype is torch.int32
    held = {p: i for i, p in enumerate(columns.tolist())}
    for r, row in enumerate(want):
        mine = [p for p in row if p in held]
        mine = [held[p] for p in mine] if shown == "shard" else mine
        assert counts[r] == len(mine)
        assert indices[r].tolist() == mine + [-1] * (indices.shape[1] - len(mine)), r


# ---- scenarios: every rank runs them ------------------------------------------------------------------------


def every_layout_and_schedule(world, rank):
    width, k, rows = 230, 40, 5
    lengths = torch.tensor([230, 100, 39, 0, -3], dtype=torch.int32)
    for number, (layout, dtype) in enumerate((a, b) for a in LAYOUTS for b in DTYPES):
        scores = scores_of(("few_values", "some_nan", "normal")[number % 3], rows, width, k, dtype)
        x = tensor_of(scores, dtype)
        local, widths, columns = shard(x, layout, rank, world)
        want = expected(scores, k, end=lengths.numpy())
        whole = ksieve.topk(x, lengths, k, deterministic=True)
        for schedule in (None, ranks.Pairs(), ranks.Samples(6), ranks.Digits(8)):
            given = {"rows": rows, "width": widths[rank], "k": k, "dtype": x.dtype, "layout": layout}
            plan = ranks.plan(**given, schedule=schedule)
            assert plan.widths == widths and plan.shape.world == world and (schedule or plan.schedule) == plan.schedule
            check_owned(ranks.topk(local, global_lengths=lengths, plan=plan), want, columns)
            plan = ranks.plan(**given, schedule=schedule, output="global")
            found = ranks.topk(local, global_lengths=lengths.long(), plan=plan)
            assert found.dtype is torch.int32 and torch.equal(found, whole)


def options_of_a_call(world, rank):
    rows, width, k = 6, 150, 30
    for number, layout in enumerate(LAYOUTS):
        scores = scores_of("some_nan" if number else "few_values", rows, width, k)
        local, widths, columns = shard(torch.from_numpy(scores), layout, rank, world)
        starts = torch.tensor([0, 5, 149, -4, 200, 20], dtype=torch.int32)
        ends = torch.tensor([150, 9, 150, 60, 300, 10], dtype=torch.int32)
        call = {"bounds": ksieve.RowBounds(starts), "layout": layout}
        want = expected(scores, k, starts.numpy(), ends.numpy())
        check_owned(ranks.topk(local, k=k, bounds=ksieve.RowBounds(starts, ends), layout=layout), want, columns)
        lengths = torch.tensor([10, 3, 9, 70, 5, -1])
        stop = np.clip(starts.numpy(), 0, width) + np.maximum(lengths.numpy(), 0)
        want = expected(scores, k, starts.numpy(), stop)
        check_owned(ranks.topk(local, k=k, global_lengths=lengths, index_base="shard", **call), want, columns, "shard")
        for options in ({"tie_break": "high"}, {"largest": False}, {"nan": "highest"}):
            want = expected(scores, k, **options)
            check_owned(ranks.topk(local, k=k, layout=layout, **options), want, columns)
        ks = torch.tensor([0, 1, 30, 31, -5, 12], dtype=torch.int32)
        check_owned(ranks.topk(local, k=ks, max_k=k, layout=layout), expected(scores, k, ks=ks.numpy()), columns)
        requests = torch.tensor([150, 4, 0], dtype=torch.int32)
        want = expected(scores, k, end=np.repeat(requests.numpy(), 2) - np.array([1, 0] * 3))
        call = {"global_lengths": requests, "bounds": ksieve.RowBounds(next_n=2), "layout": layout}
        check_owned(ranks.topk(local, k=k, **call), want, columns)
        for live in (2, np.int64(2), torch.tensor([2], dtype=torch.int32)):
            want = expected(scores, k, end=np.array([width, width, 0, 0, 0, 0]))
            check_owned(ranks.topk(local, k=k, layout=layout, num_rows=live), want, columns)
        for live in (2**63, 2**64, -(2**64), np.int64(2**40)):
            want = expected(scores, k) if live > 0 else [[]] * rows
            check_owned(ranks.topk(local, k=k, layout=layout, num_rows=live), want, columns)
        table = torch.arange(40, dtype=torch.int32).reshape(2, 20).flip(1)
        requests = torch.tensor([0, 1, 2, -1, 1, 0], dtype=torch.int32)
        paged, counts = ranks.topk(
            local, k=k, layout=layout, transform=ksieve.PageTable(table, 4, requests), index_base="row"
        )
        flat, same = ranks.topk(local, k=k, layout=layout, index_base="shard")
        assert torch.equal(counts, same)
        for r, request in enumerate(requests.tolist()):
            for i, slot in zip(flat[r].tolist(), paged[r].tolist(), strict=True):
                known = i >= 0 and 0 <= request < 2 and i // 4 < 20
                assert slot == (int(table[request, i // 4]) * 4 + i % 4 if known else -1)
        nothing, _ = ranks.topk(local, k=k, layout=layout, transform=ksieve.PageTable(table[:, :0].contiguous()))
        assert (nothing == -1).all()
        # Lengths of the shard: what lies past them is no part of the row.
        lengths = torch.full((rows,), widths[rank] // 2, dtype=torch.int32)
        kept = np.concatenate([layout.positions(np.arange(w // 2), i, widths) for i, w in enumerate(widths)])
        few = np.sort(kept)
        want = [[int(few[p]) for p in row] for row in expected(np.ascontiguousarray(scores[:, few]), k)]
        check_owned(ranks.topk(local, lengths, k, layout=layout), want, columns)


def without_rows_or_scores(world, rank):
    """A rank without scores takes part; a call without rows ends on every rank; k above every width."""
    x = torch.arange(20, dtype=torch.float32).reshape(2, 10)
    local = x if rank == 0 else x[:, :0]
    columns = torch.arange(10 if rank == 0 else 0)
    check_owned(ranks.topk(local, k=4), [[6, 7, 8, 9]] * 2, columns)
    check_owned(ranks.topk(local, k=25), [list(range(10))] * 2, columns)
    assert ranks.topk(local, k=4, output="global").tolist() == [[6, 7, 8, 9]] * 2
    indices, counts = ranks.topk(local[:0], k=4)
    assert indices.shape == (0, 4) and counts.shape == (0,)
    nothing = ranks.topk(x[:, :0], k=3, output="global")
    assert nothing.tolist() == [[-1] * 3] * 2


def a_group_of_some_ranks(world, rank):
    dist = torch.distributed
    group = dist.new_group([0, 2])
    if rank in (0, 2):
        x = torch.full((2, 5), float(rank))
        plan = ranks.plan(rows=2, width=5, k=4, group=group)
        assert (plan.rank, plan.shape.world) == (rank // 2, 2)
        assert ranks.topk(x, plan=plan)[1].tolist() == [4 * (rank == 2)] * 2
        assert ranks.topk(x, k=4, group=group, output="global").tolist() == [[5, 6, 7, 8]] * 2
    else:
        with pytest.raises(ksieve.ArgumentError, match="a process group without this rank"):
            ranks.plan(rows=2, width=5, k=4, group=group)


@pytest.mark.parametrize(
    ("world", "scenario"),
    [
        (1, every_layout_and_schedule), (1, options_of_a_call), (2, every_layout_and_schedule), (2, options_of_a_call),
        (3, without_rows_or_scores), (3, a_group_of_some_ranks),
    ],
)  # fmt: skip
def test_answers_of_ranks(processes, world, scenario):
    assert processes(world).run(partial(scenario, world), 120) == [None] * world


def test_without_a_process_group():
    for call in (lambda: ranks.topk(torch.zeros(2, 2), k=1), lambda: ranks.plan(rows=2, width=2, k=1)):
        with pytest.raises(ksieve.BackendError, match="there is no process group: torch"):
            call()


def test_a_device_without_tensors_of_pytorch(monkeypatch):
    """A GPU that is present is of no use to a PyTorch without CUDA."""
    monkeypatch.setattr(dispatch, "device_info", lambda device: DEVICES["h200"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ksieve.BackendError, match=r"^PyTorch .* has no CUDA here: install a build of it with CUDA"):
            ranks.plan(rows=4, width=100, k=3, device="cuda")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("plan", ["x", None, 3])
def test_only_a_plan_is_prepared(plan):
    with pytest.raises(ksieve.ArgumentError, match=r"^plan: got .*; takes a plan from ksieve\.distributed\.plan"):
        ranks.prepare(plan)


def test_keys_are_those_of_the_package():
    """Ordered keys of PyTorch are those of the NumPy model, for every ranking and dtype."""
    from ksieve.core.keys import order_key, widen
    from ksieve.core.ranking import RANKINGS, ranked
    from ksieve.distributed.ranks import ordered_keys

    for dtype in DTYPES:
        scores = scores_of("random_bits", 4, 4000, 9, dtype)
        for ranking in RANKINGS:
            ours = ordered_keys(tensor_of(scores, dtype), ranking).numpy().ravel()
            theirs = order_key(widen(ranked(scores, ranking))).astype(np.int64).ravel()
            assert ours.min() >= 0 and ours.max() < 1 << (32 if dtype == "float32" else 16)
            if ranking != "nan_first" and dtype == "float32":
                np.testing.assert_array_equal(ours, theirs)
            places = [np.unique(keys, return_inverse=True)[1] for keys in (ours, theirs)]
            np.testing.assert_array_equal(*places)


@pytest.mark.parametrize("schedule", [ranks.Pairs(), ranks.Samples(4), ranks.Digits(8)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS[::2], ids=str)
@pytest.mark.parametrize("output", ["owned", "global"])
def test_nothing_is_read_back(schedule, layout, output):
    """Tensors without contents take the same steps: no value decides a shape or a branch, as a CUDA graph needs."""
    from ksieve.distributed.protocol import AllGather, agree, everywhere

    x = torch.empty((6, 16), dtype=torch.int64, device="meta")
    shape = ranks.Shape(6, 16, 3, 1000, 32, isinstance(layout, ranks.Contiguous))
    ks = x[:, 0]

    def run(steps):
        answer = None
        while True:
            try:
                ask = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            array = ask.array
            answer = array.new_empty((3, *array.shape)) if isinstance(ask, AllGather) else array.contiguous()

    agreed = run(agree(schedule, shape, 1, x, ks))
    assert agreed.count.shape == (6,) and agreed.count.is_meta
    if output == "global":
        assert run(everywhere(shape, 1, x, agreed, ks)).shape == (6, 16)
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool((x > 0).any())
