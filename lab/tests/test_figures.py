"""Figures: files written, ids and colours of inline SVGs, axes in powers of two, and life without matplotlib."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from ksieve.core.errors import BackendError
from ksieve.planning.tune import record
from ksieve_lab.bench import pages
from ksieve_lab.report import benches, figures

pytest.importorskip("matplotlib", reason="the plot extra is not installed")


def draw():
    with figures.canvas(1, 2, size=(6, 3)) as (figure, axes):
        axes[0].plot([1024, 65536], [1.0, 2.0], **figures.series(0), label="a")
        figures.log2_axis(axes[0].xaxis, [1024, 65536], "width")
        figures.heat_map(axes[1], [[0.5, 1.0], [np.nan, 2.0]], rows=["1", "2"], columns=["a", "b"], centre=1, label="x")
    return figure, axes


def test_save_writes_png_and_svg_and_the_same_svg_twice(tmp_path):
    first = figures.save(draw()[0], tmp_path / "deep" / "name.v1")
    assert [p.name for p in first] == ["name.v1.png", "name.v1.svg"]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    text = first[1].read_text()
    ElementTree.fromstring(text)
    assert ">width<" in text, "text is stored as text"
    dark = re.findall(r'\[style\*="(fill|stroke): (#\w+)"\]{\1:(#\w+)!important}', text)
    for use, colour, _ in dark:
        assert f"{use}: {colour}" in text.partition("</style>")[2]
    assert {("fill", figures.INK), ("fill", figures.CARD), ("stroke", figures.GRID)} <= {pair[:2] for pair in dark}
    assert "@media (prefers-color-scheme: dark)" in text
    second = figures.save(draw()[0], tmp_path / "again.svg")
    assert [p.name for p in second] == ["again.png", "again.svg"]
    assert second[1].read_text() == text


def test_inline_svg_follows_the_page_and_shares_no_id():
    text = figures.inline_svg(figures.svg_of(draw()[0]), label='a "quoted" <label>')
    with figures.canvas() as (other, axes):
        axes.plot([0, 1], [0, 1], **figures.series(1))
    second = figures.inline_svg(figures.svg_of(other))
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == 'a "quoted" <label>'
    assert root.get("width") is None
    assert root.get("viewBox")
    for colour in (figures.INK, figures.CARD, *figures.PALETTE.values()):
        assert colour not in text
    for name in set(re.findall(r"var\((--k-\w+)\)", text + second)):
        assert figures.PAGE_CSS.count(f"{name}:") == 2, "a light value and a dark one"
    ids = [set(re.findall(r'\bid="([^"]+)"', t)) for t in (text, second)]
    assert not ids[0] & ids[1]
    referred = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    assert referred
    assert referred <= ids[0]


def test_heat_map_writes_each_number_and_leaves_nan_blank():
    _, axes = draw()
    assert [t.get_text() for t in axes[1].texts] == ["0.50", "1.00", "2.00"]
    assert [t.get_text() for t in axes[1].get_yticklabels()] == ["1", "2"]
    assert axes[1].yaxis.get_inverted()


def test_log2_axis_labels_powers_of_two():
    _, axes = draw()
    assert [t.get_text() for t in axes[0].get_xticklabels()] == ["1K", "2K", "4K", "8K", "16K", "32K", "64K"]
    with figures.canvas() as (_, many):
        figures.log2_axis(many.yaxis, [1, 2**20], "rows", most=6)
    assert [t.get_text() for t in many.get_yticklabels()] == ["1", "16", "256", "4K", "64K", "1M"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(512, "512"), (1024, "1K"), (24576, "24K"), (2049, "2,049"), (1.5 * 2**20, "1.5M"), (0.5, "0.5")],
)
def test_size_text(value, text):
    assert figures.size_text(value) == text


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BackendError, match=r"ksieve\[plot\]"), figures.canvas():
        pass


def test_importing_figures_does_not_import_matplotlib():
    code = "import sys, ksieve_lab.report.figures; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_twelve_series_look_different():
    """Libraries are compared in one plot: none may look like another."""
    for marker in (True, False):
        looks = [str(figures.series(index, marker=marker)) for index in range(12)]
        assert len(set(looks)) == 12


RESULTS = sorted((ROOT / "benchmarks" / "results").glob("gpu-*.json"))


def drawn(path):
    """Every figure of a committed result, by the end of its name."""
    kept = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "save", lambda figure, stem, **_: kept.update({Path(stem).name: figure}) or [])
        benches.draw(record.read_json(path), Path("nowhere"), path.stem)
    return kept


@pytest.mark.parametrize("path", RESULTS, ids=[path.stem for path in RESULTS])
def test_no_words_of_a_figure_lie_on_others_or_outside(path):
    for name, figure in drawn(path).items():
        figure.draw_without_rendering()
        whole = figure.bbox
        titles = [figure._suptitle] if figure._suptitle else []
        boxes = {
            "title": [t.get_window_extent() for t in titles],
            "legend": [x.get_window_extent() for x in figure.legends],
        }
        texts = [t for axes in figure.axes for t in axes.texts if t.get_text().strip() and axes.get_visible()]
        labels = [t for a in figure.axes if a.get_visible() for t in (*a.get_xticklabels(), *a.get_yticklabels())]
        boxes["text"] = [t.get_window_extent() for t in texts if len(texts) < 60]  # not the cells of a heat map
        for kind, found in boxes.items():
            for box in found:
                assert box.x0 >= whole.x0 - 1 and box.x1 <= whole.x1 + 1, f"{name}: a {kind} is cut off"
                assert box.y0 >= whole.y0 - 1 and box.y1 <= whole.y1 + 1, f"{name}: a {kind} is cut off"
        everything = [box for found in boxes.values() for box in found]
        for i, one in enumerate(everything):
            for other in everything[:i]:
                apart = (
                    one.x1 <= other.x0 + 1 or other.x1 <= one.x0 + 1 or one.y1 <= other.y0 + 1 or other.y1 <= one.y0 + 1
                )
                assert apart, f"{name}: words lie on each other"
        assert min((t.get_fontsize() for t in (*texts, *labels)), default=8) >= 7.5, name


@pytest.mark.parametrize("stem", ["gpu-decode-k2048", "gpu-short-k2048", "gpu-operator-k2048"])
def test_panels_have_few_curves_and_the_page_names_the_others(stem):
    payload = record.read_json(ROOT / "benchmarks" / "results" / f"{stem}.json")
    (curves,) = (figure for name, figure in drawn(ROOT / "benchmarks" / "results" / f"{stem}.json").items()
                 if name.endswith(benches.CURVES))  # fmt: skip
    for axes in curves.axes:
        if axes.get_visible():
            names = [line.get_label() for line in axes.get_lines()]
            assert names[:2] == ["plain read", "ksieve"] and len(names) <= benches.MOST_CURVES
    timed = {n for s in payload["results"]["shapes"] for n, f in s.get("selectors", {}).items() if f.get("median_us")}
    assert set(benches.left_out(payload)) <= timed - set(names)
    assert pages.images(payload, stem)[-1].startswith("Not drawn") == bool(benches.left_out(payload))


def test_options_are_bars_of_time_over_the_plain_call():
    path = ROOT / "benchmarks" / "results" / "gpu-options-k2048.json"
    (figure,) = drawn(path).values()
    shapes = record.read_json(path)["results"]["shapes"]
    assert len([a for a in figure.axes if a.get_visible()]) == len(shapes)
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    for axes, shape in zip(figure.axes, shapes, strict=True):
        for bar in axes.patches:
            name = names[round(bar.get_y() + bar.get_height() / 2)]
            plain = shape["selectors"]["plain"]["median_us"]
            assert bar.get_width() == pytest.approx(shape["selectors"][name]["median_us"] / plain)
