"""``ksieve build --cpu``: the CPU kernels, ahead of time."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT
from typer.testing import CliRunner

from ksieve.backends.cpu import compiled
from ksieve.cli import kernels
from ksieve.core.errors import ArgumentError, BackendError
from ksieve_lab.cli.app import app

CALLS = """
import logging, sys
import numpy as np
import ksieve
from ksieve import Blocks
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
rng = np.random.default_rng(1)
scores = rng.standard_normal((3, 5000), dtype=np.float32)
lengths = np.array([5000, 100, 0], np.int32)
positions = np.tile(np.arange(5000, dtype=np.int32), (3, 1))
for matrix in (scores, scores.astype(np.float16), scores[:, 1:]):
    direct = ksieve.plan(matrix, lengths, 64, policy="direct")
    for options in ({}, {"sorted": True}, {"values": True, "tie_break": "low"}, {"plan": direct}):
        ksieve.select(matrix, lengths, k=64, **options)
ksieve.select(scores, lengths, k=64, stats=True)
ksieve.topk(scores, lengths, k=64, largest=False, gathered=ksieve.Positions(positions))
windows = ksieve.RowBounds(lengths, index_base="start")
for matrix in (scores, scores.astype(np.float16), scores[:, 1:]):
    for blocks in (Blocks(4), Blocks(4, force_first=1, expand=4), Blocks(4, expand=4, tail=lengths)):
        ksieve.select(matrix, lengths, k=64, blocks=blocks, values=True)
        ksieve.topk(matrix, lengths, k=64, bounds=windows, blocks=Blocks(5), num_rows=2)
pools = Blocks(force_last=2, expand=2)
ksieve.topk(scores, lengths, np.full(3, 5, np.int32), max_k=9, gathered=ksieve.Positions(positions), blocks=pools)
"""


def test_every_kernel_is_built():
    """Another kernel needs a place in `kernels._cpu_kernels`, unless one there calls it."""
    folder = ROOT / "src" / "ksieve" / "backends" / "cpu"
    names = {
        name
        for path in folder.glob("*.py")
        for name in re.findall(r"^@(?:kernel|entry)\ndef (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    built = [each.name for each in kernels._cpu_kernels()]
    assert names and names == {name for name in built if not name.startswith("convert_")}
    assert len(built) - len(names) == 3 * 3 - 1, "a converter of each dtype and ranking, but for float32 as it is"


@pytest.mark.extended
def test_afterwards_calls_of_every_kind_compile_nothing():
    """With the cache of the other tests, where the kernels mostly are already."""

    def run(*words):
        env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, env=env).stdout

    assert f"{len(kernels._cpu_kernels())} CPU kernels in" in run("-m", "ksieve", "build", "--cpu")
    assert "0 of them compiled now" in run("-m", "ksieve", "build", "--cpu")
    assert run("-c", CALLS) == ""


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    with pytest.raises(BackendError, match="cannot be written: set KSIEVE_CACHE_DIR"):
        raise CliRunner().invoke(app, ["build", "--cpu"]).exception


def test_what_is_not_kept_is_an_error(tmp_path, monkeypatch):
    """The kernels of this process are loaded already, so that an empty cache stays empty."""
    compiled.prepare(*kernels._cpu_kernels())
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path))
    with pytest.raises(BackendError, match=r"were not kept in .*: account, .*, select_rows, .*, write_rows"):
        raise CliRunner().invoke(app, ["build", "--cpu"]).exception


@pytest.mark.parametrize("words", [("--device", "sm_90a"), ("--k", "64"), ("--stats",), ("--bundle", "a.zip")])
def test_options_of_cuda_kernels_are_refused(words):
    with pytest.raises(ArgumentError, match=f"{words[0]}: got .*not taken with --cpu"):
        raise CliRunner().invoke(app, ["build", "--cpu", *words]).exception
