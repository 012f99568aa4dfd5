"""Operators of the engines before and after `ksieve.adapters` replaces them: the same calls, in one process.

An engine's operator is what the engine has under its name before ``install()``, and ksieve's what it has afterwards.
Both get the same scores and lengths, and outputs of their own, in rotated rounds of CUDA graphs; every answer is
verified. What a call costs the host is timed in turns too, on a matrix so small that the device is idle.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ksieve import dispatch
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.planning.plan import Plan
from ksieve.tuning import tasks, timing
from ksieve.tuning.timing import Contender
from ksieve_lab.bench import engine_switch, runner, scores
from ksieve_lab.bench.engine_calls import Inputs, contender_of, line, planned
from ksieve_lab.bench.engine_switch import Replaced
from ksieve_lab.bench.runner import Facts, Live, Settings
from ksieve_lab.bench.startup import without_folders

BEFORE, AFTER = "own", "ksieve"
"""The engine's own operator, and what is in its place afterwards."""

SHAPES = "1x16384,16x16384,64x16384,256x16384,1x131072,16x131072,64x131072,256x131072,2048x131072"
"""Decode batches, and rows of a prefill."""

LOST_BY = "lost_by"
"""Fact of a call that lost the GPU context: the side that was running. Every further call of the process fails."""

LAST = tuple(f"flashinfer.topk.top_k_page_table_transform {rows} x 131072 bfloat16" for rows in (256, 2048))
"""Calls of an engine's own operator that lose the GPU context on an H100, with FlashInfer 0.7.2.post1: they are
measured after all others."""

HOST_ROWS, HOST_WIDTH = 4, 4096
HOST_CALLS, HOST_BLOCKS = 100, 20
"""Calls between two waits for the device, fewer than its queue holds; and how often each side has its turn."""


class Case(NamedTuple):
    """What to measure; `kind` is where its facts belong, ``shapes`` or ``host``."""

    kind: str
    operator: Replaced
    rows: int
    width: int
    dtype: str

    @property
    def label(self) -> str:
        """Its name, by a part of which it can be left out."""
        name = f"{self.operator.name} {self.rows} x {self.width} {self.dtype}"
        return f"{name} host" if self.kind == "host" else name

    def facts(self, k: int) -> Facts:
        """What is known of it before it is measured."""
        of = {"operator": self.operator.name, "engine": self.operator.engine}
        return of | {"rows": self.rows, "width": self.width, "dtype": self.dtype, "k": k}


def cases(settings: Settings) -> list[str]:
    """Names of operators; which of them are here is known when the engines are imported."""
    return settings.chosen(engine_switch.names_of(settings.peers or ()))


def listed(operators: Sequence[Replaced], settings: Settings) -> list[Case]:
    """List what to measure, so that cases of a shape and dtype follow each other, and share their scores."""
    return [
        Case("shapes", operator, rows, width, dtype)
        for rows, width in settings.shapes.items
        for dtype in settings.dtypes
        for operator in operators
        if dtype in operator.call.dtypes
    ]


def prepare(every: Sequence[Case], k: int, live: Live) -> None:
    """Compile the kernels on all processors: ksieve's, then the engines'."""
    device = tasks.require_device()
    runner.compiled((partial(_plan, case, k, device) for case in every), live)
    firsts = {(case.operator.name, case.dtype): (case.operator, case.dtype) for case in every}
    with ThreadPoolExecutor(min(len(firsts), os.cpu_count() or 1) or 1) as pool:
        for done in [pool.submit(_first, *first, k) for first in firsts.values()]:
            done.result()


def _first(operator: Replaced, dtype: str, k: int) -> None:
    """Call an engine's own operator once, so that its compiler has run."""
    from ksieve.adapters._calls import engine_s_own

    with engine_s_own(), contextlib.suppress(Exception):  # the run says so
        made = planned(operator.operator, _small(operator, dtype, k))
        operator.own(made.matrix, **operator.call.arguments(made))


def _small(operator: Replaced, dtype: str, k: int) -> Inputs:
    """A matrix of a few rows."""
    import torch

    matrix = torch.randn(HOST_ROWS, HOST_WIDTH, device=_where()).to(getattr(torch, dtype))
    lengths = torch.full((HOST_ROWS,), HOST_WIDTH - 100, dtype=torch.int32, device=matrix.device)
    return Inputs(matrix, lengths, min(_k(operator, k), HOST_WIDTH))


def _where() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _k(operator: Replaced, k: int) -> int:
    return min(k, operator.call.most_k or k)


def _plan(case: Case, k: int, device: DeviceInfo) -> Plan:
    """Plan of the selection that a call makes."""
    import torch

    from ksieve.adapters import _forms, _signatures

    _, operator, rows, width, dtype = case
    matrix = torch.zeros(2, _k(operator, k), dtype=getattr(torch, dtype))
    few = Inputs(matrix, torch.ones(2, dtype=torch.int32), _k(operator, k))
    asked = _forms.seen(_signatures.adapter_of(operator.operator), matrix, **operator.call.arguments(few))
    return dispatch.plan_of(rows=rows, width=width, k=asked.k, dtype=dtype, device=device, options=asked.options)


def measure(settings: Settings, live: Live) -> Facts:
    """Time operators before and after, and what a call costs the host.

    A payload has ``shapes``: every case with the times of both, whether their answers were exact, and the engine's time
    over ksieve's. ``host``: microseconds of a call by operator. ``lost``: the call that lost the GPU context, its owner
    and its error; nothing was measured after it. Raises `BackendError` without PyTorch or a GPU, or when a first call
    has lost the GPU context.
    """
    device, fill = tasks.require_device(), scores.source_of(settings.scores)
    engines, k = settings.peers or list(engine_switch.ENGINES), settings.k
    results: dict[str, list[Facts]] = {"shapes": [], "host": []}
    lost: list[Facts] = []
    held: Any = None
    made: Sequence[Inputs] | str = ()
    with engine_switch.installed(engines, cases(settings)) as (operators, absent, versions):
        every = listed(operators, settings)
        prepare(every, k, live)
        if timing.context_lost():  # in `prepare`, where calls run side by side
            raise BackendError("a first call of an engine's operator lost the GPU context: choose others with --only")
        every += [Case("host", each, HOST_ROWS, HOST_WIDTH, each.call.dtypes[0]) for each in operators]
        every.sort(key=lambda case: case.label in LAST)
        asked = [case for case in every if not any(part in case.label for part in settings.left_out)]
        with live.phase("measuring", "cases") as progress:
            for done, case in enumerate(asked, 1):
                if lost:
                    why = f"not measured: the GPU context was lost by {lost[0]['call']}"
                    results[case.kind].append(case.facts(_k(case.operator, k)) | {"skipped": why})
                    continue
                if case.kind == "host":
                    held, made = None, [_small(case.operator, case.dtype, k)]
                elif held != case[2:]:
                    made = ()  # before the next matrices are made
                    held, made = case[2:], _inputs(case, fill, settings.seed)
                facts = _measure(case, k, made, device, settings.rounds)
                results[case.kind].append(facts)
                if by := facts.get(LOST_BY):
                    error = facts.get("skipped") or facts["selectors"][by]["error"]
                    lost.append({"call": case.label, "by": by, "error": error})
                progress(done, len(asked))
                if live.each is not None and case.kind == "shapes":
                    live.each(facts)
    algorithm = os.environ.get("FLASHINFER_TOPK_ALGO")
    variables = {} if algorithm is None else {"FLASHINFER_TOPK_ALGO": algorithm}
    told = {**results, "lost": lost, "absent": absent, "versions": versions}
    return settings.payload(told, lengths="ragged", variables=variables, shapes=None, dtype=None)


def _inputs(case: Case, fill: scores.Fill, seed: int) -> list[Inputs] | str:
    lengths = scores.lengths_of("ragged", case.rows, case.width, seed, "cpu")
    matrices = tasks.allocate(case.rows, case.width, case.dtype)
    if isinstance(matrices, str):
        return matrices
    lengths = lengths.to(matrices[0].device)
    for number, matrix in enumerate(matrices):
        fill(matrix, lengths, seed + number)
    synchronize()  # what fails later is not of the scores
    return [Inputs(matrix, lengths, case.width) for matrix in matrices]


def _measure(case: Case, k: int, made: Sequence[Inputs] | str, device: DeviceInfo, rounds: int) -> Facts:
    operator, columns = case.operator, min(_k(case.operator, k), case.width)
    facts = case.facts(columns)
    if isinstance(made, str):
        return facts | {"skipped": made}
    if (reason := operator.call.refusal(case.rows, case.width, columns, case.dtype)) is not None:
        return facts | {"skipped": reason}
    try:
        inputs = [planned(operator.operator, replace(each, k=columns)) for each in made]
        synchronize()
        contenders = [
            contender_of(name, operator.operator, operator.call, partial(_call, name, operator), inputs)
            for name in (BEFORE, AFTER)
        ]
    except Exception as error:  # the engine's own plan, or no room for copies of the scores
        return facts | {"skipped": line(error)} | ({LOST_BY: BEFORE} if timing.context_lost() else {})
    if case.kind == "host":
        return facts | _host(operator, inputs[0])
    return facts | _graphs(case, k, contenders, inputs, device, rounds)


def _graphs(
    case: Case, k: int, contenders: Sequence[Contender], inputs: Sequence[Inputs], device: DeviceInfo, rounds: int
) -> Facts:
    """Times of both sides in CUDA graphs."""
    matrix = inputs[0].matrix
    set_bytes = case.rows * matrix.stride(0) * matrix.element_size()
    times = timing.measure(contenders, len(inputs), set_bytes, rounds=rounds)
    selectors = {t.name: t.facts() for t in times}
    told: Facts = {"input_sets": len(inputs), "selectors": selectors}
    for of in times:
        if of.error:
            selectors[of.name]["error"] = without_folders(of.error)
        if of.lost:
            told[LOST_BY] = of.name
    if told.get(LOST_BY) == BEFORE:
        return {LOST_BY: BEFORE, "skipped": f"the engine's own: {selectors[BEFORE]['error']}"}
    with contextlib.suppress(ArgumentError):
        selectors[AFTER] |= {"family": _plan(case, k, device).family}
    own, ours = (selectors[name] for name in (BEFORE, AFTER))
    if all("median_us" in each and each["exact"] is True for each in (own, ours)):
        told["times_faster"] = own["median_us"] / ours["median_us"]
    return told


def _call(name: str, operator: Replaced, matrix: Any, arguments: dict[str, Any]) -> Any:
    """Call one side, and make sure that it was that one which served."""
    from ksieve.adapters._calls import engine_s_own
    from ksieve.adapters._tally import TALLY

    if name == BEFORE:
        with engine_s_own():  # an operator of an engine may call another that is replaced
            return operator.own(matrix, **arguments)
    before = TALLY.fallbacks[operator.name]
    try:
        return operator.served(matrix, **arguments)
    finally:
        if TALLY.fallbacks[operator.name] != before:  # in place of an error of the engine's own too
            reason = TALLY.reasons[operator.name]
            raise BackendError(f"ksieve does not serve the call, and the engine's own operator does: {reason}")


# ---- the host's share ---------------------------------------------------------------------------------------


def _host(operator: Replaced, made: Inputs) -> Facts:
    """Microseconds of the host in a call, before and after, in turns."""
    from ksieve.adapters._calls import engine_s_own

    facts: Facts = {}
    arguments = operator.call.arguments(made)
    blocks: dict[str, list[float]] = {BEFORE: [], AFTER: []}
    errors: dict[str, str] = {}
    for turn in range(-1, HOST_BLOCKS):
        for name in (BEFORE, AFTER) if turn % 2 else (AFTER, BEFORE):
            if name in errors:
                continue
            function = operator.own if name == BEFORE else operator.served
            try:
                if turn < 0:
                    _call(name, operator, made.matrix, arguments)
                with engine_s_own() if name == BEFORE else contextlib.nullcontext():
                    seconds = _block(function, made.matrix, arguments)
            except Exception as error:
                errors[name] = line(error)
                if timing.context_lost():
                    return facts | {LOST_BY: name, "skipped": f"{name}: {errors[name]}"}
                continue
            if turn >= 0:
                blocks[name].append(seconds / HOST_CALLS * 1e6)
    for name, found in blocks.items():
        known = {"median_us": statistics.median(found), "min_us": min(found)} if name not in errors else {}
        facts[name] = known or {"error": errors[name]}
    return facts


def _block(function: Callable[..., Any], matrix: Any, arguments: dict[str, Any]) -> float:
    """Seconds of the host in a block of calls that begins with an idle device."""
    synchronize()
    begin = time.perf_counter()
    for _ in range(HOST_CALLS):
        function(matrix, **arguments)
    seconds = time.perf_counter() - begin
    synchronize()  # an error of these calls is not the other side's
    return seconds


def synchronize() -> None:
    """Wait for the device."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
