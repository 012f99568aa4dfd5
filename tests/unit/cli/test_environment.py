"""docs/reference/environment.md lists every environment variable that is read, and no variable of ours that is not."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from conftest import ROOT

PAGE = ROOT / "docs" / "reference" / "environment.md"
PASSED_ON = {"PATH", "PYTHONPATH", "CC"}
"""What tests read to start other programs."""


NO_CONSTANTS = {
    "src/ksieve/backends/cpu/jit.py": {"NUMBA_NUM_THREADS", "NUMBA_OPT"},
    "lab/src/ksieve_lab/bench/peers.py": {"FLASHINFER_TOPK_ALGO"},
    "src/ksieve/planning/tune/variants.py": {"KSIEVE_TUNED"},
    "scripts/engine_loaders.py": {"PYTHONPATH"},
}
"""Modules that read names which are no constants, or look for some names among all, and these names."""

IN_PLATFORMDIRS = {
    "user_cache_path": "XDG_CACHE_HOME",
    "user_config_path": "XDG_CONFIG_HOME",
    "user_data_path": "XDG_DATA_HOME",
    "user_state_path": "XDG_STATE_HOME",
}
"""What functions of platformdirs read on Linux."""


@cache
def reads_of(path):
    return frozenset(reads(path.read_text(encoding="utf-8")))


def reads(text):
    """Names that a module reads from the environment; "?" for one that is no constant, and for reads of all names."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="get" | "pop" | "setdefault")):
                name = node.args[0]
            case ast.Call(func=ast.Attribute(attr="getenv")):
                name = node.args[0]
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="items" | "values" | "keys")):
                name = None
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in IN_PLATFORMDIRS:
                name = ast.Constant(IN_PLATFORMDIRS[attr])
            case ast.Subscript(value=ast.Attribute(attr="environ"), ctx=ast.Load()):
                name = node.slice
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[ast.Attribute(attr="environ")]):
                name = node.left
            case ast.For(iter=ast.Attribute(attr="environ")) | ast.comprehension(iter=ast.Attribute(attr="environ")):
                name = None
            case _:
                continue
        yield name.value if isinstance(name, ast.Constant) else "?"


FOLDERS = ("src", "tests", "scripts")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_variable_that_is_read_is_on_the_page(folder):
    page, missing = PAGE.read_text(encoding="utf-8"), {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        where, names = path.relative_to(ROOT).as_posix(), set(reads_of(path))
        if "?" in names and folder != "tests":
            assert where in NO_CONSTANTS, f"{where}: reads a name that is no constant"
            names |= NO_CONSTANTS[where]
        if folder == "tests":  # variables of libraries under test
            names = {name for name in names if name.startswith("KSIEVE_")}
        absent = {name for name in names - PASSED_ON - {"?"} if f"`{name}`" not in page}
        missing |= {where: absent} if absent else {}
    assert not missing


def test_every_variable_of_ours_on_the_page_is_read():
    named = set(re.findall(r"`(KSIEVE_[A-Z_]+)`", PAGE.read_text(encoding="utf-8")))
    read = {name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") for name in reads_of(path)}
    assert named and named <= read
