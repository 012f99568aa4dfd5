"""docs/guide/evidence.md and its tables on the page of benchmarks, as a run of today writes its payloads."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from conftest import ROOT

from ksieve_lab.bench import ablation, catalog, chain, record
from ksieve_lab.report import specs
from ksieve_lab.report.tables import File
from ksieve_lab.traces import replay

SMALL = {"backend": "cpu", "step_tokens": 40, "budget_bytes": 20_000 * 4 * 40, "widths": (4096,), "rows": (3,)}
PAGE = ROOT / "docs" / "guide" / "evidence.md"


def test_every_result_becomes_tables_beside_the_papers_numbers(tmp_path):
    """Payloads as they come back from disk: keys are text there."""
    made = {
        "ablation": replace(catalog.find("ablation-cpu"), fixed=SMALL).run(shapes="20000", k=128, rounds=1),
        "replay": replay.run(
            replay.Trace.of_requests("tiny", [{"prompt": 300, "decode_steps": 2}], k=16), backend="cpu", rounds=1
        ),
    }  # fmt: skip
    facts = {"chain_ms": 360.0, "select_ms": 11.0, "select_share": 0.03, "of_floor": 0.9, "exact": True}
    request = {
        "request": "245K", "floor_ms": 9.9, "scores": {"ms": 349.0, "teraflops": 500.0},
        "selectors": {"ksieve": facts, "other": facts | {"exact": False}},
    }  # fmt: skip
    made["chain"] = record.payload("chain", {"k": 2048}, {"requests": [request], "paper": chain.PAPER})
    files = [File(f"gpu-{name}", record.read_json(record.write_json(tmp_path / f"{name}.json", payload)))
             for name, payload in made.items()]  # fmt: skip
    text = specs.each(files)
    assert text.index("### gpu-ablation") < text.index("### gpu-chain") < text.index("### gpu-replay")
    for words in ("| 1.5 | below 1% |", "| 256 | 2.48 to 3.26% |", "**Rescue**", "**Activation**", "| 4,096 |"):
        assert words in text, words
    assert "| 245K | ksieve | 360.00 | 11.00 | 3.0% | 0.90 |" in text
    assert "| 245K | HPC-Ops, paper on an H20 with DeepGEMM | 330.84 | 18.15 | 5.5% |  |" in text
    assert "other: failed or not exact" in text
    assert "| all | 3 | 302 |" in text
    figures = re.findall(r"figures/([\w-]+)\.svg", specs.drawn(files))
    assert figures == [*(f"gpu-ablation-{part}" for part in ablation.PARTS), "gpu-chain", "gpu-replay"]


def test_the_traces_on_the_page_are_traces(tmp_path):
    blocks = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        path = tmp_path / "trace.json"
        path.write_text(block)
        found = replay.load(path)
        assert found.calls
        assert found.name == json.loads(block)["name"]


@pytest.mark.parametrize("name", ["evidence", "study"])
def test_every_figure_of_the_page_is_committed(name):
    page = (ROOT / "docs" / "guide" / f"{name}.md").read_text(encoding="utf-8")
    for figure in re.findall(r"\.\./figures/([\w-]+\.svg)", page):
        assert (ROOT / "docs" / "figures" / figure).is_file(), figure
