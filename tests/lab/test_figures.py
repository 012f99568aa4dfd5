"""Figures: files written, ids and colours of inline SVGs, axes in powers of two, and life without matplotlib."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from ksieve.core.errors import BackendError
from ksieve.lab.report import figures

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
    second = figures.save(draw()[0], tmp_path / "again.svg")
    assert [p.name for p in second] == ["again.png", "again.svg"]
    assert second[1].read_text() == text


def test_inline_svg_follows_the_page_and_shares_no_id():
    text = figures.inline_svg(draw()[0], label='a "quoted" <label>')
    with figures.canvas() as (other, axes):
        axes.plot([0, 1], [0, 1], **figures.series(1))
    second = figures.inline_svg(other)
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
    code = "import sys, ksieve.lab.report.figures; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_twelve_series_look_different():
    """Libraries are compared in one plot: none may look like another."""
    for marker in (True, False):
        looks = [str(figures.series(index, marker=marker)) for index in range(12)]
        assert len(set(looks)) == 12
