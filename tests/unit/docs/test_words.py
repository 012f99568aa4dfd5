"""Pages and Python texts use the field's terms, without the words that were private to this project.

Generated tables keep the words of their result files. In Python, comments, docstrings and messages are checked. A
string of one or two words is a name and may be stored in result files.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.extended

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

BANNED_IN_PYTHON = BANNED | {
    "somebody": "name the user, process or thread",
    "everybody": "name the users, processes or threads",
    "anybody": "name the user, process or thread",
    "whatever": "for any ..., or name the thing",
    "hears": "receives or loads",
    "heard": "received or loaded",
    "short way": "fast path",
    "general way": "general path",
    "not looked at": "not read, or not inspected",
    "to speak of": "leave it out, or give the limit",
    "counted apart": "counted separately",
    "told apart": "distinguished",
    "timed beside": "timed as well",
    "install torch": "pip install 'ksieve[torch]', as all messages do",
    "what was asked for": "the arguments, or the options",
}
"""The same for Python texts, where two words may form a phrase."""

SOURCES = sorted(path for folder in ("src", "scripts") for path in (ROOT / folder).rglob("*.py"))

KERNELS = sorted(path for path in (ROOT / "src").rglob("*.cu*") if path.suffix in {".cu", ".cuh"})
"""Of their comments, the words of pages are checked, and those for persons."""

PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "RELEASING", "SECURITY")),
    ROOT / "examples" / "ladder" / "README.md",
    *sorted(
        path
        for path in (ROOT / "docs").rglob("*.md")
        if not {"_build", "generated"} & set(path.parts) and path.name != "kernels.md"
    ),
]


def written(text: str) -> str:
    """What a person wrote of a page: no code, no links' targets, no generated parts."""
    text = re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


def private(text: str) -> list[str]:
    return [f"{word}: {BANNED[word]}" for word in re.findall(r"[a-z]+", written(text).lower()) if word in BANNED]


def texts(source: str) -> Iterator[str]:
    """Comments, docstrings and messages of Python source; neighbouring comments are one text."""
    comments: list[str] = []
    quoted = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.append(token.string.lstrip("# "))
        elif token.type in quoted and len(re.findall(r"[A-Za-z]{2,}", token.string)) > 2:
            yield token.string
    yield " ".join(comments)


def private_in_python(source: str) -> list[str]:
    found = []
    for text in texts(source):
        words = f" {' '.join(re.findall(r'[a-z]+', written(text).lower()))} "
        found += [f"{word}: {instead}" for word, instead in BANNED_IN_PYTHON.items() if f" {word} " in words]
    return found


def private_in_kernel(source: str) -> list[str]:
    persons = {word: BANNED_IN_PYTHON[word] for word in ("somebody", "everybody", "anybody")}
    comments = written(" ".join(re.findall(r"//(.*)", source)).lower())
    return [f"{word}: {instead}" for word, instead in (BANNED | persons).items() if re.search(rf"\b{word}\b", comments)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_source_has_no_private_words(path: Path) -> None:
    assert private_in_python(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ('"""Rows that nobody reads."""', "nobody"),
        ("x = 1  # the short\n# way of a call", "short way"),
        ('raise ValueError(f"{x} of whoever calls")', "whoever"),
        ('name = "dealt, 256 x 8"  # in result files', ""),
        ('"""`DEALT` rows, in backquotes."""', ""),
    ],
)
def test_a_private_word_is_noticed_in_python(source: str, word: str) -> None:
    assert private_in_python(source) == ([f"{word}: {BANNED_IN_PYTHON[word]}"] if word else [])


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_kernel_has_no_private_words(path: Path) -> None:
    assert private_in_kernel(path.read_text(encoding="utf-8")) == []


def test_a_private_word_is_noticed_in_a_kernel() -> None:
    assert private_in_kernel("int dealt; // Nobody waits.\n// `told` by others\n") == [f"nobody: {BANNED['nobody']}"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_no_private_words(page: Path) -> None:
    assert private(page.read_text(encoding="utf-8")) == []


def test_a_private_word_is_noticed_outside_of_code() -> None:
    assert private("Nobody `tells` this.\n```\ntold\n```\n<!-- x:begin -->dealt<!-- x:end -->") == [
        f"nobody: {BANNED['nobody']}"
    ]
