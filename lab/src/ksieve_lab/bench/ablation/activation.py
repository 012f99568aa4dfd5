"""From which row width on sampling pays: direct exact proposal against sampled ones, over widths, rows and scores."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ksieve.core.policy import PAPER_64, PAPER_128
from ksieve_lab.bench.machines import DISTRIBUTIONS, Choice, Machine
from ksieve_lab.bench.runner import Settings
from ksieve_lab.workloads.lengths import LENGTHS

WIDTHS = tuple(1024 * n for n in (16, 24, 32, 40, 48, 56, 64))
ROWS = (64, 128, 256, 512, 1024, 2048, 4096)

EXACT, PLANNED = "exact proposal", "ksieve"
CHOICES: dict[str, Choice] = {
    PLANNED: (None, None),
    EXACT: ("stream_unsampled", "direct"),
    "on-chip or cluster": (None, "direct"),
    "s = 64": ("stream", PAPER_64),
    "s = 128 with rescue": ("stream", PAPER_128),
}
"""The timed plans: the planner's choice, the same kernel with exact and sampled proposals as in the paper, and the best
kernel without a sample."""


def run(machine: Machine, settings: Settings, advance: Callable[[], None]) -> dict[str, Any]:
    """Time every cell; returns them, and the speed-ups over exact proposal from `summary`."""
    cells = []
    for width, source, m in itertools.product(settings.fixed["widths"], DISTRIBUTIONS, settings.fixed["rows"]):
        valid = LENGTHS["causal"](m, width).astype(np.int32)
        scores, lengths = machine.scores(m, width, valid, source, settings.seed)
        timed = machine.time(scores, lengths, settings.k, CHOICES, settings.rounds, [])
        facts = {name: timed[name] for name in ("floor_us", "selectors")}
        cells.append({"width": width, "rows": m, "scores": source} | facts)
        advance()
    return {"cells": cells, "widths": summary(cells)}


def summary(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Speed-up over exact proposal per width and variant: median, least, most, and cells won of all."""
    found = []
    for width in dict.fromkeys(cell["width"] for cell in cells):
        entry: dict[str, Any] = {"width": width}
        for name in CHOICES:
            if name == EXACT:
                continue
            gains = []
            for cell in cells:
                own, base = cell["selectors"].get(name, {}), cell["selectors"].get(EXACT, {})
                good = own.get("exact") is True and base.get("exact") is True
                if cell["width"] == width and good and "median_us" in own and "median_us" in base:
                    gains.append(base["median_us"] / own["median_us"])
            if gains:
                entry[name] = {
                    "median": statistics.median(gains), "least": min(gains), "most": max(gains),
                    "won": sum(g > 1 for g in gains), "cells": len(gains),
                }  # fmt: skip
        found.append(entry)
    return found
