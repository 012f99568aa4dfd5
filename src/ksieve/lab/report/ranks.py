"""Figure of a result of `ksieve bench ranks` on GPUs: the shard alone, a gather of pairs, the planner's schedule."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ksieve.lab.report import figures

_LABELS = {
    "local": "selection from the shard",
    "gathered": "gather of all pairs",
    "planned": "ksieve.distributed",
}


def names(payload: Mapping[str, Any], stem: str) -> list[str]:
    """Name the figure that `draw` makes, without suffix; none without times of GPUs."""
    measured = payload["settings"]["device"] == "cuda" and payload["results"]["shapes"]
    return [stem] if measured else []


def draw(payload: Mapping[str, Any], stem: str | os.PathLike[str]) -> list[Path]:
    """Draw a payload of `run`: a panel for each width and dtype, times over the rows; returns the files written."""
    if not names(payload, ""):
        return []
    cases = payload["results"]["shapes"]
    panels = list(dict.fromkeys((case["width"], case["dtype"]) for case in cases))
    with figures.canvas(1, len(panels), size=(0.8 + 2.7 * len(panels), 3.9), sharey=True, squeeze=False) as (fig, grid):
        for (width, dtype), axes in zip(panels, grid.flat, strict=True):
            own = sorted((c for c in cases if (c["width"], c["dtype"]) == (width, dtype)), key=lambda c: c["rows"])
            rows = [case["rows"] for case in own]
            for number, (name, label) in enumerate(_LABELS.items()):
                times = [case["selectors"][name]["median_us"] for case in own]
                axes.plot(rows, times, label=label, **figures.series(number))
            axes.set_yscale("log")
            figures.log2_axis(axes.xaxis, rows, "rows")
            axes.set_title(f"{figures.size_text(width)} scores, {dtype}")
        grid.flat[0].set_ylabel("microseconds")
        fig.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_LABELS))
        world, k = payload["results"]["world"], payload["settings"]["k"]
        device = (payload["environment"]["gpu"]["devices"] or [{}])[0].get("name", "GPU")
        fig.suptitle(f"{world} ranks, one {device} each, k = {k:,}", fontsize=10, x=0.01, ha="left")
        return figures.save(fig, stem)
