"""What a type checker knows of the result of `ksieve.topk`: an array alone, or a tuple, by the flags of the call."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("mypy")

STATS = "ksieve.core.stats.Stats"
REVEALED = {
    "k=3": "Any",
    "k=3, return_values=False": "Any",
    "k=3, return_values=True": "tuple[Any, Any]",
    "k=3, return_raw=True, offsets=x": "tuple[Any, Any]",
    "k=3, return_stats=True": f"tuple[Any, {STATS}]",
    "k=3, return_values=True, return_raw=True": "tuple[Any, Any, Any]",
    "k=3, return_values=True, return_stats=True": f"tuple[Any, Any, {STATS}]",
    "k=3, return_raw=True, return_stats=True": f"tuple[Any, Any, {STATS}]",
    "k=3, return_values=True, return_raw=True, return_stats=True": f"tuple[Any, Any, Any, {STATS}]",
    "k=3, return_values=True, values_out=x, sorted='value'": "tuple[Any, Any]",
    "lengths=x, k=3, return_values=True, policy='direct', backend='cpu', out=x": "tuple[Any, Any]",
    # A plan may add arrays, and an array alone asks for its part of the result.
    "plan=plan, return_values=True": "Any",
    "k=3, values_out=x": "Any",
    # Neither True nor False for a checker.
    "k=3, return_values=flag": "Any",
}


def checked(lines: list[str], folder: Path) -> str:
    """What mypy says of a program, by the rules of this repository."""
    program = folder / "program.py"
    program.write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--no-error-summary", "--no-pretty", "--cache-dir", str(ROOT / ".mypy_cache"), str(program)]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False).stdout


def test_the_flags_of_a_call_decide_its_type(tmp_path: Path) -> None:
    head = ["from typing import Any", "import ksieve", "def program(x: Any, plan: ksieve.Plan, flag: bool) -> None:"]
    calls = [f"    reveal_type(ksieve.topk(x, {arguments}))" for arguments in REVEALED]
    wrong = [
        "    ksieve.topk(x, k=3, return_values=True, sorted='best')",
        "    a, b, c = ksieve.topk(x, k=3, return_raw=True)",
        "    ksieve.Options(order='best')",
    ]
    said = checked([*head, *calls, *wrong], tmp_path)
    found = dict(re.findall(r'^program\.py:(\d+): note: Revealed type is "(.*)"', said, flags=re.MULTILINE))
    lines = range(len(head) + 1, len(head) + 1 + len(REVEALED))
    kinds = [found.get(str(line), said).replace("builtins.", "") for line in lines]
    assert dict(zip(REVEALED, kinds, strict=True)) == REVEALED
    errors = re.findall(r"^program\.py:(\d+): error: (.*?)  \[", said, flags=re.MULTILINE)
    assert [int(line) for line, _ in errors] == [lines[-1] + n for n in (1, 2, 3)], said
    assert errors[1][1] == "Need more than 2 values to unpack (3 expected)"
