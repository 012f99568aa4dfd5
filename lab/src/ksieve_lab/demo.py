"""The demonstration: select from a capture, verify, and time other libraries on the same rows."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve import api
from ksieve.checking.verdict import Verdict
from ksieve.checking.verify import verify
from ksieve.core.errors import ArgumentError
from ksieve.core.keys import widen
from ksieve.core.stats import Stats
from ksieve.planning.plan import Plan
from ksieve.tuning.timing import Contender
from ksieve_lab.bench.host_timing import measure_host

MAX_BYTES = 512 << 20
"""Bound on the float32 score bytes of a demonstration; of a larger capture it reads the first rows."""

ROUNDS = 5
"""Timed rounds; every contender runs once in each, and its median counts."""

I32 = NDArray[np.int32]
F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Demonstration:
    """Results of a demonstration: of each library, ksieve first, median wall seconds and the verdict on its answer."""

    plan: Plan
    rows: int
    valid: NDArray[np.int64]
    read_seconds: float
    first_call_seconds: float
    stats: Stats
    seconds: dict[str, float]
    verdicts: dict[str, Verdict]


SYNTHETIC: dict[str, Any] = {"producer": "endpoint_structured", "rows": 64, "width": 131_072, "lengths": "causal"}
"""The capture that stands in for the bundled one: 32 MiB of float32."""


@contextmanager
def synthetic_capture() -> Iterator[Path]:
    """Make a capture in a temporary folder, which is removed afterwards."""
    from ksieve_lab.workloads.producers import write_synthetic

    with tempfile.TemporaryDirectory(prefix="ksieve-demo-") as folder:
        path = Path(folder) / "synthetic.safetensors"
        write_synthetic(path, **SYNTHETIC, k=2048)
        yield path


def demonstrate(source: Any, k: int) -> Demonstration:
    """Run the demonstration; of a capture larger than `MAX_BYTES`, the first rows are taken.

    Raises `ArgumentError` if the capture has no rows or k is out of range.
    """
    rows = min(int(source.rows), max(1, MAX_BYTES // max(4 * int(source.width), 1)))
    if rows == 0:
        raise ArgumentError("capture", "no rows", "at least one row of scores")
    start = time.perf_counter()
    stored = source.rows_block(0, rows)
    read_seconds = time.perf_counter() - start
    lengths = np.ascontiguousarray(source.lengths[:rows])
    plan = api.plan(rows=rows, width=source.width, k=k, dtype=source.dtype)
    start = time.perf_counter()
    api.topk(stored[:1], lengths[:1], plan=plan)
    first_call_seconds = time.perf_counter() - start
    answers: dict[str, Any] = {}

    def contender(name: str, run: Callable[[], Any]) -> Contender:
        return Contender(name, lambda _: answers.update({name: run()}))

    runs = {"ksieve": lambda: api.topk(stored, lengths, plan=plan)} | _others(widen(stored), lengths, k)
    timings = measure_host([contender(*each) for each in runs.items()], 1, 0, rounds=ROUNDS)
    verdicts = {name: verify(stored, lengths, answer) for name, answer in answers.items()}
    stats = api.select(stored, lengths, plan=plan, stats=True).stats
    valid = np.clip(lengths.astype(np.int64), 0, source.width)
    medians = {timing.name: timing.median / 1e6 for timing in timings if timing.rounds}
    return Demonstration(plan, rows, valid, read_seconds, first_call_seconds, stats, medians, verdicts)


def _others(scores: F32, lengths: I32, k: int) -> dict[str, Callable[[], Any]]:
    """Functions of other libraries for the same answer; their preparation is made here and not timed."""
    valid = np.clip(lengths, 0, scores.shape[1])

    def argpartition() -> I32:
        out = np.full((scores.shape[0], k), -1, np.int32)
        for r, length in enumerate(valid):
            kept = min(k, int(length))
            if kept:
                out[r, :kept] = np.argpartition(scores[r, :length], length - kept)[length - kept :]
        return out

    others: dict[str, Callable[[], Any]] = {"numpy.argpartition": argpartition}
    if importlib.util.find_spec("torch") is not None and (valid >= k).all():
        import torch

        # torch.topk takes no lengths: scores past them are masked beforehand, which is not timed.
        masked = torch.from_numpy(np.where(np.arange(scores.shape[1]) < valid[:, None], scores, -np.inf))
        others["torch.topk(sorted=False)"] = lambda: torch.topk(masked, k, dim=1, sorted=False).indices
    return others
