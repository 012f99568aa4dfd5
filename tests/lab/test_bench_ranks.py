"""The bench of ranks: as one rank in this process, and under torchrun; a wrong answer is noticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from ksieve import distributed
from ksieve.lab.bench import rank_model, rank_pages, ranks
from ksieve.lab.cli.app import app


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", "ranks", *map(str, arguments)])


def test_one_rank(tmp_path):
    done = invoke(
        "--shapes", "3x5000,2x900", "--k", 40, "--rounds", 2, "--dtypes", "float32,bfloat16", "--verify-rows", 5000,
        "--out", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "ranks-cpu-1.json").read_text())["results"]
    assert len(results["shapes"]) == 4
    for case in results["shapes"]:
        assert set(case["selectors"]) == {"local", "gathered", "pairs", "planned"}
        for name in ("gathered", "pairs", "planned"):
            facts = case["selectors"][name]
            assert facts["exact"] is True and facts["median_us"] > 0 and len(facts["rounds_us"]) == 2
    found = results["verified"]
    assert found["rows"] == 5000 == sum(found["layouts"].values()) and found["failed"] == 0
    assert "5,000 rows: 0 failed" in done.output


def test_the_page_has_every_number_and_refuses_wrong_ones():
    with ranks.group("cpu"):
        payload = ranks.run([(2, 900)], k=9, rounds=1, verified_rows=500)
    payload["environment"] |= {"commit": "0123456789", "command": "ksieve bench ranks --out ranks.json"}
    page = rank_pages.section([("[a](b)", "ranks-cpu-1", payload)])
    found = payload["results"]["verified"]
    assert f"| [a](b) | 1 | cpu | 500 | 0 | `{found['digest'][:16]}` | 0123456 |" in page and "| 2 x 900 |" in page
    assert "torchrun --nproc-per-node N -m ksieve bench ranks --out benchmarks/results" in page
    found["exact"] = False
    with pytest.raises(ValueError, match="an answer is not exact"):
        rank_pages.section([("[a](b)", "ranks-cpu-1", payload)])


@pytest.mark.slow
def test_two_ranks_give_the_same_digest(tmp_path):
    command = ["ksieve", "bench", "ranks", "--shapes", "2x900", "--k", "9", "--rounds", "1", "--verify-rows", "8100"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", *command]
    done = subprocess.run(
        [*launch, "--out", str(tmp_path)], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "ranks-cpu-2.json").read_text())["results"]
    assert results["world"] == 2 and results["verified"]["exact"] and results["verified"]["same_on_every_rank"]
    assert done.stdout.count("8,100 rows") == 1  # the first rank alone prints
    with ranks.group("cpu"):
        alone = ranks.verify_rows(8100)
    assert alone["digest"] == results["verified"]["digest"]


def test_more_gpus_are_predicted_from_fewer(tmp_path):
    """Two files in which shards take a microsecond for 1,000 scores and a gather 10 for each rank."""
    for world in (2, 4):
        cases = [
            {"rows": rows, "width": width, "dtype": "float32",
             "selectors": {"local": {"median_us": rows * width / world / 1000}, "gathered": {"added_us": 10 * world}}}
            for rows in (1, 64, 512, 8192) for width in (131_072, 1_048_576)
        ]  # fmt: skip
        payload = ranks.record.payload("ranks", {"device": "cuda", "k": 2048}, {"world": world, "shapes": cases})
        ranks.record.write_json(tmp_path / f"ranks-cuda-{world}.json", payload)
    done = invoke("--predict", "8", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    payload = ranks.record.read_json(tmp_path / "predicted-ranks.json")
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
    page = rank_pages.predicted("[a](b)", payload)
    assert "| 8 | 8,192 x 131,072 | float32 | 134,218 | 80 |" in page and "of 2 and 4 GPUs" in page
    assert "numbers of GPUs" in str(invoke("--predict", "four").exception)
    (tmp_path / "ranks-cuda-4.json").unlink()
    assert "results of two numbers of GPUs" in str(invoke("--predict", "8", "--out", tmp_path).exception)


def test_a_wrong_answer_is_refuted(monkeypatch):
    answer = ranks._answer

    def wrong(*arguments):
        found = answer(*arguments).copy()
        found[7, 0] = -1
        return found

    monkeypatch.setattr(ranks, "_answer", wrong)
    done = invoke("--shapes", "none", "--verify-rows", 4000)
    assert done.exit_code == 1 and "2 failed" in done.output, done.output


def test_rows_do_not_depend_on_the_ranks_and_cover_every_kind():
    drawn = [ranks._rows(np.random.default_rng(1), family, 50, 40) for family in ranks._FAMILIES]
    assert np.isfinite(drawn[0]).all() and len(np.unique(drawn[1])) == 7 and np.isnan(drawn[2]).any()
    assert all(len(set(row)) == 1 for row in drawn[3].tolist())
    for name in ranks._LAYOUTS:
        for world in (1, 2, 5):
            layout, widths = ranks._sharded(name, 300, world, np.random.default_rng(0))
            assert len(widths) == world and layout.extent(widths) == 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dtypes", "float64"), "some of float32, float16, bfloat16"),
        (("--device", "tpu"), "'cpu' or 'cuda'"),
        (("--shapes", "wide"), "rows x width"),
    ],
)
def test_refusals(arguments, message):
    done = invoke(*arguments)
    assert done.exit_code != 0 and message in str(done.exception) + done.output
