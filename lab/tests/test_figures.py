"""Figures: every specification draws from a committed file, legibly on light and dark pages, twice the same."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import ROOT

from ksieve.core.errors import BackendError
from ksieve_lab.bench import record
from ksieve_lab.report import figures, specs
from ksieve_lab.report.figures import Figure, Mark
from ksieve_lab.report.specs import study

pytest.importorskip("matplotlib", reason="the plot extra is not installed")

KINDS = {
    "line": Figure(
        kind="line", marks=[Mark("p", "a", 1024, 1.0), Mark("p", "a", 65536, 2.0)], scale="log2", at="width"
    ),
    "marks": Figure(kind="marks", marks=[Mark("p", "b", "x $", 1.0, 0.5, 2.0, "text")], lying=True, rules={"one": 1}),
    "heat": Figure(kind="heat", marks=[Mark("p", "1", "a", 0.5), Mark("p", "1", "b", float("nan"))]),
}


def test_save_writes_png_and_svg_and_the_same_svg_twice(tmp_path):
    first = figures.save(figures.render(KINDS["line"]), tmp_path / "deep" / "name.v1")
    assert [p.name for p in first] == ["name.v1.png", "name.v1.svg"]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    text = first[1].read_text()
    ElementTree.fromstring(text)
    assert ">width<" in text, "text is stored as text"
    dark = re.findall(r'\[style\*="(fill|stroke): (#\w+)"\]{\1:(#\w+)!important}', text)
    assert {("fill", figures.INK), ("fill", figures.CARD), ("stroke", figures.GRID)} <= {pair[:2] for pair in dark}
    assert "@media (prefers-color-scheme: dark)" in text
    assert figures.save(figures.render(KINDS["line"]), tmp_path / "again.svg")[1].read_text() == text


@pytest.mark.parametrize("dark", [False, True])
def test_words_and_series_stand_out_from_the_card(dark):
    """Contrast ratios of WCAG: 4.5 for words, 2 for lines, whose series differ in marker and dash too."""

    def luminance(colour):
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    colours = figures._DARK if dark else figures._LIGHT
    card = luminance(colours["card"])
    for name in ("ink", "muted", *figures.PALETTE):
        other = luminance(colours[name])
        ratio = (max(card, other) + 0.05) / (min(card, other) + 0.05)
        assert ratio > (4.5 if name in ("ink", "muted") else 2), name


def test_a_heat_map_writes_each_number_and_leaves_nan_blank():
    (axes,) = figures.render(KINDS["heat"]).axes
    assert [t.get_text() for t in axes.texts] == ["0.50"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["a", "b"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(512, "512"), (1024, "1K"), (24576, "24K"), (2049, "2,049"), (1.5 * 2**20, "1.5M"), (0.5, "0.5")],
)
def test_size_text(value, text):
    assert figures.size_text(value) == text


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BackendError, match=r"lab\[plot\]"):
        figures.render(KINDS["line"])


def test_importing_figures_does_not_import_matplotlib():
    code = "import sys, ksieve_lab.report.figures, ksieve_lab.report.specs; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_twelve_series_look_different():
    """Libraries are compared in one plot: none may look like another."""
    assert len({str(figures.series(index)) for index in range(12)}) == 12


def specified():
    """Of each kind of figure of the committed files the one with the most marks."""
    found = {}
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        payload = record.read_json(path)
        drawn = [(f"{payload['bench']}{spec.name}", spec) for spec in specs.figures_of(payload)]
        for name, (_, specify) in study.FIGURES.items() if payload["bench"] == "study" else ():
            drawn.append((f"study-{name}", specify(payload["results"])))
        for name, spec in drawn:
            found[name] = max(found.get(name, spec), spec, key=lambda each: len(each.marks))
    return found


FOUND = specified()


@pytest.mark.parametrize("spec", FOUND.values(), ids=FOUND)
def test_no_words_of_a_figure_lie_on_others_or_outside(spec):
    figure = figures.render(spec)
    figure.draw_without_rendering()
    whole, shown = figure.bbox, [axes for axes in figure.axes if axes.get_visible()]
    texts = [t for axes in shown for t in axes.texts if t.get_text().strip()]
    boxes = [t.get_window_extent() for t in [figure._suptitle, *figure.legends, *(axes.title for axes in shown)] if t]
    boxes += [t.get_window_extent() for t in texts if len(texts) < 60]  # not the cells of a heat map
    boxes = [box for box in boxes if box.width > 1]
    for i, one in enumerate(boxes):
        assert one.x0 >= whole.x0 - 1 and one.x1 <= whole.x1 + 1, "cut off"
        assert one.y0 >= whole.y0 - 1 and one.y1 <= whole.y1 + 1, "cut off"
        for other in boxes[:i]:
            apart = one.x1 <= other.x0 + 1 or other.x1 <= one.x0 + 1 or one.y1 <= other.y0 + 1 or other.y1 <= one.y0 + 1
            assert apart, "words lie on each other"
    labels = [t for axes in shown for t in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    assert min(t.get_fontsize() for t in (*texts, *labels)) >= 7.5
