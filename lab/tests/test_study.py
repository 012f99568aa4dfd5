"""The study on rows whose figures can be written down, in bounded memory, and as a newcomer runs it."""

from __future__ import annotations

import base64
import json
import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from typer.testing import CliRunner

from ksieve.core.errors import ArgumentError, BackendError
from ksieve_lab.captures.format import Capture
from ksieve_lab.captures.writer import CaptureWriter
from ksieve_lab.report import figures
from ksieve_lab.report.specs.study import EVERY_POLICY, FIGURES, comparison
from ksieve_lab.report.tables import File, cells, render
from ksieve_lab.study import measure, ranked, report, run
from ksieve_lab.study.rows import eligible_rows, read_blocks
from ksieve_lab.study.tally import MOST, RankTally, rank_text
from ksieve_lab.study.views import UNUSABLE
from ksieve_lab.workloads import write_synthetic


def capture_of(path: Path, scores: np.ndarray, lengths=None, **settings) -> Path:
    with CaptureWriter(path, scores.shape[0], scores.shape[1], "float32", **settings) as writer:
        full = np.full(scores.shape[0], scores.shape[1], np.int32)
        writer.write(scores.astype(np.float32), full if lengths is None else np.asarray(lengths, np.int32))
    return path


def study_of(path: Path, k: int):
    with Capture(path) as capture:
        return measure.study_capture(capture, k, eligible_rows(capture, k))


def draw(payload):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    for _, specify in FIGURES.values():
        figures.render(specify(payload["results"])).draw_without_rendering()


def test_a_descending_row_by_hand(tmp_path):
    """Score of position i is -i: rank is position + 1, all gaps are 1, the top is one run at the front."""
    k, length = 64, 4096
    found = study_of(capture_of(tmp_path / "a.safetensors", -np.arange(length, dtype=float)[None]), k)
    results = found.results()
    assert list(found.tail[0]) == [min(k + int(eps), length) for eps in measure.GAPS]
    assert list(results["deciles"]["mean"]) == [1.0] + [0.0] * 9
    for entry in results["ranks"]:
        stride, requested = entry["stride"], entry["requested"]
        q = math.ceil(requested * k / stride)
        ranks = np.arange(stride) + 1 + (q - 1) * stride  # phase a samples positions a, a + s, ...
        assert entry["count"] == stride
        assert entry["rms"] == pytest.approx(np.sqrt(np.mean((ranks / k - requested) ** 2)))
        assert entry["below_k"] == pytest.approx((ranks < k).mean())
        assert entry["median"] == pytest.approx(np.sort(ranks)[(stride + 1) // 2 - 1] / k)
        assert entry["bias"] == pytest.approx(ranks.mean() / k - requested)
        # 4096 is a multiple of every stride: one phase size, one expectation.
        n, request = length // stride, requested * k
        mean = q * (length + 1) / (n + 1)
        variance = q * (n - q + 1) * (length + 1) * (length - n) / ((n + 1) ** 2 * (n + 2))
        assert entry["reference_rms"] == pytest.approx(math.sqrt(variance + (mean - request) ** 2) / k)
    regions = results["regions"]
    assert list(regions["runs"]["share"]) == [1.0] * 7 + [0.0]  # one run of 96
    even = {(d["stride"], d["group"]): d["median"] for d in regions["dispersion"]}
    assert even[16, 1] == even[32, 1] == 0  # 96 positions: six or three of every phase
    counts = np.array([2] * 32 + [1] * 32)
    share = 96 / length
    expected = 64 * 64 * share * (1 - share) * (length - 64) / (length - 1)
    assert even[64, 1] == pytest.approx(np.square(counts - 64 * share).sum() / expected)


def test_tied_rows_have_neither_a_tail_nor_ranks(tmp_path):
    rng = np.random.default_rng(0)
    scores = np.stack([np.ones(1000), rng.standard_normal(1000), np.maximum(rng.standard_normal(1000) - 2, 0)])
    scores[1, :10] = np.nan
    results = study_of(capture_of(tmp_path / "a.safetensors", scores), 100).results()
    assert (results["tail"]["rows"], results["tail"]["tied"]) == (1, 2)
    assert results["studied"] == 3
    sixteenth = next(r for r in results["ranks"] if (r["stride"], r["requested"]) == (16, 1.0))
    assert sixteenth["count"] == 16
    assert sixteenth["unresolved"] == 0
    assert next(p for p in results["policies"] if p["name"] == "quads-16")["unresolved"] > 0, "admitted whole"


def test_the_tail_of_a_single_gap_admits_one_more(tmp_path):
    scores = np.random.default_rng(0).permutation(5000).astype(float)[None]
    found = study_of(capture_of(tmp_path / "a.safetensors", scores), 100)
    assert found.tail[0][0] == 101


def test_results_do_not_depend_on_the_blocks(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write_synthetic(path, "endpoint_structured", 12, 8192, lengths="ragged", k=100)
    whole = study_of(path, 100).results()
    assert whole["studied"] > 6
    monkeypatch.setattr(ranked, "read_blocks", lambda *of: read_blocks(*of, max_bytes=3 * 8192 * 4))
    pieces = study_of(path, 100).results()
    np.testing.assert_equal(pieces, whole)


def test_rows_at_equal_spacing_and_only_eligible_ones(tmp_path):
    path = capture_of(tmp_path / "a.safetensors", np.zeros((9, 64)), [64, 3, 64, 64, 39, 40, 64, 64, 64])
    with Capture(path) as capture:
        assert list(eligible_rows(capture, 10, None)) == [0, 2, 3, 5, 6, 7, 8]
        assert list(eligible_rows(capture, 10, 4)) == [0, 3, 6, 8]
        blocks = list(read_blocks(capture, eligible_rows(capture, 10, None), 64 * 4 * 3))
        assert [list(b.rows) for b in blocks] == [[0, 2, 3], [5, 6, 7], [8]]
        assert list(blocks[1].lengths) == [40, 64, 64]
        with pytest.raises(ArgumentError, match="longest row has 64 scores; takes a k of at most 16"):
            eligible_rows(capture, 17)
        with pytest.raises(ArgumentError, match="rows: got 0"):
            eligible_rows(capture, 10, 0)


def test_tally_quantiles_and_sums_are_exact():
    rng = np.random.default_rng(4)
    ranks = rng.integers(1, 1500, 3001)
    tally, half = RankTally(200, 300.0), RankTally(200, 300.0)
    tally.add(ranks[:1000])
    half.add(ranks[1000:], np.full(2001, 9.0))
    half.add(np.array([UNUSABLE]))
    tally.merge(half)
    summary = tally.summary()
    assert (summary["count"], summary["unusable"]) == (3001, 1)
    assert summary["median"] * 200 == np.quantile(ranks, 0.5, method="inverted_cdf")
    assert summary["p05"] * 200 == np.quantile(ranks, 0.05, method="inverted_cdf")
    assert summary["error_p95"] * 200 == pytest.approx(np.quantile(np.abs(ranks - 300), 0.95, method="inverted_cdf"))
    assert summary["rms"] * 200 == pytest.approx(np.sqrt(np.mean((ranks - 300.0) ** 2)))
    assert summary["below_k"] == (ranks < 200).mean()
    beyond = RankTally(200, 300.0)
    beyond.add(np.array([100, 5000, 6000]))
    assert beyond.quantile(0.5) == math.inf
    assert beyond.quantile(0.3) == 0.5
    with pytest.raises(ValueError, match="do not add"):
        tally.merge(RankTally(200, 200.0))


def test_errors_come_before_any_work(tmp_path):
    path = capture_of(tmp_path / "a.safetensors", np.zeros((2, 64)))
    other = capture_of(tmp_path / "b.safetensors", np.zeros((2, 64)), k=3)
    with Capture(path) as a, Capture(other) as b:
        for captures in ([a], [a, b]):
            with pytest.raises(ArgumentError, match="do not agree"):
                run.study(captures)
        with pytest.raises(ArgumentError, match="at least one capture"):
            run.study([])
        with pytest.raises(ArgumentError, match="backend: got 'tpu'"):
            run.study([b], backend="tpu")
        assert run.suggested_k([b], None) == 3


def test_a_capture_of_plateaus_says_so_everywhere(tmp_path):
    write_synthetic(tmp_path / "a.safetensors", "relu_plateau", 4, 4096, k=64)
    with Capture(tmp_path / "a.safetensors") as capture:
        payload = run.study([capture])
    lines = {quantity: here for quantity, *_, here in cells(comparison(), [File("s", payload)])[2]}
    assert lines["rows tied at rank K"] == "4 of 4"
    for name in ("top K in the first and last tenth", "C(100) / K, median", "median rank against request, view 1/256"):
        assert lines[name] == "tied"
    assert "<td>tied</td>" in report.report(payload, {})
    draw(payload)


def test_rows_that_no_policy_samples_are_refused_before_one_is_read(tmp_path, monkeypatch):
    from ksieve_lab.study.calibrate import calibrate

    scores = np.random.default_rng(0).standard_normal((40, 400))
    with (
        Capture(capture_of(tmp_path / "a.safetensors", scores[:, :214])) as short,
        Capture(capture_of(tmp_path / "b.safetensors", scores)) as enough,
    ):
        for name in ("rows_block", "rows_at"):
            monkeypatch.setattr(type(short), name, lambda *_: pytest.fail("read"))
        takes = r"whose longest row has 214 scores; takes rows of at least 324 scores: no sampling policy"
        with pytest.raises(ArgumentError, match=rf"^k: got 50 for a.safetensors, {takes}"):
            run.study([enough, short], 50)
    with (
        Capture(capture_of(tmp_path / "c.safetensors", scores[:, :60])) as shorter,
        pytest.raises(ArgumentError, match=r"^k: got 15 for a row of 60 scores; takes a smaller k or longer rows"),
    ):
        calibrate([shorter], 15)


def test_rows_of_few_scores_are_studied_without_a_word(tmp_path):
    scores = np.random.default_rng(0).standard_normal((3, 400))
    with Capture(capture_of(tmp_path / "a.safetensors", scores)) as capture:
        payload = run.study([capture], 4)
    sparse = next(r for r in payload["results"]["captures"][0]["ranks"] if r["stride"] == 256)
    assert sparse["count"] + sparse["unusable"] == 3 * 256
    draw(payload)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Study two captures from the command line, as a user does."""
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    from ksieve_lab.cli.app import app

    folder = tmp_path_factory.mktemp("study")
    write_synthetic(folder / "even.safetensors", "random_normal", 8, 32_768, k=2048)
    write_synthetic(folder / "ends.safetensors", "endpoint_structured", 8, 32_768, k=2048)
    out = folder / "out"
    arguments = ["study", str(folder / "even.safetensors"), str(folder / "ends.safetensors"), "--out", str(out)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return done, out


def test_the_command_prints_the_paper_beside_what_was_found(written):
    done, out = written
    assert done.exit_code == 0
    assert re.search(r"C\(100\) / K, median +1\.03 +\d\.\d\d +\d\.\d\d +\d\.\d\d", done.stdout)
    assert re.search(r"top K in the first and last tenth +52 to 74 % +20 % +(19|20|21) % +(5|6|7)\d %", done.stdout)
    assert "lines-128" in done.stdout
    assert str(out / "report.html") in done.stdout.replace("\n", "")


def test_the_result_file_says_how_it_was_made(written):
    payload = json.loads((written[1] / "study.json").read_text())
    assert payload["bench"] == "study"
    assert payload["settings"] == {
        "captures": ["even.safetensors", "ends.safetensors"], "k": 2048, "rows": 4096, "device": "cpu",
        "plan_for": "cpu",
    }  # fmt: skip
    assert {"date", "command", "ksieve", "commit", "packages"} <= set(payload["environment"])
    assert str(written[1].parent) not in (written[1] / "study.json").read_text()
    assert [c["name"] for c in payload["results"]["captures"]] == ["even", "ends"]


def test_the_report_needs_nothing_else(written):
    text = (written[1] / "report.html").read_text()
    images = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text)
    assert len(images) == text.count("<img") == 7
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text) and "url(" not in text
    assert "prefers-color-scheme: dark" in text
    for figure in map(base64.b64decode, images):
        ElementTree.fromstring(figure)
        assert b"prefers-color-scheme: dark" in figure
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert "the paper found" in text


def test_figures_can_be_drawn_again_from_the_result_file(written, tmp_path, monkeypatch):
    payload = json.loads((written[1] / "study.json").read_text())
    before = sorted(p.name for p in (written[1] / "figures").iterdir())
    assert before == sorted(f"study-{name}{suffix}" for name in FIGURES for suffix in (".png", ".svg"))
    for name in [name for name in FIGURES if name != "tail"]:
        monkeypatch.delitem(FIGURES, name)
    again = run.write(payload, tmp_path / "again", figures=tmp_path / "pictures")
    names = sorted(p.name for p in (tmp_path / "pictures").iterdir())
    assert names == ["study-tail.png", "study-tail.svg"]
    assert all(p.stat().st_size < 200_000 for p in again if p.suffix == ".svg")


@pytest.mark.parametrize("beyond", [None, math.inf], ids=["from a file", "as studied"])
def test_ranks_past_the_resolved_ones_are_drawn_to_the_edge_and_told_in_words(written, beyond):
    results = json.loads((written[1] / "study.json").read_text())["results"]
    for capture in results["captures"]:
        for entry in capture["groups"] + capture["policies"]:
            entry.update(p05=1.1, median=1.3, p95=1.5)
    clumped = results["captures"][1]["policies"][3]
    clumped.update(p95=beyond)
    marks = FIGURES["policies"][1](results).marks
    assert {(mark.low, mark.value, mark.high) for mark in marks} == {(1.1, 1.3, 1.5), (1.1, 1.3, MOST)}
    assert f"1.30 (1.10 to over {MOST})" in render(EVERY_POLICY, [File("s", {"results": results})])
    assert rank_text(beyond) == "over 8"
    assert rank_text(1.234) == "1.23"


def test_figures_that_were_asked_for_need_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BackendError, match=r"lab\[plot\]"):
        run.write({}, tmp_path / "none", figures=tmp_path / "pictures")
    assert not (tmp_path / "none").exists()


def test_a_study_without_matplotlib_is_written_without_figures(tmp_path, monkeypatch):
    from ksieve_lab.cli.app import app

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    source, out = tmp_path / "s.safetensors", tmp_path / "out"
    write_synthetic(source, "random_normal", 4, 4096, k=64)
    done = CliRunner().invoke(app, ["study", str(source), "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stderr == f"{report.NO_FIGURES}\n"
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "study.json"]
    assert json.loads((out / "study.json").read_text())["bench"] == "study"
    page = (out / "report.html").read_text()
    assert "without figures" in page and "C(100) / K, median" in page and "<figure>" not in page
    links = re.findall(r'href="#([^"]+)"', page)
    assert links and set(links) == set(re.findall(r' id="([^"]+)"', page))


def test_the_pages_example_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = (ROOT / "docs" / "guide" / "study.md").read_text(encoding="utf-8")
    example = next(
        block for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if "run import study" in block
    )
    write_synthetic(tmp_path / "scores.safetensors", "random_normal", 3, 8192, k=2048)
    exec(
        example.replace('"scores.safetensors"', repr(str(tmp_path / "scores.safetensors"))),
        {"folder": tmp_path / "out"},
    )
    assert (tmp_path / "out" / "report.html").exists()
