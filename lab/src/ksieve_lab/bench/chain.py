"""Score production and selection in one CUDA graph, over the terminal scheduler step of long requests.

The step's invocations run in order, as a framework issues them, into one score buffer of the framework's budget. A
chain and its score production alone, which stores the matrix, are timed; the difference is the selection's share, below
zero where a way without the matrix takes less. Both are
graphs of the same process, replayed in rotated rounds. Afterwards the scores of every invocation are produced once
more and its answer is verified against them: production is deterministic.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.planning.tune import timing
from ksieve.planning.tune.tasks import MEMORY, PITCH_BYTES, require_device
from ksieve.planning.tune.timing import Contender, Timing
from ksieve_lab.bench import floor, runner
from ksieve_lab.bench.chain_selectors import NOT_STORED, Selector, Stage, selectors, without_matrix
from ksieve_lab.bench.runner import Facts, Live, Settings
from ksieve_lab.bench.shape_lists import prompt_of
from ksieve_lab.chain import producers
from ksieve_lab.chain.producers import Produce
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
    """Measure the chain of every request.

    Raises
    ------
    BackendError
        Without a GPU, PyTorch or the producer.
    """
    device, listed = require_device(), cases(settings)
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

    width = max(c.width for c in calls)
    pitch = -(-width * 4 // PITCH_BYTES) * PITCH_BYTES // 4
    most = max(c.rows for c in calls)
    facts: dict[str, Any] = {"width": width, "calls": [[c.rows, c.width] for c in calls]}
    free = int(torch.cuda.mem_get_info()[0] * MEMORY)
    needed = most * pitch * 4 + sum(c.rows for c in calls) * (heads * settings.fixed["dim"] + 3 * 4 * settings.k)
    if needed > free:
        return facts | {"skipped": f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB may be used"}
    buffer = torch.empty(most, pitch, dtype=torch.float32, device=DEVICE)
    dim, k, seed = settings.fixed["dim"], settings.k, settings.seed
    keys = producers.make_keys(width, dim, seed=seed, device=DEVICE)
    stages = []
    for number, call in enumerate(calls):
        factors = producers.make_queries(keys, call.lengths(), heads, seed=seed + number, device=DEVICE)
        stages.append(Stage(factors, buffer[: call.rows, :width]))
    chosen, skipped = selectors(stages, k, settings.peers)
    without, alone = without_matrix(stages, k, produce)
    chosen += without
    timings = _measure(stages, produce, chosen, alone, settings.rounds, settings.torch_rounds, device)
    read_bytes = sum(c.valid_scores for c in calls) * 4
    operations = sum(stage.factors.operations for stage in stages)
    return facts | summarise(timings, chosen, read_bytes, operations) | {"skipped_peers": skipped}


def _measure(
    stages: Sequence[Stage],
    produce: Produce,
    selectors: Sequence[Selector],
    alone: Sequence[Contender],
    rounds: int,
    slow_rounds: int,
    device: DeviceInfo,
) -> list[Timing]:
    """Time the reads, the score production with and without masks, and every chain."""

    def produced(masked: bool, then: Callable[[int], Any] = lambda i: None) -> Any:
        found = []
        for i, stage in enumerate(stages):
            _place(produce(stage.factors, stage.scores, masked), stage)
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
        readers = [floor.Reader(kernel, s.scores, s.lengths, device) for s in stages]
        contenders.append(Contender(f"read {kernel.name}", partial(read, readers)))
    contenders += [Contender("scores", lambda _: produced(False)), *alone]
    if any(s.masked for s in selectors):
        contenders.append(Contender("masked scores", lambda _: produced(True), rounds=slow_rounds))
    for s in selectors:
        slow = slow_rounds if s.masked else None
        contenders.append(Contender(s.name, partial(chain, s), partial(exact, s), s.poison, slow))
    return timing.measure(contenders, 1, 1 << 40, rounds=rounds, most_replays=1)


def _place(scores: Any, stage: Stage) -> None:
    """Bring scores of a producer with memory of its own to where the selectors look: part of producing them."""
    if scores.data_ptr() != stage.scores.data_ptr():
        stage.scores.copy_(scores)


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
    if NOT_STORED in by_name:
        facts["not_stored_ms"] = by_name[NOT_STORED].median / 1e3
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
