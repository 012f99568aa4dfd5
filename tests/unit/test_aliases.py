"""Former names of modules still import, are the same modules, and say so."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from ksieve import _aliases


@pytest.mark.parametrize("name", _aliases.NAMES)
def test_a_former_name_is_todays_module_with_a_warning(name):
    sys.modules.pop(f"ksieve.{name}", None)
    with pytest.warns(DeprecationWarning, match=rf"^ksieve\.{name} is now ksieve\.{_aliases.NAMES[name]};") as said:
        former = importlib.import_module(f"ksieve.{name}")
    assert former is importlib.import_module(f"ksieve.{_aliases.NAMES[name]}")
    assert former.__name__ == f"ksieve.{_aliases.NAMES[name]}"
    assert len({str(w.message) for w in said}) >= 1
    sys.modules.pop(f"ksieve.{name}", None)


def test_the_warning_names_the_line_that_imports(tmp_path):
    program = tmp_path / "user.py"
    program.write_text(
        "import ksieve\n\nfrom ksieve.policy import LINES_64\n\nprint(LINES_64.name)\n", encoding="utf-8"
    )
    ran = subprocess.run([sys.executable, "-W", "default", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "lines-64\n"
    assert f"{program}:3: DeprecationWarning: ksieve.policy is now ksieve.core.policy" in ran.stderr


def test_what_never_was_is_missing():
    with pytest.raises(ModuleNotFoundError, match=r"ksieve\.nothing"):
        importlib.import_module("ksieve.nothing")
