"""The README is executed: every command and every Python block, in order, as a newcomer would type them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

PAGES = ("README.md", "CONTRIBUTING.md")


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    lines = "".join(blocks(page, "(?:bash|console)")).splitlines() if page else []
    return [line.split("  #")[0].removeprefix("$ ").strip() for line in lines if line.strip()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a folder that looks like the repository's, and an environment whose `ksieve` is this Python's."""
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "bin").mkdir()
    program = folder / "bin" / "ksieve"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ksieve "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}
    # Commands that compile CPU kernels say so on stderr, as they say that another process does.
    subprocess.run([program, "build", "--cpu"], cwd=folder, env=environment, capture_output=True, check=True)
    return folder, environment


def test_every_ksieve_command_of_the_readme_runs(place: tuple[Path, dict[str, str]]) -> None:
    folder, environment = place
    scores = np.random.default_rng(0).standard_normal((4, 20_000), dtype=np.float32)
    np.save(folder / "scores.npy", scores)
    np.save(folder / "lengths.npy", np.array([20_000, 3000, 100, 0], np.int32))
    own = [command for command in commands("README.md") if command.startswith("ksieve ")]
    assert len(own) >= 5
    for command in own:
        ran = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, ""), command
        assert ran.stdout, command


def test_every_python_block_of_the_readme_runs(place: tuple[Path, dict[str, str]]) -> None:
    folder, environment = place
    found = blocks("README.md", "python")
    assert found
    for block in found:
        ran = subprocess.run(
            [sys.executable, "-c", block], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "exact: all" in ran.stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_other_command_is_a_make_target_or_the_ci_script(page: str) -> None:
    """These install or run the suite itself, so the CI script executes them; here their names are checked."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    for command in commands(page):
        program, *words = command.split()
        if program == "ksieve":
            continue
        if program == "bash":
            assert (ROOT / words[0]).is_file()
            continue
        assert program == "make", command
        assert words[0] in targets, command


def test_the_ci_script_begins_with_the_two_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (taken,) = re.findall(r'^commands="\$\((.*)\)"$', script, flags=re.MULTILINE)
    found = subprocess.run(["bash", "-c", taken], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.split()[:2] for line in found.splitlines()] == [["make", "demo"], ["make", "test"]]
    assert 0 < script.index('-c "$commands"') < script.index("as_stranger make --no-print-directory test-all")
