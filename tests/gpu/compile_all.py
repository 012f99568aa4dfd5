"""Compile what all parts of the GPU suite and the sanitizers' grid need, on all processors.

``PYTHONPATH=src:lab/src:.:tests:tests/support python3 -m gpu.compile_all``, or ``scripts/gpu_session.sh compile``.
Names of files, such as ``options entries``, narrow it to these and the grid.

Parts that run side by side would otherwise compile side by side, each with a pool of its own over all processors. They
do not look for kernels again where a mark in the cache says that all were compiled from the same files.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import pytest

import ksieve
from gpu import runner, sanitize_grid, variants
from ksieve.backends.cuda.jit import cache
from ksieve.backends.cuda.jit.compile import compiler_version
from ksieve.planning.plan import Plan

HERE = Path(__file__).parent


def needed(modules: Iterable[ModuleType]) -> tuple[list[tuple[Plan, bool]], list[Callable[[], object]]]:
    """Pairs of a plan and whether it is run with statistics, and calls that load the kernels which they need."""
    found: tuple[list[tuple[Plan, bool]], list[Callable[[], object]]] = [], []
    for module in modules:
        for into, name in zip(found, ("kernels", "calls_ahead"), strict=True):
            into.extend(getattr(module, name, list)())
    return found


def mark() -> Path:
    """A file that is there when all has been compiled; its name follows from the package, tests, compiler and GPU."""
    folders = (Path(ksieve.__file__).parent, HERE, HERE.parent / "support")
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".cu", ".cuh"))
    digest = hashlib.sha256(repr((runner.PLANNED_FOR, compiler_version())).encode())
    for path in files:
        digest.update(path.read_bytes())
    return cache.cache_dir() / f"gpu-suite-{digest.hexdigest()[:16]}"


def done() -> bool:
    return mark().exists()


def main() -> None:
    begin, modules = time.perf_counter(), []
    for name in sorted(sys.argv[1:] or [file.stem.removeprefix("test_") for file in HERE.glob("test_*.py")]):
        with contextlib.suppress(pytest.skip.Exception):  # a package that this machine lacks
            modules.append(importlib.import_module(f"gpu.test_{name}"))
    plans, calls = needed(modules)
    count = variants.precompile([*plans, *sanitize_grid.compiled()], calls)
    print(f"{count} kernels compiled in {time.perf_counter() - begin:.1f} s", flush=True)
    if not sys.argv[1:]:
        mark().touch()


if __name__ == "__main__":
    main()
