"""What the replaced operators have done in this process: calls, compilations, fallbacks and verified rows."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import util
from typing import Any

from ksieve import dispatch
from ksieve.backends.cuda.runtime import launch
from ksieve.core import call as calls

_log = logging.getLogger("ksieve.adapters")
_MOST_SHAPES = 4096
_MOST_SAID = 4

Asked = tuple[Any, Any, int, dict[str, Any]]
"""Scores, lengths, k and options of a selection."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one operator that ran one kind of plan; a replayed CUDA graph counts where it was captured."""

    operator: str
    family: str
    policy: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``KSIEVE_VERIFY`` found; `ksieve.verify` judges the rows that differ from the engine's.

    Attributes
    ----------
    calls, rows : int
        Calls and rows that were compared.
    equal, tied : int
        Rows with the engine's answer, and with another exact one: scores tied at rank k.
    engine_wrong, ksieve_wrong : int
        Rows with an inexact answer of the engine or of ksieve.
    captured : int
        Calls that were chosen, but lay in the capture of a CUDA graph.
    failed : int
        Comparisons that raised an exception.
    """

    calls: int = 0
    rows: int = 0
    equal: int = 0
    tied: int = 0
    engine_wrong: int = 0
    ksieve_wrong: int = 0
    captured: int = 0
    failed: int = 0

    def __str__(self) -> str:
        text = f"{self.calls:,} calls, {self.rows:,} rows verified: {self.equal:,} equal, {self.tied:,} tied"
        for count, words in (
            (self.engine_wrong, "not exact by the engine"), (self.ksieve_wrong, "NOT exact by ksieve"),
            (self.captured, "calls not compared, in graph capture"), (self.failed, "comparisons failed"),
        ):  # fmt: skip
            text += f", {count:,} {words}" if count else ""
        return text


@dataclass(frozen=True, slots=True)
class Report:
    """What ran in this process; `str` writes it in one line, with the most frequent calls alone.

    Attributes
    ----------
    calls : tuple of Calls
        Most frequent first.
    compiled, compile_seconds : int, float
        CUDA kernels compiled, and the time that calls waited for compilers, of this process or another.
    fallbacks : dict of str to int
        Calls by operator that ksieve refused and the engine's own operator served.
    verified : Verified
    """

    calls: tuple[Calls, ...]
    compiled: int
    compile_seconds: float
    fallbacks: dict[str, int]
    verified: Verified

    def __str__(self) -> str:
        total = sum(c.count for c in self.calls)
        text = f"{total:,} calls" + _listed(
            [(f"{c.operator} {c.family}/{c.policy} {c.dtype}", c.count) for c in self.calls]
        )
        kernel = "kernel" if self.compiled == 1 else "kernels"
        text += f"; {self.compiled} {kernel} compiled, {self.compile_seconds:.1f} s waited"
        fallbacks = sorted(self.fallbacks.items(), key=lambda fallback: -fallback[1])
        text += f"; {sum(self.fallbacks.values()):,} fallbacks{_listed(fallbacks)}"
        return f"{text}; {self.verified}"


def _listed(groups: Sequence[tuple[str, int]]) -> str:
    """Name the first groups in brackets, and count the others: a line of a log has to be read."""
    texts = [f"{name} {count:,}" for name, count in groups[:_MOST_SAID]]
    if others := groups[_MOST_SAID:]:
        texts.append(f"and {len(others)} more with {sum(count for _, count in others):,}")
    return f" ({', '.join(texts)})" if texts else ""


def announce(text: str, *values: object) -> None:
    """Log a line that has to be seen: as information where that is shown, otherwise as a warning."""
    shown = _log.hasHandlers() and _log.isEnabledFor(logging.INFO)
    _log.log(logging.INFO if shown else logging.WARNING, text, *values)


class _Running(threading.local):
    """The operator that a thread is in, its last selection, and whether its calls reach the engine's own operators."""

    operator: str | None = None
    asked: Asked | None = None
    own = False


class Tally:
    """The counts of this process. Adding to one costs a call about a microsecond."""

    def __init__(self) -> None:
        self.running = _Running()
        self._lock = threading.Lock()
        self._process = 0
        self.clear()

    def clear(self) -> None:
        """Forget all counts."""
        self._counts: dict[tuple[str, str, str, str], list[int]] = {}
        self._shapes: dict[Any, list[int]] = {}
        self.fallbacks: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        self.verified = Verified()
        self._before = launch.stalls()

    def see(self, key: Any, scores: Any, lengths: Any, k: Any, out: Any, options: dict[str, Any]) -> None:
        """Count a selection of the operator that runs in this thread; called before the selection."""
        running = self.running
        operator = running.operator
        if operator is None:
            return
        running.asked = (scores, lengths, k, options)
        # What else the plan depends on.
        key = (operator, key, scores.dtype)
        count = self._shapes.get(key)
        if count is None:
            count = self._kind(key, scores, lengths, k, out, options)
        count[0] += 1

    def _kind(self, key: Any, scores: Any, lengths: Any, k: Any, out: Any, options: dict[str, Any]) -> list[int]:
        if self._process != os.getpid():
            self._process = os.getpid()
            # Runs in the main process, in spawned ones, and in forked ones, which call no functions of atexit.
            util.Finalize(None, self.say, exitpriority=0)
        asked = calls.parse(scores, lengths, k, out=out, given=options).problem
        plan = dispatch.choose(asked if asked.k else replace(asked, k=1))
        policy = plan.policy.name if plan.policy is not None else "direct"
        with self._lock:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            kind = (key[0], plan.family, policy, asked.dtype)
            return self._shapes.setdefault(key, self._counts.setdefault(kind, [0]))

    def fell_back(self, operator: str, error: Exception) -> None:
        """Count a call that the engine's own operator serves, and keep the last reason."""
        self.fallbacks[operator] += 1
        self.reasons[operator] = f"{type(error).__name__}: {error}"

    def verify(self, **more: int) -> None:
        """Add to the counts of `Verified`."""
        with self._lock:
            now = self.verified
            self.verified = replace(now, **{name: getattr(now, name) + count for name, count in more.items()})

    def report(self) -> Report:
        """Return the counts."""
        compiled, seconds = (now - before for now, before in zip(launch.stalls(), self._before, strict=True))
        with self._lock:
            found = [Calls(*kind, count[0]) for kind, count in self._counts.items()]
        found.sort(key=lambda c: -c.count)
        return Report(tuple(found), int(compiled), seconds, dict(self.fallbacks), self.verified)

    def say(self) -> None:
        """Log the report, at the end of a process in which an operator was called."""
        if self._counts:
            announce("ksieve served %s", self.report())


TALLY = Tally()
os.register_at_fork(after_in_child=TALLY.clear)


def report() -> Report:
    """Return what the replaced operators have done in this process.

    Returns
    -------
    Report
        Calls by operator, kernel family, policy and dtype; compilations; fallbacks; verified rows. `print` writes one
        line, with the most frequent calls alone, which is also logged when a process ends in which an operator was
        called.
    """
    return TALLY.report()
