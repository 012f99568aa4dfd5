"""What a release repeats by hand agrees with its source."""

from __future__ import annotations

import re
import tomllib

from conftest import ROOT

import ksieve


def test_the_citation_names_the_packages_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", text, re.MULTILINE) == [ksieve.__version__]


def test_the_laboratory_has_the_librarys_version_and_needs_it() -> None:
    project = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == ksieve.__version__
    assert project["dependencies"] == [f"ksieve=={ksieve.__version__}"]
