"""Examples of the guide and of public docstrings are run; those that need a GPU are compiled."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import ksieve
from ksieve import logits

GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def failures(text: str, name: str, names: dict[str, object], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a text's examples; what doctest says of those that fail, else nothing."""
    test = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
    assert test.examples, f"{name} has no examples"
    doctest.DocTestRunner(verbose=False).run(test)
    return capsys.readouterr().out


@pytest.mark.parametrize("page", [p for p in GUIDE if blocks(p, "pycon")], ids=lambda page: page.stem)
def test_the_sessions_of_a_page_run_in_order(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if ">>> import torch" in page.read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    assert failures("\n".join(blocks(page, "pycon")), page.name, {}, capsys) == ""


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_every_python_block_is_python(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, str(page), "exec")


RUN = [block for page in (ROOT / "docs" / "index.md", *GUIDE) for block in blocks(page, "python")
       if "jax" in block or page.stem in ("index", "quickstart")]  # fmt: skip
"""The home page, the tabs of the quickstart, and whatever needs JAX."""


@pytest.mark.parametrize("block", RUN)
def test_a_block_runs_where_its_library_is_installed(block: str) -> None:
    for library in re.findall("import (jax|torch)$", block, flags=re.MULTILINE):
        pytest.importorskip(library)
    exec(compile(block, "a page", "exec"), {})


@pytest.mark.parametrize(
    "documented", [ksieve.topk, ksieve.plan, ksieve.verify, logits, logits.statistics, logits.kept, logits.sample],
    ids=lambda documented: documented.__name__,
)  # fmt: skip
def test_the_examples_of_a_docstring_run(documented: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert failures(documented.__doc__ or "", "docstring", {}, capsys) == ""


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   ([\w.]+)$", page, flags=re.MULTILINE))
    assert {*ksieve.__all__, *logits.__all__} - {"__version__"} <= listed


@pytest.mark.parametrize(
    ("name", "module"), [("triton_producer", "torch"), ("triton_producer", "triton"), ("serving_graph", "torch")]
)
def test_an_example_without_its_packages_says_so(name: str, module: str) -> None:
    code = f"import runpy, sys; sys.modules[{module!r}] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    words = [sys.executable, "-c", code, str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("skipped: ") and "is not installed" in done.stdout
