"""Links between Markdown pages lead to files and headings that exist, as GitHub and the site both resolve them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if not {"_build", "generated"} & set(path.parts)),
    ROOT / "src" / "ksieve" / "kernels" / "README.md",
    ROOT / "examples" / "ladder" / "README.md",
]


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, by GitHub's rule: lower case, spaces to hyphens, other punctuation dropped."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken(page: Path, text: str) -> list[str]:
    """Relative links of a page that lead nowhere."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        at = page.parent / path if path else page
        if not at.exists() or (anchor and anchor not in anchors(at.read_text(encoding="utf-8"))):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


def ragged_tables(text: str) -> list[str]:
    """Rows of tables with another number of cells than their heading; a bar inside a cell has to be escaped."""
    found, cells = [], 0
    for line in re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).splitlines():
        here = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        if here and cells and here != cells:
            found.append(line)
        cells = (cells or here) if here else 0
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_tables_have_as_many_cells_in_every_row(page: Path) -> None:
    assert ragged_tables(page.read_text(encoding="utf-8")) == []


def unknown_paths(text: str) -> list[str]:
    """Paths in code spans, such as `planning/plan.py` or `tests/gpu/`, that are neither in the package nor the root."""
    named = re.findall(r"`([\w.]+(?:/[\w.*]*)+|\w+\.py)`", text)
    folders = (ROOT, ROOT / "src" / "ksieve", *(path for path in (ROOT / "src" / "ksieve").iterdir() if path.is_dir()))
    return [name for name in named if not any(list(folder.glob(name.rstrip("/"))) for folder in folders)]


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "internals").glob("*.md")), ids=lambda page: page.stem)
def test_the_files_that_internals_name_exist(page: Path) -> None:
    assert unknown_paths(page.read_text(encoding="utf-8")) == []


def test_the_pages_that_code_names_exist() -> None:
    sources = [
        p for folder in ("src", "scripts") for p in (ROOT / folder).rglob("*") if p.suffix in {".py", ".cu", ".cuh"}
    ]
    named = {name for path in sources for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))}
    assert len(named) >= 8
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
