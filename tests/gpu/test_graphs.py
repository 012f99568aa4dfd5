"""Graph replays with changing scores, lengths and live rows; streams side by side; captures that must be refused."""

from __future__ import annotations

import pytest
import torch

import ksieve
from gpu import material, runner
from gpu.variants import ALL, VARIANTS, possible, small_storage
from ksieve.core.errors import BackendError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")]

REPLAYS, AT_ONCE = 1000, 50
K, WIDTH, ROWS = 512, 20_003, 64
NAMES = ("persistent-64", "persistent-128", "persistent-tied", "split-4", "split-8-tied", "row", "cluster",
         "cooperative", "persistent-exact")  # fmt: skip
"""One plan of each family at least."""


def kernels():
    for name in NAMES:
        yield from ((p, False) for p in possible(ALL[name], ROWS, WIDTH, K))


def pool():
    """Matrices to replay on: rows of all value families in another order each time; int32 bits."""
    bits = material.on_device(WIDTH, K, 4, "float32", "cuda")
    generator = torch.Generator(device="cuda").manual_seed(11)
    order = torch.randint(len(bits), (12, ROWS), device="cuda", generator=generator)
    return bits, order


class Load:
    """Inputs of one stream at fixed addresses, and the answers, which are judged at last: nothing waits for them."""

    def __init__(self, seed):
        self.bits, self.order = pool()
        self.generator = torch.Generator(device="cuda").manual_seed(seed)
        self.scores = torch.empty(ROWS, WIDTH + 1, device="cuda")[:, :WIDTH]
        self.lengths = torch.empty(ROWS, dtype=torch.int32, device="cuda")
        self.live = torch.empty(1, dtype=torch.int32, device="cuda")
        self.target = runner.Guarded.make(ROWS, K, padding=1)
        self.outside = torch.zeros((), dtype=torch.int64, device="cuda")
        self.answers = []

    def change(self, turn):
        """Put other scores, lengths and a live row count in place; enqueued, never waited for."""
        self.scores.view(torch.int32).copy_(self.bits[self.order[turn % len(self.order)]])
        self.lengths.random_(-5, WIDTH + 20, generator=self.generator)
        self.lengths[turn % ROWS :: 7] = WIDTH
        self.live.random_(-2, ROWS + 3, generator=self.generator)
        self.target.poison()

    def keep(self, turn):
        """Keep an answer, and the lengths of its live rows; enqueued, never waited for."""
        lengths = torch.where(torch.arange(ROWS, device="cuda") < self.live, self.lengths, 0)
        self.answers.append((self.order[turn % len(self.order)], lengths, self.target.out.clone()))
        self.outside += ((self.target.memory != runner.BYTE) & ~self.target.inside).sum()

    def wrong(self):
        """What is wrong with the answers that were kept."""
        found = ["memory around the output was written"] * bool(self.outside)
        for first in range(0, len(self.answers), AT_ONCE):
            rows, lengths, out = map(torch.cat, zip(*self.answers[first : first + AT_ONCE], strict=True))
            found += runner.refuted(self.bits[rows].view(torch.float32), lengths, out, K)
        return found


@pytest.mark.parametrize("name", NAMES)
def test_a_thousand_replays(name, tally):
    load = Load(3)
    load.change(0)
    plan = runner.plan_for(ALL[name], load.scores, K).prepare()
    workspace = runner.dirty_workspace(plan)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        ksieve.topk(load.scores, load.lengths, plan=plan, out=load.target.out, workspace=workspace, num_rows=load.live)
    for turn in range(REPLAYS):
        load.change(turn)
        graph.replay()
        load.keep(turn)
    wrong = load.wrong()
    tally.judge(name, ROWS * REPLAYS, wrong)


@pytest.mark.parametrize("name", NAMES)
def test_capture_without_a_workspace_of_ones_own(name, tally):
    """The workspace then comes from the graph's own memory pool, zeroed by the graph."""
    load = Load(4)
    load.change(0)
    plan = runner.plan_for(ALL[name], load.scores, K).prepare()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ksieve.topk(load.scores, load.lengths, plan=plan, num_rows=load.live)
    for turn in range(20):
        load.change(turn)
        graph.replay()
        load.target.out.copy_(out)
        load.keep(turn)
    wrong = load.wrong()
    tally.judge(name, ROWS * 20, wrong)


@pytest.mark.parametrize("own", [True, False], ids=["own workspaces", "implicit workspaces"])
@pytest.mark.parametrize("name", NAMES)
def test_two_streams_at_once(name, own, tally):
    loads, streams = [Load(seed) for seed in (5, 6)], [torch.cuda.Stream() for _ in range(2)]
    plan = runner.plan_for(ALL[name], loads[0].scores, K).prepare()
    spaces = [runner.dirty_workspace(plan) if own else None for _ in loads]
    torch.cuda.synchronize()
    for turn in range(60):
        for load, stream, workspace in zip(loads, streams, spaces, strict=True):
            with torch.cuda.stream(stream):
                load.change(turn)
                ksieve.topk(
                    load.scores, load.lengths, plan=plan, out=load.target.out, workspace=workspace, num_rows=load.live
                )
                load.keep(turn)
    torch.cuda.synchronize()
    wrong = [text for load in loads for text in load.wrong()]
    tally.judge(name, 2 * 60 * ROWS, wrong)


def test_kernels_are_not_compiled_during_a_capture():
    scores = torch.randn(3, 5000, device="cuda")
    plan = small_storage(VARIANTS["persistent-exact"].plan(3, 5000, 7), 256 * 3, 256 * 5)  # nobody else's capacities
    workspace, out = plan.workspace(), torch.empty(3, 7, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(BackendError, match=r"warm up first.*plan\.prepare\(\)"):
        ksieve.topk(scores, plan=plan, out=out, workspace=workspace)
    plan.prepare()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        ksieve.topk(scores, plan=plan, out=out, workspace=workspace)


def test_replays_allocate_and_synchronise_nothing():
    """With plan, workspace and output given, PyTorch's allocator is not asked, and sync points raise."""
    load = Load(8)
    load.change(0)
    plan = runner.plan_for(VARIANTS["persistent-128"], load.scores, K).prepare()
    workspace, out = plan.workspace(), load.target.out
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            ksieve.topk(load.scores, load.lengths, plan=plan, out=out, workspace=workspace, num_rows=load.live)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
