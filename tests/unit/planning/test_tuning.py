"""Every number that the planner decides with names a decision record or a committed result, or says so."""

from __future__ import annotations

import copy
import re

import pytest

import ksieve
from conftest import ROOT
from ksieve.lab.bench import planner, record
from ksieve.planning import shapes, thresholds
from ksieve.planning.devices import DEVICES

SOURCES = {name: value.source for name, value in thresholds.thresholds().items()} | {
    f"{found.name} {family} {n}": shape.source
    for found in map(shapes.of_class, shapes.CLASSES)
    for n, table in enumerate(found.tables())
    for family, shape in table.items()
}
SOURCES |= {
    f"{found.name} {family} {n}, of {shape.resident_width or shape.widest}, {shape.most_rows} rows": shape.source
    for found in map(shapes.of_class, shapes.CLASSES)
    for table in (found.resident, found.streamed)
    for family, listed in table.items()
    for n, shape in enumerate(listed)
}
SOURCES |= {
    f"{found.name} {entry}": entry.source
    for found in map(shapes.of_class, shapes.CLASSES)
    for entry in (*found.splits, *found.strides)
}


DATA = ROOT / "src" / "ksieve" / "planning" / "data"


def problem_of(source):
    """What is wrong with a source: None if it names a decision record, a result, or a file of `ksieve tune`."""
    if source.startswith(shapes.TUNED):
        name, _, time = source.removeprefix(shapes.TUNED).partition(": ")
        return None if (DATA / name).is_file() and re.match(r"[\d.]+ us|as shipped", time) else "no measurement"
    if source.startswith(thresholds.NOT_MEASURED):
        return None if len(source) > len(thresholds.NOT_MEASURED) + 10 else "no reason"
    if not re.fullmatch(r"docs/decisions/\d{4}-[a-z0-9-]+\.md|benchmarks/results/[a-z0-9-]+\.json", source):
        return "neither a decision record nor a result file"
    return None if (ROOT / source).is_file() else "not there"


@pytest.mark.parametrize("name", SOURCES)
def test_every_number_names_its_source(name):
    assert problem_of(SOURCES[name]) is None, f"{name}: {SOURCES[name]}"


def test_a_source_that_proves_nothing_is_noticed():
    for source in (
        "docs/tuning.md#8",
        "docs/notebook/08-more-ctas-per-row.md",
        "docs/decisions/9999-none.md",
        "docs/decisions/index.md",
        "benchmarks/results/none.json",
        thresholds.NOT_MEASURED,
        f"{shapes.TUNED}none.json: 3.0 us",
        f"{shapes.TUNED}h100-float32.json: quickly",
        "",
    ):
        assert problem_of(source), source


DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_record_fits_a_page_and_says_what_was_refused(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    assert re.fullmatch(rf"# {int(path.name[:4])}\. .+", lines[0])
    assert [line for line in lines if line.startswith("## ")] == [
        "## Context",
        "## Decision",
        "## Numbers",
        "## Refused",
    ]
    refused = lines[lines.index("## Refused") :]
    assert sum(line.startswith("| ") for line in refused) >= 4, "a table of a heading, a rule and two alternatives"
    assert any(line.startswith(("Revisit when", "Revisit with")) for line in refused)


def test_no_code_points_into_the_notebook():
    found = [
        f"{path.relative_to(ROOT)}:{n}"
        for folder in ("src", "scripts")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".cu", ".cuh", ".md", ".sh"}
        for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"docs/notebook|tuning\.md", line)
    ]
    assert found == []


def test_thresholds_are_numbers_that_know_more():
    found = thresholds.thresholds()
    assert {"SHORTEST_SAMPLED", "SAMPLED_RATIO", "SEGMENT"} <= set(found)
    assert found["SEGMENT"] * 2 == 4096 and all(t.meaning for t in found.values())
    assert (copy.deepcopy(thresholds.SEGMENT), copy.deepcopy(thresholds.SEGMENT).source) == (
        2048,
        thresholds.SEGMENT.source,
    )


GRID = ROOT / "benchmarks" / "results" / "gpu-planner-k2048.json"
NO_GRID = "no measured grid: ksieve bench planner --out benchmarks/results, on a GPU"


def losses(payload):
    """Shapes of a measured grid where today's planner loses over 5 % to the best plan, or chose an untimed plan."""
    found = {}
    settings = payload["settings"]
    device = next(d for d in DEVICES.values() if d.name == settings["device"])
    for shape in payload["results"]["shapes"]:
        if "skipped" in shape:
            continue
        plan = ksieve.plan(
            rows=shape["rows"], width=shape["width"], k=settings["k"], dtype=settings["dtype"], device=device
        )
        try:
            share = planner.share_of_best(shape, planner.key(plan))
        except KeyError as choice:
            share = f"{choice} was not measured"
        if isinstance(share, str) or share < 1 / 1.05:
            found[f"{shape['rows']}x{shape['width']}"] = share
    return found


@pytest.mark.skipif(not GRID.exists(), reason=NO_GRID)
def test_the_planner_is_within_5_percent_of_the_best_plan_of_the_measured_grid():
    payload = record.read_json(GRID)
    assert len(payload["results"]["shapes"]) >= 60
    assert losses(payload) == {}


def test_a_planner_that_chose_badly_would_be_noticed():
    shape = {"rows": 4096, "width": 131_072}
    best = planner.key(ksieve.plan(**shape, k=2048, device=DEVICES["h200"]))
    other = "stream_unsampled direct"
    settings = {"device": DEVICES["h200"].name, "k": 2048, "dtype": "float32"}

    def grid(**selectors):
        times = {best: selectors.get("best"), other: selectors.get("other")}
        facts = {name: {"median_us": us, "exact": True} for name, us in times.items() if us}
        return {"settings": settings, "results": {"shapes": [shape | {"selectors": facts}]}}

    assert losses(grid(best=10.0, other=9.6)) == {}
    assert losses(grid(best=10.0, other=9.0)) == {"4096x131072": pytest.approx(0.9)}
    assert losses(grid(other=9.0)) == {"4096x131072": f"'{best}' was not measured"}
