"""The extra cuda12 and its gate: which kernels are compiled with NVRTC 12.8, and what of the result fails."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib

import pytest
from conftest import ROOT

from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.runtime.driver import install

pytestmark = pytest.mark.extended


@pytest.fixture
def spills(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    yield importlib.import_module("spills")
    for name in ("spills", "cubins", "canonical_ptx"):
        sys.modules.pop(name, None)


@pytest.fixture
def compiled(spills, monkeypatch, tmp_path):
    """The script with a compiler that takes no time; the faults of a kernel are those that a test puts there."""
    faults = {}
    monkeypatch.setattr(compiler, "compiler_version", lambda: "nvrtc 12.8")
    monkeypatch.setattr(spills, "faults_of", lambda spec, plan: faults.get(spec.stem, []))

    def run(*words):
        return spills.main([*words, "--jobs", "1", "--list", str(tmp_path / "list.json")])

    run.faults = faults
    return run


def test_what_is_not_listed_fails_and_what_is_listed_passes(compiled, capsys):
    assert compiled("--sample") == 0
    compiled.faults["stream/block"] = ["spills 8 bytes to and 8 from local memory"]
    assert compiled("--sample") == 1
    said = capsys.readouterr().out
    assert re.search(r"  sm_90a .* bfloat16.*: spills 8 bytes to and 8 from local memory  NEW\n", said)
    assert compiled("--update") == 0 and compiled() == 0
    assert "NEW" not in capsys.readouterr().out.rpartition("wrote")[2]
    compiled.faults["stream/block"] = ["does not compile: no"]
    assert compiled() == 1


def test_the_extras_exclude_each_other_and_share_cuda_core():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    core, bindings, nvrtc = extras["cuda12"]
    assert core == extras["cuda"][0]
    assert re.fullmatch(r"cuda-bindings>=12\.9.*,<13", bindings) and re.fullmatch(r".*-cu12>=12\.8.*,<12\.9", nvrtc)
    assert extras["cuda"][1] == "cuda-bindings>=13.0"


@pytest.mark.parametrize(
    ("version", "extra"), [(12_040, "cuda12"), (12_090, "cuda12"), (13_000, "cuda"), (None, "cuda")]
)
def test_the_extra_follows_the_driver(version, extra):
    assert install(version) == f"pip install 'ksieve[{extra}]'"
