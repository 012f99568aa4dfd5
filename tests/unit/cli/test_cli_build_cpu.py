"""``ksieve build --cpu``: the CPU kernels, ahead of time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from conftest import ROOT
from ksieve.cli import ahead
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.lab.cli.app import app

CALLS = """
import logging, sys
import numpy as np
import ksieve
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
rng = np.random.default_rng(1)
scores = rng.standard_normal((3, 5000), dtype=np.float32)
lengths = np.array([5000, 100, 0], np.int32)
positions = np.tile(np.arange(5000, dtype=np.int32), (3, 1))
for matrix in (scores, scores.astype(np.float16), scores[:, 1:]):
    for options in ({}, {"sorted": True}, {"return_values": True, "tie_break": "low"}, {"policy": "direct"}):
        ksieve.topk(matrix, lengths, k=64, **options)
ksieve.topk(scores, lengths, k=64, return_stats=True)
ksieve.topk(scores, lengths, k=64, largest=False, positions=positions)
for matrix in (scores, scores.astype(np.float16), scores[:, 1:]):
    for options in ({}, {"force_first": 1, "expand": True}, {"expand": True, "tail": lengths, "return_values": True}):
        ksieve.topk(matrix, lengths, k=64, block_size=4, **options)
        ksieve.topk(matrix, lengths, k=64, starts=lengths, index_base="start", block_size=5, num_rows=2)
ksieve.topk(scores, lengths, k=np.full(3, 5, np.int32), max_k=9, positions=positions, force_last=2, expand=2)
"""


def test_every_compiled_function_is_built():
    """Another ``@cached_jit`` function needs a call in `ahead._cpu_calls`."""
    folder = ROOT / "src" / "ksieve" / "backends" / "cpu"
    names = {
        name
        for path in folder.glob("*.py")
        for name in re.findall(r"@cached_jit\n\s+def (\w+)", path.read_text(encoding="utf-8"))
    }
    assert names == ahead._cpu_calls().keys()


@pytest.mark.extended
def test_afterwards_calls_of_every_kind_compile_nothing():
    """With the cache of the other tests, where the kernels mostly are already."""

    def run(*words):
        env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, env=env).stdout

    assert "6 CPU kernels in" in run("-m", "ksieve", "build", "--cpu")
    assert "0 of them compiled now" in run("-m", "ksieve", "build", "--cpu")
    assert run("-c", CALLS) == ""


def test_a_function_that_another_call_compiled_counts_as_compiled(monkeypatch, capsys):
    names = ("first", "second", "third")
    functions = {name: SimpleNamespace(stats=SimpleNamespace(cache_misses={})) for name in names}

    def first():
        for name in ("first", "second"):
            functions[name].stats.cache_misses["signature"] = 1

    calls = {name: (functions[name], first if name == "first" else lambda: None) for name in names}
    entries = [SimpleNamespace(facts={"kernel": name}) for name in names]
    store = SimpleNamespace(writable=lambda: True, entries=lambda: entries)
    monkeypatch.setattr(ahead, "_cpu_calls", lambda: calls)
    monkeypatch.setattr("ksieve.backends.code_cache.Store", lambda kind: store)
    ahead.cpu()
    said = capsys.readouterr().out
    assert re.findall(r"(\w+) +(compiled|cached)\n", said) == [
        ("first", "compiled"), ("second", "compiled"), ("third", "cached"),
    ]  # fmt: skip
    assert "3 CPU kernels in" in said and "2 of them compiled now" in said


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    with pytest.raises(BackendError, match="cannot be written: set KSIEVE_CACHE_DIR"):
        raise CliRunner().invoke(app, ["build", "--cpu"]).exception


def test_what_is_not_kept_is_an_error(tmp_path, monkeypatch):
    """The functions of this process are loaded already, so that an empty cache stays empty."""
    import numpy as np

    import ksieve

    scores = np.zeros((1, 8), np.float32)
    ksieve.topk(scores, k=2)
    ksieve.topk(scores, k=2, sorted=True)
    ksieve.topk(scores, k=2, positions=np.arange(8, dtype=np.int32)[None])
    ksieve.topk(scores, k=2, block_size=2)
    ksieve.Running(1, 2, 8).push(scores, 0)
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path))
    names = "arrange_rows, finish_rows, gather_rows, keep_rows, pool_rows, select_rows"
    with pytest.raises(BackendError, match=rf"were not kept in .*: {names}"):
        raise CliRunner().invoke(app, ["build", "--cpu"]).exception


@pytest.mark.parametrize("words", [("--arch", "sm_90a"), ("--k", "64"), ("--stats",), ("--bundle", "a.zip")])
def test_options_of_cuda_kernels_are_refused(words):
    with pytest.raises(ArgumentError, match=f"{words[0]}: got .*nothing with --cpu"):
        raise CliRunner().invoke(app, ["build", "--cpu", *words]).exception
