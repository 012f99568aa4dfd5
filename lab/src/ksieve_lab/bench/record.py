"""Result files: the environment of a measurement (machine, software, time), and one JSON layout.

A payload is ``{"schema": 1, "bench": name, "environment": {...}, "settings": {...}, "results": ...}``; what the
results hold is the bench's own affair. Nothing here imports a package just to ask its version.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ksieve._version import __version__
from ksieve.core import atomic
from ksieve.core.errors import FileFormatError
from ksieve.core.installation import version_of
from ksieve.core.paths import as_path, read_utf8
from ksieve.core.text import parse_json, plain, printable

SCHEMA = 1

RESULTS = Path("benchmarks/results")
"""Where result files go, relative to the working directory."""

PACKAGES = (
    "numpy", "numba", "llvmlite", "torch", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "triton", "cupy-cuda13x",
    "jax", "flashinfer-python", "sglang", "sgl-kernel", "vllm",
)  # fmt: skip
"""Distributions whose versions can explain a number; absent ones are left out."""

_VECTOR_FLAGS = ("sse4_2", "avx", "avx2", "f16c", "avx512f", "avx512bw", "avx512vl", "asimd", "sve")


def payload(bench: str, settings: Mapping[str, Any], results: Any, *, gpu: bool = False) -> dict[str, Any]:
    """Put results into the common layout, together with `environment`.

    `bench`: name of the measurement. `settings`: arguments of the measurement: shapes, rounds, seeds. `gpu`: ask for
    the GPU too.
    """
    return {
        "schema": SCHEMA,
        "bench": bench,
        "environment": environment(gpu=gpu),
        "settings": dict(settings),
        "results": results,
    }


def write_json(path: str | os.PathLike[str], payload: Mapping[str, Any]) -> Path:
    """Write a payload, whole or not at all; folders are made as needed. A list or object of mere values is one line.

    `path`: a bare file name goes into `RESULTS`. `payload`: from `payload`. NumPy scalars and arrays become numbers and
    lists; NaN and infinities become null. Returns the path. Raises `ValueError` if the payload is not of
    this schema.
    """
    if payload.get("schema") != SCHEMA or "bench" not in payload:
        raise ValueError(f"payload has schema {payload.get('schema')!r}, expected {SCHEMA} as record.payload gives it")
    target = as_path(path)
    if target.parent == Path():
        target = RESULTS / target
    atomic.write_text(target, _text(plain(payload), "\n") + "\n", folders=True)
    return target


def _text(value: Any, line: str) -> str:
    """Return JSON; `line` begins a line where the value stands."""
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not any(isinstance(each, (dict, list)) and each for each in held):
        return json.dumps(value, allow_nan=False)
    deeper = line + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {_text(each, deeper)}" for name, each in value.items()]
        return f"{{{deeper}{f',{deeper}'.join(parts)}{line}}}"
    return f"[{deeper}{f',{deeper}'.join(_text(each, deeper) for each in value)}{line}]"


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a result file; FileFormatError, a ValueError, if it cannot be read or is of another schema."""
    file = as_path(path)
    try:
        found = parse_json(read_utf8(file))
    except ValueError as error:
        raise FileFormatError(f"{file}: no result file ({error})") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise FileFormatError(f"{file}: no result file of schema {SCHEMA}")
    return found


def environment(*, gpu: bool = False) -> dict[str, Any]:
    """Collect the facts that a number depends on; unknown ones are None or absent."""
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": command_line(sys.argv),
        "ksieve": __version__,
        **git_state(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_facts(),
        "packages": {name: version for name in PACKAGES if (version := version_of(name)) is not None},
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        facts["torch_threads"] = torch.get_num_threads()
    if gpu:
        facts["gpu"] = gpu_facts()
    return facts


def command_line(arguments: list[str]) -> str:
    """Join a command line without folders: a result file must not contain local paths."""
    if arguments and Path(arguments[0]).parts[-2:] == ("ksieve", "__main__.py"):  # python -m ksieve
        arguments = ["ksieve", *arguments[1:]]
    return shlex.join(printable(_without_folders(a)) for a in arguments)


def _without_folders(argument: str) -> str:
    if "/" not in argument and "\\" not in argument:
        return argument
    kind, colon, path = argument.partition(":")
    # "factors:folder/file" keeps its kind; a drive letter is a folder.
    return f"{kind}:{Path(path).name}" if colon and len(kind) > 1 and "/" not in kind else Path(argument).name


def git_state() -> dict[str, Any]:
    """Commit of the checkout this package is imported from, and whether its tracked files were changed.

    ``KSIEVE_COMMIT`` says it instead where the tree is a copy: a copy's own history may have stopped long before.
    """
    copied = os.environ.get("KSIEVE_COMMIT") or None
    folder = Path(__file__).resolve().parent
    commit = None if copied else _output("git", "-C", str(folder), "rev-parse", "HEAD")
    if commit is None or _output("git", "-C", str(folder), "ls-files", "record.py") != "record.py":
        return {"commit": copied, "dirty": None}
    # Otherwise git refreshes its index, and leaves a lock behind if this process is killed meanwhile.
    look = ("git", "--no-optional-locks", "-C", str(folder))
    changed = _output(*look, "status", "--porcelain", "--untracked-files=no")
    # Result files written by an earlier bench of the same checkout do not change what is measured.
    ours = [line for line in (changed or "").splitlines() if not line[3:].startswith(str(RESULTS.as_posix()))]
    return {"commit": commit, "dirty": bool(ours)}


def cpu_facts() -> dict[str, Any]:
    """Processor model, processors this process may use, vector instructions, and how busy the machine was."""
    text = ""
    if Path("/proc/cpuinfo").exists():
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    words = set(flags[1].split()) if flags else set()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "model": model[1].strip() if model else platform.processor() or platform.machine(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "usable": usable,
        "vector": [flag for flag in _VECTOR_FLAGS if flag in words],
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def gpu_facts() -> dict[str, Any] | None:
    """Name, driver and clocks of the visible NVIDIA GPUs, and the CUDA versions; None without a driver."""
    fields = ("name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory", "power.limit")
    listed = _output("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    if listed is None:
        return None
    rows = [dict(zip(fields, map(str.strip, line.split(",")), strict=False)) for line in listed.splitlines()]
    facts: dict[str, Any] = {"devices": rows, "cuda_driver": _cuda_driver_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        facts["torch_cuda"] = torch.version.cuda
    return facts


def _cuda_driver_version() -> str | None:
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    status, version = driver.cuDriverGetVersion()
    return f"{version // 1000}.{version % 1000 // 10}" if int(status) == 0 else None


def _output(*command: str) -> str | None:
    """Standard output of a command, or None if it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.rstrip()
