"""Compile what all parts of the GPU suite and the sanitizers' grid need, on all processors.

``PYTHONPATH=src:tests:tests/support python3 -m gpu.compile_all``, or ``scripts/gpu_session.sh compile``. Names of
files, such as ``options entries``, narrow it to these and the grid.

Parts that run side by side would otherwise compile side by side, each with a pool of its own over all processors.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu import runner, sanitize_grid, variants
from ksieve.planning.plan import Plan


def needed() -> Iterator[tuple[Plan, bool]]:
    """Pairs of a plan and whether it is run with statistics."""
    files = sys.argv[1:] or [file.stem.removeprefix("test_") for file in Path(__file__).parent.glob("test_*.py")]
    for name in sorted(files):
        with contextlib.suppress(pytest.skip.Exception):  # a package that this machine lacks
            module = importlib.import_module(f"gpu.test_{name}")
            if hasattr(module, "kernels"):
                yield from module.kernels()
    yield from sanitize_grid.compiled(runner.PLAN_DEVICE)


def main() -> None:
    begin = time.perf_counter()
    count = variants.precompile(needed())
    print(f"{count} kernels compiled in {time.perf_counter() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
