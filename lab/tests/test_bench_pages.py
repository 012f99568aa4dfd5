"""Pages from result files: every number is the file's, wrong answers stop the page, figures follow their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ROOT

from bench_host import ENVIRONMENT, generator, host
from ksieve.planning.tune import record
from ksieve_lab.bench import anchors, gpu, pages, shape_lists, trace, worst

torch = pytest.importorskip("torch")

__all__ = ["generator", "host"]


_made = {}


@pytest.fixture
def results(host, tmp_path):
    """One small result file of every kind, as the commands name them."""
    folder = tmp_path / "benchmarks" / "results"
    small = [(1, 4096), (600, 4096)]
    if not _made:
        _made.update(
            {
                "gpu-operator-k64": gpu.run(small, 64, torch_rounds=1),
                "gpu-operator-factors-k64": gpu.run(small, 64, torch_rounds=0, source="normal"),
                "gpu-decode-k64": gpu.run(small, 64, lengths="ragged", torch_rounds=1),
                "gpu-short-k64": gpu.run([(4, 4096), (600, 4096)], 64, lengths="ragged", torch_rounds=0),
                "gpu-trace-k64": trace.run({"tiny": 300}, 64, step_tokens=128, budget_bytes=100_000),
                "gpu-worst-k64": worst.run([(4, 4096), (8, 4096)], 64, families=["normal", "all_nan"], peer_names=[]),
                "gpu-novel": {
                    "schema": 1, "bench": "novel", "environment": ENVIRONMENT, "settings": {}, "results": {}
                },
            }
        )  # fmt: skip
    for name, payload in _made.items():
        record.write_json(folder / f"{name}.json", payload)
    return folder


def test_every_kind_of_result_has_its_section(generator, results):
    page = generator.benchmark_page(results)
    for title in ("Operator shapes", "Framework traces", "Decode shapes", "Short rows", "The worst case"):
        assert f"## {title} on a GPU" in page
    for path in results.glob("*.json"):
        assert f"](../../benchmarks/results/{path.name})" in page, path.name
    assert "| 600 x 4,096 | 10.0 (" in page and "| 12.5 | 0.800 |" in page
    assert page.index("k = 64, endpoint-structured scores") < page.index("k = 64, normal scores")
    assert "| tiny | 4 | 0.04 | ksieve | 0.05 | 0.800 | target 0.9: missed |" in page
    assert "The worst is `normal` at 4 x 4,096: 1.25 (target 2.5: met)." in page
    assert "| `all_nan` | 1.25 | 1.25 |" in page
    assert "## Other result files" in page and ": novel, NVIDIA H200" in page


def test_published_times_are_labelled_and_stand_beside_ours(generator, results, tmp_path):
    times = {"causal": {"64": {"600x4096": {"plain read": 1.0, "HPC-Ops": 25.0, "SGLang": 50.0}}}}
    listed = {"device": "H200", "times": times, "worst": {"4x4096": {"floor": 1, "normal": {"HPC-Ops": 99}}}}
    (tmp_path / anchors.FILE).write_text(json.dumps(listed))
    page = generator.benchmark_page(results)
    assert "| 600 x 4096 | 12.5 | 25.0 | 50.0 | 2.00 |" in page
    assert "ksieve is 2.00 times as fast (geometric mean of 1 shapes) and slower at 0 of them" in page
    assert "| `normal` | 4 x 4,096 | 12.5 | 99 |" in page
    assert page.count(anchors.LABEL) == 3, "operator results of two sources, and the worst case"


def test_published_times_match_the_device_the_rank_and_the_lengths():
    shape = {"rows": 8, "width": 9}
    payload = {"environment": ENVIRONMENT, "results": {"shapes": [shape]},
               "settings": {"k": 64, "dtype": "float32", "lengths": "causal"}}  # fmt: skip
    listed = {"device": "H200", "times": {"causal": {"64": {"8x9": {"a": 1.0}, "1x1": {"a": 2.0}}}}}
    assert anchors.published(listed, payload) == {"8x9": {"a": 1.0}}
    assert anchors.published(listed | {"device": "B300"}, payload) == {}
    for change in ({"k": 32}, {"dtype": "float16"}, {"lengths": "ragged"}):
        assert anchors.published(listed, payload | {"settings": payload["settings"] | change}) == {}
    assert anchors.load(Path("nowhere.json")) is None


def test_the_committed_anchors_are_complete():
    found = anchors.load(ROOT / anchors.FILE)
    assert found["label"] == anchors.LABEL and found["device"] == "H200"
    operator = found["times"]["causal"]["2048"]
    assert set(operator) == {f"{m}x{n}" for m, n in shape_lists.OPERATOR}
    assert all({"plain read", "HPC-Ops", "SGLang topk v2", "DeepSelect"} <= set(t) for t in operator.values())
    decode = {f"{m}x{n}" for m, n in shape_lists.DECODE}
    assert set(found["times"]["ragged"]["2048"]) <= decode
    assert operator["8192x1048576"]["HPC-Ops"] == 10036.5


def test_other_libraries_stand_beside_ours(generator, results):
    path = results / "gpu-short-k64.json"
    payload = json.loads(path.read_text())
    payload["environment"] |= {"packages": {"sglang": "9.9"}}
    one, two = (shape["selectors"] for shape in payload["results"]["shapes"])
    own = one["ksieve"]["median_us"]
    for name, first, second in (("slow", 3, 4), ("quick", 2, 0.5), ("wrong", 0.1, 5)):
        for selectors, times in ((one, first), (two, second)):
            selectors[name] = {"median_us": own * times, "exact": True, "peer": True}
    one["wrong"]["exact"] = False
    two["slow"] = {"unsupported": "it takes 4 rows", "exact": None, "peer": True}
    path.write_text(json.dumps(payload))
    page = generator.benchmark_page(results)
    assert "on the same tensors: sglang 9.9. The fastest exact one of each shape takes 1.00 times as long" in page
    assert "(geometric mean of 2 shapes), at least 0.50 times, and is faster at 1." in page
    assert "| `slow` | 1 | 0 | 3.00 | 3.00 at 4 x 4,096 | 0 |" in page
    assert "| `quick` | 2 | 0 | 1.00 | 0.50 at 600 x 4,096 | 1 |" in page
    assert "| `wrong` | 1 | 1 | 5.00 | 5.00 at 600 x 4,096 | 0 |" in page
    assert "| 4,096 | 2.00 quick | 0.50 quick |" in page


@pytest.mark.parametrize(
    "recorded", ["x.py bench decode --peers a b,c d --out here", "x.py bench decode --peers 'a b,c d' --out here"]
)
def test_a_printed_command_can_be_run(recorded):
    found = pages.command({"environment": {"command": recorded}})
    assert found == "ksieve bench decode --peers 'a b,c d' --out benchmarks/results"


def test_wrong_answers_reach_no_page(generator, results):
    for name, spoil in {
        "gpu-trace-k64": lambda r: r["traces"]["tiny"]["selectors"]["ksieve"].update(exact=False),
        "gpu-worst-k64": lambda r: r["cases"][0]["selectors"]["ksieve"].update(exact=False),
        "gpu-short-k64": lambda r: r["shapes"][0]["selectors"]["ksieve"].update(exact=None),
    }.items():
        path = results / f"{name}.json"
        before = path.read_text()
        payload = json.loads(before)
        spoil(payload["results"])
        path.write_text(json.dumps(payload))
        with pytest.raises(pages.InexactError, match="no exact answer"):
            generator.benchmark_page(results)
        path.write_text(before)


def test_figures_follow_their_result_files(generator, results, tmp_path):
    folder = tmp_path / "figures"
    stale = generator.draw_figures(results, folder, check=True)
    assert set(stale) >= {"gpu-operator-k64-of-floor", "gpu-worst-k64", "gpu-trace-k64"}
    assert not folder.exists(), "--check wrote something"
    assert generator.draw_figures(results, folder, check=False) == stale
    assert {path.stem for path in folder.iterdir()} == set(stale), "names are those of the figures drawn"
    page = generator.benchmark_page(results)
    for name in stale:
        assert (folder / f"{name}.svg").exists() and f"](../figures/{name}.svg)" in page
    assert generator.draw_figures(results, folder, check=True) == []
    path = results / "gpu-worst-k64.json"
    path.write_text(path.read_text().replace("all_nan", "two_values"))
    assert generator.draw_figures(results, folder, check=True) == ["gpu-worst-k64"]


def test_the_pictures_of_the_guide_follow_the_module_that_draws_them(generator, tmp_path):
    assert generator.draw_guide(tmp_path, check=True) == ["blocks-steps"] == generator.draw_guide(tmp_path, check=False)
    assert generator.draw_guide(tmp_path, check=True) == [] == generator.draw_guide(ROOT / "docs/figures", check=True)
    drawn = (tmp_path / "blocks-steps.svg").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in drawn and ">block 1<" in drawn
