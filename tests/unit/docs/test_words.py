"""Pages use the field's terms: words that were private to this project stay out of what is written for readers.

The notebook keeps the words of its day, and generated tables those of their result files.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import ROOT

BANNED = {
    "nobody": "say which thread, CTA or user does not",
    "whoever": "name the reader or the receiver",
    "dealt": "binned by length, or taken in turn",
    "tell": "send, store or report",
    "tells": "sends, stores or reports",
    "told": "sent, stored or reported",
    "crowded": "overfull (a bucket)",
    "mended": "fixed",
}
"""A word, and what to write in its place."""

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "ladder" / "README.md",
    *sorted(
        path
        for path in (ROOT / "docs").rglob("*.md")
        if not {"notebook", "_build", "generated"} & set(path.parts) and path.name != "kernels.md"
    ),
]


def written(text: str) -> str:
    """What a person wrote of a page: no code, no links' targets, no generated parts."""
    text = re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


def private(text: str) -> list[str]:
    return [f"{word}: {BANNED[word]}" for word in re.findall(r"[a-z]+", written(text).lower()) if word in BANNED]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_no_private_words(page: Path) -> None:
    assert private(page.read_text(encoding="utf-8")) == []


def test_a_private_word_is_noticed_outside_of_code() -> None:
    assert private("Nobody `tells` this.\n```\ntold\n```\n<!-- x:begin -->dealt<!-- x:end -->") == [
        f"nobody: {BANNED['nobody']}"
    ]
