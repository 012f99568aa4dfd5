"""docs/cli.md describes the program that is installed: every command, argument and option, word for word."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


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
    import typer

    from ksieve.cli import app

    return list(generator.commands(typer.main.get_command(app)))


def test_the_generated_pages_are_current(generator: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert generator.main(["--check"]) == 0, capsys.readouterr().out


def test_every_command_and_option_is_documented(tree: list[tuple[tuple[str, ...], Any]]) -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^#+ `(ksieve[^`]*)`\n(.*?)(?=^#+ `|\Z)", page, flags=re.MULTILINE | re.DOTALL))
    assert set(sections) == {" ".join(path) for path, _ in tree}
    for path, command in tree:
        section = sections[" ".join(path)]
        for parameter in command.params:
            for name in parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]:
                assert f"`{name}`" in section, f"{' '.join(path)} {name}"


def test_every_command_and_option_explains_itself(tree: list[tuple[tuple[str, ...], Any]]) -> None:
    for path, command in tree:
        assert command.help, path
        if not hasattr(command, "commands"):
            assert "$ ksieve" in command.epilog, path
        for parameter in command.params:
            assert parameter.help, f"{' '.join(path)} {parameter.name}"


def test_the_readme_quotes_result_files(generator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ksieve.bench import cpu, record

    monkeypatch.setattr(generator, "ROOT", tmp_path)
    assert generator.benchmark_section(tmp_path) == ""
    payload = cpu.run([(2, 33_000)], ("random_normal",), k=100, rounds=1, adversarial=False, starts=False)
    record.write_json(tmp_path / "cpu-7.json", payload)
    section = generator.benchmark_section(tmp_path)
    case = payload["results"]["compared"][0]
    assert "| 2 x 33,000, random_normal |" in section
    assert f"| {case['median_seconds']['ksieve'] * 1e3:.2f} ms |" in section
    assert f"| {case['rate_of_max']:.2f} |" in section
    assert "[cpu-7.json](cpu-7.json)" in section


def test_stale_text_is_noticed(generator: Any) -> None:
    text = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb"
    assert generator.between_markers(text, "x", "new") == "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb"
    assert generator.between_markers(text, "x", "old") == text
    with pytest.raises(SystemExit):
        generator.between_markers("no markers", "x", "new")
