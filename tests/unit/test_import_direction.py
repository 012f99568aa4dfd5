"""Imports point one way: a wing of the library imports itself and the wings before it, wherever the import stands."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import ksieve

PACKAGE = Path(ksieve.__file__).parent
WINGS = (
    "_version", "core", "model", "checking", "planning", "backends", "dispatch",
    "frontends", "api", "torch", "distributed", "running", "logits", "files", "", "adapters", "self_test",
    "tuning", "doctor", "cli", "__main__",
)  # fmt: skip
FILES = {
    ".".join(["ksieve", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def names_of(module):
    """What a module and the packages that it is in are called inside `ksieve`; the package itself is ``""``."""
    parts = module.split(".")[1:]
    return [".".join(parts[:n]) for n in range(min(1, len(parts)), len(parts) + 1)]


def imports_of(module):
    for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in FILES else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@cache
def graph():
    return {module: {name for name in imports_of(module) if name in FILES} for module in FILES}


def test_every_wing_imports_itself_and_the_wings_before_it():
    floor = {
        module: WINGS.index(max((name for name in names_of(module) if name in WINGS), key=len)) for module in FILES
    }
    assert [(m, i) for m, imported in graph().items() for i in imported if floor[i] > floor[m]] == []


def test_the_library_knows_no_laboratory():
    assert [m for m in FILES if any(name.startswith("ksieve_lab") for name in imports_of(m))] == []


def test_there_is_no_circle():
    TopologicalSorter(graph()).prepare()
