"""What the terminal shows of every bench, as data: sections of tables, and figures. `pages` has the committed pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ksieve_lab.report.figures import Figure
from ksieve_lab.report.specs import engines, evidence, gpu, others, pages, study
from ksieve_lab.report.tables import File, Section

SECTIONS: tuple[Section, ...] = (
    *gpu.SECTIONS, *others.SECTIONS, *engines.SECTIONS, *evidence.SECTIONS, *study.SECTIONS,
)  # fmt: skip


def section_of(bench: str) -> Section:
    """Section of a bench; without tables for one that has none."""
    return next((section for section in SECTIONS if bench in section.benches), Section([bench]))


def figures_of(payload: Mapping[str, Any]) -> Sequence[Figure]:
    """Specify the figures of a result file; none where it has no times to draw."""
    found = section_of(payload["bench"]).figures(payload)
    return [spec for spec in found if any(math.isfinite(mark.value) for mark in spec.marks)]


def committed(files: Sequence[File]) -> Iterator[tuple[str, str, str]]:
    """Parts of committed pages: path, name of the markers, and text."""
    return pages.committed(files, SECTIONS)


def drawn(files: Sequence[File]) -> dict[str, Figure]:
    """Every figure that a page may show, by the name of its file without suffix."""
    found = {f"{file.stem}{spec.name}": spec for file in files for spec in figures_of(file.payload)}
    return found | {f"study-{name}": specify(file.payload["results"]) for file in files
                    if file.payload["bench"] == "study" for name, (_, specify) in study.FIGURES.items()}  # fmt: skip
