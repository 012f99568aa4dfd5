"""What a type checker knows of the public functions: the kind of an answer, and wrong keywords and groups."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("mypy")

ARRAY = r"numpy\.ndarray\[tuple\[Any, \.\.\.\], numpy\.dtype\[numpy\.signedinteger\[numpy\._typing\._?.*32.*\]\]\]"
SELECTION = rf"tuple\[{ARRAY}, Any, Any, Any, Any, fallback=ksieve\.core\.selection\.Selection\[.*\]\]"
REVEALED = {
    "topk(x, k=3)": ARRAY,
    "topk(x, n, 3, sorted='value', out=x, plan=plan)": ARRAY,
    "topk(x, k=3, bounds=RowBounds(n, next_n=2), blocks=Blocks(8, expand=8))": ARRAY,
    "topk(x, k=3, gathered=SelectedBlocks(n), transform=Offsets(n))": ARRAY,
    "topk(x, k=n, max_k=3, transform=PageTable(n, page_size=64))": ARRAY,
    "topk(x, k=3, tie_break=None, largest=False, nan='highest', deterministic=True)": ARRAY,
    "select(x, k=3)": SELECTION,
    "select(x, k=3, values=True, raw=x, counts=n, stats=True, fill=False)": SELECTION,
    "select(x, k=3, values=True).values": "Any",
    "select(x, k=3).indices": ARRAY,
    "topk(any, k=3)": "Any",
    "plan(x, n, 3, bounds=RowBounds(ends=n), overlap=True)": r"ksieve\.planning\.plan\.Plan",
    "plan(rows=3, width=9, k=3, values=True)": r"ksieve\.planning\.plan\.Plan",
    "verify(x, n, n, bounds=RowBounds(n), sorted=True)": r"ksieve\.checking\.verdict\.Verdict",
    "Running(3, 4, 5, blocks=Blocks(4)).select(values=True)": r"tuple\[.*Selection\[Any\]\]",
}
WRONG = {
    "topk(x, k=3, sorted='best')": "sorted",
    "topk(x, k=3, values=True)": "values",
    "topk(x, k=3, starts=n)": "starts",
    "topk(x, k=3, bounds=Blocks(8))": "bounds",
    "topk(x, k=3, transform=Positions(n))": "transform",
    "topk(x, k=3, gathered=n)": "gathered",
    "topk(x, k=3, deterministic='yes')": "deterministic",
    "topk(x, k=3, tie_break='first')": "tie_break",
    "topk(x, k=3, max_k='many')": "max_k",
    "select(x, k=3, fill='no')": "fill",
    "select(x, k=3, returns=True)": "returns",
    "plan(rows=3, width=9, k=3, blocks=RowBounds(n))": "blocks",
    "verify(x, n, n, transform=Offsets(n))": "transform",
    "RowBounds(n, size=3)": "size",
    "Blocks(force=1)": "force",
}


def checked(lines: list[str], folder: Path) -> str:
    """What mypy says of a program, by the rules of this repository."""
    program = folder / "program.py"
    program.write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--no-error-summary", "--no-pretty", "--cache-dir", str(ROOT / ".mypy_cache"), str(program)]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False).stdout


def test_a_checker_knows_answers_and_refuses_wrong_calls(tmp_path: Path) -> None:
    head = [
        "from typing import Any", "import numpy as np", "from numpy.typing import NDArray", "import ksieve",
        "from ksieve import *",
        "def program(x: NDArray[np.float32], n: NDArray[np.int32], any: Any, plan_: ksieve.Plan) -> None:",
    ]  # fmt: skip
    right = [f"    reveal_type(ksieve.{call.replace('plan=plan', 'plan=plan_')})" for call in REVEALED]
    said = checked([*head, *right, *(f"    ksieve.{call}" for call in WRONG)], tmp_path)
    found = dict(re.findall(r'^program\.py:(\d+): note: Revealed type is "(.*)"', said, flags=re.MULTILINE))
    for line, (call, kind) in enumerate(REVEALED.items(), len(head) + 1):
        assert re.fullmatch(kind, found[str(line)].replace("builtins.", "")), (call, found[str(line)])
    errors = re.findall(r"^program\.py:(\d+): error: (.*)", said, flags=re.MULTILINE)
    told = {int(line): text for line, text in reversed(errors)}
    assert sorted(told) == list(range(len(head) + len(REVEALED) + 1, len(head) + len(REVEALED) + len(WRONG) + 1)), said
