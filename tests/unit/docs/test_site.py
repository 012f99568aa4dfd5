"""The site is tried in a browser by `make site`; here, that it says so where none is installed, and its size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT


def test_without_a_browser_the_script_says_that_nothing_was_tried(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "scripts" / "check_site.py"), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | {"PATH": ""})
    assert done.returncode == 0 and "NOT tried in a browser" in done.stderr and not done.stdout


def test_the_pages_for_users_are_short() -> None:
    folder = ROOT / "docs"
    pages = [folder / "index.md", *(folder / "guide").glob("*.md"), *(folder / "reference").glob("*.md")]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 20_000
