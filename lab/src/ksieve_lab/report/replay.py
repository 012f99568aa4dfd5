"""Figure of a replayed serving trace: every call's time and its share of the floor, in order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ksieve_lab.report import figures


def names(payload: Mapping[str, Any], stem: str) -> list[str]:
    """Name the figure that `draw` makes, without suffix."""
    return [stem]


def draw(payload: Mapping[str, Any], stem: str | os.PathLike[str]) -> list[Path]:
    """Draw a payload of `run`: each call's latency and its share of the floor, in order; returns the files."""
    calls, total = payload["results"]["calls"], payload["results"]["total"]
    order = np.arange(len(calls))
    scale, unit = (1e3, "milliseconds") if max((c["us"] or 0) for c in calls) > 2000 else (1.0, "microseconds")
    phases = [c["phase"] for c in calls]
    with figures.canvas(2, 1, size=(8.5, 5), sharex=True, height_ratios=(1.5, 1)) as (fig, axes):
        for phase, colour in (("prefill", "blue"), ("decode", "orange")):
            at = [i for i in order if phases[i] == phase]
            if at:
                axes[0].bar(at, [(calls[i]["us"] or 0) / scale for i in at], 0.9, color=figures.PALETTE[colour],
                            label=phase)  # fmt: skip
                axes[1].bar(at, [calls[i]["of_floor"] or 0 for i in at], 0.9, color=figures.PALETTE[colour])
        floor = [c["floor_us"] / scale for c in calls]
        axes[0].step([*(order - 0.5), len(calls) - 0.5], [*floor, floor[-1]], where="post", color=figures.INK,
                     linewidth=1.1, label="one plain read")  # fmt: skip
        axes[0].set_ylabel(unit)
        settings = payload["settings"]
        text = f"{figures.plain_text(settings['trace'])}: {len(calls)} calls, top {settings['k']:,}"
        if total["us"]:
            spent = total["us"]
            shown = f"{spent / 1e3:.2f} ms" if spent < 1e6 else f"{spent / 1e6:.2f} s"
            text += f", {shown} in all, {total['of_floor']:.2f} of the floor"
        axes[0].set_title(text)
        axes[1].set_ylabel("of the floor")
        axes[1].set_ylim(0, max(1.0, *(c["of_floor"] or 0 for c in calls)) * 1.05)
        axes[1].axhline(1, color=figures.INK, linewidth=0.8)
        axes[1].set_xlabel("call, in order")
        edges = [i for i in order[1:] if calls[i]["step"] != calls[i - 1]["step"] and phases[i] == "prefill"]
        for each in axes:
            each.grid(False, axis="x")
            each.set_xlim(-0.8, len(calls) - 0.2)
            for edge in edges:
                each.axvline(edge - 0.5, color=figures.MUTED, linewidth=0.6, linestyle=(0, (2, 2)),
                             label="scheduler step" if edge == edges[0] else None)  # fmt: skip
        fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=4)
    return figures.save(fig, stem)
