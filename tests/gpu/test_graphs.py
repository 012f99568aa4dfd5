"""Graph replays with changing scores, lengths and live rows; streams side by side; captures that must be refused."""

from __future__ import annotations

import contextlib

import pytest
import torch

import ksieve
from flat_calls import ask
from gpu import material, runner
from gpu.variants import ALL, VARIANTS, banded, small_storage
from ksieve.core.errors import ArgumentError, BackendError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")]

AT_ONCE = 50
K, WIDTH, ROWS = 512, 20_003, 64
NAMES = ("persistent-64", "persistent-128", "persistent-tied", "split-4", "split-8-tied", "row", "cluster",
         "cooperative", "persistent-exact", "banded")  # fmt: skip
"""One plan of each family at least, and rows that each replay deals anew to launches by their length."""


def plan_of(name):
    return banded(ROWS, WIDTH, K, ctas=3) if name == "banded" else ALL[name].plan(ROWS, WIDTH, K, pitch=WIDTH + 1)


def kernels():
    for name in NAMES:
        with contextlib.suppress(ArgumentError):  # which its own tests report
            yield plan_of(name), False


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


@pytest.mark.parametrize(("own", "replays"), [(True, 1000), (False, 20)], ids=["own workspace", "implicit workspace"])
@pytest.mark.parametrize("name", NAMES)
def test_replays(name, own, replays, tally):
    """A workspace that is not one's own comes from the graph's memory pool, zeroed by the graph; so do outputs."""
    load = Load(3)
    load.change(0)
    plan = plan_of(name).prepare()
    given = {"out": load.target.out, "workspace": runner.dirty_workspace(plan)} if own else {}
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = ask(load.scores, load.lengths, plan=plan, num_rows=load.live, **given)
    for turn in range(replays):
        load.change(turn)
        graph.replay()
        if not own:
            load.target.out.copy_(out)
        load.keep(turn)
    tally.judge(name, ROWS * replays, load.wrong())


@pytest.mark.parametrize("own", [True, False], ids=["own workspaces", "implicit workspaces"])
@pytest.mark.parametrize("name", NAMES)
def test_two_streams_at_once(name, own, tally):
    loads, streams = [Load(seed) for seed in (5, 6)], [torch.cuda.Stream() for _ in range(2)]
    plan = plan_of(name).prepare()
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
