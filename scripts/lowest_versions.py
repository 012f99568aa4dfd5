"""Print the lowest versions that both pyproject.toml admit, or the tests that run with them.

``requirements`` prints ``name==version`` for every lower bound of the base dependencies and of the extras, as a
constraints file for pip, but of the extra cuda12, which excludes cuda; ``installed`` what of it the tests need, for pip
to install. ``tests`` and ``cuda`` print the paths of a selection that reaches every dependency in about a minute. Those
of ``cuda`` need a process that loads NVRTC before PyTorch: cuda-bindings takes a library that is loaded already, and a
PyTorch for CUDA 12 has loaded its own.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TESTS = (
    "test_keys", "test_problem", "test_cpu_backend",  # numpy, numba
    "test_code_cache", "test_cpu_cache",  # platformdirs, filelock
    "test_workloads_capture",  # safetensors
    "test_cli", "test_cli_json",  # typer, rich
    "test_torch_ops", "test_odd_traced",  # torch
    "test_figures",  # matplotlib
)  # fmt: skip

EXTRAS = ("cuda", "torch", "plot")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "ml_dtypes")

CUDA = ("test_cuda_host", "test_cuda_driver")  # cuda-core, cuda-bindings, NVRTC


def requirements(extras: tuple[str, ...] | None = None) -> list[str]:
    """Pin every requirement of some extras, or of all, that has a lower bound to it."""
    files = (ROOT / "pyproject.toml", ROOT / "lab" / "pyproject.toml")
    project, lab = (tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files)
    optional = project["optional-dependencies"] | lab["optional-dependencies"]
    wanted = [extra for extra in optional if extra != "cuda12"] if extras is None else extras
    declared = [*project["dependencies"], *(one for extra in wanted for one in optional[extra])]
    return [re.sub(r"\s*>=\s*", "==", one).partition(",")[0] for one in declared if ">=" in one]


def paths_of(names: tuple[str, ...]) -> list[str]:
    """Find each test file, in any folder."""
    found = {name: [*(ROOT / "tests").rglob(f"{name}.py"), *(ROOT / "lab").rglob(f"{name}.py")] for name in names}
    if unknown := [name for name, paths in found.items() if len(paths) != 1]:
        raise SystemExit(f"scripts/lowest_versions.py: not exactly one file each: {', '.join(unknown)}")
    return [str(path.relative_to(ROOT)) for paths in found.values() for path in paths]


if __name__ == "__main__":
    printed: dict[str, Callable[[], list[str]]] = {
        "requirements": requirements,
        "installed": lambda: [*requirements(EXTRAS), *TOOLS],
        "tests": lambda: paths_of(TESTS),
        "cuda": lambda: paths_of(CUDA),
    }
    print("\n".join(printed[sys.argv[1]]()))
