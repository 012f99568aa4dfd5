"""Figures of the ablations, one per part, drawn from a result payload."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ksieve_lab.bench.ablation import activation, steps
from ksieve_lab.bench.ablation.phases import PHASES
from ksieve_lab.report import figures

_VIEWS = (("paper's view", steps.paper_policy), ("whole lines", steps.lines_policy))


def draw(payload: dict[str, Any], stem: str | os.PathLike[str]) -> list[Path]:
    """Draw every part that a payload of `ksieve_lab.bench.ablation.run` holds, as ``stem-part``; returns the files."""
    written = []
    for part, make in _FIGURES.items():
        if part in payload["results"]["paper"]:
            written += make(payload, Path(f"{os.fspath(stem)}-{part}"))
    return written


def names(payload: dict[str, Any], stem: str) -> list[str]:
    """Name the figures that `draw` makes, without suffixes."""
    return [f"{stem}-{part}" for part in _FIGURES if part in payload["results"]["paper"]]


def _sweep(payload: dict[str, Any], stem: Path, part: str) -> list[Path]:
    """Latency on the left, rows sent to exact recovery on the right, over the margin or the stride."""
    values = steps.MARGINS if part == "margin" else steps.STRIDES
    found = payload["results"]["steps"]
    with figures.canvas(1, 2, size=(9.5, 4.1)) as (fig, axes):
        number = 0
        for request, step in found.items():
            for view, make in _VIEWS:
                policies = [make(steps.STRIDE, v) if part == "margin" else make(int(v), steps.MARGIN) for v in values]
                facts = [step["variants"].get(p.name, {}) for p in policies]
                times = [(v, f["step_ms"]) for v, f in zip(values, facts, strict=True) if f.get("step_ms")]
                rates = [
                    (v, f["recovery_percent"])
                    for v, f in zip(values, facts, strict=True)
                    if f.get("recovery_percent") is not None
                ]
                look = figures.series(number) | {"label": f"{request}, {view}"}
                axes[0].plot(*_columns(times), **look)
                # A logarithmic axis has no zero: a rate that was never seen is drawn at the bottom.
                axes[1].plot(*_columns([(v, max(rate, _LEAST)) for v, rate in rates]), **look)
                number += 1
            planned = step["variants"].get(steps.PLANNED, {}).get("step_ms")
            if planned:
                # Named at its end, outside the panel: inside, some curve would cross the words.
                own = None if request != next(iter(found)) else "ksieve's own choice"
                axes[1].plot([], [], color=figures.MUTED, linewidth=1, linestyle=(0, (2, 2)), label=own)
                axes[0].axhline(planned, color=figures.MUTED, linewidth=1, linestyle=(0, (2, 2)))
                axes[0].annotate(request, (1.01, planned), xycoords=("axes fraction", "data"),
                                 ha="left", va="center", fontsize=8.5, color=figures.MUTED)  # fmt: skip
        axes[0].set_ylim(bottom=0)
        axes[0].set_ylabel("milliseconds of the terminal step")
        axes[0].set_title("Latency")
        axes[1].set_yscale("log")
        axes[1].set_ylabel("rows to exact recovery, %")
        axes[1].set_title("Underfill")
        axes[1].axhline(_LEAST, color=figures.GRID, linewidth=0.8)
        axes[1].text(0.99, 0.01, "none", transform=axes[1].transAxes, fontsize=8, color=figures.MUTED, ha="right")
        for each in axes:
            if part == "margin":
                each.set_xlabel("requested rank, in units of K (stride 128)")
                each.set_xticks(values)
            else:
                figures.log2_axis(each.xaxis, values, "one score in this many is sampled (1.5 K)")
        published = payload["results"]["paper"][part]["recovery_range"]
        low, high = zip(*published.values(), strict=True)
        axes[1].vlines([float(v) for v in published], low, high, color=figures.INK, linewidth=5, alpha=0.45,
                       label="paper, H20, both requests")  # fmt: skip
        handles, labels = axes[1].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside upper center", ncols=3)
    return figures.save(fig, stem)


_LEAST = 1e-4
"""Per cent: less than one row in a million."""


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _rescue(payload: dict[str, Any], stem: Path) -> list[Path]:
    found, paper = payload["results"]["steps"], payload["results"]["paper"]["rescue"]
    names: list[str] = []
    primary, residual, rescue, recovery = ([0.0][:0] for _ in range(4))
    for request, step in found.items():
        on = step["variants"][steps.RESCUED]
        wave = step.get("wave") or {}
        columns = [(request, on["primary_missed_percent"], on["recovery_percent"],
                    wave.get("rescue_us"), wave.get("recovery_us"))]  # fmt: skip
        if request in paper:
            p = paper[request]
            columns.append((f"{request}\npaper, H20", p["primary_percent"], p["residual_percent"], p["rescue_us"],
                            p["recovery_us"]))  # fmt: skip
        for name, *values in columns:
            names.append(name)
            for into, value in zip((primary, residual, rescue, recovery), values, strict=True):
                into.append(value or 0.0)
    with figures.canvas(1, 2, size=(9.5, 3.6)) as (fig, axes):
        panels = (
            (axes[0], primary, residual, "missed by the primary boundary", "left after rescue", "rows, %", "{:.3g}"),
            (axes[1], recovery, rescue, "exact recovery", "rescue", "microseconds added to a row", "{:.1f}"),
        )
        for axis, first, second, one, other, label, text in panels:
            places = range(len(names))
            for shift, values, colour, word in ((-0.2, first, "orange", one), (0.2, second, "blue", other)):
                bars = axis.bar([p + shift for p in places], values, 0.38, color=figures.PALETTE[colour], label=word)
                axis.bar_label(bars, [text.format(v) for v in values], padding=2, fontsize=8)
            axis.set_xticks(list(places), names)
            axis.set_ylabel(label)
            axis.margins(y=0.18)
            axis.grid(False, axis="x")
            axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=2)
        axes[0].set_title("Rows")
        axes[1].set_title("Recovery path")
    return figures.save(fig, stem)


def _proposal(payload: dict[str, Any], stem: Path) -> list[Path]:
    found = payload["results"]["steps"]
    split = {r: s["phases"] for r, s in found.items() if "alone" in s.get("phases", {})}
    bars = [(r, how, name) for r, p in split.items() for how in ("alone", "together") for name in p[how]]
    with figures.canvas(1, 2, size=(10, 1.7 + 0.27 * max(len(bars), 8)), width_ratios=(1.6, 1)) as (fig, axes):
        left = [0.0] * len(bars)
        colours = ("vermilion", "sky", "purple", "green")
        for phase, colour in zip(PHASES, colours, strict=True):
            widths = [split[r][how][name]["row_us"][phase] for r, how, name in bars]
            axes[0].barh(range(len(bars)), widths, left=left, color=figures.PALETTE[colour], label=phase)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes[0].set_yticks(range(len(bars)), [f"{r}, {how}: {name}" for r, how, name in bars])
        axes[0].invert_yaxis()
        axes[0].set_xlabel("microseconds of a row, one CTA")
        axes[0].set_title("Phases: one row alone, and all rows together" if bars else "Phases: not measured")
        axes[0].legend(loc="lower center", bbox_to_anchor=(0.4, 1.06), ncols=4)
        axes[0].grid(False, axis="y")
        names = (steps.DIRECT, steps.paper_policy(steps.STRIDE, steps.MARGIN).name, steps.PLANNED)
        shown = ("exact\nproposal", "sampled,\ns = 128", "ksieve's\nchoice")
        for number, request in enumerate(found):
            values = [found[request]["variants"].get(name, {}).get("step_ms") or 0.0 for name in names]
            places = [p + (number - (len(found) - 1) / 2) * 0.36 for p in range(len(names))]
            drawn = axes[1].bar(places, values, 0.33, color=list(figures.PALETTE.values())[number], label=request)
            axes[1].bar_label(drawn, [f"{v:.1f}" for v in values], padding=2, fontsize=8)
        axes[1].set_xticks(range(len(names)), shown)
        axes[1].set_ylabel("milliseconds of the terminal step")
        axes[1].set_title("Whole step")
        axes[1].margins(y=0.12)
        axes[1].grid(False, axis="x")
        axes[1].legend(loc="upper right")
    return figures.save(fig, stem)


def _activation(payload: dict[str, Any], stem: Path) -> list[Path]:
    rows = payload["results"]["activation"]["widths"]
    widths = [row["width"] for row in rows]
    with figures.canvas(size=(7, 4)) as (fig, axes):
        shown = [name for name in activation.CHOICES if name != activation.EXACT]
        for number, name in enumerate(shown):
            have = [(row["width"], row[name]) for row in rows if name in row]
            x = [width * (1 + 0.012 * (number - (len(shown) - 1) / 2)) for width, _ in have]
            median = [gain["median"] for _, gain in have]
            reach = [[g["median"] - g["least"] for _, g in have], [g["most"] - g["median"] for _, g in have]]
            axes.errorbar(x, median, yerr=reach, capsize=2.5, elinewidth=1, **figures.series(number), label=name)
        axes.axhline(1, color=figures.INK, linewidth=1)
        axes.set_xticks(widths, [figures.size_text(w) for w in widths])
        axes.set_xlabel("row width")
        axes.set_ylabel("times as fast as exact proposal\n(median, least and most of a width)")
        axes.set_title("From which width on sampling pays")
        fig.legend(loc="outside upper center", ncols=4)
    return figures.save(fig, stem)


_FIGURES: dict[str, Callable[[dict[str, Any], Path], list[Path]]] = {
    "margin": lambda payload, stem: _sweep(payload, stem, "margin"),
    "stride": lambda payload, stem: _sweep(payload, stem, "stride"),
    "rescue": _rescue,
    "proposal": _proposal,
    "activation": _activation,
}
