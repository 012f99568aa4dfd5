"""Per-row statistics of a selection: route, counts and reads, in the same columns on every backend."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Route(IntEnum):
    """Route of a row through the algorithm (table "Score-row traffic" in: Siran Liu et al., "Sample-Guided Exact Top-K
    Selection for Long-Context Sparse Attention", Tencent).
    """

    SHORT = 0
    """At most k valid scores, or none wanted: every index is the answer and no score is read."""
    CERTIFIED = 1
    """The primary boundary held at least k scores: one scan."""
    RESCUED = 2
    """The primary boundary underfilled and the rescue boundary held at least k scores: two scans."""
    RECOVERED = 3
    """Underfilled with no rescue boundary: exact coarse recovery, three scans (two on the CPU)."""
    RECOVERED_AFTER_BAND = 4
    """Underfilled even after the rescue band: exact coarse recovery, four scans (three on the CPU)."""
    DIRECT = 5
    """No usable sample: exact coarse boundary of all scores, two scans (one on the CPU, or where rows stay on chip)."""


STATS_COLUMNS = (
    "route",
    "tau0",
    "tau1",
    "admitted0",
    "admitted1",
    "frontier0",
    "frontier1",
    "frontier2",
    "frontier3",
    "committed0",
    "committed1",
    "committed2",
    "committed3",
    "filled",
    "scans",
    "sampled",
)
"""Columns of the raw (rows, 16) int32 statistics array that backends fill, in order."""


def html_table(title: str, columns: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Render a small HTML table for notebooks; every text is escaped."""
    columns = list(columns)
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    head = f"<thead><tr>{heads}</tr></thead>" if any(columns) else ""
    cells = ("".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in line) for line in lines)
    body = "".join(f"<tr>{line}</tr>" for line in cells)
    caption = f'<caption style="text-align:left">{html.escape(title)}</caption>'
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>"


@dataclass(frozen=True)
class Stats:
    """Statistics of one call, one entry per row; all arrays int32 of shape (rows,) on the host.

    Rows count all leading dimensions of the scores, in C order.

    Attributes
    ----------
    route : `Route` values.
    tau0, tau1 : primary and rescue boundary: coarse bin, or the bit pattern of the ordered key for an
        "exact" policy; -1 where no boundary was proposed.
    admitted0, admitted1 : C(tau0) and C(tau1), scores at or above each boundary; -1 where not counted.
    frontier0..frontier3 : `|Q_0|` to `|Q_3|`, unresolved candidates before each exact digit and after the last.
    committed0 : `|E_0|`, indices committed before refinement.
    committed1..committed3 : `|R_0|` to `|R_2|`, indices committed by each exact digit.
    filled : indices taken from the last frontier, once it fits the remaining slots or all its scores are equal.
    scans : complete reads of the valid row by the selection; reads for the statistics themselves do not count.
    sampled : scores read as samples.
    """

    raw: NDArray[np.int32]

    @classmethod
    def without_slots(cls, rows: int) -> Stats:
        """Statistics of rows that want nothing."""
        raw = np.zeros((rows, len(STATS_COLUMNS)), np.int32)
        raw[:, [STATS_COLUMNS.index(name) for name in ("tau0", "tau1", "admitted0", "admitted1")]] = -1
        return cls(raw)

    def __post_init__(self) -> None:
        if self.raw.ndim != 2 or self.raw.shape[1] != len(STATS_COLUMNS):
            raise ValueError(f"raw statistics have shape {self.raw.shape}, expected (rows, {len(STATS_COLUMNS)})")

    def __getattr__(self, name: str) -> NDArray[np.int32]:
        try:
            return self.raw[:, STATS_COLUMNS.index(name)]
        except ValueError:
            raise AttributeError(name) from None

    def __len__(self) -> int:
        return int(self.raw.shape[0])

    def row(self, index: int) -> dict[str, int]:
        """Return one row's statistics by column name."""
        return dict(zip(STATS_COLUMNS, (int(v) for v in self.raw[index]), strict=True))

    def route_counts(self) -> dict[Route, int]:
        """Count rows per route, only routes that occurred, in route order."""
        values, counts = np.unique(self.route, return_counts=True)
        return {Route(int(v)): int(c) for v, c in zip(values, counts, strict=True)}

    def _repr_html_(self) -> str:
        """HTML summary: rows, mean scans, mean samples and mean frontier of each route."""
        lines = []
        for route, count in self.route_counts().items():
            rows = self.raw[self.route == route]
            means = [f"{rows[:, STATS_COLUMNS.index(name)].mean():.4g}" for name in ("scans", "sampled", "frontier0")]
            lines.append((route.name.lower().replace("_", " "), str(count), *means))
        return html_table(f"{len(self)} rows", ["route", "rows", "scans", "sampled", "frontier"], lines)

    def score_reads(self, lengths: Any) -> NDArray[np.int64]:
        """Scores read from the row before frontier-only refinement, per row: ``sampled + scans * length``."""
        valid = np.asarray(lengths, dtype=np.int64)
        return self.sampled.astype(np.int64) + self.scans.astype(np.int64) * valid
