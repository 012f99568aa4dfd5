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
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ksieve import api
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.planning.plan import Plan
from ksieve.planning.tune import fills, tasks, timing
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
"""Calls of an engine's own operator that lose the GPU context on an H100, those of FlashInfer 0.7.2.post1: they are
measured after all others."""

Case = tuple[Replaced, int, int, str]
"""Operator, rows, width and dtype."""

Task = tuple[str, Case]
"""Where its facts belong, ``shapes`` or ``host``, and what to measure."""

HOST_ROWS, HOST_WIDTH = 4, 4096
HOST_CALLS, HOST_BLOCKS = 100, 20
"""Calls between two waits for the device, fewer than its queue holds; and how often each side has its turn."""


def cases(settings: Settings) -> list[str]:
    """Names of operators; which of them are here is known when the engines are imported."""
    return settings.chosen(engine_switch.names_of(settings.peers or ()))


def listed(operators: Sequence[Replaced], settings: Settings) -> list[Case]:
    """List what to measure, so that cases of a shape and dtype follow each other, and share their scores."""
    return [
        (operator, *shape, dtype)
        for shape in settings.shapes.items
        for dtype in settings.dtypes
        for operator in operators
        if dtype in operator.call.dtypes
    ]


def label(task: Task) -> str:
    """Name of a task, by a part of which it can be left out."""
    kind, (operator, rows, width, dtype) = task
    return f"{operator.name} {rows} x {width} {dtype}" + (" host" if kind == "host" else "")


def facts_of(case: Case, k: int) -> Facts:
    """What is known of a case before it is measured."""
    operator, rows, width, dtype = case
    return {
        "operator": operator.name, "engine": operator.engine, "rows": rows, "width": width, "dtype": dtype, "k": k,
    }  # fmt: skip


def prepare(every: Sequence[Case], k: int, live: Live) -> None:
    """Compile the kernels on all processors: those of ksieve, then those that the engines compile."""
    device = tasks.require_device()
    runner.compiled((partial(_plan, case, k, device) for case in every), live)
    firsts = {(operator.name, dtype): (operator, dtype) for operator, _, _, dtype in every}
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

    operator, rows, width, dtype = case
    matrix = torch.zeros(2, _k(operator, k), dtype=getattr(torch, dtype))
    few = Inputs(matrix, torch.ones(2, dtype=torch.int32), _k(operator, k))
    asked = _forms.seen(_signatures.adapter_of(operator.operator), matrix, **operator.call.arguments(few))
    return api.plan(rows=rows, width=width, k=asked.k, dtype=dtype, device=device, options=asked.options)


def measure(settings: Settings, live: Live) -> Facts:
    """Time operators before and after, and what a call costs the host.

    A payload has ``shapes``: every case with the times of both, whether their answers were exact, and the engine's time
    over that of ksieve; ``host``: microseconds of a call by operator; and ``lost``: the call that lost the GPU context,
    whose it was, and its error; nothing was measured after it. Raises `BackendError` without PyTorch or a GPU, or when
    a first call has lost the GPU context.
    """
    tasks.require_device()
    engines, k = settings.peers or list(engine_switch.ENGINES), settings.k
    results: dict[str, list[Facts]] = {"shapes": [], "host": []}
    lost: list[Facts] = []
    with engine_switch.installed(engines, cases(settings)) as (operators, absent, versions):
        every = listed(operators, settings)
        prepare(every, k, live)
        if timing.context_lost():  # in `prepare`, where calls run side by side
            raise BackendError("a first call of an engine's operator lost the GPU context: choose others with --only")
        both: list[Task] = [("shapes", case) for case in every]
        both += [("host", (each, HOST_ROWS, HOST_WIDTH, each.call.dtypes[0])) for each in operators]
        both.sort(key=lambda task: label(task) in LAST)
        asked = [task for task in both if not any(part in label(task) for part in settings.left_out)]
        with live.phase("measuring", "cases") as progress:
            for done, (task, facts) in enumerate(measured(asked, k, settings.scores, settings.rounds, settings.seed)):
                results[task[0]].append(facts)
                if by := facts.get(LOST_BY):
                    error = facts.get("skipped") or facts["selectors"][by]["error"]
                    lost.append({"call": label(task), "by": by, "error": error})
                progress(done + 1, len(asked))
                if live.each is not None and task[0] == "shapes":
                    live.each(facts)
    for kind, case in asked[sum(map(len, results.values())) :]:
        why = f"not measured: the GPU context was lost by {lost[0]['call']}"
        results[kind].append(facts_of(case, _k(case[0], k)) | {"skipped": why})
    algorithm = os.environ.get("FLASHINFER_TOPK_ALGO")
    variables = {} if algorithm is None else {"FLASHINFER_TOPK_ALGO": algorithm}
    told = {**results, "lost": lost, "absent": absent, "versions": versions}
    return settings.payload(told, lengths="ragged", variables=variables, shapes=None, dtype=None)


def measured(listed: Sequence[Task], k: int, source: str, rounds: int, seed: int) -> Generator[tuple[Task, Facts]]:
    """Measure tasks in this process, in order, up to one that loses the GPU context."""
    device, fill = tasks.require_device(), scores.source_of(source)
    made: dict[tuple[int, int, str], Any] = {}
    for task in listed:
        kind, case = task
        if kind == "host":
            made.clear()
            facts = _host(case[0], k)
        else:
            key = case[1:]
            if key not in made:
                made.clear()  # before the next matrices are made
                made[key] = _matrices(*key, fill, seed)
            facts = _measure(case, k, made[key], device, rounds)
        yield task, facts
        if LOST_BY in facts:
            return


def _matrices(rows: int, width: int, dtype: str, fill: fills.Fill, seed: int) -> tuple[list[Any], Any] | str:
    lengths = scores.lengths_of("ragged", rows, width, seed, "cpu")
    matrices = tasks.allocate(rows, width, dtype)
    if isinstance(matrices, str):
        return matrices
    lengths = lengths.to(matrices[0].device)
    for number, matrix in enumerate(matrices):
        fill(matrix, lengths, seed + number)
    synchronize()  # what fails later is not of the scores
    return matrices, lengths


def _measure(case: Case, k: int, made: tuple[list[Any], Any] | str, device: DeviceInfo, rounds: int) -> dict[str, Any]:
    operator, rows, width, dtype = case
    columns = _k(operator, k)
    facts = facts_of(case, columns)
    if isinstance(made, str):
        return facts | {"skipped": made}
    if (reason := operator.call.refusal(rows, width, columns, dtype)) is not None:
        return facts | {"skipped": reason}
    matrices, lengths = made
    try:
        inputs = [planned(operator.operator, Inputs(matrix, lengths, columns)) for matrix in matrices]
        synchronize()
        contenders = [
            contender_of(name, operator.operator, operator.call, partial(_call, name, operator), inputs)
            for name in (BEFORE, AFTER)
        ]
    except Exception as error:  # the engine's own plan, or no room for copies of the scores
        return facts | _failed(error)
    set_bytes = rows * matrices[0].stride(0) * matrices[0].element_size()
    times = timing.measure(contenders, len(matrices), set_bytes, rounds=rounds)
    selectors = {t.name: t.facts() for t in times}
    for found in selectors.values():
        if found.get("error"):
            found["error"] = without_folders(found["error"])
    if (culprit := next((t for t in times if t.lost), None)) is not None:
        facts |= {LOST_BY: culprit.name}
        if culprit.name == BEFORE:
            return facts | {"skipped": f"the engine's own: {selectors[BEFORE]['error']}"}
    with contextlib.suppress(ArgumentError):
        selectors[AFTER] |= {"family": _plan(case, k, device).family}
    own, ours = (selectors[name] for name in (BEFORE, AFTER))
    known = all("median_us" in each and each["exact"] is True for each in (own, ours))
    faster = {"times_faster": own["median_us"] / ours["median_us"]} if known else {}
    return facts | {"input_sets": len(matrices), "selectors": selectors} | faster


def _failed(error: Exception) -> Facts:
    """Why a call was not prepared."""
    return {"skipped": line(error)} | ({LOST_BY: BEFORE} if timing.context_lost() else {})


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


def _host(operator: Replaced, k: int) -> dict[str, Any]:
    """Microseconds of the host in a call, before and after, in turns."""
    from ksieve.adapters._calls import engine_s_own

    dtype = operator.call.dtypes[0]
    made = _small(operator, dtype, k)
    facts = facts_of((operator, HOST_ROWS, HOST_WIDTH, dtype), made.k)
    if (reason := operator.call.refusal(HOST_ROWS, HOST_WIDTH, made.k, dtype)) is not None:
        return facts | {"skipped": reason}
    try:
        made = planned(operator.operator, made)
        synchronize()
    except Exception as error:  # the engine's own plan
        return facts | _failed(error)
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
