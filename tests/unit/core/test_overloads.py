"""What type checkers know of the public functions: the kind of an answer, and wrong keywords and groups."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("mypy")

REVEALED = {
    "topk(x, k=3)": "int32",
    "topk(x, n, 3, sorted='value', out=x, plan=plan_)": "int32",
    "topk(x, k=3, bounds=RowBounds(n, next_n=2), blocks=Blocks(8, expand=8))": "int32",
    "topk(x, k=3, gathered=SelectedBlocks(n), transform=Offsets(n))": "int32",
    "topk(x, k=n, max_k=3, transform=PageTable(n, page_size=64))": "int32",
    "topk(x, k=3, tie_break=None, largest=False, nan='highest', deterministic=True)": "int32",
    "topk(t, t, 3, bounds=RowBounds(t), transform=Offsets(t))": "Tensor",
    "select(x, k=3)": "Selection[int32]",
    "select(x, k=3, values=True, raw=x, counts=n, stats=True, fill=False)": "Selection[int32]",
    "select(x, k=3, values=True).values": "Any",
    "select(x, k=3).indices": "int32",
    "select(t, k=t, max_k=3, values=True)": "Selection[Tensor]",
    "topk(any, k=3)": "Any",
    "plan(x, n, 3, bounds=RowBounds(ends=n), overlap=True)": "Plan",
    "plan(rows=3, width=9, k=3, values=True)": "Plan",
    "verify(x, n, n, bounds=RowBounds(n), sorted=True)": "Verdict",
    "Running(3, 4, 5, blocks=Blocks(4)).select(values=True)": "Selection[Any]",
}
"""Calls by their kinds: "int32" is an array of NumPy."""

WRONG = (
    "topk(x, k=3, sorted='best')",
    "topk(x, k=3, values=True)",
    "topk(x, k=3, starts=n)",
    "topk(x, k=3, bounds=Blocks(8))",
    "topk(x, k=3, transform=Positions(n))",
    "topk(x, k=3, gathered=n)",
    "topk(x, k=3, deterministic='yes')",
    "topk(x, k=3, tie_break='first')",
    "topk(x, k=3, max_k='many')",
    "select(x, k=3, fill='no')",
    "select(x, k=3, returns=True)",
    "plan(rows=3, width=9, k=3, blocks=RowBounds(n))",
    "verify(x, n, n, transform=Offsets(n))",
    "RowBounds(n, size=3)",
    "Blocks(force=1)",
)

HEAD = (
    "from typing import Any", "import numpy as np", "from numpy.typing import NDArray", "from torch import Tensor",
    "import ksieve", "from ksieve import *",
    "def program(x: NDArray[np.float32], n: NDArray[np.int32], t: Tensor, any: Any, plan_: ksieve.Plan) -> None:",
)  # fmt: skip


def mypy(program: Path) -> list[tuple[int, str]]:
    """Lines and texts of what mypy says. It takes half a minute to read PyTorch, of which the calls need one class."""
    stub = program.parent / "stubs" / "torch" / "__init__.pyi"
    stub.parent.mkdir(parents=True)
    stub.write_text("class Tensor: ...", encoding="utf-8")
    command = ["mypy", "--config-file=", "--strict", "--follow-imports=silent", "--ignore-missing-imports"]
    command += ["--no-error-summary", "--no-pretty", "--cache-dir", str(ROOT / ".mypy_cache" / "calls"), program.name]
    said = run(command, program, {"MYPYPATH": os.pathsep.join([str(stub.parents[1]), str(ROOT / "src")])})
    told = re.findall(r"^program\.py:(\d+): (error|note): (?:Revealed type is )?(.*)", said, flags=re.MULTILINE)
    return [(int(line), text) for line, kind, text in told if kind == "error" or text.startswith('"')]


def pyright(program: Path) -> list[tuple[int, str]]:
    """The same of pyright, in its standard mode; basedpyright is its build that needs no network."""
    pytest.importorskip("basedpyright")
    pytest.importorskip("torch")
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT / "src")]}
    (program.parent / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    said = run(["basedpyright", "--outputjson", "--pythonpath", sys.executable, program.name], program, {})
    told = [(each["range"]["start"]["line"] + 1, each["message"]) for each in json.loads(said)["generalDiagnostics"]]
    return [(line, re.sub(r'^Type of ".*" is (?=")', "", text)) for line, text in told]


def run(command: list[str], program: Path, environment: dict[str, str]) -> str:
    command, environment = [sys.executable, "-m", *command], os.environ | environment
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=program.parent, check=False
    ).stdout


def kind_of(told: str) -> str:
    """The kind that a checker reveals, in the words of `REVEALED`."""
    told = re.sub(r"\w+\.(?=\w)", "", told.strip('"')).replace("Unknown", "Any")
    told = re.sub(r"ndarray\[tuple\[Any, \.\.\.\], dtype\[signedinteger\[\w*32\w*\]\]\]", "int32", told)
    return re.sub(r"^tuple\[.*fallback=(.*)\]$", r"\1", told)


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_checker_knows_answers_and_refuses_wrong_calls(checker, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    right, wrong = [f"    reveal_type(ksieve.{call})" for call in REVEALED], [f"    ksieve.{call}" for call in WRONG]
    program.write_text("\n".join([*HEAD, *right, *wrong]), encoding="utf-8")
    said = checker(program)
    first, end = len(HEAD) + 1, len(HEAD) + len(right) + 1
    found = {line: kind_of(text) for line, text in said if line < end}
    assert found == dict(enumerate(REVEALED.values(), first)), said
    assert sorted({line for line, _ in said if line >= end}) == [*range(end, end + len(wrong))], said
