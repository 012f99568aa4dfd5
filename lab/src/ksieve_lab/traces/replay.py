"""Replaying the selections of requests: call by call in order, on any backend, verified, and compared with the floor.

A trace is a list of calls. It is generated from requests as a serving framework schedules them
(`ksieve_lab.traces.serving`), or read from a JSON file. A recording (`ksieve_lab.record`) brings its own scores. Each
call's scores are made, the call is timed alone, and its answer is verified before the next one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core import atomic, problem
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.core.paths import as_path, read_utf8, unreadable
from ksieve.core.policy import SamplingPolicy
from ksieve.core.text import parse_json
from ksieve_lab.bench import record
from ksieve_lab.bench.machines import DISTRIBUTIONS, Machine, machine_of
from ksieve_lab.captures.format import Capture
from ksieve_lab.captures.recorder import CALLS_KEY
from ksieve_lab.traces.serving import BUDGET_BYTES, PAPER_REQUESTS, STEP_TOKENS, Invocation, invocations

FORMAT_KEY, FORMAT_VERSION = "ksieve_trace", 1
REQUEST_FIELDS = ("prompt", "step_tokens", "budget_bytes", "decode_steps", "batch")
CALL_FIELDS = ("phase", "step", "rows", "width", "first", "rule")
OURS = "ksieve"


@dataclass(frozen=True)
class Trace:
    """Calls in order.

    `k`: slots per row; None leaves it to the replay. `requests`: those from which the calls were generated, if any.
    """

    name: str
    k: int | None
    calls: tuple[Invocation, ...]
    requests: tuple[dict[str, int], ...] = ()

    @classmethod
    def of_requests(cls, name: str, requests: Sequence[Mapping[str, int]], k: int | None = None) -> Trace:
        """Generate a trace: requests, arguments of `serving.invocations`, are served one after the other.

        Raises `ArgumentError` if a request lacks ``prompt``, has a field that does not exist, or a number out of range.
        """
        calls: list[Invocation] = []
        for request in requests:
            unknown = set(request) - set(REQUEST_FIELDS)
            if unknown or "prompt" not in request:
                raise ArgumentError("requests", sorted(request), f"prompt, and any of {', '.join(REQUEST_FIELDS[1:])}")
            steps = calls[-1].step + 1 if calls else 0
            for call in invocations(**request):
                calls.append(Invocation(**{**asdict(call), "step": call.step + steps}))
        return cls(name, k, tuple(calls), tuple(dict(r) for r in requests))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON: its calls, and the requests from which they were generated."""
        facts: dict[str, Any] = {FORMAT_KEY: FORMAT_VERSION, "name": self.name}
        if self.k is not None:
            facts["k"] = self.k
        if self.requests:
            facts["requests"] = list(self.requests)
        facts["calls"] = [asdict(call) for call in self.calls]
        atomic.write_text(path, json.dumps(facts, indent=1) + "\n")


EXAMPLE = Trace.of_requests(
    "example",
    [{"prompt": 6144, "step_tokens": 2048, "budget_bytes": 12 << 20, "decode_steps": 16, "batch": 2}],
    k=256,
)
"""A trace that takes seconds on any CPU."""


def load(source: str | os.PathLike[str]) -> Trace:
    """Load a trace: the paper's "245K" or "430K", a JSON file, or a recording's capture."""
    path = as_path(source, "source")
    text, fault = str(path), unreadable(path)
    if text.upper() in PAPER_REQUESTS and fault:
        name = text.upper()
        return Trace.of_requests(name, [{"prompt": PAPER_REQUESTS[name]}], k=2048)
    if fault:
        takes = f"a JSON file, a recording, {', '.join(PAPER_REQUESTS)}"
        raise FileFormatError(f"{text}: no such trace ({fault}): takes {takes}")
    if path.suffix == ".safetensors":
        return _of_recording(path, Capture(path))
    try:
        facts = parse_json(read_utf8(path))
    except ValueError as error:
        raise FileFormatError(f"{path}: not JSON ({error})") from None
    if not isinstance(facts, dict) or facts.get(FORMAT_KEY) != FORMAT_VERSION:
        raise FileFormatError(f'{path}: not a trace: takes an object with "{FORMAT_KEY}": {FORMAT_VERSION}')
    k = facts.get("k")
    try:
        k = None if k is None else problem.check_k(k)
        if "calls" not in facts and "requests" in facts:
            return Trace.of_requests(str(facts.get("name", path.stem)), facts["requests"], k)
        if "calls" not in facts:
            raise FileFormatError(f'{path}: neither "requests" nor "calls"; takes an object with one of them')
        calls = tuple(_call(item) for item in facts["calls"])
    except (ArgumentError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path}: {error}") from None
    return Trace(str(facts.get("name", path.stem)), k, calls, tuple(facts.get("requests", ())))


def _call(item: Any) -> Invocation:
    if not isinstance(item, dict) or set(item) - set(CALL_FIELDS) or not {"rows", "width"} <= set(item):
        raise ArgumentError("calls", item, f"objects with {', '.join(CALL_FIELDS)}; rows and width are required")
    call: dict[str, Any] = {"phase": "prefill", "step": 0, "rule": "causal"} | item
    call.setdefault("first", max(call["width"] - call["rows"], 0))
    for name in ("step", "rows", "width", "first"):
        if isinstance(call[name], bool) or not isinstance(call[name], int) or call[name] < 0:
            raise ArgumentError(f"calls.{name}", repr(call[name]), "an int of at least 0")
    if call["phase"] not in ("prefill", "decode") or call["rule"] not in ("causal", "equal"):
        got = f"{call['phase']!r}, {call['rule']!r}"
        raise ArgumentError("calls.phase, calls.rule", got, "'prefill' or 'decode', 'causal' or 'equal'")
    return Invocation(**call)


def _of_recording(path: Path, capture: Capture) -> Trace:
    text = capture.metadata.get(CALLS_KEY)
    if text is None:
        raise FileFormatError(f"{path}: a capture, but no recording: it does not say which rows were one call")
    try:
        listed = [(int(rows), int(width), int(k)) for rows, width, k in parse_json(text)]
    except (ValueError, TypeError):
        raise FileFormatError(f"{path}: metadata {CALLS_KEY!r} does not list [rows, width, k] per call") from None
    if sum(rows for rows, _, _ in listed) != capture.rows or any(width > capture.width for _, width, _ in listed):
        raise FileFormatError(f"{path}: metadata {CALLS_KEY!r} does not fit the capture's {capture.rows} rows")
    ks = {k for _, _, k in listed}
    calls = tuple(
        Invocation("prefill" if rows > 1 else "decode", step, rows, width, 0, "equal")
        for step, (rows, width, _) in enumerate(listed)
    )
    return Trace(path.stem, ks.pop() if len(ks) == 1 else None, calls)


def run(
    trace: Trace,
    *,
    scores: str | os.PathLike[str] = "endpoint",
    backend: str = "auto",
    policy: SamplingPolicy | str | None = None,
    rounds: int = 3,
    peers: Sequence[str] | None = (),
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Replay a trace; returns a result's payload: ``calls`` in order, and sums over all, by phase and by step.

    `scores`: "endpoint", "normal", another producer's name, or a capture's path. Its rows are used in turn, joined end
    to end if too short. A recording replayed with itself gives every call the rows it had. `policy` is taken instead of
    the planner's choice. `rounds`: timed ones of each call; its median counts. `peers`: on CUDA, other selectors that
    are timed too; None means all that are installed. `progress` is called as ``progress(calls done, calls in all)``.
    Raises `ArgumentError`, and `BackendError` if the backend cannot run here.
    """
    if trace.k is None:
        raise ArgumentError("k", None, f"an int from 1 to {problem.MAX_K}: the trace names none")
    slots = problem.check_k(trace.k)
    if rounds < 1:
        raise ArgumentError("rounds", rounds, "an int of at least 1")
    if not trace.calls:
        raise ArgumentError("trace", f"{trace.name}, without a call", "a trace with at least one call")
    machine = machine_of(backend)
    results = []
    make = _source(scores, machine, slots, seed, trace)
    for number, call in enumerate(trace.calls):
        if progress is not None:
            progress(number, len(trace.calls))
        matrix, lengths, valid = make(number, call)
        timed = machine.time(matrix, lengths, slots, {OURS: (None, policy)}, rounds, peers)
        results.append(_facts(call, valid, timed))
        del matrix
    if progress is not None:
        progress(len(trace.calls), len(trace.calls))
    name = os.fspath(scores) if unreadable(Path(scores)) else Path(scores).name
    settings = {
        "trace": trace.name, "requests": list(trace.requests), "k": slots, "scores": name, "backend": machine.name,
        "policy": getattr(policy, "name", policy), "rounds": rounds, "seed": seed,
    }  # fmt: skip
    return record.payload("replay", settings, {"calls": results} | summary(results), gpu=machine.name == "cuda")


def _facts(call: Invocation, valid: int, timed: dict[str, Any]) -> dict[str, Any]:
    own = timed["selectors"][OURS]
    others = {name: facts for name, facts in timed["selectors"].items() if name != OURS}
    return {
        "phase": call.phase, "step": call.step, "rows": call.rows, "width": call.width, "valid_scores": valid,
        "us": own.get("median_us"), "floor_us": timed["floor_us"], "of_floor": own.get("of_floor"),
        "exact": own.get("exact"), "error": own.get("error"), "family": own.get("family"),
        "peers": {
            name: {key: facts.get(key) for key in ("median_us", "exact", "error", "unsupported")}
            for name, facts in others.items()
        },
    }  # fmt: skip


Make = Callable[[int, Invocation], tuple[Any, Any, int]]
"""Scores and lengths of a call where the machine wants them, and how many scores are valid."""


def _source(scores: str | os.PathLike[str], machine: Machine, k: int, seed: int, trace: Trace) -> Make:
    text = os.fspath(scores)
    if not unreadable(Path(text)):
        capture = Capture(text)
        own = CALLS_KEY in capture.metadata and _of_recording(Path(text), capture).calls == trace.calls
        return _recorded(machine, trace, capture) if own else _joined(machine, capture)

    def make(number: int, call: Invocation) -> tuple[Any, Any, int]:
        valid = call.lengths()
        if text in DISTRIBUTIONS or machine.name != "cuda" or text.startswith("factors:"):
            matrix, lengths = machine.scores(call.rows, call.width, valid, text, seed + number)
        else:
            from ksieve_lab.workloads.producers import find_producer

            host = find_producer(text)(call.rows, call.width, seed=seed + number, k=k)
            matrix, lengths = machine.put(host), machine.lengths(valid)
        return matrix, lengths, call.valid_scores

    return make


def _recorded(machine: Machine, trace: Trace, capture: Capture) -> Make:
    """Every call's own rows."""
    begins = np.cumsum([0, *(call.rows for call in trace.calls)])

    def make(number: int, call: Invocation) -> tuple[Any, Any, int]:
        begin, end = int(begins[number]), int(begins[number + 1])
        lengths = np.clip(capture.lengths[begin:end], 0, call.width).astype(np.int32)
        block = capture.rows_block(begin, end)[:, : call.width]
        return machine.put(np.ascontiguousarray(block)), machine.lengths(lengths), int(lengths.astype(np.int64).sum())

    return make


def _joined(machine: Machine, capture: Capture) -> Make:
    """Rows of a capture in turn; their valid scores end to end where one is too short for a call."""
    valid = capture.clamped()
    rows = np.flatnonzero(valid)
    if not rows.size:
        raise ArgumentError("scores", f"{capture.path.name}, without a valid score", "a capture with some")
    turn = 0

    def make(number: int, call: Invocation) -> tuple[Any, Any, int]:
        nonlocal turn
        matrix: NDArray[Any] | None = None
        for r in range(call.rows):
            done = 0
            while done < call.width:
                row = int(rows[turn % rows.size])
                turn += 1
                piece = capture.rows_block(row, row + 1)[0, : min(int(valid[row]), call.width - done)]
                if matrix is None:
                    matrix = np.empty((call.rows, call.width), piece.dtype)
                matrix[r, done : done + piece.size] = piece
                done += piece.size
        placed = machine.put(np.zeros((call.rows, call.width), np.float32) if matrix is None else matrix)
        return placed, machine.lengths(call.lengths()), call.valid_scores

    return make


def summary(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum calls over all, by phase and by step; nothing is summed where one failed or was inexact."""
    phases = dict.fromkeys(call["phase"] for call in calls)
    steps = dict.fromkeys(call["step"] for call in calls)
    return {
        "total": _sum(calls),
        "phases": {phase: _sum([c for c in calls if c["phase"] == phase]) for phase in phases},
        "steps": [{"step": step} | _sum([c for c in calls if c["step"] == step]) for step in steps],
    }


def _sum(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    good = all(call["exact"] is True and call["us"] is not None for call in calls)
    us = math.fsum(call["us"] for call in calls) if good else None
    floor = math.fsum(call["floor_us"] for call in calls)
    found = {
        "calls": len(calls),
        "rows": sum(call["rows"] for call in calls),
        "valid_scores": sum(call["valid_scores"] for call in calls),
        "exact": all(call["exact"] is True for call in calls),
        "us": us,
        "floor_us": floor,
        "of_floor": floor / us if us else None,
    }
    names = dict.fromkeys(name for call in calls for name in call["peers"])
    found["peers"] = {}
    for name in names:
        theirs = [call["peers"].get(name, {}) for call in calls]
        fine = all(t.get("exact") is True and t.get("median_us") is not None for t in theirs)
        found["peers"][name] = math.fsum(t["median_us"] for t in theirs) if fine else None
    return found


__all__ = ["BUDGET_BYTES", "EXAMPLE", "STEP_TOKENS", "Trace", "load", "run", "summary"]
