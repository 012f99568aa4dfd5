"""Every number that the planner decides with names a decision record or a committed result, or says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT

from ksieve.core.device import DEVICES
from ksieve.planning import shapes, switch_points, tuned
from ksieve.tuning import run as tune
from ksieve.tuning import table as tune_table
from ksieve.tuning.variants import PLANNED
from ksieve_lab.bench import record

FILES = [
    shapes.of_class(name, card) for name in shapes.CLASSES for card in shapes._read(name).get("measured", {"": {}})
]
"""What is shipped: each class of devices, once for each of its measured cards."""

SOURCES = {
    f"{found.name} {family} {n}": shape.source
    for found in FILES
    for n, table in enumerate((found.usual, found.roomy))
    for family, shape in table.items()
}
SOURCES |= {
    f"{number} {found.name} {family} {n}, of {shape.resident_width or shape.widest}": shape.source
    for number, found in enumerate(FILES)
    for table in (found.resident, found.streamed)
    for family, listed in table.items()
    for n, shape in enumerate(listed)
}
SOURCES |= {
    f"{number} {found.name} {entry}": entry.source
    for number, found in enumerate(FILES)
    for entry in (*found.splits, *found.strides)
}


DATA = ROOT / "src" / "ksieve" / "planning" / "data"


def problem_of(source):
    """What is wrong with a source: None if it names a decision record, a result, or a file of `ksieve tune`."""
    if source.startswith(shapes.TUNED):
        name, _, time = source.removeprefix(shapes.TUNED).partition(": ")
        return None if (DATA / name).is_file() and re.match(r"[\d.]+ us|as shipped", time) else "no measurement"
    if source.startswith(switch_points.NOT_MEASURED):
        return None if len(source) > len(switch_points.NOT_MEASURED) + 10 else "no reason"
    if not re.fullmatch(r"docs/decisions/\d{4}-[a-z0-9-]+\.md|benchmarks/results/[a-z0-9-]+\.json", source):
        return "neither a decision record nor a result file"
    return None if (ROOT / source).is_file() else "not there"


@pytest.mark.parametrize("name", SOURCES)
def test_every_number_names_its_source(name):
    assert problem_of(SOURCES[name]) is None, f"{name}: {SOURCES[name]}"


def test_every_threshold_names_its_decision_or_was_reasoned():
    text = Path(switch_points.__file__).read_text(encoding="utf-8")
    found = dict(re.findall(r'^([A-Z_]+) = .*\n"""([^"]+)"""$', text, re.MULTILINE))
    assert found.keys() == {name for name in vars(switch_points) if name.isupper()}
    for name in found.keys() - {"NOT_MEASURED"}:
        told = re.search(r"\sDecision\s(\d+)\.$|\sNot measured: .{10}", found[name], re.DOTALL)
        assert told and (not told[1] or list((ROOT / "docs" / "decisions").glob(f"{int(told[1]):04}-*.md"))), name


RECORDS = sorted((ROOT / "benchmarks" / "results").glob("gpu-tune-*.json"))
"""Times of all candidates of `ksieve tune`, from which the shipped file of the same name was made."""

SLOWER = 1.03

KNOWN = {
    "gpu-tune-h100-float32": {
        "66x2097152k2048": 1.042,  # two CTAs a row, as on the H200
    },
    "gpu-tune-h100-bfloat16": {
        # Two or four CTAs a row, as on the H200: 17 rows of 1,048,576 scores take 0.81 of one CTA's time.
        "33x1048576k2048": 1.032,
        "34x2097152k2048": 1.034,
        # The policy was timed in the launch shape of before, or the shape with another policy.
        "132x131072k2048": 1.082,
        "132x262144k2048": 1.036,
        "5x2097152k2048": 1.059,  # 26 CTAs a row run at once, 16 are faster
        "4224x3072k1536": "not measured",  # as on the H200
    },
    "gpu-tune-h200-float32": {
        # Two CTAs a row are 1 to 6 % slower at 48 to 66 rows of these widths, and an entry is for any rows.
        "34x524288k2048": 1.084,
        "34x262144k2048": 1.055,
    },
    "gpu-tune-h200-bfloat16": {
        # Two CTAs a row, as above.
        "34x524288k2048": 1.042,
        "34x1048576k2048": 1.107,
        # The policy was timed in the launch shape of before, which is slower.
        "132x131072k2048": 1.049,
        "2112x131072k2048": 1.053,
        "16x1048576k2048": 1.036,
        # 26 CTAs a row run at once, 16 are faster.
        "5x2097152k2048": 1.043,
        # Few slots: the launch shapes of a k of 2,048 are taken for them, or a limit is for all rows beyond it.
        "264x36864k512": 1.062,
        "264x40960k512": 1.045,
        "264x49152k512": 1.032,
        "264x65536k512": 1.032,
        # Most of these rows are selected whole, and have a CTA each: timed as another family.
        "4224x3072k1536": "not measured",
    },
}
"""Questions at which the planner's choice is more than 3 % slower than the best candidate, and by how much."""


def target_of(payload):
    """What a record is of."""
    device = next(d for d in DEVICES.values() if tuned.described(d) == payload["settings"]["device"])
    return tune.Target(device, payload["settings"]["dtype"], payload["settings"]["k"])


def times_of(question, target, times):
    """Times of what a question is answered with now: of a streamed plan, those of its launch shape and its policy.

    A candidate with the name of a family was timed as the planner forced it then: what the record does not time by
    name is compared as that.
    """
    if name := tune.choice_of(question, target):
        return [times[name]] if name in times else []
    plan = PLANNED.plan(*question, target.dtype, target.device)
    shared = f" x{plan.splits}" if plan.family == "stream_split" else ""
    named = [f"{plan.family} {plan.threads}x{plan.ctas_per_sm}{shared} s{plan.stages}"]
    named += [f"stream_split{shared}" if shared else f"stream {plan.policy.name if plan.policy else 'direct'}"]
    found = [times[name] for name in named if name in times]
    return found or [times[name] for name in [plan.family] if name in times]


def losses(payload):
    """Questions of a record at which today's choice is slower than the best candidate, or was not timed."""
    target, found = target_of(payload), {}
    for name, answer in payload["results"].items():
        own = times_of(tuple(map(int, re.split("[xk]", name))), target, answer["us"])
        loss = max(own) / min(answer["us"].values()) if own else "not measured"
        if not own or loss > SLOWER:
            found[name] = loss
    return found


@pytest.fixture
def shipped(monkeypatch):
    """The planner without a file of the user."""
    monkeypatch.setenv(tuned.VARIABLE, "off")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_planner_is_within_3_percent_of_the_best_candidate(path, shipped):
    payload = record.read_json(path)
    assert len(payload["results"]) >= 300 and all(answer["us"] for answer in payload["results"].values())
    found, known = losses(payload), KNOWN[path.stem]
    assert {name: loss if isinstance(loss, str) else round(loss, 3) for name, loss in found.items()} == known


def listed(parts):
    """Entries of a file, each with its part and family; but for ``plain``, which follows from compiling."""
    return [
        (part, family, {name: value for name, value in entry.items() if name != "plain"})
        for part, of in sorted(parts.items())
        for family, entries in (of.items() if isinstance(of, dict) else [("", of)])
        for entry in entries
    ]


@pytest.mark.extended
@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_shipped_file_is_what_its_record_says(path, shipped):
    """But for a few entries that decide no plan. Widths that are not asked are taken from the file itself."""
    payload, target = record.read_json(path), target_of(record.read_json(path))
    file = DATA / f"{path.stem.removeprefix('gpu-tune-')}.json"
    named = [files for name in shapes.CLASSES for files in shapes._read(name).get("measured", {}).values()]
    assert any(file.stem in files.values() for files in named)
    kept = tuned.read(file, target.device, target.dtype)
    facts = payload["environment"]
    if "gpu" in facts:  # before ksieve tune wrote a record of its own
        facts = {"driver": facts["gpu"]["devices"][0]["driver_version"]} | {
            name: facts[name] for name in ("packages", "date", "commit")
        }
    made, entries = listed(tune_table.table(payload["results"], target)), listed(kept.parts)
    assert [entry for entry in made if entry in entries] == entries and len(made) <= len(entries) + 4
    about = facts | tune.about(target)
    assert kept.about | {"date": ""} == about | {"date": ""}, "written a minute after the record"
