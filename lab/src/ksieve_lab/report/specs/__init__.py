"""What the pages show of every bench, as data: sections of tables, and figures; and which page has which."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ksieve_lab.report.figures import Figure, render, svg_of
from ksieve_lab.report.specs import engines, evidence, gpu, others, study
from ksieve_lab.report.tables import Column, File, Section, Table, card, command, fenced, judge, machine
from ksieve_lab.report.tables import render as tabulate

SECTIONS: tuple[Section, ...] = (
    *gpu.SECTIONS, *others.SECTIONS, *engines.SECTIONS, *evidence.SECTIONS, *study.SECTIONS,
)  # fmt: skip
"""In the order of the page of benchmarks; a result of another bench is in its list of files alone."""

FILES = Table(
    [
        Column("file", File.link), Column("card", card),
        Column("date", lambda file: file.payload["environment"]["date"][:10]),
        Column("commit", lambda file: file.payload["environment"]["commit"][:7]),
        Column("command", lambda file: _short(command(file)), "`{}`"),
    ],
    note="Where each result comes from; a long list in a command is cut here, and whole in the file.",
)  # fmt: skip


def _short(text: str) -> str:
    return shlex.join(word if len(word) < 60 else f"{word[:40]}..." for word in shlex.split(text))


def section_of(bench: str) -> Section:
    """Section of a bench."""
    return next((section for section in SECTIONS if bench in section.benches), Section(bench, [bench]))


def figures_of(payload: Mapping[str, Any]) -> Sequence[Figure]:
    """Specify the figures of a result file; none where it has no times to draw."""
    found = section_of(payload["bench"]).figures(payload)
    return [spec for spec in found if any(math.isfinite(mark.value) for mark in spec.marks)]


def _order(file: File) -> tuple[Any, ...]:
    """Endpoint-structured scores first, then large k, then short names."""
    settings = file.payload["settings"]
    return settings.get("scores", "endpoint"), -settings.get("k", 0), len(file.stem), file.stem


def benchmarks(files: Sequence[File], folder: Path) -> str:
    """Write the page of benchmarks; figures of one file of each section go to the folder of the page."""
    parts = ["# Benchmarks", "[How it is measured, and what is missing](../measuring.md)."]
    for section in (section for section in SECTIONS if section.page == "benchmarks"):
        its = sorted((file for file in files if file.payload["bench"] in section.benches), key=_order)
        for file in its:
            judge(section, file)
        parts += [f"## {section.title}", *(tabulate(table, its) for table in section.tables)] if its else []
        shown = next((file for file in its if figures_of(file.payload)), None)
        for file, spec in ((shown, spec) for spec in figures_of(shown.payload)) if shown else ():
            name = f"{file.stem}{spec.name}.svg"
            (folder / name).write_text(svg_of(render(spec)), encoding="utf-8")
            parts.append(f"![{spec.heading}]({name})")
    for title, text in (
        ("Engines, operator by operator", each(files, engines.SECTIONS)),
        ("Experiments of the paper", each(files, evidence.SECTIONS)),
        ("Studies", each(files, study.SECTIONS)),
    ):
        parts += [f"## {title}", text] if text else []
    return "\n\n".join(filter(None, [*parts, "## Files", tabulate(FILES, files)])) + "\n"


def readme(files: Sequence[File]) -> str:
    """Section of the README: the CPU, and the operator shapes on a GPU."""
    parts = ["## Measured"]
    for file in (file for file in files if file.payload["bench"] == "cpu"):
        parts += [tabulate(others.CPU, [file]), f"`make bench-cpu` wrote {file.link('')}."]
    for file in (file for file in files if file.stem == "gpu-operator-k2048"):
        judge(section_of("operator"), file)
        parts += ["### On a GPU", tabulate(gpu.FRACTIONS, [file])]
        parts += [
            "To measure again, and to run the GPU suite, a Python needs torch, ksieve-lab and the `cuda` extra:",
            fenced("text", f"{command(file)}\nmake test-gpu PYTHON=python3"),
        ]
    return "\n\n".join(parts)


def _of_sections(files: Sequence[File], sections: Sequence[Section]) -> Iterator[tuple[Section, File]]:
    for section in sections:
        for file in (file for file in files if file.payload["bench"] in section.benches):
            judge(section, file)
            yield section, file


def each(files: Sequence[File], sections: Sequence[Section]) -> str:
    """Tables of some sections, file by file."""
    parts = []
    for section, file in _of_sections(files, sections):
        parts += [f"### {file.stem}", f"{machine(file)}; {file.link()}:"]
        parts += [f"**{section.head(file.payload)}**"] if section.head else []
        parts += [tabulate(table, [file]) for table in section.tables]
    return "\n\n".join(filter(None, parts))


def drawn(files: Sequence[File]) -> str:
    """Figures of ablations, chains and replays, with the command of each file, for docs/guide/evidence.md."""
    parts = []
    for _, file in _of_sections(files, evidence.SECTIONS):
        parts += [f"{file.link('../../')} ({card(file)}): `{command(file)}`"]
        parts += [f"![{spec.heading}](../figures/{file.stem}{spec.name}.svg)" for spec in figures_of(file.payload)]
    return "\n\n".join(parts)


def committed(files: Sequence[File]) -> Iterator[tuple[str, str, str]]:
    """Parts of committed pages: path, name of the markers, and text."""
    yield "README.md", "benchmarks", readme(files)
    yield "docs/guide/evidence.md", "results", drawn(files)
    answers = [study.answer(file) for file in files if file.payload["bench"] == "study"]
    answers += [study.calibrated(file) for file in files if file.payload["bench"] == "calibrate"]
    yield "docs/guide/study.md", "results", "\n\n".join(answers)
    for engine in engines.TITLES:
        yield f"docs/guide/{engine}.md", "operators", engines.operators(engine)
        yield f"docs/guide/{engine}.md", "seen", engines.gained(engine, files)
    yield "docs/guide/integrations.md", "first-calls", engines.first_seconds(files)
