"""The bench of blocks and pools: on the CPU, where a GPU's calls would be, and its page; wrong answers are refuted."""

from __future__ import annotations

import json

import pytest

from bench_host import ENVIRONMENT, H200, invoke, measure
from ksieve import api
from ksieve.core.errors import ArgumentError
from ksieve.planning.plan import Plan
from ksieve.planning.tune import tasks, timing, variants
from ksieve_lab.bench import blocks, floor, record
from ksieve_lab.report import specs, tables

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE, EVERY = "2x20480", (blocks.OWN, *blocks.AROUND)
NAMES = [model.name for model in blocks.MODELS]


def test_every_model_on_the_cpu(tmp_path):
    pytest.importorskip("matplotlib")
    done = invoke(
        "blocks-cpu", "--shapes", SHAPE, "--rounds", 1, "--dtype", "float32", "--out", tmp_path, "--figures", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    payload = json.loads((tmp_path / "blocks-cpu.json").read_text())
    found = payload["results"]["shapes"]
    assert [case["model"] for case in found] == NAMES and (tmp_path / "blocks-cpu.svg").exists()
    assert [case["columns"] for case in found] == [2048, 16, 16_384, 512, 2051, 16, 16]
    for case in found:
        own = case["selectors"]
        assert all(own[name]["exact"] is True and own[name]["median_us"] > 0 for name in EVERY)
        assert (blocks.BARE in own) == (not case["model"].startswith("blocks"))
        assert case["times_faster"]["around torch"] == own["around torch"]["median_us"] / own["ksieve"]["median_us"]
    section, file = specs.section_of("blocks"), tables.File("blocks-cpu", payload)
    tables.judge(section, file)
    assert "| DeepSeek-V4.1 | float32 | 1 |" in tables.render(section.tables[0], [file])


@pytest.fixture
def device(monkeypatch):
    """Let the bench believe in a GPU: its plans and tensors are the CPU's, its clock is made up."""
    planned, made = api.plan, []

    def plan(*, device, options, **facts):
        assert device is H200
        if options.force_first:
            raise ArgumentError("force_first", "1 on cuda:0", "scores on the CPU")
        return planned(options=options, **facts)

    def allocate(rows, width, dtype):
        return [torch.full((rows, width), 7.0, dtype=getattr(torch, dtype)) for _ in range(2)]

    monkeypatch.setattr(api, "plan", plan)
    monkeypatch.setattr(variants, "compile_plans", lambda plans, progress: made.extend(plans))
    monkeypatch.setattr(tasks, "require_device", lambda: H200)
    monkeypatch.setattr(tasks, "allocate", allocate)
    monkeypatch.setattr(floor, "contenders", lambda *_: [timing.Contender("read a", lambda i: None)])
    monkeypatch.setattr(timing, "measure", measure)
    monkeypatch.setattr(Plan, "workspace", lambda self: pytest.fail("nothing to hold"))
    monkeypatch.setattr(record, "environment", lambda *, gpu: dict(ENVIRONMENT))
    return made


def test_on_a_gpu_missing_kernels_reach_no_page(device, tmp_path):
    done = invoke("blocks", "--shapes", "1x20480,4x20480", "--dtype", "bfloat16", "--only",
                  "blocks of 128; DeepSeek-V4.1, inside; MiniMax-M3, scored", "--out", tmp_path)  # fmt: skip
    assert done.exit_code != 0 and "scores on the CPU" in done.output
    payload = json.loads((tmp_path / "blocks-cuda.json").read_text())
    found = payload["results"]["shapes"]
    assert [plan.problem.k for plan in device] == 2 * [16] * 3 + 2 * [512] * 3 + 2 * [16, 14]
    assert [case["selectors"]["ksieve"]["exact"] for case in found] == [True] * 4 + [None] * 2
    assert found[0]["selectors"]["ksieve"]["of_floor"] == 0.8 and "times_faster" not in found[4]
    with pytest.raises(tables.InexactError, match="no exact answer was measured"):
        tables.judge(specs.section_of("blocks"), tables.File("blocks-cuda", payload))
    assert len(specs.figures_of(payload)) == 1
