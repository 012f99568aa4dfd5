"""The command reference describes the installed program; measured numbers in the docs are those of the files."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tree(generator: Any) -> list[tuple[tuple[str, ...], Any]]:

    from ksieve_lab.cli.app import tree

    return list(generator.commands(tree()))


def test_the_generated_pages_are_current(generator: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert generator.main(["--check"]) == 0, capsys.readouterr().out


def test_the_table_of_options_has_every_option(generator: Any) -> None:
    from ksieve.core.table import TABLE

    page = generator.options_reference()
    assert all(f"| `{option.name}`" in page for option in TABLE)


def test_every_command_and_option_explains_itself(tree: list[tuple[tuple[str, ...], Any]]) -> None:
    for path, command in tree:
        assert command.help, path
        if not hasattr(command, "commands"):
            assert f"ksieve {path[-1]}" in command.epilog, path
        for parameter in command.params:
            assert parameter.help, f"{' '.join(path)} {parameter.name}"


def test_the_page_of_a_command_has_every_option(generator: Any, tree: list[tuple[tuple[str, ...], Any]]) -> None:
    pages = dict(generator.cli_reference())
    for path, command in tree:
        for parameter in command.params:
            assert any(name in pages["-".join(path)] for name in (*parameter.opts, str(parameter.metavar))), path


def test_committed_figures_are_those_that_pages_show() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    for path in (ROOT / "docs" / "figures").iterdir():
        assert f"figures/{path.name})" in pages, path.name


def test_commands_and_options_that_pages_name_exist(tree: list[tuple[tuple[str, ...], Any]]) -> None:
    known = {" ".join(path): {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
             for path, command in tree}  # fmt: skip
    lines = [line for page in [ROOT / "README.md", ROOT / "lab" / "README.md", *(ROOT / "docs").rglob("*.md")]
             if "generated" not in page.parts
             for line in re.findall(r"(?:`|    |-m )(ksieve [a-z][^\n`#]*)",
                                    page.read_text(encoding="utf-8").replace("\\\n", " "))]  # fmt: skip
    assert len(lines) > 50
    for line in lines:
        command = " ".join(line.split()[:2])
        assert command in known, line
        assert set(re.findall(r"(?<!\S)(--[a-z-]+)", line)) <= {*known[command], "--help"}, line
