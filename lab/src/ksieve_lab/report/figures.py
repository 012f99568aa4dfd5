"""One renderer of figures: a `Figure` says what is drawn where, `render` draws it, `save` writes PNG and SVG.

A PNG is a solid light card with dark ink. An SVG is the same card. Its style sheet gives the colours dark values on a
dark page; viewers without style sheets show the light ones.

Colours are Okabe and Ito's (2008), which readers with any common colour vision distinguish. `series` pairs each with a
marker and a dash of its own, so that nothing hangs on colour alone. Matplotlib is imported when a figure is drawn,
never by importing ksieve.
"""

from __future__ import annotations

import io
import math
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ksieve.core import atomic
from ksieve.core.errors import BackendError
from ksieve.core.installation import install_command
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

LIBRARIES = (
    "ksieve", "torch.topk", "sglang paged", "deepselect", "vllm persistent", "sglang ragged", "flashinfer radix",
    "vllm cooperative", "flashinfer cub", "flashinfer clusters", "vllm prefill", "vllm decode",
)  # fmt: skip
"""Selectors that look the same in every figure; other series take what these leave."""

MOST_LABELS = 5
"""Curves that are named at their ends; a legend names more."""

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
"""Style sheet that gives our colours to an HTML page, light and dark."""

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
        raise BackendError(f"figures need matplotlib: {install_command('plot', 'ksieve-lab')}") from error


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    try:
        require_matplotlib()
    except BackendError:
        return False
    return True


class Mark(NamedTuple):
    """One point, bar or cell: its panel and series, its place, its value, the ends of its range, words."""

    panel: str
    series: str
    at: float | str
    value: float
    low: float | None = None
    high: float | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What is drawn, in panels of one kind.

    Attributes
    ----------
    kind : {"line", "band", "marks", "bar", "stack", "heat"}
        A series has joined marks, joined marks over a band of their ranges, marks alone, bars side by side or stacked,
        or cells. Ranges are bars of error but in a band.
    marks : sequence of Mark
        Panels, series and named places come in the order in which the marks name them.
    name, heading : str
        End of the file's name, and what a reader sees in its place.
    at, value : str
        Labels of the axes of places and values.
    lying : bool
        Whether places lie on the vertical axis, the first on top.
    scale : {"linear", "log", "log2"}
        Of places that are numbers; "log2" has ticks at powers of two.
    log : sequence of str
        Panels whose values lie on a logarithmic axis.
    shared : bool
        Whether the panels have one scale of values, and the same named places.
    rules : mapping
        Values that a line across each panel marks, by their words.
    references : sequence of str
        Series that are thin and dashed, without marks.
    title : str
    """

    kind: str
    marks: Sequence[Mark]
    name: str = ""
    heading: str = ""
    at: str = ""
    value: str = ""
    lying: bool = False
    scale: str = "linear"
    log: Sequence[str] = ()
    shared: bool = False
    rules: Mapping[str, float] = field(default_factory=dict)
    references: Sequence[str] = ()
    title: str = ""


def render(spec: Figure) -> Any:
    """Draw a figure.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    BackendError
        Without matplotlib.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    panels = list(dict.fromkeys(mark.panel for mark in spec.marks)) or [""]  # of nothing, empty axes
    every = list(dict.fromkeys(mark.series for mark in spec.marks))
    labelled = _labelled(spec, every) and len(panels) <= 4
    columns = 1 if labelled else min(len(panels), 3 if spec.lying else 4)
    rows = math.ceil(len(panels) / columns)
    lines = max(len({m.at for m in spec.marks if m.panel == panel}) for panel in panels)
    if spec.kind == "heat":
        width, height = max(7.0, 0.62 * lines), 0.8 + 0.36 * len(every)
    elif spec.lying:
        crowded = spec.kind == "bar" or any(mark.low is not None for mark in spec.marks)
        names = max((len(str(mark.at)) for mark in spec.marks), default=0) * (0.075 / columns if spec.shared else 0.075)
        width = (5.5 if columns == 1 else 3.2) + names
        height = 0.7 + lines * (max(0.22, 0.16 * len(every)) if crowded else 0.26)
    elif labelled:  # one over the other, so that a phone shows them as they are
        width, height = 3.9, 1.75 if len(panels) > 1 else 3.0
    else:
        width, height = {1: (4.4, 3.6), 2: (4.7, 3.4)}.get(columns, (2.7, 2.6))
    # No pyplot: nothing global to close, no display asked for.
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=(0.8 + width * columns, 0.9 + height * rows))
        FigureCanvasAgg(canvas)
        share: Any = {f"share{axis}": spec.shared and (axis == "y" or spec.lying or labelled) for axis in "xy"}
        grid = list(canvas.subplots(rows, columns, squeeze=False, **share).flat)
        for axes, panel in zip(grid, panels, strict=False):
            _panel(axes, spec, panel, every)
        for axes, panel in zip(grid, panels, strict=False):  # after all panels, whose scale may be shared
            if panel not in spec.log and spec.kind != "heat" and not any(mark.value < 0 for mark in spec.marks):
                axes.set(**{"xlim" if spec.lying else "ylim": (0, None)})
            if spec.shared and not axes.get_subplotspec().is_first_col():
                axes.set_ylabel("")
            if spec.shared and labelled and not axes.get_subplotspec().is_last_row():
                axes.set_xlabel("")
            if labelled:
                _label_ends(axes, spec, panel, every, 0.22 / height)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        pairs = (pair for axes in grid for pair in zip(*axes.get_legend_handles_labels(), strict=True))
        shown = {label: handle for handle, label in pairs}
        if len(shown) > 1 and not labelled:
            fit = int((0.8 + width * columns) / (0.6 + 0.075 * max(map(len, shown))))
            canvas.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=max(1, min(fit, 5)))
        if spec.title:
            title = textwrap.fill(plain_text(spec.title), int(12 * canvas.get_figwidth()))
            canvas.suptitle(title, fontsize=9.5, x=0.01, ha="left")
    return canvas


def _panel(axes: Any, spec: Figure, panel: str, every: Sequence[str]) -> None:
    marks = [mark for mark in spec.marks if mark.panel == panel]
    places = list(dict.fromkeys(m.at for m in (spec.marks if spec.shared else marks) if isinstance(m.at, str)))
    across, along = (axes.yaxis, axes.xaxis) if spec.lying else (axes.xaxis, axes.yaxis)
    across.set_label_text(spec.at)
    along.set_label_text(spec.value)
    axes.set_title(plain_text(panel))
    if not marks:
        return
    if spec.kind == "heat":
        _heat(axes, marks, every, places)
        return
    begins: dict[float, float] = {}
    plain = [name for name in every if name not in spec.references]
    for name in every:
        _series(axes, spec, name, [mark for mark in marks if mark.series == name], plain, places, begins)
    for number, (label, value) in enumerate(spec.rules.items()):
        look = {
            "color": (INK, PALETTE["vermilion"])[number % 2],
            "linewidth": 1,
            "linestyle": (0, (4, 2)),
            "zorder": 1.5,
        }
        (axes.axvline if spec.lying else axes.axhline)(value, label=plain_text(label), **look)
    _scale(across, spec.scale, [mark.at for mark in marks], places)
    values = [v for m in marks for v in (m.value, m.low, m.high) if v is not None and v > 0]
    if panel in spec.log:
        _scale(along, "log", values, [])
    if spec.lying:
        axes.set_ylim(len(places) - 0.4, -0.6)
    across.grid(not places)


def _series(
    axes: Any, spec: Figure, name: str, marks: Sequence[Mark], plain: Sequence[str], places: Sequence[str],
    begins: dict[float, float],
) -> None:  # fmt: skip
    """Draw the marks of one series in a panel; `begins` holds where the next bar of a stack begins."""
    if not marks:
        return
    index, looks = plain.index(name) if name in plain else 0, _looks(plain)
    ranged = spec.kind != "band" and any(mark.low is not None for mark in marks)
    step = 0.8 / len(plain) if places and (spec.kind == "bar" or ranged) else 0.0
    shift = (index - (len(plain) - 1) / 2) * step if name in plain else 0.0
    at: Any = [places.index(mark.at) + shift if isinstance(mark.at, str) else mark.at for mark in marks]
    values: Any = np.array([mark.value for mark in marks], dtype=float)
    low, high = (np.array([v if (v := getattr(m, end)) is not None else m.value for m in marks], dtype=float)
                 for end in ("low", "high"))  # fmt: skip
    label, texts = plain_text(name), [mark.text for mark in marks]
    if spec.kind in ("bar", "stack"):
        base = [begins.get(place, 0.0) if spec.kind == "stack" else 0.0 for place in at]
        begins.update({place: begin + value for place, begin, value in zip(at, base, values, strict=True)})
        settings = {"height" if spec.lying else "width": 0.9 * step or 0.7, "left" if spec.lying else "bottom": base}
        bars = (axes.barh if spec.lying else axes.bar)(
            at, values, color=series(looks.get(name, 0))["color"], label=label, **settings
        )
        if any(texts):
            axes.bar_label(bars, texts, padding=3, fontsize=8, bbox={"fc": CARD, "ec": "none", "pad": 0.5})
            axes.margins(**{"x" if spec.lying else "y": 0.35 if max(map(len, texts)) > 6 else 0.12})
        return
    look = series(looks.get(name, 0))
    if name in spec.references:
        look = {"color": MUTED, "linewidth": 1.2, "linestyle": _DASHES[1 + spec.references.index(name) % 3]}
    elif spec.kind == "marks":
        look |= {"linestyle": "none"}
    if spec.kind == "band":
        axes.fill_between(at, low, high, color=look["color"], alpha=0.16, linewidth=0)
    x, y = (values, at) if spec.lying else (at, values)
    ends = {"xerr" if spec.lying else "yerr": np.maximum([values - low, high - values], 0)} if ranged else {}
    axes.errorbar(x, y, label=label, capsize=2.5, elinewidth=1.2, **look, **ends)
    for mark, place in zip(marks, at, strict=True):
        if mark.text:
            axes.text(1.01, place, mark.text, transform=axes.get_yaxis_transform(), va="center", fontsize=7.5)


def _looks(names: Sequence[str]) -> dict[str, int]:
    """Index of the look of each series: its library's, or the next that no library of these has."""
    known = {name: LIBRARIES.index(name) for name in names if name in LIBRARIES}
    free = (index for index in range(len(names) + len(known)) if index not in known.values())
    return {name: known[name] if name in known else next(free) for name in names}


def _labelled(spec: Figure, every: Sequence[str]) -> bool:
    """Whether the curves are named at their ends."""
    numbers = all(not isinstance(mark.at, str) for mark in spec.marks)
    return spec.kind == "line" and not spec.rules and numbers and 1 < len(every) <= MOST_LABELS


def _label_ends(axes: Any, spec: Figure, panel: str, every: Sequence[str], step: float) -> None:
    """Write the name of each curve at its right end, in its colour, at least `step` of the height above the next."""
    plain = [name for name in every if name not in spec.references]
    looks, ends = _looks(plain), []
    for name in every:
        marks = [m for m in spec.marks if (m.panel, m.series) == (panel, name) and math.isfinite(m.value)]
        if marks:
            last = max(marks, key=lambda mark: mark.at)
            _, height = axes.transAxes.inverted().transform(axes.transData.transform((last.at, last.value)))
            ends.append((height, name))
    ends.sort()
    places = [height for height, _ in ends]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + step)
    over = max(0.0, places[-1] - 1) if places else 0.0
    for i in reversed(range(len(places))):  # down again from the upper edge, where there is room
        places[i] = min(places[i], 1 - (len(places) - 1 - i) * step) if over else places[i]
    for place, (_, name) in zip(places, ends, strict=True):
        colour = MUTED if name in spec.references else series(looks[name])["color"]
        axes.text(1.02, place, plain_text(name), transform=axes.transAxes, va="center", fontsize=8, color=colour)


def _scale(axis: Any, scale: str, values: Sequence[Any], places: Sequence[str]) -> None:
    """Give an axis its scale and ticks: named places, or powers of two with labels like 64K."""
    axes = axis.axes
    if places:
        axis.set_ticks(range(len(places)), [plain_text(place) for place in places])
    elif scale == "log2":
        least, most = min(values), max(values)
        low, high = math.floor(math.log2(least)), math.ceil(math.log2(most))
        pad = 2 ** (0.04 * max(high - low, 1))
        getattr(axes, f"set_{axis.axis_name}scale")("log", base=2)
        axes.set(**{f"{axis.axis_name}lim": (least / pad, most * pad)})
        ticks = [2.0**e for e in range(low, high + 1, max(1, math.ceil((high - low + 1) / 7)))]
        axis.set_ticks(ticks, [size_text(tick) for tick in ticks])
        axis.set_ticks([], minor=True)
    elif scale == "log":
        getattr(axes, f"set_{axis.axis_name}scale")("log", subs=(2, 5) if max(values) < 100 * min(values) else ())
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_formatter("{x:,g}")


def _heat(axes: Any, marks: Sequence[Mark], rows: Sequence[str], columns: Sequence[str]) -> None:
    """Cells of fractions, each with its number in it; a cell without a mark stays blank."""
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    table = np.full((len(rows), len(columns)), np.nan)
    for mark in marks:
        table[rows.index(mark.series), columns.index(str(mark.at))] = mark.value
    # Light to dark blue: order survives a black-and-white print.
    colours = LinearSegmentedColormap.from_list("k", ["#f2f6fa", "#9cc7e3", "#2f86bd", "#08396b"])
    norm = Normalize(0.0, 1.0)
    axes.pcolormesh(np.ma.masked_invalid(table), cmap=colours, norm=norm, edgecolors=CARD, linewidth=1.5)
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            red, green, blue, _ = colours(norm(value))
            dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.55
            # Not the ink: a cell keeps its colour on a dark page, so its text must too.
            axes.text(j + 0.5, i + 0.5, f"{value:.2f}", ha="center", va="center", fontsize=8,
                      color="#fefefe" if dark else "#101214")  # fmt: skip
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    axes.invert_yaxis()
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw(payload: Mapping[str, Any], folder: Path, stem: str) -> list[Path]:
    """Draw the figures of a result file as PNG and SVG, as its bench specifies them.

    Parameters
    ----------
    payload : mapping
        As `ksieve_lab.bench.record.read_json` gives it.
    folder : Path
        Made as needed.
    stem : str
        Beginning of the figures' names, as of the result file.

    Returns
    -------
    list of Path
        What was written; empty for results that have no figure.
    """
    from ksieve_lab.report import specs

    return [path for spec in specs.figures_of(payload) for path in save(render(spec), folder / f"{stem}{spec.name}")]


def save(figure: Any, stem: str | os.PathLike[str]) -> list[Path]:
    """Write a figure as ``stem.png`` and ``stem.svg``, and return both paths; folders are made as needed.

    A suffix ``.png`` or ``.svg`` of the stem is dropped; any other dot belongs to the name.
    """
    target = Path(stem)
    if target.suffix in (".png", ".svg"):
        target = target.with_suffix("")
    png, svg = (target.with_name(target.name + suffix) for suffix in (".png", ".svg"))
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        pixels = io.BytesIO()
        figure.savefig(pixels, format="png", dpi=160, metadata={"Software": None})
    atomic.write_bytes(png, pixels.getvalue(), folders=True)
    atomic.write_text(svg, svg_of(figure))
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


def svg_of(figure: Any) -> str:
    """Return a figure as the text of an SVG file, which follows the reader's theme."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL)
    # A hundredth of a point is finer than any screen shows, and halves the file.
    text = re.sub(r'(?<=[ \n]d=")[^"]+', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    text = re.sub(r'(?<= [xy]=")(-?\d+\.\d\d)\d+', r"\1", text)
    # Blanks at line ends make diffs noisy.
    return _themed("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


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
