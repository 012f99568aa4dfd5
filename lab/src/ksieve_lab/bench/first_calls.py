"""The first call of an adapter in a fresh process: with an empty cache, after ``ksieve build``, and with a bundle."""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ksieve.core.errors import BackendError
from ksieve.tuning import tasks
from ksieve_lab.bench.engine_calls import CALLS, Inputs
from ksieve_lab.bench.runner import Facts, Live, Settings
from ksieve_lab.bench.startup import fresh

EMPTY, BUILT, BUNDLE = "empty cache", "after build", "bundle"

CHILD = "from ksieve_lab.bench import first_calls; first_calls.child()"
SECONDS, BUILD_SECONDS = 120, 300
"""Limits of a process that measures, and of one that builds."""


@dataclass(frozen=True)
class First:
    """A call in a process of its own; `adapter` is ``module.function`` of `ksieve.adapters`."""

    adapter: str
    rows: int
    width: int
    k: int = 2048
    dtype: str = "float32"

    @property
    def engine(self) -> str:
        """Module of the adapter."""
        return self.adapter.partition(".")[0]


DECODE, PREFILL = (16, 131_072), (2048, 131_072)

FIRSTS = (
    First("vllm.top_k_per_row_decode", *DECODE),
    First("vllm.top_k_per_row_prefill", *PREFILL),
    First("sglang.topk_transform_paged_v2", *DECODE),
    First("sglang.topk", *DECODE),
    First("flashinfer.top_k_page_table_transform", *DECODE),
)
"""Main calls of the adapters. The kernels of an engine are built up to its largest call, and their number grows fast
with rows. Only vLLM has rows of a prefill, so that the builds take a minute of 16 processors."""


def _said(*arguments: str, **settings: Any) -> Facts:
    """What a process prints, or why it printed nothing."""
    try:
        found: Facts = fresh(*arguments, **settings)
    except BackendError as error:
        return {"error": str(error)}
    return found


def cases(settings: Settings) -> list[First]:
    """Main calls of some engines."""
    chosen = settings.chosen(dict.fromkeys(first.adapter for first in FIRSTS))
    return [first for first in FIRSTS if first.engine in (settings.peers or ()) and first.adapter in chosen]


def measure(settings: Settings, live: Live) -> Facts:
    """Measure calls in fresh processes, one at a time; the kernels are built in between, for a cache and a bundle.

    The payload is saved whenever more is known, so that an interruption costs the rest. ``calls``: by state of the
    cache, the seconds of a first and a second call until the answer is there, and the kernels compiled. ``builds``:
    seconds and kernels of each engine's build, which fills the cache and the bundle. A process that fails leaves its
    ``error``.
    """
    tasks.require_device()
    firsts, done = cases(settings), itertools.count(1)
    none = {state: {"error": "not measured"} for state in (EMPTY, BUILT, BUNDLE)}
    calls: dict[First, dict[str, Any]] = {first: asdict(first) | none for first in firsts}
    found: dict[str, Any] = {"calls": list(calls.values()), "builds": []}
    payload = settings.payload({"first_calls": found})
    with (
        live.phase("first calls", "processes") as progress,
        tempfile.TemporaryDirectory(prefix="ksieve-first-") as name,
    ):

        def call(first: First, state: str, **variables: str) -> None:
            # Each has an empty folder of its own: otherwise it would find kernels of the call before.
            own = {"KSIEVE_CACHE_DIR": tempfile.mkdtemp(dir=name), "KSIEVE_BUNDLE": ""} | variables
            calls[first][state] = _said("-c", CHILD, json.dumps(asdict(first)), seconds=SECONDS, **own)
            progress(next(done), 3 * len(firsts))
            live.save(payload)

        for first in firsts:
            call(first, EMPTY)
        cache = Path(name, "built")
        for engine in dict.fromkeys(first.engine for first in firsts):
            own, bundle = [first for first in firsts if first.engine == engine], str(Path(name, f"{engine}.zip"))
            # It also finds kernels of an engine before it.
            found["builds"].append({"engine": engine} | _build(own, cache, bundle))
            for first in own:
                call(first, BUILT, KSIEVE_CACHE_DIR=str(cache))
                call(first, BUNDLE, KSIEVE_BUNDLE=bundle)
    return payload


def _build(firsts: Sequence[First], cache: Path, bundle: str) -> dict[str, Any]:
    """Build the kernels of an engine up to the largest of its calls."""
    rows, width = max(first.rows for first in firsts), max(first.width for first in firsts)
    several = {(f"--{name}", str(getattr(first, name))) for name in ("k", "dtype") for first in firsts}
    arguments = [
        "-m", "ksieve", "build", "--for", firsts[0].engine, *(text for pair in sorted(several) for text in pair),
        "--max-rows", str(rows), "--max-width", str(width), "--bundle", bundle, "--json",
    ]  # fmt: skip
    begin = time.perf_counter()
    said = _said(*arguments, seconds=BUILD_SECONDS, KSIEVE_CACHE_DIR=str(cache), KSIEVE_BUNDLE="")
    facts = {"rows": rows, "width": width, "processors": len(os.sched_getaffinity(0))}
    if "error" in said:
        return facts | said
    seconds = time.perf_counter() - begin
    return facts | {"seconds": seconds, "kernels": len(said["kernels"]), "compiled": said["compiled"]}


def child(text: str | None = None) -> None:
    """Measure one call in this process, and print it as JSON."""
    import importlib

    import torch

    from ksieve.adapters import report
    from ksieve_lab.bench.engines import synchronize

    first = First(**json.loads(text or sys.argv[1]))
    where = "cuda" if torch.cuda.is_available() else "cpu"
    matrix = torch.randn(first.rows, first.width, device=where).to(getattr(torch, first.dtype))
    lengths = torch.full((first.rows,), first.width - first.width // 8, dtype=torch.int32, device=where)
    made = Inputs(matrix, lengths, first.k)
    arguments = CALLS[first.adapter].arguments(made)
    synchronize()
    # The engine has imported the adapter long before its first request.
    function = getattr(importlib.import_module(f"ksieve.adapters.{first.engine}"), first.adapter.partition(".")[2])
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        function(matrix, **arguments)
        synchronize()
        times.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": times[0], "again_seconds": times[1], "compiled": report().compiled}))
