"""A command of `ksieve`, with those of the laboratory, run in this process."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys, monkeypatch):
    from ksieve_lab.cli import app  # not where no command is run

    monkeypatch.setenv("COLUMNS", "200")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["ksieve", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        return Ran(int(ended.value.code or 0), *capsys.readouterr())

    return call
