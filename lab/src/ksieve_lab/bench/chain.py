"""Score production and selection in one CUDA graph, over the terminal scheduler step of long requests.

The step's invocations run in order, as a framework issues them, into one score buffer of the framework's budget. A
chain is timed, and its score production alone, which stores the matrix. The difference is the selection's share. It is
below zero where a way without the matrix takes less. Both are graphs of the same process, replayed in rotated rounds.
Afterwards the scores of every invocation are produced once more and its answer is verified against them: production is
deterministic.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ksieve import api
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.tuning import tasks, timing
from ksieve.tuning.tasks import Task
from ksieve.tuning.timing import Contender, Timing
from ksieve.tuning.variants import PLANNED
from ksieve_lab.bench import floor, peers, runner
from ksieve_lab.bench.engine_calls import UnsupportedError
from ksieve_lab.bench.runner import Facts, Live, Settings
from ksieve_lab.bench.shape_lists import prompt_of
from ksieve_lab.chain import producers, ways
from ksieve_lab.chain.producers import Factors, Produce
from ksieve_lab.traces.serving import BUDGET_BYTES, STEP_TOKENS, Invocation, invocations

PAPER = {
    "245K": {
        "select_ms": {"SGLang V2": 27.41, "HPC-Ops": 18.15},
        "chain_ms": {"SGLang V2": 339.99, "HPC-Ops": 330.84},
    },
    "430K": {
        "select_ms": {"SGLang V2": 38.01, "HPC-Ops": 24.06},
        "chain_ms": {"SGLang V2": 488.01, "HPC-Ops": 474.70},
    },
}
"""Milliseconds of the terminal step on an H20 with DeepGEMM's producer: paper, "Score-and-select integration"."""

DEVICE = "cuda"

TILES, CANDIDATES = "ksieve, tiles", "ksieve, candidates"
"""Ways without the matrix."""

Stage = tuple[Factors, Task]
"""One invocation of the chain: its factors, and the scores and lengths that are selected from."""

_Way = TypeVar("_Way", bound=ways.Tiles)


@dataclass(frozen=True)
class Selector:
    """A selection for every stage.

    `parts`: of each stage, selects from its scores, and verifies the answer while they are in the buffer. `masked`: it
    needs -inf past every length. `whole`: in place of `parts`, produces the scores of all stages and selects from them,
    without the matrix. `bytes`: its memory besides factors and answers.
    """

    name: str
    parts: Sequence[Contender]
    masked: bool = False
    whole: Callable[[], None] | None = None
    bytes: int | None = None

    def exact(self, i: int) -> bool:
        """Whether the answer of stage `i` is exact."""
        check = self.parts[i].check
        return check is not None and check(0)

    def poison(self, _: int = 0) -> None:
        """Overwrite all answers."""
        for part in self.parts:
            if part.poison is not None:
                part.poison(0)


def terminal_step(prompt: int, *, step_tokens: int = STEP_TOKENS, budget_bytes: int = BUDGET_BYTES) -> list[Invocation]:
    """Invocations of the last scheduler step of a prefill."""
    made = invocations(prompt, step_tokens=step_tokens, budget_bytes=budget_bytes)
    return [i for i in made if i.step == made[-1].step] if made else []


def cases(settings: Settings) -> list[tuple[str, list[Invocation]]]:
    """Requests with the calls of their last step, after a look at the indexer's shape."""
    fixed = settings.fixed
    heads = settings.shapes.how or str(fixed["heads"])
    if not heads.isdecimal() or int(heads) < 1 or int(heads) & (int(heads) - 1):
        raise ArgumentError("shapes", repr(heads), "heads of the indexer after the colon: a power of two")
    return [
        (name, terminal_step(prompt, step_tokens=fixed["step_tokens"], budget_bytes=fixed["budget_bytes"]))
        for name, prompt in settings.shapes.items
    ]


def measure(settings: Settings, live: Live) -> Facts:
    """Measure the chain of every request; `BackendError` without a GPU, PyTorch or the producer."""
    device, listed = tasks.require_device(), cases(settings)
    produce = producers.load(settings.fixed["producer"])
    heads = int(settings.shapes.how or settings.fixed["heads"])

    def request(case: tuple[str, list[Invocation]]) -> Facts:
        prompt = {"request": case[0], "prompt": prompt_of(case[0])}
        return prompt | _request(case[1], settings, heads, produce, device)

    with live.phase("measuring", "requests") as progress:
        found = runner.over(listed, request, progress, None)
    written: Any = {"requests": [name for name, _ in listed], "shapes": None, "heads": heads}
    return settings.payload({"requests": found, "paper": PAPER}, **written)


def _request(
    calls: Sequence[Invocation], settings: Settings, heads: int, produce: Produce, device: DeviceInfo
) -> Facts:
    import torch

    width, most = max(c.width for c in calls), max(c.rows for c in calls)
    pitch, dim, k, seed = tasks.pitch_of(width, 4), settings.fixed["dim"], settings.k, settings.seed
    facts: dict[str, Any] = {"width": width, "calls": [[c.rows, c.width] for c in calls]}
    free = int(torch.cuda.mem_get_info()[0] * tasks.MEMORY)
    needed = most * pitch * 4 + sum(c.rows for c in calls) * (heads * dim + 3 * 4 * k)
    if needed > free:
        return facts | {"skipped": f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB may be used"}
    buffer = torch.empty(most, pitch, dtype=torch.float32, device=DEVICE)
    keys = producers.make_keys(width, dim, seed=seed, device=DEVICE)
    stages: list[Stage] = []
    for number, call in enumerate(calls):
        factors = producers.make_queries(keys, call.lengths(), heads, seed=seed + number, device=DEVICE)
        stages.append((factors, Task([buffer[: call.rows, :width]], factors.lengths, k)))
    chosen, skipped = selectors([task for _, task in stages], settings.peers, device)
    chosen += _without_matrix(stages, produce)
    timings = _measure(stages, produce, chosen, settings, device)
    read_bytes = sum(c.valid_scores for c in calls) * 4
    operations = sum(factors.operations for factors, _ in stages)
    return facts | summarise(timings, chosen, read_bytes, operations) | {"skipped_peers": skipped}


def selectors(
    listed: Sequence[Task], others: Sequence[str] | None, device: DeviceInfo
) -> tuple[list[Selector], dict[str, str]]:
    """Ours, then every peer that can do all stages."""
    ours = []
    for task in listed:  # a task for each stage: stages differ in rows and lengths
        pitch = task.matrices[0].stride(0)
        plan = api.plan(rows=task.rows, width=task.width, k=task.k, pitch=pitch, device=device)
        ours.append(tasks.selector(PLANNED, plan, task))
    found = [Selector(PLANNED.name, ours)]
    loaded, skipped = peers.available(others)
    for peer, own in loaded:
        # Scores past a length are -inf for a selector that knows none, so that only valid ones may be chosen.
        try:
            parts = [peers.contender(peer, own, task) for task in listed]
            found.append(Selector(peer.name, parts, masked=peer.call.whole))
        except UnsupportedError as error:
            skipped[peer.name] = str(error)
    return found, skipped


def _without_matrix(stages: Sequence[Stage], produce: Produce) -> list[Selector]:
    """Tiles and candidates; neither where Triton is missing."""
    if not producers.installed("triton"):
        return []
    factors, keep, k = ways.joined([factors for factors, _ in stages]), producers.load_keep(), stages[0][1].k
    kept, kept_bytes = _made(lambda: ways.Kept(factors, k, produce, keep))
    tiles, tiles_bytes = _made(lambda: ways.Tiles(factors, k, produce))
    return [_whole(TILES, tiles, stages, tiles_bytes), _whole(CANDIDATES, kept, stages, kept_bytes)]


def _made(make: Callable[[], _Way]) -> tuple[_Way, int]:
    """A way that has run once, and the most memory that it took besides factors and answers."""
    import torch

    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    way = make()
    way.run()
    return way, torch.cuda.max_memory_allocated() - before - way.out.nbytes


def _whole(name: str, way: ways.Tiles, stages: Sequence[Stage], size: int) -> Selector:
    from ksieve.checking.verify import verify

    def part(task: Task, out: Any) -> Contender:
        check = lambda _: verify(task.matrices[0], task.lengths, out, block_bytes=tasks.VERIFY_BYTES).ok  # noqa: E731
        return Contender(name, lambda _: None, check, lambda _: out.fill_(tasks.POISON))

    ends = itertools.accumulate(task.rows for _, task in stages)
    parts = [part(task, way.out[end - task.rows : end]) for (_, task), end in zip(stages, ends, strict=True)]
    return Selector(name, parts, whole=way.run, bytes=size)


def _measure(
    stages: Sequence[Stage], produce: Produce, selectors: Sequence[Selector], settings: Settings, device: DeviceInfo
) -> list[Timing]:
    """Time the reads, the score production with and without masks, and every chain."""

    def produced(masked: bool, then: Callable[[int], Any] = lambda i: None) -> Any:
        found = []
        for i, (factors, task) in enumerate(stages):
            (into,) = task.matrices
            scores = produce(factors, into, masked)
            if scores.data_ptr() != into.data_ptr():  # a producer with memory of its own: a copy is part of producing
                into.copy_(scores)
            found.append(then(i))
        return found

    def chain(selector: Selector, _: int) -> None:
        if selector.whole is not None:
            selector.whole()
        else:
            produced(selector.masked, lambda i: selector.parts[i].run(0))

    def exact(selector: Selector, _: int) -> bool:
        return all(produced(selector.masked, selector.exact))

    def read(readers: list[floor.Reader], _: int) -> None:
        for reader in readers:
            reader()

    contenders = []
    for kernel in floor.available(device):
        readers = [floor.Reader(kernel, task.matrices[0], task.lengths, device) for _, task in stages]
        contenders.append(Contender(f"read {kernel.name}", partial(read, readers)))
    contenders.append(Contender("scores", lambda _: produced(False)))
    if any(s.masked for s in selectors):
        contenders.append(Contender("masked scores", lambda _: produced(True), rounds=settings.torch_rounds))
    for s in selectors:
        slow = settings.torch_rounds if s.masked else None
        contenders.append(Contender(s.name, partial(chain, s), partial(exact, s), s.poison, slow))
    return timing.measure(contenders, 1, 1 << 40, rounds=settings.rounds, most_replays=1)


def summarise(
    timings: Sequence[Timing], selectors: Sequence[Selector], read_bytes: int, operations: int
) -> dict[str, Any]:
    """Turn clock readings into milliseconds: the floor, score production, and per selector the chain and its share."""
    by_name = {t.name: t for t in timings}
    reads = [t for t in timings if t.name.startswith("read ") and t.rounds]
    least = min(reads, key=lambda t: t.median, default=Timing("none"))
    scores = by_name["scores"]
    facts: dict[str, Any] = {
        "read_bytes": read_bytes,
        "floor_ms": least.median / 1e3,
        "floor_kernel": least.name.removeprefix("read "),
        "scores": scores.facts() | {"ms": scores.median / 1e3, "teraflops": operations / scores.median / 1e6},
        "selectors": {},
    }
    for selector in selectors:
        timed = by_name[selector.name]
        alone = by_name["masked scores"] if selector.masked else scores
        entry = timed.facts() | ({} if selector.bytes is None else {"bytes": selector.bytes})
        if timed.rounds and alone.rounds:
            # Round by round: both sides of the difference saw the same clocks.
            select = statistics.median(a - b for a, b in zip(timed.rounds, alone.rounds, strict=False)) / 1e3
            entry |= {
                "chain_ms": timed.median / 1e3,
                "select_ms": select,
                "select_share": select / (timed.median / 1e3),
                "of_floor": least.median / 1e3 / select if select > 0 else None,
            }
        facts["selectors"][selector.name] = entry
    return facts
