"""The bench of ranks: as one rank in this process, and under torchrun; a wrong answer is noticed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from bench_host import invoke
from ksieve import distributed
from ksieve_lab.bench import rank_model, rank_rows, ranks, record
from ksieve_lab.report import specs, tables


def test_one_rank(tmp_path):
    done = invoke(
        "ranks", "--shapes", "3x5000,2x900,2x900:interleaved", "--k", 40, "--rounds", 2, "--dtype", "float32,bfloat16",
        "--out", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "ranks-cpu-1.json").read_text())["results"]
    assert [case["layout"] for case in results["shapes"]] == ["contiguous"] * 4 + ["interleaved 64"] * 2
    for case in results["shapes"]:
        assert set(case["selectors"]) == {"local", "gathered", "pairs", "planned"}
        for name in ("gathered", "pairs", "planned"):
            facts = case["selectors"][name]
            assert facts["exact"] is True and facts["median_us"] > 0 and facts["min_us"] <= facts["median_us"]
    done = invoke("ranks-rows", "--shapes", 5000, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "ranks-rows-cpu-1.json").read_text())["results"]
    found, again = results["verified"], results["replays"]
    assert found["rows"] == 5000 == sum(found["layouts"].values()) and found["failed"] == 0
    assert "5,000 rows: 0 failed" in done.output and "50 replays, 800 rows: 0 failed" in done.output
    assert again["replays"] == 50 and again["failed"] == 0


def test_the_page_has_whole_calls_over_the_number_of_gpus():
    """With targets, and with the card of each file; other layouts are no part of it."""
    times = {"local": 7600, "gathered": 4500, "pairs": 4000, "planned": 3000}
    facts = {name: {"median_us": us, "exact": True, "schedule": "Pairs()"} for name, us in times.items()}
    case = {"rows": 8192, "width": 1 << 20, "dtype": "float32", "selectors": facts}
    payload = {
        "bench": "ranks", "settings": {"device": "cuda", "k": 2048},
        "environment": {"gpu": {"devices": [{"name": "NVIDIA H200"}]}},
        "results": {"world": 4, "shapes": [case, case | {"layout": "interleaved 64"}], "verified": None},
    }  # fmt: skip
    page = tables.render(specs.section_of("ranks").tables[0], [tables.File("f4", payload)])
    line = "| 4 | float32 | 7,600 | 4,500 | 3,000 | 1.50 | target 1.4: met | `Pairs()` | NVIDIA H200 | f4 |"
    assert page.endswith(f"---|\n{line}")


@pytest.mark.extended
def test_two_ranks_give_the_same_digest(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "ksieve_lab", "bench"]
    said = ""
    for words in ("ranks --shapes 2x900,2x900:interleaved --k 9 --rounds 1", "ranks-rows --shapes 8100"):
        done = subprocess.run(
            [*launch, *words.split(), "--out", str(tmp_path)], capture_output=True, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said += done.stdout
    timed, checked = (json.loads((tmp_path / f"{stem}-cpu-2.json").read_text())["results"]
                      for stem in ("ranks", "ranks-rows"))  # fmt: skip
    assert timed["world"] == 2 and checked["verified"]["exact"] and checked["verified"]["same_on_every_rank"]
    assert checked["replays"]["exact"] and all(
        facts["exact"] for case in timed["shapes"] for name, facts in case["selectors"].items() if name != "local"
    )
    assert said.count("8,100 rows") == 1  # the first rank alone prints
    with ranks.group("cpu"):
        alone = rank_rows.verify_rows(8100)
    assert alone["digest"] == checked["verified"]["digest"]


def test_more_gpus_are_predicted_from_fewer(tmp_path):
    """Two files in which shards take a microsecond for 1,000 scores and a gather 10 for each rank."""
    for world in (1, 2, 4):  # one rank sends nothing, and is no point of the gathers' line
        added = 10 * world if world > 1 else 1000
        cases = [
            {"rows": rows, "width": width, "dtype": "float32",
             "selectors": {"local": {"median_us": rows * width / world / 1000}, "gathered": {"added_us": added}}}
            for rows in (1, 64, 512, 8192) for width in (131_072, 1_048_576)
        ]  # fmt: skip
        payload = record.payload("ranks", {"device": "cuda", "k": 2048}, {"world": world, "shapes": cases})
        record.write_json(tmp_path / f"ranks-cuda-{world}.json", payload)
    done = invoke("ranks-predict", "--shapes", "8", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    payload = record.read_json(tmp_path / "predicted-ranks.json")
    cases = payload["results"]["shapes"]
    assert [(case["rows"], case["width"]) for case in cases] == list(rank_model.SHAPES)
    for case in cases:
        assert case["local_us"] == pytest.approx(case["rows"] * case["width"] / 8000)
        assert case["one_gpu_us"] == pytest.approx(8 * case["local_us"])
        assert case["added_us"]["gathered"] == pytest.approx(80)
        shape = distributed.Shape(case["rows"], 2048, 8, case["width"])
        best = distributed.choose(shape, distributed.LINKS["nvlink"])
        assert case["schedule"] == str(best)
        assert case["added_us"]["planned"] == distributed.LINKS["nvlink"].total_us(best, shape)
        share = case["local_us"] / (case["local_us"] + 80)
        assert case["rate_of_one"]["gathered"] == pytest.approx(share)
    page = tables.render(specs.section_of("ranks").tables[1], [tables.File("predicted-ranks", payload)])
    assert "| 8 | float32 | 1,073,742 | 80 |" in page
    assert "numbers of at least 1" in str(invoke("ranks-predict", "--shapes", "four").exception)
    (tmp_path / "ranks-cuda-4.json").unlink()
    assert "results of two numbers of GPUs" in str(
        invoke("ranks-predict", "--shapes", "8", "--out", tmp_path).exception
    )


FAULTS = {
    "another at the end": lambda indices, counts: indices[1, int(counts[1]) - 1].add_(1),
    "last of equals": lambda indices, counts: indices[1].add_(1),
    "missing": lambda indices, counts: indices[1, counts[1].sub_(1)].fill_(-1),
    "duplicate": lambda indices, counts: indices[1, 1].copy_(indices[1, 0]),
    "miscounted": lambda indices, counts: counts[1].sub_(1),
    "swapped": lambda indices, counts: indices[1, :2].copy_(indices[1, :2].flip(0)),
    "unfilled": lambda indices, counts: indices[1, counts[1] :].fill_(-7),
}
"""Of the second row, which does not hold all positions."""

OWN_FAULTS = ("miscounted", "swapped", "unfilled")
FAULTY = [
    ("normal", "another at the end"), ("one value", "last of equals"),
    *itertools.product(("normal", "few values", "one value"), ("missing", "duplicate", *OWN_FAULTS)),
]  # fmt: skip


@pytest.mark.parametrize("path", ["host", "device"])
@pytest.mark.parametrize(("family", "fault"), FAULTY)
def test_every_kind_of_wrong_answer_is_refuted(monkeypatch, family, fault, path):
    """One row of 40 is wrong: by both paths of `ksieve.verify`, of which CUDA tensors take that of torch."""
    if path == "device":
        engine = sys.modules["ksieve.checking.verify"]
        monkeypatch.setattr(engine, "NumpyOps", lambda: engine.TorchOps(torch.zeros(1)))
    with ranks.group("cpu"):
        rows = torch.from_numpy(rank_rows.rows_of(np.random.default_rng(3), family, 40, 300))
        lengths = np.full(40, 200, np.int32)
        lengths[1] = 60 if fault == "unfilled" else 200
        made = distributed.plan(rows=40, width=300, k=90)
        indices, counts = distributed.topk(rows, global_lengths=torch.from_numpy(lengths), plan=made)
        wrong, answer = rank_rows.judge(made, rows, lengths, (indices, counts))
        assert wrong == 0 and torch.equal(answer, indices)
        FAULTS[fault](indices, counts)
        wrong, answer = rank_rows.judge(made, rows, lengths, (indices, counts))
        assert wrong == 1
        # What ranks own may be at fault where the joined answer is right.
        alone = ranks.verify(rows, lengths, answer, k=90, sorted="index", tie_break="low")
        assert alone.failed == (fault not in OWN_FAULTS)


def test_positions_of_other_ranks_are_refuted():
    """A rank of two that returns positions of the other, each once and in order."""
    made = SimpleNamespace(
        rank=1,
        widths=(20, 20),
        width=20,
        layout=distributed.Contiguous(),
        device="cpu",
        shape=SimpleNamespace(extent=40),
    )
    wrong = rank_rows._misheld(made, torch.tensor([[20, 39], [19, 20], [20, 40], [-1, -1]]), torch.tensor([2, 2, 2, 0]))
    assert wrong.tolist() == [False, True, True, False]


def test_more_positions_than_slots_are_refuted(monkeypatch):
    both = torch.tensor([[[0, 3], [1, -1]], [[4, -1], [2, -1]]], dtype=torch.int32)
    monkeypatch.setattr(rank_rows, "gather", lambda *_: both)
    monkeypatch.setattr(rank_rows, "distributed", lambda: None)
    answer, excess = rank_rows.collected(both[0], 2)
    assert answer.tolist() == [[0, 3], [1, 2]] and excess.tolist() == [True, False]


def test_kernels_are_compiled_before_they_are_measured(monkeypatch):
    """All that the ranks of two H100s call for: the four selections of a shape, and the kernels between collectives."""
    from ksieve.backends.cuda.jit import cache
    from ksieve.backends.cuda.runtime import driver
    from ksieve.core.device import DEVICES

    h100 = next(device for device in DEVICES.values() if device.capability == (9, 0))
    monkeypatch.setattr(driver, "get", lambda: SimpleNamespace(device_info=lambda index: h100))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    compiled = []
    monkeypatch.setattr(cache, "compile_all", lambda specs: compiled.extend(specs) or ())
    with ranks.group("cpu"):
        plans = [ranks._plans("contiguous", 512, 1 << 18, 2048, "float32", "cpu")["planned"]]
        plans = [replace(made, device="cuda", schedule=distributed.Samples(32)) for made in plans]
        ranks._compile(plans, [])
        timed = set(compiled)
        assert {"distributed/best", "distributed/between", "distributed/select"} < {spec.stem for spec in timed}
        assert len([spec for spec in timed if not spec.stem.startswith("distributed/")]) == 4
        compiled.clear()
        ranks._compile([], plans)
        assert len(compiled) == 4 and set(compiled) < timed
        monkeypatch.setenv("LOCAL_RANK", "1")
        compiled.clear()
        ranks._compile(plans, [])
        assert not compiled


def test_a_wrong_answer_fails_the_command(monkeypatch):
    def wrong(scores, **options):
        found = distributed.topk(scores, **options)
        (found[0] if isinstance(found, tuple) else found)[7, 0] = -1
        return found

    monkeypatch.setattr(rank_rows, "topk", wrong)
    done = invoke("ranks-rows", "--shapes", 4000)
    assert done.exit_code == 1 and "4,000 rows: 2 failed" in done.output, done.output
    assert "40 replays, 640 rows: 40 failed" in done.output


def test_rows_do_not_depend_on_the_ranks_and_cover_every_kind():
    drawn = [rank_rows.rows_of(np.random.default_rng(1), family, 50, 40) for family in rank_rows.FAMILIES]
    assert np.isfinite(drawn[0]).all() and len(np.unique(drawn[1])) == 7 and np.isnan(drawn[2]).any()
    assert all(len(set(row)) == 1 for row in drawn[3].tolist())
    for name in rank_rows.LAYOUTS:
        for world in (1, 2, 5):
            layout, widths = rank_rows.sharded(name, 300, world, np.random.default_rng(0))
            assert len(widths) == world and layout.extent(widths) == 300
