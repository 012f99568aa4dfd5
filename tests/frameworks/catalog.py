"""`catalog.json`, read: frameworks with the origins of their files, and the tests that are not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DATA: dict[str, Any] = json.loads(Path(__file__).with_name("catalog.json").read_text())

FRAMEWORKS: dict[str, dict[str, Any]] = _DATA["frameworks"]
"""By name: `origin`, `tests` (files to run), `files` (others that these import)."""

NOT_RUN: list[dict[str, str]] = _DATA["not_run"]
"""Rules with `framework`, `file`, `why` and `tests`, a regular expression for names; without it, the whole file."""


def rules(framework: str, file: str) -> list[dict[str, str]]:
    """Rules that leave out single tests of a file."""
    return [rule for rule in NOT_RUN if rule["framework"] == framework and rule["file"] == file and "tests" in rule]
