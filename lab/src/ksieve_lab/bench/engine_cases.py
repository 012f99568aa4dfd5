"""Cases of the bench of the engines' operators, and which of them are measured last.

After some CUDA errors, such as one of an address, every further call of a process fails. A call that has such an error
ends the run, so those that are known for it come after all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ksieve_lab.bench.engine_switch import Replaced

LOST_BY = "lost_by"
"""Fact of a call that lost the GPU context: the side that was running."""

LAST = tuple(f"flashinfer.topk.top_k_page_table_transform {rows} x 131072 bfloat16" for rows in (256, 2048))
"""Calls of an engine's own operator that lose the GPU context on an H100: those of FlashInfer 0.7.2.post1."""

Case = tuple[Replaced, int, int, str]
"""Operator, rows, width and dtype."""

Task = tuple[str, Case]
"""Where its facts belong, ``shapes`` or ``host``, and what to measure."""

Facts = dict[str, Any]


def label(task: Task) -> str:
    """Name of a task, by a part of which it can be left out."""
    kind, (operator, rows, width, dtype) = task
    return f"{operator.name} {rows} x {width} {dtype}" + (" host" if kind == "host" else "")


def in_order(tasks: Sequence[Task]) -> list[Task]:
    """Tasks, `LAST` after all others."""
    return sorted(tasks, key=lambda task: label(task) in LAST)


def facts_of(case: Case, k: int) -> Facts:
    """What is known of a case before it is measured."""
    operator, rows, width, dtype = case
    return {
        "operator": operator.name, "engine": operator.engine, "rows": rows, "width": width, "dtype": dtype, "k": k,
    }  # fmt: skip
