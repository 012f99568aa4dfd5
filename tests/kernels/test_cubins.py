"""The list of machine code that `make cubins` compares with; nothing is compiled here."""

from __future__ import annotations

import importlib
import itertools
import json
import re

import pytest
from conftest import ROOT

pytestmark = pytest.mark.extended


@pytest.fixture
def cubins(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("cubins")


def test_the_list_covers_the_serving_set_once(cubins):
    listed = json.loads(cubins.LIST.read_text())
    kernels, wrong = cubins.resolve(listed["kernels"])
    assert wrong == []
    assert {spec for spec, (record, _) in kernels.items() if record.get("serving")} == set(cubins.serving())
    for record in listed["kernels"]:
        assert re.fullmatch("[0-9a-f]{16}", record["code"]) and re.fullmatch("[0-9a-f]{16}", record["ptx"])
        assert record["spills"] == 0 and record["registers"] > 0 and record["bytes"] > 0


def test_continuous_integration_has_the_compiler_of_the_list(cubins):
    """Another one would compare nothing, and pass."""
    version = json.loads(cubins.LIST.read_text())["nvrtc"]
    assert f"\nnvidia-cuda-nvrtc=={version}\n" in (ROOT / "constraints.txt").read_text()
    assert "\n\tstep cubins;" in (ROOT / "Makefile").read_text()
    assert "make --no-print-directory test-all" in (ROOT / ".ci" / "run").read_text()


CLUSTER_FORCED = (("KSIEVE_STATS", 0), ("KSIEVE_TIES", 1))


def test_the_list_reaches_what_the_compilation_tests_reach(cubins):
    """Of any two defines, every combination of states: off, on, more than on; and all options on every architecture."""
    from test_kernels_compile import cases, kernel_of, states  # skips without cuda-core

    found, wrong = cubins.resolve(json.loads(cubins.LIST.read_text())["kernels"])
    assert not wrong
    wanted = set(map(kernel_of, cases()))
    names = sorted({name for spec in {*found, *wanted} for name, _ in spec.defines})

    def reached(specs):
        pairs = set()
        for spec in specs:
            pairs |= {(spec.stem, *pair) for pair in itertools.combinations(states(spec, names), 2)}
        return pairs

    # An exact boundary without jitter is a policy of the tests alone, and no branch of the kernels. A cluster without
    # resident rows is what a caller forces, or has statistics.
    forced = {("resident/cluster", ("KSIEVE_MAX_RESIDENT", 0), (name, value)) for name, value in CLUSTER_FORCED}
    missing = {p for p in reached(wanted) - reached(found) - forced if ("KSIEVE_JITTER", 0) not in p}
    assert not missing
    assert len(found) <= 348, "a change of the kernels waits for all of them"
