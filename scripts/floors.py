"""Print the lowest versions that pyproject.toml admits, or the tests that run with them.

``requirements`` prints ``name==version`` for every lower bound of the base dependencies and of the extras, as a
constraints file for pip. ``tests`` and ``cuda`` print the paths of a selection that reaches every dependency in about
a minute. Those of ``cuda`` need a process that loads NVRTC before PyTorch: cuda-bindings takes a library that is loaded
already, and a PyTorch for CUDA 12 has loaded its own.
"""

from __future__ import annotations

import re
import sys
import tomllib
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

CUDA = ("test_cuda_host", "test_cuda_driver")  # cuda-core, cuda-bindings, NVRTC


def requirements() -> list[str]:
    """Pin every requirement that has a lower bound to it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(one for extra in extras for one in extra)]
    return [re.sub(r"\s*>=\s*", "==", one) for one in declared if ">=" in one]


def paths_of(names: tuple[str, ...]) -> list[str]:
    """Find each test file, in any folder."""
    found = {name: list((ROOT / "tests").rglob(f"{name}.py")) for name in names}
    if unknown := [name for name, paths in found.items() if len(paths) != 1]:
        raise SystemExit(f"scripts/floors.py: not exactly one file each: {', '.join(unknown)}")
    return [str(path.relative_to(ROOT)) for paths in found.values() for path in paths]


if __name__ == "__main__":
    wanted = sys.argv[1]
    print("\n".join(requirements() if wanted == "requirements" else paths_of({"tests": TESTS, "cuda": CUDA}[wanted])))
