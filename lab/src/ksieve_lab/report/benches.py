"""Figures of GPU result files: what a table of medians looks like.

``draw(payload, folder, stem)`` picks the figures that suit a result; each is saved as PNG and SVG by
`ksieve_lab.report.figures`.
"""

from __future__ import annotations

import importlib
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ksieve.planning.tune.variants import PLANNED
from ksieve_lab.bench.scores import lengths_text
from ksieve_lab.report import figures

OWN = PLANNED.name
PLAIN = "plain"
FLOOR = "plain read"
DECODE_ROWS = (1, 8, 64, 256)
"""Batches that get a panel of decode curves."""

CURVES = ("-decode", "-latency")
"""Ends of the names of figures that are curves, one for each selector."""

MOST_CURVES = 5
"""Curves of a panel: the plain read, ksieve, the paper's kernels and the fastest others; tables have all selectors."""

MOST_PANELS = 8
"""Panels of a figure of many widths: the narrowest, the widest, and widths between them."""

PAPERS = "hpc-ops"
"""Beginning of the names of the paper's own kernels."""

WORST_TARGET = 2.5
"""Times over the floor that no input is to exceed."""

ELSEWHERE = {
    "ablation": "ksieve_lab.report.ablation",
    "blocks": "ksieve_lab.report.blocks",
    "chain": "ksieve_lab.report.chain",
    "ranks": "ksieve_lab.report.ranks",
    "replay": "ksieve_lab.report.replay",
}
"""Modules that draw the other benches' results."""

Shape = Mapping[str, Any]


def draw(payload: Mapping[str, Any], folder: Path, stem: str) -> list[Path]:
    """Draw a result file.

    Parameters
    ----------
    payload : mapping
        As `ksieve.planning.tune.record.read_json` gives it.
    folder : Path
        Made as needed.
    stem : str
        Beginning of the figures' names, as of the result file.

    Returns
    -------
    list of Path
        What was written; empty for results that have no figure.

    Raises
    ------
    BackendError
        Without matplotlib.
    """
    if payload["bench"] in ELSEWHERE:
        drawn: list[Path] = importlib.import_module(ELSEWHERE[payload["bench"]]).draw(payload, folder / stem)
        return drawn
    written: list[Path] = []
    for tail, make in _makers(payload):
        written += figures.save(make(payload), folder / f"{stem}{tail}")
    return written


def names(payload: Mapping[str, Any], stem: str) -> list[str]:
    """Name the figures that `draw` makes of a result, without suffixes."""
    if payload["bench"] in ELSEWHERE:
        found: list[str] = importlib.import_module(ELSEWHERE[payload["bench"]]).names(payload, stem)
        return found
    return [f"{stem}{tail}" for tail, _ in _makers(payload)]


def _makers(payload: Mapping[str, Any]) -> list[tuple[str, Callable[[Mapping[str, Any]], Any]]]:
    """Figures that a result has the data for: the end of the name, and what draws it."""
    results, bench = payload["results"], payload["bench"]
    if not isinstance(results, Mapping) or bench in ("general", "engines"):  # several dtypes and k have tables
        return []
    if bench == "worst":
        return [("", _worst)] if any(OWN in found for found in results["worst"].values()) else []
    if bench == "trace":
        return [("", _trace)] if any("floor_us" in found for found in results["traces"].values()) else []
    shapes = _shapes(results)
    if bench == "options":
        return [("", _options)] if any(math.isfinite(_microseconds(shape, PLAIN)) for shape in shapes) else []
    if not shapes or "floor_us" not in shapes[0] or "selectors" not in shapes[0]:
        return []
    heat = [("-of-floor", _heat)] if any(math.isfinite(_microseconds(shape, OWN)) for shape in shapes) else []
    decode, latency = CURVES
    return [*heat, (decode, _decode) if _is_decode(results) else (latency, _latency)]


def _shapes(results: Mapping[str, Any]) -> list[Shape]:
    return [shape for shape in results.get("shapes", []) if "skipped" not in shape]


def _is_decode(results: Mapping[str, Any]) -> bool:
    rows = {shape["rows"] for shape in _shapes(results)}
    return bool(min(rows) < 16 and max(rows) <= 512)


def _title(payload: Mapping[str, Any], columns: int = 110) -> str:
    devices = (payload["environment"].get("gpu") or {}).get("devices") or [{}]
    settings = payload["settings"]
    k = f", k = {settings['k']:,}" if "k" in settings else ""
    kind = "adversarial" if payload["bench"] == "worst" else settings.get("scores", "endpoint")
    scores = {"endpoint": "endpoint-structured"}.get(kind, "real-factor" if kind.startswith("factors") else kind)
    line = (
        f"{devices[0].get('name', 'GPU')}{k}, {settings['dtype']}, {scores} scores, {lengths_text(settings['lengths'])}"
    )
    return textwrap.fill(figures.plain_text(line), columns)


def _microseconds(shape: Shape, name: str) -> float:
    """Median of an exact selector, or of the floor; NaN where there is none."""
    if name == FLOOR:
        return float(shape["floor_us"])
    facts = shape.get("selectors", {}).get(name, {})
    return float(facts["median_us"]) if facts.get("exact") is True and "median_us" in facts else math.nan


def _names(shapes: Sequence[Shape]) -> list[str]:
    """`MOST_CURVES` selectors at most: the floor, our own, the paper's, then those that are fastest on average."""
    found = dict.fromkeys(name for shape in shapes for name in shape.get("selectors", {}))
    times = {n: [_microseconds(s, n) / _microseconds(s, FLOOR) for s in shapes] for n in found if n != OWN}
    ratios = {n: [math.log(t) for t in known if math.isfinite(t)] for n, known in times.items()}
    # One that answers few of the shapes comes after those that answer most.
    order = {n: (2 * len(r) < len(shapes), sum(r) / len(r)) for n, r in ratios.items() if r}
    others = sorted(order, key=lambda n: (not n.startswith(PAPERS), order[n]))
    return [FLOOR, *([OWN] if OWN in found else []), *others][:MOST_CURVES]


def left_out(payload: Mapping[str, Any]) -> list[str]:
    """Selectors with times that a figure of curves does not show."""
    shapes = _shapes(payload["results"])
    timed = dict.fromkeys(n for s in shapes for n in s.get("selectors", {}) if math.isfinite(_microseconds(s, n)))
    shown = _names(shapes)
    return [name for name in timed if name not in shown]


def _look(names: Sequence[str], name: str) -> dict[str, Any]:
    if name == FLOOR:
        return {"color": figures.MUTED, "linestyle": (0, (1, 1.2)), "linewidth": 1.4}
    return figures.series([n for n in names if n != FLOOR].index(name))


def _lines(axes: Any, shapes: Sequence[Shape], names: Sequence[str], x: str) -> None:
    """One line per selector over a field of the shapes; missing or inexact answers leave a gap."""
    ordered = sorted(shapes, key=lambda shape: shape[x])
    for name in names:
        axes.plot([s[x] for s in ordered], [_microseconds(s, name) for s in ordered], label=name, **_look(names, name))
    axes.set_yscale("log")
    figures.log2_axis(axes.xaxis, [s[x] for s in ordered], "rows" if x == "rows" else "row width, scores")


def _panels(payload: Mapping[str, Any], by: str, values: Sequence[int], x: str) -> Any:
    """Small multiples: one panel per value of a field, log-log, one legend."""
    shapes = _shapes(payload["results"])
    names = _names(shapes)
    columns = min(len(values), 4)
    rows = math.ceil(len(values) / columns)
    with figures.canvas(rows, columns, size=(0.8 + 2.6 * columns, 1.1 + 2.5 * rows), sharey=True, squeeze=False) as (
        figure,
        grid,
    ):
        for position, axes in enumerate(grid.flat):
            if position >= len(values):
                axes.set_visible(False)
                continue
            own = [shape for shape in shapes if shape[by] == values[position]]
            _lines(axes, own, names, x)
            text = figures.size_text(values[position])
            axes.set_title(f"{text} scores per row" if by == "width" else f"{text} row{'s' if text != '1' else ''}")
            if position % columns == 0:
                axes.set_ylabel("microseconds")
        figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(len(names), 6))
        figure.suptitle(_title(payload), fontsize=10, x=0.01, ha="left")
        return figure


def _options(payload: Mapping[str, Any]) -> Any:
    """Bars: every option's time over the plain call's, a panel for each shape; options in one order, dearest on top."""
    shapes = [s for s in _shapes(payload["results"]) if math.isfinite(_microseconds(s, PLAIN))]
    ratios = [
        {n: ratio for n in s["selectors"] if n != PLAIN and math.isfinite(ratio := _microseconds(s, n) / plain)}
        for s in shapes
        for plain in [_microseconds(s, PLAIN)]
    ]
    names = dict.fromkeys(name for found in ratios for name in found)
    known = {name: [found[name] for found in ratios if name in found] for name in names}
    names_in_order = sorted(names, key=lambda name: sum(known[name]) / len(known[name]))
    columns = min(len(shapes), 3)
    rows = math.ceil(len(shapes) / columns)
    most = max(max(found.values(), default=1) for found in ratios)
    size = (1.9 + 2.5 * columns, 0.9 + rows * (0.75 + 0.2 * len(names)))
    with figures.canvas(rows, columns, size=size, sharex=True, sharey=True, squeeze=False) as (figure, grid):
        for axes, shape, found in zip(grid.flat, shapes, ratios, strict=False):
            places = [i for i, name in enumerate(names_in_order) if name in found]
            values = [found[names_in_order[i]] for i in places]
            bars = axes.barh(places, values, 0.68, color=figures.PALETTE["sky"])
            axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=3, fontsize=8)
            axes.axvline(1, color=figures.INK, linewidth=1)
            axes.set_xlim(0, most * 1.18)
            axes.set_yticks(range(len(names_in_order)), names_in_order)
            axes.grid(visible=False, axis="y")
            plain = _microseconds(shape, PLAIN)
            axes.set_title(f"{shape['rows']} x {figures.size_text(shape['width'])}: plain {plain:.3g} us")
        for axes in list(grid.flat)[len(shapes) :]:
            axes.set_visible(False)
        for axes in grid[-1]:
            axes.set_xlabel("time over the plain call's")
        figure.suptitle(_title(payload), fontsize=10, x=0.01, ha="left")
        return figure


def _latency(payload: Mapping[str, Any]) -> Any:
    shapes = _shapes(payload["results"])
    widths = sorted({shape["width"] for shape in shapes})
    if len(widths) > MOST_PANELS:
        widths = [widths[round(i * (len(widths) - 1) / (MOST_PANELS - 1))] for i in range(MOST_PANELS)]
    return _panels(payload, "width", widths, "rows")


def _decode(payload: Mapping[str, Any]) -> Any:
    there = {shape["rows"] for shape in _shapes(payload["results"])}
    chosen = [rows for rows in DECODE_ROWS if rows in there] or sorted(there)[:4]
    return _panels(payload, "rows", chosen, "width")


def _heat(payload: Mapping[str, Any]) -> Any:
    """Fraction of the floor of the planner's choice: widths downwards, rows across."""
    shapes = _shapes(payload["results"])
    value = {
        (s["width"], s["rows"]): s["floor_us"] / _microseconds(s, OWN) for s in shapes if OWN in s.get("selectors", {})
    }
    widths, rows = (sorted({key[i] for key in value}) for i in (0, 1))
    table = [[value.get((width, m), math.nan) for m in rows] for width in widths]
    with figures.canvas(size=(max(5.4, 1.9 + 0.62 * len(rows)), max(3.0, 1.3 + 0.36 * len(widths)))) as (figure, axes):
        names = [figures.size_text(width) for width in widths]
        columns, label = [str(m) for m in rows], "ksieve, fraction of the plain read"
        figures.heat_map(axes, table, rows=names, columns=columns, label=label, limits=(0.0, 1.0))
        axes.set_xlabel("rows")
        axes.set_ylabel("row width, scores")
        figure.suptitle(_title(payload, 72), fontsize=9, x=0.01, ha="left")
        return figure


def _worst(payload: Mapping[str, Any]) -> Any:
    """Bars: times over the floor per family, the worst shape of each; other selectors as marks."""
    found = payload["results"]["worst"]
    families = sorted((f for f in found if OWN in found[f]), key=lambda f: found[f][OWN]["ratio"])
    others = list(dict.fromkeys(name for family in families for name in found[family] if name != OWN))
    with figures.canvas(size=(7.6, 1.6 + 0.26 * len(families))) as (figure, axes):
        ratios = [found[family][OWN]["ratio"] for family in families]
        axes.barh(range(len(families)), ratios, color=figures.PALETTE["blue"], height=0.7, label=OWN, zorder=2)
        farthest = [max(r["ratio"] for r in found[family].values()) for family in families]
        beyond = (WORST_TARGET - 0.02) if max(ratios) > WORST_TARGET else math.inf
        for i, (ratio, last) in enumerate(zip(ratios, farthest, strict=True)):
            # A label that would lie on the line of the target comes behind it.
            behind = max(last, WORST_TARGET) if beyond - 0.075 * max(farthest) < last < beyond else last
            axes.text(behind, i, f"  {ratio:.2f}", va="center", fontsize=8.5)
        for index, name in enumerate(others, 1):
            known = [(found[f][name]["ratio"], i) for i, f in enumerate(families) if name in found[f]]
            look = figures.series(index) | {"linestyle": "none"}
            axes.plot([x for x, _ in known], [y for _, y in known], label=name, **look)
        target = f"the target, {WORST_TARGET}"
        axes.axvline(WORST_TARGET, color=figures.PALETTE["vermilion"], linewidth=1.2, label=target, zorder=1)
        axes.axvline(1, color=figures.PALETTE["orange"], linewidth=1.2, linestyle=(0, (4, 2)), label=FLOOR, zorder=3)
        axes.set_yticks(range(len(families)), [family.replace("_", " ") for family in families])
        axes.grid(axis="y", visible=False)
        axes.set_xlim(left=0)
        axes.set_ylim(-0.6, len(families) - 0.4)
        axes.set_xlabel("time over that of a plain read of the same rows; the worst shape of each family")
        axes.set_ylabel("family of inputs")
        figure.legend(loc="outside lower center", ncols=4)
        figure.suptitle(_title(payload), fontsize=10, x=0.01, ha="left")
        return figure


def _trace(payload: Mapping[str, Any]) -> Any:
    """Fraction of the floor along each trace, one point per invocation, and the sums in the legend."""
    traces = {n: t for n, t in payload["results"]["traces"].items() if "floor_us" in t}
    with figures.canvas(1, len(traces), size=(0.8 + 3.6 * len(traces), 4.2), sharey=True, squeeze=False) as (
        figure,
        grid,
    ):
        for axes, (name, found) in zip(grid.flat, traces.items(), strict=True):
            calls = found["invocations"]
            for index, (selector, sums) in enumerate(found["selectors"].items()):
                if sums.get("exact") is not True:
                    continue
                shares = [call["floor_us"] / _microseconds(call, selector) for call in calls]
                label = f"{selector}: {sums['total_us'] / 1e3:.1f} ms, {sums['of_floor']:.3f}"
                axes.plot(range(1, len(calls) + 1), shares, label=label, **figures.series(index))
            steps = [i + 0.5 for i in range(1, len(calls)) if calls[i]["step"] != calls[i - 1]["step"]]
            for step in steps:
                axes.axvline(step, color=figures.GRID, linewidth=0.8)
            axes.axhline(1, color=figures.MUTED, linewidth=1.0)
            axes.set_ylim(0, 1.05)
            axes.set_title(f"{name}: {len(calls)} invocations, plain reads {found['floor_us'] / 1e3:.1f} ms")
            axes.set_xlabel("invocation; lines between scheduler steps")
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
        grid.flat[0].set_ylabel("fraction of the plain read")
        figure.suptitle(_title(payload), fontsize=9, x=0.01, ha="left")
        return figure
