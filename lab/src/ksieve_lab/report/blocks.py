"""Figure of a result of `ksieve bench blocks`: times of the same result around a selector, over those of one call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ksieve_lab.bench.blocks import AROUND, name_of
from ksieve_lab.report import figures


def _cases(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [case for case in payload["results"]["shapes"] if case.get("times_faster")]


def names(payload: Mapping[str, Any], stem: str) -> list[str]:
    """Name the figure that `draw` makes, without suffix; none without a time of one call."""
    return [stem] if _cases(payload) else []


def draw(payload: Mapping[str, Any], stem: str | os.PathLike[str]) -> list[Path]:
    """Draw a payload of `run`: a panel for each dtype, a line of marks for each case; returns the files written."""
    cases = _cases(payload)
    if not cases:
        return []
    dtypes = list(dict.fromkeys(case["dtype"] for case in cases))
    lines = list(dict.fromkeys(map(name_of, cases)))
    size = (3.4 + 3.0 * len(dtypes), 1.6 + 0.26 * len(lines))
    with figures.canvas(1, len(dtypes), size=size, sharey=True, squeeze=False) as (fig, grid):
        for dtype, axes in zip(dtypes, grid.flat, strict=True):
            own = [case for case in cases if case["dtype"] == dtype]
            for number, name in enumerate(AROUND):
                known = [(c["times_faster"][name], lines.index(name_of(c))) for c in own if name in c["times_faster"]]
                look = figures.series(number) | {"linestyle": "none"}
                axes.plot([x for x, _ in known], [y for _, y in known], label=name, **look)
            axes.axvline(1, color=figures.MUTED, linewidth=1.0)
            axes.set_xscale("log")
            axes.set_title(dtype)
            axes.set_xlabel("its time over that of one call")
        axes = grid.flat[0]
        axes.set_yticks(range(len(lines)), lines)
        axes.invert_yaxis()
        fig.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(AROUND))
        facts = payload["environment"]
        gpu = ((facts.get("gpu") or {}).get("devices") or [{}])[0].get("name")
        fig.suptitle(gpu or (facts.get("cpu") or {}).get("model"), fontsize=10, x=0.01, ha="left")
        return figures.save(fig, stem)
