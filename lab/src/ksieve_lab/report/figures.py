"""One look for every figure: style, colours, axes in powers of two, heat maps, and saving as PNG and SVG.

A PNG is a solid light card with dark ink. An SVG is the same card, and holds a style sheet that gives its colours dark
values where the reader prefers a dark page; viewers without style sheets show the light ones. Inside an HTML report of
our own, `inline_svg` names the colours by CSS variables, to which `PAGE_CSS` gives light and dark values.

Colours are Okabe and Ito's (2008), which readers with any common colour vision distinguish; `series` pairs each
with a marker and a dash of its own, so that nothing hangs on colour alone. Matplotlib is imported when a figure is
drawn, never by importing ksieve.

    with figures.canvas(1, 2, size=(9, 3.6)) as (fig, axes):
        axes[0].plot(widths, seconds, **figures.series(0), label="ksieve")
        figures.log2_axis(axes[0].xaxis, widths, "row width")
    figures.save(fig, "docs/figures/widths")
"""

from __future__ import annotations

import html
import io
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ksieve.core import atomic
from ksieve.core.errors import BackendError
from ksieve.core.text import printable

INK, MUTED, GRID, CARD = "#1f2328", "#57606a", "#d5dae0", "#fdfdfc"
"""Text and axes, secondary text, grid lines, background."""

PALETTE = {
    "blue": "#0072b2",
    "orange": "#e69f00",
    "green": "#009e73",
    "vermilion": "#d55e00",
    "purple": "#cc79a7",
    "sky": "#56b4e9",
}
"""Okabe and Ito's colours without yellow, which fails on white, and black, which is the ink."""

_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (3, 1)))

_DARK = {
    "ink": "#e6e9ed", "muted": "#a3acb7", "grid": "#3a414a", "card": "#16191d", "blue": "#4aa8e8", "orange": "#f0b429",
    "green": "#2fc79a", "vermilion": "#f47b3c", "purple": "#dd9cbf", "sky": "#8accf2",
}  # fmt: skip
_LIGHT = {"ink": INK, "muted": MUTED, "grid": GRID, "card": CARD, **PALETTE}


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--k-{name}: {value};" for name, value in colours.items())


PAGE_CSS = (
    f":root {{ color-scheme: light dark; {_variables(_LIGHT)} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(_DARK)} }} }}\n"
)
"""Style sheet that gives the variables of `inline_svg` their values, light and dark."""

_STYLE: Any = {
    "figure.facecolor": CARD,
    "savefig.facecolor": CARD,
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    "axes.facecolor": CARD,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial", "sans-serif"],
    "font.size": 9.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",  # text stays text: searchable, and a tenth of the bytes
    "svg.hashsalt": "ksieve",  # the same figure gives the same file
}


def require_matplotlib() -> None:
    """Raise `BackendError`, which names the remedy, where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BackendError("figures need matplotlib: install it with: pip install './lab[plot]'") from error


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    try:
        require_matplotlib()
    except BackendError:
        return False
    return True


@contextmanager
def canvas(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (6.4, 3.8), **subplots: Any
) -> Iterator[tuple[Any, Any]]:
    """Make a figure and its axes; draw inside the ``with`` block, where the style is in force.

    Parameters
    ----------
    rows, columns : int
        Panels.
    size : (float, float)
        Width and height of the whole in inches; a page column is about 6.5 wide.
    **subplots
        For ``Figure.subplots``: ``sharey=True``, ``width_ratios=...``.

    Yields
    ------
    figure, axes
        One axes for a single panel, else the array of them as matplotlib shapes it.

    Raises
    ------
    BackendError
        Without matplotlib.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # No pyplot: nothing global to close, no display asked for.
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size)
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, **subplots)


def save(figure: Any, stem: str | os.PathLike[str], *, dpi: int = 160, svg_text: str | None = None) -> list[Path]:
    """Write a figure as ``stem.png`` and ``stem.svg``; folders are made as needed.

    Parameters
    ----------
    figure : matplotlib Figure
        From `canvas`.
    stem : path
        A suffix ``.png`` or ``.svg`` is dropped; any other dot belongs to the name.
    dpi : int
        Pixels per inch of the PNG.
    svg_text : str, optional
        From `svg_of`, where that is needed anyway: it takes longer than the PNG.

    Returns
    -------
    list of Path
        The PNG, then the SVG.
    """
    target = Path(stem)
    if target.suffix in (".png", ".svg"):
        target = target.with_suffix("")
    png, svg = (target.with_name(target.name + suffix) for suffix in (".png", ".svg"))
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        pixels = io.BytesIO()
        figure.savefig(pixels, format="png", dpi=dpi, metadata={"Software": None})
    atomic.write_bytes(png, pixels.getvalue(), folders=True)
    atomic.write_text(svg, _themed(svg_text or svg_of(figure)))
    return [png, svg]


def _themed(svg: str) -> str:
    """Add a style sheet for readers who prefer a dark page: every colour of ours, by the value that is written."""
    rules = [
        f'[style*="{use}: {light}"]{{{use}:{dark}!important}}'
        for (name, light), dark in zip(_LIGHT.items(), _DARK.values(), strict=True)
        for use in ("fill", "stroke")
        if f"{use}: {light}" in svg and name in _DARK
    ]
    if not rules:
        return svg
    end = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:end]}\n <style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>{svg[end:]}"


def inline_svg(svg_text: str, *, label: str = "") -> str:
    """Return a figure as an ``<svg>`` element for an HTML page that holds `PAGE_CSS`.

    Parameters
    ----------
    svg_text : str
        From `svg_of`.
    label : str
        What a screen reader says.
    """
    text = svg_text[svg_text.index("<svg") :]
    for name, value in _LIGHT.items():
        text = text.replace(value, f"var(--k-{name})")
    # Ids must be unique on a page that holds several figures; clip paths and markers are referred to by id.
    prefix = f"f{zlib.crc32(text.encode()):08x}-"
    text = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{prefix}", text)
    # The page decides the width; the view box keeps the proportions.
    opening, rest = text.split(">", 1)
    opening = re.sub(r' (width|height|version)="[^"]*"', "", opening)
    described = f' role="img" aria-label="{html.escape(label)}"' if label else ""
    return f"{opening}{described}>{rest}"


def svg_of(figure: Any) -> str:
    """Return a figure as the text of an SVG file, in the colours of a light page."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL)
    # A hundredth of a point is finer than any screen shows, and halves the file.
    text = re.sub(r'(?<=[ \n]d=")[^"]+', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    text = re.sub(r'(?<= [xy]=")(-?\d+\.\d\d)\d+', r"\1", text)
    # Blanks at line ends make diffs noisy.
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def plain_text(text: object) -> str:
    r"""Return a text that matplotlib draws as it is: no mathematics between dollar signs, no control characters."""
    return printable(text).replace("$", r"\$")


def series(index: int, *, marker: bool = True) -> dict[str, Any]:
    """Return colour, dash and marker of the index-th series, as keyword arguments of ``Axes.plot``.

    Twelve differ: where colours come again, markers are hollow and dashes others.
    """
    again, i = divmod(index, len(PALETTE))
    colour = list(PALETTE.values())[i]
    hollow = again % 2 == 1
    look: dict[str, Any] = {"color": colour, "linestyle": _DASHES[(i + 2 * hollow) % len(_DASHES)]}
    if marker:
        look |= {"marker": _MARKERS[i], "markeredgecolor": CARD, "markeredgewidth": 0.6}
        look |= {"markerfacecolor": CARD, "markeredgecolor": colour, "markeredgewidth": 1.2} if hollow else {}
    return look


def size_text(value: float) -> str:
    """Write a count the way shapes are spoken of: 512, 24K, 1M, 1.5M (binary: 1K is 1024), or in full: 2,049."""
    for unit, scale in (("M", 1 << 20), ("K", 1 << 10)):
        if abs(value) >= scale:
            text = f"{value / scale:.4g}"
            return f"{text}{unit}" if float(text) * scale == value else f"{value:,.0f}"
    return f"{value:.4g}"


def log2_axis(axis: Any, values: Sequence[float], label: str = "", *, most: int = 12) -> None:
    """Give an axis a base-2 logarithmic scale, ticks at powers of two, and labels like 64K.

    Parameters
    ----------
    axis : matplotlib Axis
        ``axes.xaxis`` or ``axes.yaxis``.
    values : sequence of float
        Positive: what the axis has to span, such as row counts or widths.
    label : str
        Axis label.
    most : int
        Ticks at most; every second, third... power is labelled beyond it.
    """
    low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    step = max(1, math.ceil((high - low + 1) / most))
    ticks = [2.0**e for e in range(low, high + 1, step)]
    pad = 2 ** (0.04 * max(high - low, 1))
    axes = axis.axes
    if axis.axis_name == "x":
        axes.set_xscale("log", base=2)
        axes.set_xlim(min(values) / pad, max(values) * pad)
    else:
        axes.set_yscale("log", base=2)
        axes.set_ylim(min(values) / pad, max(values) * pad)
    axis.set_ticks(ticks, [size_text(t) for t in ticks])
    axis.set_ticks([], minor=True)
    if label:
        axis.set_label_text(label)


def heat_map(
    axes: Any,
    values: Any,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    label: str = "",
    text: str = "{:.2f}",
    limits: tuple[float, float] | None = None,
    centre: float | None = None,
) -> Any:
    """Draw a table of numbers as coloured cells, each with its number in it.

    Parameters
    ----------
    axes : matplotlib Axes
    values : array_like, shape (len(rows), len(columns))
        NaN leaves a cell blank. Row 0 is on top.
    rows, columns : sequence of str
        Names.
    label : str
        Of the colour bar; none is drawn without one.
    text : str
        Format of a cell.
    limits : (float, float), optional
        Of the colour scale. Default: the values' own.
    centre : float, optional
        Where a diverging scale is neutral, such as 1 for a speed-up: below it orange, above it blue. Default: a
        sequential scale.

    Returns
    -------
    matplotlib QuadMesh
    """
    from matplotlib.colors import LinearSegmentedColormap, Normalize, TwoSlopeNorm

    table = np.asarray(values, dtype=float)
    finite = table[np.isfinite(table)]
    low, high = limits or ((float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0))
    if centre is None:
        # Light to dark blue: order survives a black-and-white print.
        colours = LinearSegmentedColormap.from_list("k", ["#f2f6fa", "#9cc7e3", "#2f86bd", "#08396b"])
        norm: Any = Normalize(low, high if high > low else low + 1)
    else:
        colours = LinearSegmentedColormap.from_list("k", ["#a8480a", "#f0b27a", "#f6f5f2", "#7fb8dc", "#0a5a92"])
        reach = max(high - centre, centre - low, 1e-9)
        norm = TwoSlopeNorm(centre, centre - reach, centre + reach)
    mesh = axes.pcolormesh(np.ma.masked_invalid(table), cmap=colours, norm=norm, edgecolors=CARD, linewidth=1.5)
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            red, green, blue, _ = colours(norm(value))
            dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.55
            # Not the ink: a cell keeps its colour on a dark page, so its text must too.
            axes.text(j + 0.5, i + 0.5, text.format(value), ha="center", va="center", fontsize=8,
                      color="#fefefe" if dark else "#101214")  # fmt: skip
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    axes.invert_yaxis()
    axes.grid(False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if label:
        bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02, fraction=0.05)
        bar.set_label(label)
        bar.outline.set_visible(False)
    return mesh
