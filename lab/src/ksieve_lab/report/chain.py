"""Figure of a chain result: score production and selection of a whole step in one CUDA graph."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ksieve_lab.bench.chain_selectors import OURS
from ksieve_lab.report import figures


def names(payload: dict[str, Any], stem: str) -> list[str]:
    """Name the figure that `draw` makes, without suffix."""
    return [stem]


def draw(payload: dict[str, Any], stem: str | os.PathLike[str]) -> list[Path]:
    """Draw a payload of `run`: chains on the left, what selection adds on the right; returns the files written."""
    measured = [r for r in payload["results"]["requests"] if "selectors" in r]
    names = list(dict.fromkeys(n for r in measured for n, s in r["selectors"].items() if "chain_ms" in s))
    bars = [(r, n) for r in measured for n in names if "chain_ms" in r["selectors"].get(n, {})]
    labels = [f"{r['request']}  {n}" for r, n in bars]
    places = list(range(len(bars)))
    with figures.canvas(1, 2, size=(9.5, 1.4 + 0.34 * max(len(bars), 2)), sharey=True) as (fig, axes):
        select = [r["selectors"][n]["select_ms"] for r, n in bars]
        scores = [r["selectors"][n]["chain_ms"] - ms for (r, n), ms in zip(bars, select, strict=True)]
        axes[0].barh(places, scores, color=figures.PALETTE["sky"], label="score production")
        axes[0].barh(places, select, left=scores, color=figures.PALETTE["vermilion"], label="selection")
        axes[0].set_xlabel("milliseconds of the terminal step")
        axes[0].set_title("Score and select, one CUDA graph")
        axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=2)
        ours = [figures.PALETTE["blue" if n == OURS else "orange"] for _, n in bars]
        axes[1].barh(places, select, color=ours)
        for place, ms, (r, n) in zip(places, select, bars, strict=True):
            share = r["selectors"][n]["select_share"]
            axes[1].text(ms, place, f"  {ms:.1f} ms, {share:.1%} of the chain", va="center", fontsize=8)
        for r in measured:
            rows = [p for p, (other, _) in zip(places, bars, strict=True) if other is r]
            if rows:
                axes[1].plot([r["floor_ms"]] * 2, [rows[0] - 0.45, rows[-1] + 0.45], color=figures.INK, linewidth=1.5,
                             label="one plain read of the scores" if r is measured[0] else None)  # fmt: skip
        axes[1].set_xlim(0, max(select, default=1) * 1.75)
        axes[1].set_xlabel("milliseconds that selection adds")
        axes[1].set_title("Selection")
        axes[1].legend(loc="lower center", bbox_to_anchor=(0.5, 1.08))
        axes[0].set_yticks(places, labels)
        axes[0].invert_yaxis()
        for each in axes:
            each.grid(False, axis="y")
    return figures.save(fig, stem)
