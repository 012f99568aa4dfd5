"""Blocks, pools and forced entries in one call, compared with PyTorch operations around a selector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ksieve.core.errors import ArgumentError
from ksieve.planning.plan import Plan
from ksieve.tuning import tasks
from ksieve.tuning.timing import Contender
from ksieve_lab.bench import block_rows, calls, floor, gpu, runner, scores, torch_steps
from ksieve_lab.bench.gpu import Here
from ksieve_lab.bench.host_timing import measure_host
from ksieve_lab.bench.runner import Facts, Live, Settings
from ksieve_lab.bench.scores import in_blocks
from ksieve_lab.bench.torch_steps import Steps

OWN, BARE, WRITE = "ksieve", "selection", "write"
"""The call; the same without forced entries, expansion and tail; a plain write of its output."""

AROUND = {"around ksieve": torch_steps.by_ksieve, "around torch": torch_steps.by_torch}
"""The same result from PyTorch operations, around ``ksieve.topk`` without options and around ``torch.topk``."""

READ = "plain read"
CANDIDATES = 16_384
"""Scores of a row of the second level: 2,048 blocks of 8."""

LARGE, FEW = ((4096, 131_072), (1024, 1_048_576)), ((1, 131_072), (8, 131_072), (64, 131_072))
SCORED = ((8192, 1_048_576), (65_536, 1_048_576))


@dataclass(frozen=True)
class Model:
    """A model's call: `shapes` are rows and positions of the default measurement, `per` positions of a score."""

    name: str
    steps: Steps
    shapes: tuple[tuple[int, int], ...] = (*LARGE, *FEW)
    per: int = 1


MODELS = (
    Model("blocks of 8", Steps(2048, 8)),
    Model("blocks of 128", Steps(16, 128)),
    Model("DeepSeek-V4.1", Steps(2048, 8, 8, last=True)),
    Model("DeepSeek-V4.1, inside", Steps(512, table=True)),
    Model("GLM-5.3, Qwen3.8", Steps(512, 1, 4, tail=True), per=4),
    Model("MiniMax-M3", Steps(16, 128, first=True, last=True)),
    Model("MiniMax-M3, scored", Steps(16, first=True, last=True), (*SCORED, *FEW), per=128),
)
"""Calls to measure: block selections, complete levels, and selections from scores of blocks."""

Case = tuple[Model, int, int, str]
"""Model, rows, positions and dtype."""


def cases(settings: Settings) -> list[Case]:
    """Models at their own shapes, or at those given; `ArgumentError` if a shape has rows of fewer than k entries."""
    known = {model.name: model for model in MODELS}
    listed: list[Case] = []
    for model in (known[name] for name in settings.chosen(known)):
        for rows, positions in settings.shapes.items or model.shapes:
            width, steps = width_of(model, positions), model.steps
            if rows < 1 or positions % (steps.block * model.per) or 0.8 * width < steps.block * steps.k:
                takes = f"for {model.name} whole blocks, and k = {steps.k} of them in 0.8 of a row"
                raise ArgumentError("shapes", f"{rows}x{positions}", takes)
            listed += [(model, rows, positions, dtype) for dtype in settings.dtypes]
    return listed


def width_of(model: Model, positions: int) -> int:
    """Scores of a row."""
    return CANDIDATES if model.steps.table else positions // model.per


def measure(settings: Settings, live: Live) -> Facts:
    """Measure calls, their parts, and the same results from PyTorch operations, in rotated rounds.

    On CUDA each contender is a CUDA graph, and inputs are not in L2; on the CPU the plain read is ``amax``. A payload
    has for every case the times of all contenders and whether their answers were exact. ``of_floor`` is the plain read
    over these times. ``of_parts`` is our time over selection and write. ``times_faster`` is the time of each contender
    around a selector over ours.
    """
    return gpu.by_case(
        settings, live, results=lambda found, _: {"shapes": found, "verified": None}, measure=_measure, plans=_plans,
        written=lambda _: {
            "cases": [[case[0].name, *case[1:]] for case in cases(settings)], "lengths": "ragged", "verified_rows": 0,
            "shapes": None, "dtype": None,
        },
    )  # fmt: skip


def verify_rows(settings: Settings, live: Live) -> Facts:
    """Select and verify rows of every kind of `ksieve_lab.bench.block_rows`."""
    device, (rows, *_) = gpu.device_of(settings), settings.shapes.items
    if device != "cpu":
        runner.compiled((partial(block_rows.plan_of, batch, device) for batch in block_rows.batches(rows)), live)
    with live.phase("verifying", "calls") as progress:
        found = block_rows.verify_rows(rows, device=device, seed=settings.seed, progress=progress)
    results = {"shapes": [], "verified": found}
    return settings.payload(results, gpu=device != "cpu", cases=[], verified_rows=rows, shapes=None, dtype=None)


def _plans(case: Case, here: Here) -> Iterator[Callable[[], Plan]]:
    model, rows, positions, dtype = case
    steps, width = model.steps, width_of(model, positions)
    pooled, inside = width // steps.block, steps.k - steps.first - steps.last
    for asked, scored in ((steps, width), (steps.bare, width), (Steps(inside), pooled)):
        keywords = asked.keywords(dict.fromkeys(asked.arrays, True)) | {"lengths": True}
        yield partial(calls.plan_of, rows, scored, asked.k, dtype, here.device, keywords)


def _measure(case: Case, here: Here) -> Facts:
    import torch

    model, rows, positions, dtype = case
    steps, width, seed = model.steps, width_of(model, positions), here.settings.seed
    facts: Facts = {"model": model.name, "rows": rows, "positions": positions, "width": width, "dtype": dtype}
    facts |= {"k": steps.k, "columns": steps.columns}
    if here.device == "cpu":
        matrices = [torch.empty(rows, width, dtype=getattr(torch, dtype)) for _ in range(2)]
    elif isinstance(made := tasks.allocate(rows, width, dtype), str):
        return facts | {"skipped": made}
    else:
        matrices = made
    where = matrices[0].device
    lengths = scores.lengths_of("ragged", rows, width, seed, where)
    for number, matrix in enumerate(matrices):
        in_blocks(steps.block)(matrix, lengths, seed + number)
    given: dict[str, Any] = {}
    if steps.tail:
        remainder = torch.arange(rows, dtype=torch.int32, device=where) % steps.expand
        given["tail"] = lengths * steps.expand + remainder
    if steps.table:
        every = torch.rand(rows, max(positions // 8, CANDIDATES // 8), device=where)
        given["block_table"] = every.argsort(1)[:, : CANDIDATES // 8].to(torch.int32)
    keywords = {"lengths": lengths, "k": steps.k} | steps.keywords(given)
    own = {OWN: keywords}
    if steps.bare != steps:
        own[BARE] = {"lengths": lengths, "k": steps.k} | steps.bare.keywords({})
    contenders = []
    for name, asked in own.items():
        plan = calls.plan_of(rows, width, steps.k, dtype, here.device, asked)
        contenders.append(calls.contender(name, plan, matrices, asked))
    outs = [torch.empty(rows, steps.columns, dtype=torch.int32, device=where) for _ in matrices]
    contenders.append(Contender(WRITE, lambda i: outs[i].zero_()))
    for name, select in AROUND.items():

        def run(i: int, select: torch_steps.Select = select) -> None:
            torch_steps.around(select, steps, matrices[i], lengths, given, outs[i])

        contenders.append(calls.judged(name, run, matrices, keywords, [{"out": out} for out in outs]))
    if here.device == "cpu":
        reads, clock = [Contender(READ, lambda i: matrices[i].amax(1))], measure_host
    else:
        reads, clock = floor.contenders(matrices, lengths, here.device), None
    set_bytes = rows * matrices[0].stride(0) * matrices[0].element_size()
    rounds = here.settings.rounds
    read, selectors = gpu.timed(reads, contenders, len(matrices), set_bytes, rounds=rounds, clock=clock)
    return facts | read | {"selectors": selectors} | _ratios(selectors)


def _ratios(selectors: Mapping[str, Facts]) -> Facts:
    """Compare the times of a case; without a time there is no ratio of it."""
    known = {n: s["median_us"] for n, s in selectors.items() if "median_us" in s and s["exact"] is not False}
    if OWN not in known:
        return {}
    found: Facts = {"times_faster": {name: known[name] / known[OWN] for name in AROUND if name in known}}
    return found | ({"of_parts": known[OWN] / (known[BARE] + known[WRITE])} if BARE in known else {})
