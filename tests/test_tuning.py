"""What the planner was tuned with: every number names a file of the repository, or owns up to having none."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from ksieve import tuning

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {name: value.source for name, value in tuning.thresholds().items()} | {
    f"{family} {n}": shape.source for n, table in enumerate(tuning.GEOMETRIES) for family, shape in table.items()
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_number_names_its_source(name):
    source = SOURCES[name]
    if source.startswith(tuning.NOT_MEASURED):
        assert len(source) > len(tuning.NOT_MEASURED) + 10
        return
    path, _, section = source.partition("#")
    assert (ROOT / path).is_file(), f"{name} names {path}, which is not there"
    if section:
        assert f"\n## {section}. " in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no section {section}"


def test_thresholds_are_numbers_that_know_more():
    found = tuning.thresholds()
    assert {"SHORTEST_SAMPLED", "SPLIT_IN_TWO", "SEGMENT"} <= set(found)
    assert found["SEGMENT"] * 2 == 16_384 and all(t.meaning for t in found.values())
    assert (copy.deepcopy(tuning.SEGMENT), copy.deepcopy(tuning.SEGMENT).source) == (8192, tuning.SEGMENT.source)
