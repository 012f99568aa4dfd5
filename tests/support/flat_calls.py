"""Calls whose options are one flat mapping, as tables of cases and fuzzes have them.

The names are those of the table of options (`ksieve.core.table`), and beside them the keywords of `ksieve.select`.
"""

from __future__ import annotations

import ksieve
from ksieve import dispatch
from ksieve.core.groups import grouped
from ksieve.core.table import BY_NAME
from ksieve.dispatch import plan_of

__all__ = ["NAMES", "ask", "finished", "plan_of", "verified"]

NAMES = tuple(name for name in BY_NAME if name != "lengths")
"""Names of options, but for the lengths."""

_OWN = ("plan", "out", "workspace", "num_rows")


def ask(scores, lengths=None, k=None, *, backend="auto", policy=None, **call):
    """The indices, or a tuple of these and of what else is asked for: values, raw indices, statistics.

    With a `backend` or a `policy` the call goes past the public function, which has neither.
    """
    if backend == "auto" and policy is None:
        found = ksieve.select(scores, lengths, k, **grouped(call))
    else:
        given = {name: value for name, value in call.items() if value is not None}
        stats, own = given.pop("stats", False), {name: given.pop(name, None) for name in _OWN}
        plan, out, workspace, num_rows = own.values()
        found = dispatch.select(
            scores, lengths, k, plan, out, workspace, num_rows, given, stats=stats, policy=policy, backend=backend
        )
    return _asked(found, call)


def _asked(found, call):
    parts = [("values", found.values), ("raw", found.raw), ("stats", found.stats)]
    parts = [part for name, part in parts if call.get(name) is not None and call[name] is not False]
    return (found.indices, *parts) if parts else found.indices


def finished(running, **call):
    """Finish a `ksieve.Running` as `ask` calls `ksieve.select`."""
    return _asked(running.select(**grouped(call)), call)


def verified(scores, lengths=None, indices=None, **call):
    """Verdict of `ksieve.verify`."""
    return ksieve.verify(scores, lengths, indices, **grouped(call))
