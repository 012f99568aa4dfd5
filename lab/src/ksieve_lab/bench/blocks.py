"""Blocks, pools and forced entries in one call, beside the same result from PyTorch operations around a selector."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ksieve import api
from ksieve.core import arguments
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.planning.plan import Plan
from ksieve.planning.tune import tasks
from ksieve.planning.tune.tasks import POISON, VERIFY_BYTES
from ksieve.planning.tune.timing import Contender
from ksieve_lab import oracle
from ksieve_lab.bench import block_rows, floor, glue, gpu, runner, scores
from ksieve_lab.bench.glue import Steps
from ksieve_lab.bench.host_timing import measure_host
from ksieve_lab.bench.runner import Facts, Live, Settings
from ksieve_lab.bench.scores import in_blocks

OWN, BARE, WRITE = "ksieve", "selection", "write"
"""The call; the same without forced entries, expansion and tail; a plain write of its output."""

AROUND = {"around ksieve": glue.by_ksieve, "around torch": glue.by_torch}
"""The same result from PyTorch operations, around ``ksieve.topk`` without options and around ``torch.topk``."""

READ = "plain read"
VERIFIED = 4
"""Rows of each input set that `ksieve.verify` judges besides, on the host."""

CANDIDATES = 16_384
"""Scores of a row of the second level: 2,048 blocks of 8."""

LARGE, FEW = ((4096, 131_072), (1024, 1_048_576)), ((1, 131_072), (8, 131_072), (64, 131_072))
SCORED = ((8192, 1_048_576), (65_536, 1_048_576))


@dataclass(frozen=True)
class Model:
    """A model's call.

    Attributes
    ----------
    name : str
    steps : Steps
    shapes : sequence of (rows, positions)
        In the default measurement.
    per : int
        Positions that a score stands for.
    """

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
"""Calls to measure: block selections, complete levels, and selections from scores that are those of blocks already."""

Case = tuple[Model, int, int, str]
"""Model, rows, positions and dtype."""


def cases(settings: Settings) -> list[Case]:
    """Models at their own shapes, or at those given.

    Raises
    ------
    ArgumentError
        If a shape has rows of fewer than k entries.
    """
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

    On CUDA each contender is a CUDA graph, and inputs are not in L2; on the CPU the plain read is ``amax``.

    Returns
    -------
    dict
        A payload. Of every case: the times of all contenders and whether their answers were exact; ``of_floor``, the
        plain read over them; ``of_parts``, our time over that of selection and write; ``times_faster``, the time of
        each contender around a selector over ours.

    Raises
    ------
    BackendError
        Without PyTorch, or without a GPU on "cuda".
    """
    device, listed = _device(settings), cases(settings)
    if isinstance(device, DeviceInfo):
        runner.compiled(_plans(listed, device), live)
    with live.phase("measuring", "cases") as progress:
        found = runner.over(listed, lambda case: _measure(case, device, settings), progress, live.each)
    written = {"cases": [[case[0].name, *case[1:]] for case in listed], "lengths": "ragged"}
    return _payload(settings, {"shapes": found, "verified": None}, verified_rows=0, **written)


def verify_rows(settings: Settings, live: Live) -> Facts:
    """Select and verify rows of every kind of `ksieve_lab.bench.block_rows`."""
    device, (rows, *_) = _device(settings), settings.shapes.items
    if isinstance(device, DeviceInfo):
        runner.compiled((block_rows.plan_of(batch, device) for batch in block_rows.batches(rows)), live)
    with live.phase("verifying", "calls") as progress:
        found = block_rows.verify_rows(rows, device=device, seed=settings.seed, progress=progress)
    return _payload(settings, {"shapes": [], "verified": found}, cases=[], verified_rows=rows)


def _payload(settings: Settings, results: Facts, **written: Any) -> Facts:
    gpu = settings.fixed["device"] == "cuda"
    return settings.payload(results, gpu=gpu, shapes=None, dtype=None, **written)


def _device(settings: Settings) -> DeviceInfo | str:
    if settings.fixed["device"] == "cuda":
        return tasks.require_device()
    if importlib.util.find_spec("torch") is None:
        raise BackendError("the bench makes its inputs with PyTorch: pip install 'ksieve[torch]'")
    return "cpu"


def _plans(listed: Sequence[Case], device: DeviceInfo) -> list[Plan]:
    plans = []
    for model, rows, positions, dtype in listed:
        steps, width = model.steps, width_of(model, positions)
        pooled, inside = width // steps.block, steps.k - steps.first - steps.last
        for asked, scored in ((steps, width), (steps.bare, width), (Steps(inside), pooled)):
            with contextlib.suppress(ArgumentError):  # the run says so
                plans.append(_plan(asked, rows, scored, dtype, device, dict.fromkeys(asked.arrays, True)))
    return plans


def _plan(steps: Steps, rows: int, width: int, dtype: str, device: DeviceInfo | str, given: Mapping[str, Any]) -> Plan:
    options = arguments.resolve(steps.keywords(given), None, lengths=True, length_dtype="int32")
    return api.plan(rows=rows, width=width, k=steps.k, dtype=dtype, device=device, options=options)


def _measure(case: Case, device: DeviceInfo | str, settings: Settings) -> Facts:
    import torch

    model, rows, positions, dtype = case
    steps, width, seed = model.steps, width_of(model, positions), settings.seed
    facts: Facts = {"model": model.name, "rows": rows, "positions": positions, "width": width, "dtype": dtype}
    facts |= {"k": steps.k, "columns": steps.columns}
    if isinstance(device, DeviceInfo):
        made = tasks.allocate(rows, width, dtype)
        if isinstance(made, str):
            return facts | {"skipped": made}
        matrices = made
    else:
        matrices = [torch.empty(rows, width, dtype=getattr(torch, dtype)) for _ in range(2)]
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
    # The columns of the second matrix are those of the bare selection.
    outs = [torch.empty(rows, steps.columns, dtype=torch.int32, device=where) for _ in matrices]
    bare = [torch.empty(rows, steps.k, dtype=torch.int32, device=where) for _ in matrices]
    contenders, errors = [], {}
    for name, asked, to, arrays in ((OWN, steps, outs, given), (BARE, steps.bare, bare, {})):
        if name == BARE and asked == steps:
            continue
        try:
            call = _call(asked, matrices, lengths, arrays, to, device, dtype)
        except ArgumentError as error:  # no kernel has it
            errors[name] = str(error)
            continue
        contenders.append(_judged(name, call, asked, matrices, lengths, arrays, to))
    contenders.append(Contender(WRITE, lambda i: outs[i].zero_()))
    for name, select in AROUND.items():
        glued = partial(_around, select, steps, matrices, lengths, given, outs)
        contenders.append(_judged(name, glued, steps, matrices, lengths, given, outs))
    if isinstance(device, DeviceInfo):
        reads, clock = floor.contenders(matrices, lengths, device), None
    else:
        reads, clock = [Contender(READ, lambda i: matrices[i].amax(1))], measure_host
    set_bytes = rows * matrices[0].stride(0) * matrices[0].element_size()
    read, selectors = gpu.timed(reads, contenders, len(matrices), set_bytes, rounds=settings.rounds, clock=clock)
    selectors |= {name: {"error": error, "exact": None} for name, error in errors.items()}
    return gpu.compact(facts | read | {"selectors": selectors} | _ratios(selectors))


def _around(
    select: glue.Select, steps: Steps, matrices: Any, lengths: Any, given: dict[str, Any], outs: Any, i: int
) -> None:
    glue.around(select, steps, matrices[i], lengths, given, outs[i])


def _call(
    steps: Steps, matrices: Any, lengths: Any, given: dict[str, Any], outs: Any, device: DeviceInfo | str, dtype: str
) -> Callable[[int], None]:
    """One call of `ksieve.topk` with its plan."""
    asked, held = steps.keywords(given), dict[str, Any]()
    rows, width = matrices[0].shape
    plan = _plan(steps, rows, width, dtype, device, given)

    def call(i: int) -> None:
        if plan.workspace_bytes and not held:
            held["workspace"] = plan.workspace()
        api.topk(matrices[i], lengths, plan=plan, out=outs[i], **asked, **held)

    return call


def _judged(
    name: str, call: Callable[[int], None], steps: Steps, matrices: Any, lengths: Any, given: dict[str, Any], outs: Any
) -> Contender:
    """A contender, all rows of which are judged on their device, and the first ones by `ksieve.verify`."""
    from ksieve.checking.verify import verify

    def check(i: int) -> bool:
        head = {name: array[:VERIFIED] for name, array in given.items()}
        verdict = verify(
            matrices[i][:VERIFIED], lengths[:VERIFIED], outs[i][:VERIFIED], k=steps.k, block_bytes=VERIFY_BYTES,
            **steps.keywords(head),
        )  # fmt: skip
        call = steps.keywords(given) | {"lengths": lengths}
        return verdict.ok and bool(oracle.exact_rows(matrices[i], steps.k, call, {"indices": outs[i]}).all())

    return Contender(name, call, check, lambda i: outs[i].fill_(POISON))


def _ratios(selectors: Mapping[str, Facts]) -> Facts:
    """Compare the times of a case; without a time there is no ratio of it."""
    known = {n: s["median_us"] for n, s in selectors.items() if "median_us" in s and s["exact"] is not False}
    if OWN not in known:
        return {}
    found: Facts = {"times_faster": {name: known[name] / known[OWN] for name in AROUND if name in known}}
    return found | ({"of_parts": known[OWN] / (known[BARE] + known[WRITE])} if BARE in known else {})


def name_of(case: Mapping[str, Any]) -> str:
    """Write a case."""
    return f"{case['model']}, {case['rows']:,} x {case['positions']:,}"
