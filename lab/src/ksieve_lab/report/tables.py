"""One renderer of tables: a `Table` names rows and columns of result files, `render` writes it as Markdown.

Every number comes out of a file. A key that a file lacks raises `MissingKeyError`, and an answer of ksieve that is not
exact raises `InexactError`: neither reaches a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ksieve_lab.bench import record
from ksieve_lab.report.figures import Figure


class MissingKeyError(KeyError):
    """A specification asks for a key that a result file does not have."""


class InexactError(SystemExit):
    """A result without an exact answer of ours reached a page."""


@dataclass(frozen=True)
class File:
    """A result file: name without suffix, contents, and its link from the repository's root."""

    stem: str
    payload: Mapping[str, Any]
    folder: str = "benchmarks/results"

    def link(self, up: str = "../../../") -> str:
        """Markdown link from a folder that lies so far below the root."""
        return f"[{self.stem}.json]({up}{self.folder}/{self.stem}.json)"


@dataclass(frozen=True)
class Column:
    """Heading, path ("selectors/ksieve/median_us") or function of a row, and format of a cell; None leaves it empty."""

    heading: str
    value: str | Callable[[Any], Any]
    form: str = "{}"


@dataclass(frozen=True)
class Table:
    """Rows and columns of some files, and the words above; functions of the files where these decide."""

    columns: Sequence[Column] | Callable[[Sequence[File]], Sequence[Column]]
    rows: Callable[[Sequence[File]], Iterable[Any]] = list
    note: str | Callable[[Sequence[File]], str] = ""


@dataclass(frozen=True)
class Section:
    """What the terminal shows of the results of some benches, besides their cases.

    Attributes
    ----------
    benches : sequence of str
        Values of ``bench`` of the result files.
    tables : sequence of Table
    exact : sequence of str
        Paths of answers of ksieve, each of which has to be true.
    figures : function of a payload
    head : function of a payload, optional
        What is said first of a result. Default: its card and settings.
    """

    benches: Sequence[str]
    tables: Sequence[Table] = ()
    exact: Sequence[str] = ()
    figures: Callable[[Mapping[str, Any]], Sequence[Figure]] = lambda _: ()
    head: Callable[[Mapping[str, Any]], str] | None = None


def read(folder: Path, pattern: str = "*.json") -> list[File]:
    """Read the result files of a folder, by name."""
    return [File(path.stem, record.read_json(path)) for path in sorted(folder.glob(pattern))]


def find(node: Any, path: str) -> Iterator[Any]:
    """Values at a path: "*" is every entry that was not skipped, and a name with "?" need not be there."""
    if isinstance(node, File):
        node = node.payload
    name, _, rest = path.partition("/")
    if name == "*":
        entries = node.values() if isinstance(node, Mapping) else node
        found = [entry for entry in entries if not (isinstance(entry, Mapping) and "skipped" in entry)]
    else:
        key = name.removesuffix("?")
        if not isinstance(node, Mapping) or key not in node:
            if name.endswith("?"):
                return
            raise MissingKeyError(f"{path}: no {key!r} among {', '.join(map(str, node))[:200]}")
        found = [] if name.endswith("?") and node[key] is None else [node[key]]
    for entry in found:
        yield from find(entry, rest) if rest else [entry]


def judge(section: Section, file: File) -> None:
    """Refuse a file with an answer of ksieve that is not exact."""
    for path in section.exact:
        if not all(value is True for value in find(file.payload["results"], path)):
            raise InexactError(f"{file.stem}: no exact answer was measured: {path}")


def markdown(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Write a table."""
    head = list(columns)
    texts = (["" if cell is None else str(cell).replace("|", r"\|") for cell in line] for line in (head, *rows))
    first, *others = (f"| {' | '.join(line)} |" for line in texts)
    return "\n".join([first, "|---" * len(head) + "|", *others])


def render(table: Table, files: Sequence[File]) -> str:
    """Write a table of files, and the words above it; empty where it has no row."""
    note, columns, rows = cells(table, files)
    return f"{note}\n\n{markdown(columns, rows)}".strip() if rows else ""


def cells(
    table: Table, files: Sequence[File], missing: str | None = None
) -> tuple[str, list[str], list[list[str | None]]]:
    """Words above a table, its headings and its rows; `missing` is shown for keys that a file lacks."""
    rows = list(table.rows(files))
    if not rows:
        return "", [], []
    columns = table.columns(files) if callable(table.columns) else table.columns
    note = table.note(files) if callable(table.note) else table.note
    return note, [c.heading for c in columns], [[_cell(c, row, missing) for c in columns] for row in rows]


def _cell(column: Column, row: Any, missing: str | None) -> str | None:
    try:
        value = column.value(row) if callable(column.value) else next(find(row, column.value), None)
    except (KeyError, ValueError):  # without any answer there is no least one
        if missing is None:
            raise
        return missing
    return None if value is None or value != value else column.form.format(value)


def entry(key: Any, show: Callable[[Any], Any] = lambda value: value) -> Callable[[Any], Any]:
    """Function that shows the entry of a row, which may be missing."""
    return lambda row: show(row[key]) if key in row else None


def fenced(language: str, text: str) -> str:
    """Write a code block."""
    return f"```{language}\n{text}\n```"


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean; NaN of nothing."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else math.nan


def reached(value: float, target: float, *, most: bool = False) -> str:
    """A target and whether a value reaches it; with `most` the target is an upper bound."""
    return f"target {target}: {'met' if (value <= target if most else value >= target) else 'missed'}"


def card(file: File) -> str:
    """Name of the GPU of a result, or of the processor."""
    facts = file.payload["environment"]
    devices = (facts.get("gpu") or {}).get("devices") or [{}]
    return str(devices[0].get("name") or (facts.get("cpu") or {}).get("model") or "")


def machine(file: File) -> str:
    """Card, versions, date and commit of a result."""
    facts = file.payload["environment"]
    packages, devices = facts.get("packages", {}), (facts.get("gpu") or {}).get("devices") or [{}]
    parts = [
        card(file),
        f"driver {devices[0]['driver_version']}" if "driver_version" in devices[0] else None,
        f"NVRTC {packages['nvidia-cuda-nvrtc']}" if devices[0] and "nvidia-cuda-nvrtc" in packages else None,
        f"torch {packages['torch']}" if "torch" in packages else None,
        facts.get("date", "")[:10],
        f"commit {facts['commit'][:7]}" if facts.get("commit") else None,
    ]
    return ", ".join(part for part in parts if part)
