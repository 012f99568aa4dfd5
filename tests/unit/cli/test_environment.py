"""docs/reference/environment.md lists every environment variable that is read, and no variable of ours that is not."""

from __future__ import annotations

import ast
import re

import pytest

from conftest import ROOT

PAGE = ROOT / "docs" / "reference" / "environment.md"
PASSED_ON = {"PATH", "PYTHONPATH", "CC"}
"""What tests read to start other programs."""


def reads(text):
    """Names that a module reads from the environment; "?" for one that is no constant."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="get" | "pop" | "setdefault")):
                name = node.args[0]
            case ast.Call(func=ast.Attribute(attr="getenv")):
                name = node.args[0]
            case ast.Subscript(value=ast.Attribute(attr="environ"), ctx=ast.Load()):
                name = node.slice
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[ast.Attribute(attr="environ")]):
                name = node.left
            case _:
                continue
        yield name.value if isinstance(name, ast.Constant) else "?"


def test_the_search_finds_every_way_to_read():
    text = "os.environ.get('A'); os.environ['B']; os.getenv('C'); os.environ[d]; 'E' in os.environ; os.environ['F'] = 1"
    assert set(reads(text)) == {"A", "B", "C", "?", "E"}


@pytest.mark.parametrize("folder", ["src", "tests", "scripts"])
def test_every_variable_that_is_read_is_on_the_page(folder):
    page = PAGE.read_text(encoding="utf-8")
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for name in reads(path.read_text(encoding="utf-8")):
            found.setdefault(name, path.relative_to(ROOT))
    unknown = found.pop("?", None)
    assert unknown is None or folder != "src" or unknown.name == "peers.py", f"{unknown}: name no constant"
    missing = {name: str(path) for name, path in found.items() if f"`{name}`" not in page and name not in PASSED_ON}
    if folder == "tests":  # variables of libraries under test
        missing = {name: path for name, path in missing.items() if name.startswith("KSIEVE_")}
    assert not missing


def test_every_variable_of_ours_on_the_page_is_read():
    named = set(re.findall(r"`(KSIEVE_[A-Z_]+)`", PAGE.read_text(encoding="utf-8")))
    read = {name for path in ROOT.glob("*/**/*.py") if ".venv" not in path.parts for name in reads(path.read_text())}
    assert named and named <= read
