"""The NumPy model as a backend: slow, for study and for tests."""

from __future__ import annotations

from typing import Any

from ksieve.backends.cpu import call as cpu
from ksieve.core.call import Call
from ksieve.core.selection import Selection
from ksieve.planning.plan import Plan


def run(plan: Plan, call: Call, *, workspace: Any = None, stats: bool = False) -> Selection[Any]:
    """Select every row of a call with `ksieve.model.reference`; see `ksieve.topk`."""
    return cpu.run(plan, call, stats=stats, model=True)
