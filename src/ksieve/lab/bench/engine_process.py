"""Measuring on in a new process after a call that lost the GPU context.

After some CUDA errors, such as one of an address, every further call of a process fails. The call is recorded with its
error, no other case of its operator and dtype is tried, and a new process measures what remains.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ksieve.lab.bench import engine_switch
from ksieve.lab.bench.engine_switch import Replaced

LOST_BY = "lost_by"
"""Fact of a call that lost the GPU context: the side that was running."""

SECONDS_TO_END = 30

Case = tuple[Replaced, int, int, str]
"""Operator, rows, width and dtype."""

Task = tuple[str, Case]
"""Where its facts belong, ``shapes`` or ``host``, and what to measure."""

Facts = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """What a process has to know besides its tasks.

    Attributes
    ----------
    engines, only
        As in `ksieve.lab.bench.engine_switch.installed`.
    k : int
    source : str
        Of the scores, as in `ksieve.lab.bench.gpu.run`.
    rounds, seed : int
    """

    engines: tuple[str, ...] = engine_switch.ENGINES
    only: str = ""
    k: int = 2048
    source: str = "endpoint"
    rounds: int = 7
    seed: int = 0


def label(task: Task) -> str:
    """Name of a task, by which it can be left out."""
    kind, (operator, rows, width, dtype) = task
    return f"{operator.name} {rows} x {width} {dtype}" + (" host" if kind == "host" else "")


def left_out(task: Task, skip: Sequence[str]) -> bool:
    """Whether the user asked to leave a task out, by a part of its `label`."""
    return any(text in label(task) for text in skip)


def facts_of(case: Case, k: int) -> Facts:
    """What is known of a case before it is measured."""
    operator, rows, width, dtype = case
    return {
        "operator": operator.name, "engine": operator.engine, "rows": rows, "width": width, "dtype": dtype, "k": k,
    }  # fmt: skip


def run_on(
    tasks: Sequence[Task],
    here: Generator[Facts],
    elsewhere: Callable[[Sequence[Task]], Generator[Facts]],
    k: int,
    lost: list[dict[str, Any]],
) -> Iterator[tuple[str, Facts]]:
    """Yield the facts of all tasks, and where they belong.

    Parameters
    ----------
    tasks : sequence of Task
    here : generator
        Facts of the tasks in order; ends early after a call that lost the GPU context.
    elsewhere : callable
        Makes the same for other tasks, in a new process.
    k : int
    lost : list
        Takes a record of each call that lost the GPU context.
    """
    remaining, facts_from = list(tasks), here
    while remaining:
        before, gone = len(remaining), None
        with contextlib.closing(facts_from):
            for facts in facts_from:
                task = remaining.pop(0)
                yield task[0], facts
                if by := facts.get(LOST_BY):
                    gone = task
                    error = facts.get("skipped") or facts["selectors"][by]["error"]
                    lost.append({"call": label(task), "by": by, "error": error})
                    break
        if gone is None and remaining and facts_from is not here:
            if before == len(remaining):
                why = f"the GPU context was lost by {lost[-1]['call']}, and the process after it measured nothing"
                for kind, case in remaining:
                    yield kind, facts_of(case, k) | {"skipped": f"not measured: {why}"}
                return
            gone, error = remaining.pop(0), "its process ended"
            yield gone[0], facts_of(gone[1], k) | {"skipped": error}
            lost.append({"call": label(gone), "by": None, "error": error})
        if gone is not None:
            operator, _, _, dtype = gone[1]
            same = [task for task in remaining if (task[1][0], task[1][3]) == (operator, dtype)]
            remaining = [task for task in remaining if task not in same]
            for kind, case in same:
                why = f"not measured: the GPU context was lost by {label(gone)}"
                yield kind, facts_of(case, k) | {"skipped": why}
        facts_from = elsewhere(remaining)


Measured = Callable[[Sequence[Task], Work], Iterable[Facts]]
"""Measures tasks in the process that calls it: `ksieve.lab.bench.engines.measured`."""


def elsewhere(tasks: Sequence[Task], work: Work, measured: Measured) -> Generator[Facts]:
    """Measure tasks in a new process, and yield their facts as they come."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    named = [(kind, operator.name, rows, width, dtype) for kind, (operator, rows, width, dtype) in tasks]
    process = context.Process(target=measure, args=(theirs, work, named, measured))
    process.start()
    theirs.close()
    try:
        with ours, contextlib.suppress(EOFError):
            while True:
                yield ours.recv()
    finally:
        process.join(SECONDS_TO_END)
        process.kill()


def measure(
    answers: Connection, work: Work, named: Sequence[tuple[str, str, int, int, str]], measured: Measured
) -> None:
    """Measure tasks in this process, and send their facts."""
    with answers, engine_switch.installed(work.engines, work.only) as (operators, _, _):
        by_name = {operator.name: operator for operator in operators}
        tasks = [(kind, (by_name[name], rows, width, dtype)) for kind, name, rows, width, dtype in named]
        for facts in measured(tasks, work):
            answers.send(facts)
