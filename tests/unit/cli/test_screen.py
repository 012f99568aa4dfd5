"""Help fits one screen and has an example that works; ``--help-all`` has all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ksieve
import ksieve_lab
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.cli import further
from ksieve.cli.screen import first_sentence, names_of
from ksieve.core.errors import BackendError
from ksieve.core.installation import install_command
from ksieve_lab.cli.app import tree

COMMANDS = tree().commands
NEEDS_A_GPU = {"tune"}


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_one_screen(run, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    ran = run(*name.split(), "--help")
    lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert name == "" or "Example:" in lines
    assert "<bool>" not in ran.out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_whole_help_has_every_option_and_example(run, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    command, whole = COMMANDS[name], run(name, "--help-all").out
    for param in command.params:
        assert f"\n  {names_of(param)}" in whole
        assert "".join(param.help.split()) in "".join(whole.split())
    for example in command.epilog.split("\n"):
        assert example in whole
    assert max(map(len, run(name, "--help").out.splitlines())) <= max(map(len, whole.splitlines()))


def test_a_flag_shows_no_type_and_an_option_one():
    shown = {names_of(param) for command in COMMANDS.values() for param in command.params}
    assert {"--stats", "--json", "-o, --out FILE", "--dtype float32|float16|bfloat16", "SCORES"} <= shown


def test_the_first_sentence_keeps_a_default():
    assert first_sentence("File. It is large. Default: none.") == "File. Default: none."
    assert first_sentence("auto: a GPU (.npy) or 1.5. reference: slow") == "auto: a GPU (.npy) or 1.5. reference: slow"


def test_an_unknown_command_says_where_further_ones_come_from(run, monkeypatch):
    monkeypatch.setattr(further, "_tables", list)
    ran = run("bench")
    assert ran.code == 2
    assert "captures come with ksieve-lab: " + install_command(name="ksieve-lab") in ran.err


@pytest.mark.extended
@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NEEDS_A_GPU])
def test_the_example_works_when_it_is_pasted(tmp_path, name):
    if name == "build":
        try:
            compiler.compiler_version()
        except BackendError as error:
            pytest.skip(str(error))
    if name == "plot":
        pytest.importorskip("matplotlib")
    (tmp_path / "ksieve").write_text(f'#!/bin/sh\nexec {sys.executable} -m ksieve "$@"\n')
    (tmp_path / "ksieve").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    source = os.pathsep.join(str(Path(of.__file__).parents[1]) for of in (ksieve, ksieve_lab))
    done = subprocess.run(
        ["bash", "-ec", COMMANDS[name].epilog.split("\n\n")[0]],
        cwd=tmp_path, env={**os.environ, "PATH": path, "PYTHONPATH": source}, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout
