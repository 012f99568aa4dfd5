"""Figures of results of `ksieve bench ranks` on GPUs: the shard alone, a gather of pairs, the planner's schedule.

One over the rows for each result, and one over the number of GPUs for several, beside what was predicted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ksieve_lab.report import figures

_LABELS = {
    "local": "selection from the shard",
    "gathered": "gather of all pairs",
    "planned": "ksieve.distributed",
}


def names(payload: Mapping[str, Any], stem: str) -> list[str]:
    """Name the figure that `draw` makes, without suffix; none without times of GPUs."""
    measured = payload["settings"]["device"] == "cuda" and contiguous(payload)
    return [stem] if measured else []


def contiguous(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Measured shapes in contiguous shards; files without layouts have no others."""
    return [case for case in payload["results"]["shapes"] if case.get("layout", "contiguous") == "contiguous"]


def draw(payload: Mapping[str, Any], stem: str | os.PathLike[str]) -> list[Path]:
    """Draw a payload of `run`: a panel for each width and dtype, times over the rows; returns the files written."""
    if not names(payload, ""):
        return []
    cases = contiguous(payload)
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


Curves = dict[tuple[int, int, str], dict[int, dict[str, float]]]
"""For rows, width and dtype: for each number of GPUs the microseconds of "gathered" and "planned"."""


def curves(measured: Sequence[Mapping[str, Any]], predicted: Mapping[str, Any] | None) -> tuple[Curves, Curves]:
    """Times of whole calls on some numbers of GPUs, measured and predicted, of shapes measured on two or more."""
    found: Curves = {}
    for payload in one_of_each_world(measured):
        for case in contiguous(payload) if payload["settings"]["device"] == "cuda" else ():
            times = {name: case["selectors"][name]["median_us"] for name in ("gathered", "planned")}
            key = (case["rows"], case["width"], case["dtype"])
            found.setdefault(key, {})[payload["results"]["world"]] = times
    found = {key: dict(sorted(by.items())) for key, by in sorted(found.items()) if len(by) > 1}
    expected: Curves = {}
    for case in predicted["results"]["shapes"] if predicted else ():
        key = (case["rows"], case["width"], case["dtype"])
        if key in found:
            times = {name: case["local_us"] + case["added_us"][name] for name in ("gathered", "planned")}
            expected.setdefault(key, {})[case["world"]] = times
    return found, expected


def world_names(measured: Sequence[Mapping[str, Any]], stem: str = "ranks-cuda") -> list[str]:
    """Name the figures that `draw_worlds` makes: one for each dtype with shapes on two numbers of GPUs."""
    return [f"{stem}-over-{dtype}" for dtype in dict.fromkeys(dtype for *_, dtype in curves(measured, None)[0])]


def draw_worlds(
    measured: Sequence[Mapping[str, Any]], predicted: Mapping[str, Any] | None, folder: Path, stem: str = "ranks-cuda"
) -> list[Path]:
    """Draw latency, and scores per second and GPU, over the number of GPUs: panels of the widest rows."""
    found, expected = curves(measured, predicted)
    written = []
    for name in world_names(measured, stem):
        dtype = name.rpartition("-")[2]
        width = max(w for _, w, d in found if d == dtype)
        keys = [key for key in found if key[1:] == (width, dtype)]
        size = (0.9 + 2.5 * len(keys), 5.6)
        with figures.canvas(2, len(keys), size=size, sharex=True, squeeze=False) as (fig, grid):
            for column, key in zip(grid.T, keys, strict=True):
                _over_worlds(column, key, found[key], expected.get(key, {}))
            grid[0, 0].set_ylabel("microseconds")
            grid[1, 0].set_ylabel("billion scores a second and GPU")
            handles = {
                text: line for axes in grid[0] for line, text in zip(*axes.get_legend_handles_labels(), strict=True)
            }
            fig.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
            cards = dict.fromkeys(map(card_of, one_of_each_world(measured)))
            k = measured[0]["settings"]["k"]
            text = f"rows of {figures.size_text(width)} {dtype} scores, k = {k:,}, on {' and '.join(cards)}"
            fig.suptitle(text, fontsize=10, x=0.01, ha="left")
            written += figures.save(fig, folder / name)
    return written


def card_of(payload: Mapping[str, Any]) -> str:
    """Name of the GPUs of a result."""
    devices = (payload["environment"].get("gpu") or {}).get("devices") or [{}]
    return str(devices[0].get("name", "GPU"))


def one_of_each_world(measured: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A result of each number of GPUs: of several, that of the card which has the most results."""
    cards = Counter(map(card_of, measured))
    ordered = sorted(measured, key=lambda payload: cards[card_of(payload)])
    kept = {payload["results"]["world"]: payload for payload in ordered}
    return [payload for payload in measured if kept[payload["results"]["world"]] is payload]


def _over_worlds(
    column: Any, key: tuple[int, int, str], found: Mapping[int, Any], expected: Mapping[int, Mapping[str, float]]
) -> None:
    """Two panels of a shape: measured points joined, predicted ones hollow and dotted in the same colour."""
    rows, width, _ = key
    for number, name in ((1, "gathered"), (2, "planned")):
        look = figures.series(number)
        hollow = look | {"markerfacecolor": figures.CARD, "markeredgecolor": look["color"], "markeredgewidth": 1.2}
        hollow |= {"linestyle": (0, (1, 2)), "linewidth": 1.2}
        drawn = ((found, _LABELS[name], look | {"linestyle": "-"}), (expected, f"{_LABELS[name]}, predicted", hollow))
        for by, label, style in drawn:
            worlds = sorted(by)
            times = [by[world][name] for world in worlds]
            rates = [rows * width / world / us / 1e3 for world, us in zip(worlds, times, strict=True)]
            if worlds:
                column[0].plot(worlds, times, label=label, **style)
                column[1].plot(worlds, rates, **style)
    for axes in column:
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0)
        figures.log2_axis(axes.xaxis, sorted({*found, *expected}))
    column[1].set_xlabel("GPUs")
    column[0].set_title(f"{rows:,} row{'s' if rows > 1 else ''}")
