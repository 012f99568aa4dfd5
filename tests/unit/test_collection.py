"""Without packages of the extras, as after `make test`, every test file can be imported, or skips itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

ABSENT = """
import importlib.machinery

found = importlib.machinery.PathFinder.find_spec

def find_spec(cls, name, path=None, target=None):
    absent = name.partition(".")[0] in ("cuda", "cupy", "jax", "matplotlib", "torch", "triton")
    return None if absent else found(name, path, target)

importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
"""
"""Of a `sitecustomize`, which Python imports first: packages look as if they were not installed."""


def collect(folder: Path, *paths: Path) -> tuple[int, str]:
    """Exit status and messages of a collection without the packages."""
    (folder / "sitecustomize.py").write_text(ABSENT, encoding="utf-8")
    path = os.pathsep.join(map(str, (folder, ROOT / "src")))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *paths],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment | {"PYTHONPATH": path},
    )  # fmt: skip
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.slow
def test_every_file_is_collected_without_packages_of_the_extras(tmp_path: Path) -> None:
    """A file that imports one of them in front of `importorskip` stops the whole run."""
    status, said = collect(tmp_path)
    assert status == 0, "\n".join(line for line in said.splitlines() if "::" not in line and "SKIPPED" not in line)
    assert "could not import 'torch'" in said


def test_a_file_that_needs_an_absent_package_is_noticed(tmp_path: Path) -> None:
    needing = tmp_path / "test_needing.py"
    needing.write_text("import torch\n\ndef test_nothing():\n    pass\n", encoding="utf-8")
    status, said = collect(tmp_path, needing)
    assert status == 2 and "No module named 'torch'" in said
