"""What a call costs on a GPU: its time, and its speed beside a plain read of the same scores.

The table (``data/cost.json``) holds times that benches measured on one card; ``scripts/plan_costs.py`` writes it from
their result files. It is read when a cost is asked for first, never by a call.

The model, for full rows and a kernel alone on the card:

* A plain read takes `LAUNCH_US` plus the bytes over `READ` of the card's peak bandwidth.
* A shape of the table takes the time of its bench.
* Another shape takes the plain read, times a factor that is interpolated: log-log over the rows of each width, then
  over the widths. Its k is the smallest measured one that is not smaller. More rows than measured take the factor of
  the most rows.
* Another card takes what the measured card takes beyond its plain read, plus its own plain read.
* Any other shape takes at least a plain read.

Left out one at a time, shapes wider than 4,096 are within 15 % with float32 and within 21 % with 16-bit scores.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ksieve.core.device import DeviceInfo
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.problem import Problem
from ksieve.core.text import seconds_text

LAUNCH_US = 2.2
"""Time of a plain read of few bytes: benchmarks/results/gpu-decode-k2048.json, one row of 8,192 scores."""

READ = 0.96
"""Share of the peak bandwidth that a plain read reaches: gpu-operator-k2048.json, 1,024 rows and more."""

BANDWIDTH = {
    "a100": 2.039, "l40s": 0.864, "rtx 4090": 1.008, "h20": 4.0, "h100": 3.352, "h200": 4.8, "b200": 8.0,
    "rtx 5090": 1.792,
}  # fmt: skip
"""Peak memory bandwidth in TB/s by a word of the device's name, from the vendor's data sheets."""


FARTHEST = 16
"""Measured rows or widths that are interpolated between differ by at most this factor."""

MANY_ROWS = 4096
"""Rows that fill a card: the factor of as many, or more, is that of any larger number."""

Factors = tuple[float, float]
"""Time over the modelled plain read, and speed as a share of the measured plain read."""

Grid = Mapping[int, Mapping[int, Factors]]
"""Factors by width and rows."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated cost of a call.

    Attributes
    ----------
    us : float
        Time on the GPU in microseconds.
    of_plain_read : float
        Speed, as a share of a plain read of the same scores.
    source : str
        "measured", "interpolated", "bandwidth" (measured on another card) or "read" (a lower bound: a plain read).
    measured_on : str
        Card of the table.
    k : int
        The k of the measured shapes; 0 of a lower bound.
    """

    us: float
    of_plain_read: float
    source: str
    measured_on: str
    k: int

    def text(self, problem: Problem) -> str:
        """Say the cost of a problem in words."""
        how = {
            "measured": f"measured for this shape on an {self.measured_on.upper()}",
            "interpolated": f"interpolated between shapes measured on an {self.measured_on.upper()}",
            "bandwidth": "by bandwidth; no measurement for this GPU",
            "read": "by bandwidth; no shape like this was measured",
        }[self.source]
        how += f", k={self.k:,}" if self.k not in (0, problem.k) else ""
        how += "" if problem.options.plain else "; options are not counted"
        time = seconds_text(self.us * 1e-6)
        if self.source == "read":
            return f"at least {time}, which a plain read takes ({how})"
        return f"about {time}, {self.of_plain_read:.2f} of the plain read's speed ({how})"


def cost_of(problem: Problem, device: DeviceInfo) -> Cost | None:
    """Return the cost of a call, of the family and policy that the planner chooses.

    None on a CPU, and for a GPU whose bandwidth is not known.
    """
    name = f" {device.name.lower().replace('-', ' ')} "
    card = next((word for word in BANDWIDTH if f" {word} " in name and " mig " not in name), None)
    if card is None or problem.rows * problem.width == 0:
        return None
    on, shapes = table()
    size = problem.rows * problem.usual * SCORE_DTYPES[problem.dtype].size
    read, read_there = plain_read_us(size, card), plain_read_us(size, on)
    for k, grid in shapes[problem.dtype].items():
        of_widths = {each: _between(problem.rows, listed, MANY_ROWS) for each, listed in grid.items()}
        found = _between(problem.usual, {each: factors for each, factors in of_widths.items() if factors is not None})
        if found is None or k < problem.k:
            continue
        us = found[0] * read_there
        if card != on:
            us += read - read_there
            return Cost(round(us, 2), read / us, "bandwidth", on, k)
        exact = k == problem.k and problem.rows in grid.get(problem.usual, ())
        return Cost(round(us, 2), found[1], "measured" if exact else "interpolated", on, k)
    return Cost(round(read, 2), 1.0, "read", on, 0)


def plain_read_us(size: float, card: str) -> float:
    """Time of a plain read of `size` bytes on a card of `BANDWIDTH`."""
    return LAUNCH_US + size / (READ * BANDWIDTH[card] * 1e6)


def _between(at: int, points: Mapping[int, Factors], enough: float = math.inf) -> Factors | None:
    """Interpolate log-log between the nearest points; past the last one it counts if it has `enough`."""
    if at in points:
        return points[at]
    below = max((point for point in points if point < at), default=0)
    above = min((point for point in points if point > at), default=0)
    if not above:
        return points[below] if below >= enough else None
    if not below or above > FARTHEST * below:
        return None
    part = math.log(at / below) / math.log(above / below)
    low, high = points[below], points[above]
    return low[0] ** (1 - part) * high[0] ** part, low[1] ** (1 - part) * high[1] ** part


@lru_cache
def table() -> tuple[str, dict[str, dict[int, Grid]]]:
    """Card of the table, and its factors by dtype and k, the smallest k first."""
    facts: dict[str, Any] = json.loads(Path(__file__).with_name("data").joinpath("cost.json").read_text("utf-8"))
    card: str = facts["measured_on"]

    def factors(listed: list[tuple[int, float, float]], row_bytes: int) -> dict[int, Factors]:
        return {rows: (us / plain_read_us(rows * row_bytes, card), share) for rows, us, share in listed}

    found: dict[str, dict[int, Grid]] = {}
    for dtype, grids in facts["shapes"].items():
        for k, grid in grids.items():
            of_widths = {
                int(width): factors(listed, int(width) * SCORE_DTYPES[dtype].size) for width, listed in grid.items()
            }
            found.setdefault(dtype, {})[int(k)] = of_widths
    return card, found
