"""The first call of an adapter in a fresh process: with an empty cache, after ``ksieve build``, and with a bundle."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ksieve.lab.bench.engine_calls import CALLS, Inputs
from ksieve.lab.bench.engine_switch import without_folders
from ksieve.lab.bench.gpu import Progress

EMPTY, BUILT, BUNDLE = "empty cache", "after build", "bundle"

CHILD = "from ksieve.lab.bench import first_calls; first_calls.child()"
SECONDS = 300
"""Limit of a process that measures."""

BUILD_SECONDS = 550


@dataclass(frozen=True)
class First:
    """A call in a process of its own.

    Attributes
    ----------
    adapter : str
        ``module.function`` of `ksieve.adapters`.
    rows, width, k : int
    dtype : str
    """

    adapter: str
    rows: int
    width: int
    k: int = 2048
    dtype: str = "float32"

    @property
    def engine(self) -> str:
        """Module of the adapter."""
        return self.adapter.partition(".")[0]


DECODE, PREFILL = (64, 131_072), (2048, 131_072)

FIRSTS = (
    First("vllm.top_k_per_row_decode", *DECODE),
    First("vllm.top_k_per_row_prefill", *PREFILL),
    First("sglang.topk_transform_paged_v2", *DECODE),
    First("sglang.topk_transform_ragged_v2", *PREFILL),
    First("sglang.topk", *DECODE),
    First("flashinfer.top_k_page_table_transform", *DECODE),
)
"""The adapters' main calls: a decode batch and rows of a prefill."""

Process = Callable[..., str]
"""Runs an interpreter with arguments and variables, and returns what it prints."""


def run(
    firsts: Sequence[First] = FIRSTS, *, progress: Progress | None = None, process: Process | None = None
) -> dict[str, Any]:
    """Measure calls in fresh processes; the kernels are built in between, into a cache and into a bundle.

    Parameters
    ----------
    firsts : sequence of First
    progress : callable, optional
        Called as ``progress(processes done, processes in all)``.
    process : callable, optional
        Runs an interpreter; for tests.

    Returns
    -------
    dict
        ``calls``: of each call, by state of the cache, the seconds of the first and of a second call until the answer
        is there, and the kernels compiled. ``builds``: seconds and kernels of both builds of each engine. A process
        that fails leaves its ``error``.
    """
    process = process or fresh
    total, done = 3 * len(firsts), 0
    found: list[dict[str, Any]] = [asdict(first) for first in firsts]
    builds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ksieve-first-") as name:
        cache, engines = Path(name, "built"), list(dict.fromkeys(first.engine for first in firsts))

        def measure(state: str, variables: Callable[[First], dict[str, str]]) -> None:
            nonlocal done
            for first, facts in zip(firsts, found, strict=True):
                if progress is not None:
                    progress(done, total)
                # Each has an empty folder of its own: otherwise it would find kernels of the call before.
                own = {"KSIEVE_CACHE_DIR": tempfile.mkdtemp(dir=name), "KSIEVE_BUNDLE": ""} | variables(first)
                facts[state] = _said(process, "-c", CHILD, json.dumps(asdict(first)), **own)
                done += 1

        measure(EMPTY, lambda first: {})
        for engine in engines:
            own = [first for first in firsts if first.engine == engine]
            # The bundle's build finds its kernels in the cache, as an engine's build does those of the engines before.
            for state, more in ((BUILT, ()), (BUNDLE, ("--bundle", str(Path(name, f"{engine}.zip"))))):
                builds.append({"engine": engine, "state": state} | _build(process, own, cache, *more))
        measure(BUILT, lambda first: {"KSIEVE_CACHE_DIR": str(cache)})
        measure(BUNDLE, lambda first: {"KSIEVE_BUNDLE": str(Path(name, f"{first.engine}.zip"))})
    if progress is not None:
        progress(total, total)
    return {"calls": found, "builds": builds}


def _build(process: Process, firsts: Sequence[First], cache: Path, *more: str) -> dict[str, Any]:
    """Build the kernels of an engine up to the largest of its calls."""
    several = [
        (f"--{name}", str(value))
        for name in ("k", "dtype")
        for value in dict.fromkeys(getattr(first, name) for first in firsts)
    ]
    arguments = [
        "-m", "ksieve", "build", "--for", firsts[0].engine, *itertools.chain(*several),
        "--max-rows", str(max(first.rows for first in firsts)), "--max-width",
        str(max(first.width for first in firsts)), *more, "--json",
    ]  # fmt: skip
    begin = time.perf_counter()
    said = _said(process, *arguments, KSIEVE_CACHE_DIR=str(cache), KSIEVE_BUNDLE="", seconds=BUILD_SECONDS)
    if "error" in said:
        return said
    return {
        "seconds": time.perf_counter() - begin, "kernels": len(said["kernels"]), "compiled": said["compiled"],
    }  # fmt: skip


def _said(process: Process, *arguments: str, **options: Any) -> dict[str, Any]:
    """What a process prints as JSON, or why it did not."""
    try:
        said: dict[str, Any] = json.loads(process(*arguments, **options))
    except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        return {"error": without_folders(str(error))}
    return said


def fresh(*arguments: str, seconds: float = SECONDS, **variables: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | variables, capture_output=True, text=True, check=False,
        timeout=seconds,
    )  # fmt: skip
    if done.returncode:
        last = re.sub(r"\s+", " ", done.stderr.strip()[-500:])
        raise RuntimeError(f"a measuring process failed: {last}")
    return done.stdout


def child(text: str | None = None) -> None:
    """Measure one call in this process, and print it as JSON."""
    import importlib

    import torch

    from ksieve.adapters import report
    from ksieve.lab.bench.engines import synchronize

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
    said = report()
    found = {"seconds": times[0], "again_seconds": times[1], "compiled": said.compiled}
    print(json.dumps(found | {"waited_seconds": said.compile_seconds}))
