"""What a release repeats by hand agrees with its source."""

from __future__ import annotations

import re

import ksieve
from conftest import ROOT


def test_the_citation_names_the_packages_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", text, re.MULTILINE) == [ksieve.__version__]
