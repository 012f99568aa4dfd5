"""Two pages list every environment variable that is read, and no variable of ours that is not."""

from __future__ import annotations

import re

from conftest import ROOT

PAGES = ("reference/environment.md", "internals/testing.md")
PAGE = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
PASSED_ON = {"PATH", "PYTHONPATH", "CC"}
"""What is read to start other programs."""

READ = re.compile(r'environ(?:\.(?:get|pop|setdefault))?[\[(]"(\w+)"|getenv\("(\w+)"|"(\w+)" (?:not )?in os\.environ')
FOLDERS = ("src", "lab/src", "scripts", "tests", "lab/tests")


def texts(folders):
    return [path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py")]


def test_every_variable_that_is_read_is_on_the_page():
    read = {name for text in texts(FOLDERS[:3]) for names in READ.findall(text) for name in names if name}
    of_tests = {name for text in texts(FOLDERS[3:]) for names in READ.findall(text) for name in names}
    wanted = read - PASSED_ON | {name for name in of_tests if name.startswith("KSIEVE_")}
    assert len(read) > 10 and {name for name in wanted if f"`{name}`" not in PAGE} == set()


def test_every_variable_of_ours_on_the_page_is_read():
    everything = "\n".join(texts(FOLDERS))
    named = set(re.findall(r"`(KSIEVE_[A-Z_]+)`", PAGE))
    assert named and {name for name in named if not re.search(f"[\"']{name}", everything)} == set()
