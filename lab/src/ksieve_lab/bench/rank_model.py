"""What calls over more GPUs are predicted to take, before they can be measured, from calls over fewer ones.

The selection from a shard is read off measured ones of as many rows, between widths on a line of logarithms. A gather
of pairs grows with the number of ranks on the line through measured ones. What a schedule adds is modelled by a
`ksieve.distributed.Link`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ksieve.core.errors import ArgumentError
from ksieve.distributed import LINKS, Pairs, Shape, choose
from ksieve_lab.bench import record
from ksieve_lab.bench.runner import Facts, Live, Settings

SHAPES = tuple((rows, width) for width in (131_072, 524_288, 1_048_576) for rows in (1, 64, 512, 8192))
"""Rows and width of whole rows."""

Points = dict[tuple[int, str], list[tuple[float, float]]]
"""For a number of rows and a dtype: widths or numbers of ranks, with microseconds."""


LINK = "nvlink"
"""Model of `ksieve.distributed.LINKS`."""


def measure(settings: Settings, live: Live) -> Facts:
    """Predict from the results on GPUs in the folder of result files."""
    measured = [record.read_json(file) for file in sorted(settings.folder.glob("ranks-cuda-*.json"))]
    return predict(settings.shapes.items, measured)


def predict(worlds: Sequence[int], measured: Sequence[Mapping[str, Any]]) -> Facts:
    """Predict the times of `SHAPES` on some numbers of GPUs.

    `measured` are payloads of `ksieve_lab.bench.ranks.measure` on GPUs, and `ArgumentError` says if they are of fewer
    than two numbers of ranks. The payload has microseconds, as the measured files: of the shard alone, and what is
    added to it. Each GPU's rate is a share of a GPU's with whole rows.
    """
    link = LINKS[LINK]
    found = [p for p in measured if p["settings"]["device"] == "cuda" and p["results"]["shapes"]]
    known = sorted({payload["results"]["world"] for payload in found} - {1})
    if len(known) < 2:
        raise ArgumentError("measured", f"{len(known)} number(s) of GPUs", "results of two numbers of GPUs or more")
    k = found[0]["settings"]["k"]
    shards, gathers = _points(found)
    cases = []
    for world in worlds:
        for rows, width in SHAPES:
            for dtype in dict.fromkeys(dtype for _, dtype in shards):
                shape = Shape(rows, k, world, width, 32 if dtype == "float32" else 16)
                best = choose(shape, link)
                local, one = (_on_logarithms(shards[rows, dtype], w) for w in (width / world, width))
                added = {
                    "gathered": _on_a_line(gathers[rows, dtype], world),
                    "planned": link.total_us(best, shape),
                    "pairs": link.total_us(Pairs(), shape),
                }
                cases.append(
                    {"world": world, "rows": rows, "width": width, "dtype": dtype, "local_us": local, "one_gpu_us": one,
                     "schedule": str(best), "added_us": added,
                     "rate_of_one": {name: one / world / (local + us) for name, us in added.items()}}
                )  # fmt: skip
    settings = {"worlds": list(worlds), "k": k, "measured": known, "link": asdict(link)}
    return record.payload("predicted-ranks", settings, {"shapes": cases})


def _points(found: Sequence[Mapping[str, Any]]) -> tuple[Points, Points]:
    """Measured shards by their width, and what a gather of pairs adds by the number of ranks, over all widths."""
    shards: Points = {}
    gathers: Points = {}
    for payload in found:
        world = payload["results"]["world"]
        for case in payload["results"]["shapes"]:
            if case.get("layout", "contiguous") != "contiguous":
                continue
            key, selectors = (case["rows"], case["dtype"]), case["selectors"]
            shards.setdefault(key, []).append((case["width"] / world, selectors["local"]["median_us"]))
            if world > 1:  # one rank sends nothing
                gathers.setdefault(key, []).append((world, selectors["gathered"]["added_us"]))
    return shards, gathers


def _on_logarithms(points: Sequence[tuple[float, float]], at: float) -> float:
    """Between points, or beyond them as between the last two."""
    x, y = np.log(np.array(sorted(points))).T
    i = int(np.clip(np.searchsorted(x, np.log(at)), 1, len(x) - 1))
    slope = (y[i] - y[i - 1]) / (x[i] - x[i - 1])
    return float(np.exp(y[i - 1] + slope * (np.log(at) - x[i - 1])))


def _on_a_line(points: Sequence[tuple[float, float]], at: float) -> float:
    """On the line of least squares."""
    x, y = np.array(points).T
    slope, offset = np.polyfit(x, y, 1)
    return float(offset + slope * at)
