"""Pages from result files: every number is the file's; a missing key or a wrong answer stops the page."""

from __future__ import annotations

import copy
import json
import re

import pytest
from conftest import ROOT

from bench_host import ENVIRONMENT
from ksieve_lab.bench import shape_lists
from ksieve_lab.bench.catalog import BENCHES
from ksieve_lab.report import specs, tables, told
from ksieve_lab.report.specs import gpu
from ksieve_lab.report.tables import Column, File, InexactError, MissingKeyError, Table

FILES = tables.read(ROOT / "benchmarks" / "results")


TOLD = {bench.name for bench in BENCHES} | {"replay", "study", "calibrate"}


@pytest.mark.parametrize("file", [f for f in FILES if f.payload["bench"] in TOLD], ids=lambda file: file.stem)
def test_the_terminal_tells_every_committed_result(file):
    said = list(told.told(file.payload))
    assert isinstance(said[0], told.Head) and any(isinstance(each, told.Table) for each in said)
    for table in (each for each in said if isinstance(each, told.Table)):
        assert table.rows and all(len(row) == len(table.columns) for row in table.rows)
    assert all(told.verdicts(file.payload)) == (file.stem != "gpu-engines"), "which lost its GPU context"


def test_every_part_of_the_pages_is_written():
    written = {(path, name): text for path, name, text in specs.committed(FILES)}
    assert len(written) > 15 and all(text.strip() for text in written.values())
    for text in written.values():
        assert "None" not in text and "nan" not in text.split()


def test_a_wrong_answer_stops_the_pages():
    payload = copy.deepcopy(next(file.payload for file in FILES if file.stem == "gpu-operator-k2048"))
    payload["results"]["shapes"][0]["selectors"]["ksieve"]["exact"] = False
    files = [File(file.stem, payload) if file.stem == "gpu-operator-k2048" else file for file in FILES]
    with pytest.raises(InexactError, match="no exact answer"):
        list(specs.committed(files))


def test_the_page_of_benchmarks_is_short():
    page = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    assert len(re.sub(r"<!--.*?-->", "", page).split()) <= 1500


def test_a_missing_key_is_an_error():
    file = File("some", {"settings": {"k": 64, "list": [{"a": 1}, {"skipped": "why"}]}})
    assert list(tables.find(file, "settings/list/*/a")) == [1]
    assert list(tables.find(file, "settings/none?/a")) == []
    assert tables.render(Table([Column("k", "settings/k", "{:,}"), Column("", "settings/x?")]), [file]).endswith(
        "| 64 |  |"
    )
    with pytest.raises(MissingKeyError, match="no 'rounds' among k"):
        tables.render(Table([Column("rounds", "settings/rounds")]), [file])


JUDGED = (
    "gpu-operator-k2048 gpu-trace-k2048 gpu-worst-k2048 blocks-cuda ranks-cuda-4 cpu-2-threads gpu-engines gpu-chain"
)


@pytest.mark.parametrize("stem", [*JUDGED.split(), "gpu-ablation-activation", "gpu-replay-245K"])
def test_wrong_answers_reach_no_page(stem):
    payload = copy.deepcopy(next(file.payload for file in FILES if file.stem == stem))
    section = specs.section_of(payload["bench"])
    for path in (path for path in section.exact if list(tables.find(payload["results"], path))):
        node = payload["results"]
        *way, last = path.replace("?", "").split("/")
        for name in way:
            node = (next(iter(node.values() if isinstance(node, dict) else node))) if name == "*" else node[name]
        before, node[last] = node[last], False
        with pytest.raises(InexactError, match="no exact answer"):
            tables.judge(section, File(stem, payload))
        node[last] = before


def test_published_times_match_the_device_the_rank_and_the_lengths(tmp_path):
    shape = {"rows": 8, "width": 9}
    payload = {"environment": ENVIRONMENT, "results": {"shapes": [shape]},
               "settings": {"k": 64, "dtype": "float32", "lengths": "causal"}}  # fmt: skip
    listed = {"device": "H200", "times": {"causal": {"64": {"8x9": {"a": 1.0}, "1x1": {"a": 2.0}}}}}
    path = tmp_path / "anchors.json"
    assert gpu.published(payload, path) == {}
    path.write_text(json.dumps(listed))
    assert gpu.published(payload, path) == {"8x9": {"a": 1.0}}
    for change in ({"k": 32}, {"dtype": "float16"}, {"lengths": "ragged"}):
        assert gpu.published(payload | {"settings": payload["settings"] | change}, path) == {}
    path.write_text(json.dumps(listed | {"device": "B300"}))
    assert gpu.published(payload, path) == {}


def test_the_committed_anchors_are_complete():
    found = json.loads((ROOT / gpu.ANCHORS).read_text())
    assert found["label"] in gpu.PUBLISHED.note and found["device"] == "H200"
    operator = found["times"]["causal"]["2048"]
    assert set(operator) == {f"{m}x{n}" for m, n in shape_lists.OPERATOR}
    assert all({"plain read", "HPC-Ops", "SGLang topk v2", "DeepSelect"} <= set(t) for t in operator.values())
