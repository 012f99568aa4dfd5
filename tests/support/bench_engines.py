"""Fakes of the engines, and the bench of their operators on the host: few calls, and nothing to compile."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from bench_host import host, invoke
from ksieve.adapters._operators import HOMES
from ksieve.adapters._tally import TALLY
from ksieve_lab.bench import engines, runner

__all__ = ["host"]

FAKES = Path(__file__).parent / "fake_engines"
TOP = ("selection", *(package for packages in HOMES.values() for package in packages))
K, SHAPE = 512, "3x4096"


def loaded():
    return [name for name in sys.modules if name.partition(".")[0] in TOP]


@pytest.fixture
def fakes(monkeypatch):
    """The fakes can be imported; afterwards nothing of them is left."""
    monkeypatch.syspath_prepend(str(FAKES))
    for name in loaded():
        monkeypatch.delitem(sys.modules, name)
    TALLY.clear()
    yield importlib.import_module("selection")
    for name in loaded():
        del sys.modules[name]


@pytest.fixture
def bench(host, fakes, monkeypatch):
    """Few calls on the host, and nothing for compilers to do."""
    monkeypatch.setattr(engines, "HOST_CALLS", 1)
    monkeypatch.setattr(engines, "HOST_BLOCKS", 2)
    monkeypatch.setattr(runner, "compiled", lambda plans, live: None)
    return fakes


def measured(tmp_path, *arguments):
    done = invoke("engines", "--k", K, "--shapes", SHAPE, "--rounds", 1, "--out", tmp_path, *arguments)
    assert not isinstance(done.exception, Exception), repr(done.exception)
    return done, json.loads((tmp_path / "gpu-engines.json").read_text())
