"""What a release repeats by hand agrees with its source."""

from __future__ import annotations

import re

import ksieve
from conftest import ROOT
from ksieve import _aliases


def test_the_citation_names_the_packages_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", text, re.MULTILINE) == [ksieve.__version__]


def test_no_deprecated_name_outlives_its_version() -> None:
    """The release that was to remove the former module names may not still carry them, and RELEASING.md lists them."""
    removed = tuple(map(int, _aliases.REMOVED_IN.split(".")))
    assert tuple(map(int, ksieve.__version__.split(".")[:2])) < removed
    rows = [line for line in (ROOT / "RELEASING.md").read_text(encoding="utf-8").splitlines() if "_aliases.py" in line]
    assert len(rows) == 1 and f"| {_aliases.REMOVED_IN}.0 |" in rows[0]
