"""Every bench of the table: its options, what it refuses, and its result file; and what benches of shapes measure.

Scores, selections and verdicts are real, on the CPU; the clock of the GPU benches is made up.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import bench_host
from bench_host import FLOOR_US, OTHER_US, OWN_US, host, invoke, payload
from ksieve import api
from ksieve.backends import cpu
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError
from ksieve.core.options import PLAIN
from ksieve.tuning import tasks, timing
from ksieve.tuning.variants import PLANNED, Variant
from ksieve_lab.bench import adversarial_gpu as hard
from ksieve_lab.bench import catalog, gpu, layer, options, record, regress, runner, shape_lists
from ksieve_lab.report import specs, told
from ksieve_lab.report.tables import File, cells

torch = pytest.importorskip("torch")

__all__ = ["host"]
pytestmark = pytest.mark.usefixtures("one_thread")

RUNS = {
    "gpu": ("gpu-shapes-k64", "--shapes 8x4096:300,4x5000:300 --k 64"),
    "operator": ("gpu-shapes-normal-k64", "--shapes 8x4096 --k 64 --scores normal"),
    "decode": ("gpu-shapes-k64", "--shapes 2x4096:ragged,4x8192:ragged --k 64 --peers none"),
    "short": ("gpu-short-k32", "--only 64x2049 --k 32 --peers none"),
    "sixteen-bit": ("gpu-dtypes-shapes-float16-k64", "--shapes 4x4096 --k 64 --dtype float16"),
    "floor": ("floor-shapes", "--shapes 8x4096"),
    "general": ("gpu-general", "--shapes 30x70:4,2x64:64 --only 30x --dtype float32,bfloat16"),
    "segments": ("gpu-segments", "--shapes 300x40:4"),
    "layer": ("gpu-layer", "--shapes 3x4096:full --k 64"),
    "trace": ("gpu-trace-k16", "--shapes 300 --k 16"),
    "worst": ("gpu-worst-k64", "--shapes 4x4096 --only normal;view_hole --k 64 --peers none"),
    "options": ("gpu-options-k64", "--shapes 8x4096 --k 64"),
    "ablation-cpu": ("ablation-margin-cpu", "--only margin --shapes 9000 --k 64 --rounds 1"),
    "cpu": (f"cpu-{cpu.thread_count()}-threads", "--shapes 2x4000 --only compared --k 50 --rounds 1"),
}
"""Small runs of the benches that run on the host, and the name of the file; the others have tests of their own."""

ELSEWHERE = {
    "blocks", "blocks-cpu", "blocks-rows", "blocks-rows-cpu", "engines", "engines-first", "ranks", "ranks-rows",
    "ranks-cuda", "ranks-rows-cuda", "ranks-predict", "ablation", "chain", "chain-deepgemm", "regress",
    "logits",
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_bench_runs_and_writes_its_file(request, tmp_path, monkeypatch, name):
    if not name.startswith(("ablation", "cpu")):
        request.getfixturevalue("host")
    stem, line = RUNS[name]
    if name in ("trace", "ablation-cpu"):
        small = {"step_tokens": 128, "budget_bytes": 100_000} if name == "trace" else {"step_tokens": 20}
        table = [replace(b, fixed={**b.fixed, **small}) if b.name == name else b for b in catalog.BENCHES]
        monkeypatch.setattr(catalog, "BENCHES", table)
    done = invoke(name, *line.split(), "--out", tmp_path)
    assert done.exit_code == 0, (done.output, done.exception)
    written = record.read_json(tmp_path / f"{stem}.json")
    bench = catalog.find(name)
    assert written["bench"] == (bench.kind or name) and written["results"]
    verdicts = list(told.verdicts(written))
    assert all(verdicts) and (verdicts or name == "floor")
    assert invoke(name, *line.split(), "--quiet").stdout == ""


def test_every_bench_is_run_by_a_test():
    assert set(RUNS) | ELSEWHERE == {bench.name for bench in catalog.BENCHES} and not set(RUNS) & ELSEWHERE
    for bench in catalog.BENCHES:
        assert bench.line and bench.read().stem, bench.name


@pytest.mark.parametrize("bench", catalog.BENCHES, ids=lambda bench: bench.name)
def test_a_bench_refuses_what_it_cannot_use(bench):
    values = {
        "shapes": "wide,", "only": "nothing like it", "k": 0, "dtype": "float64", "scores": "factors:absent",
        "peers": "cupy", "rounds": 0, "seed": None, "against": "absent.json",
    }  # fmt: skip
    for name, wrong in values.items():
        used = getattr(bench, name) is not None
        value = 3 if wrong is None else wrong
        if used and wrong is None:
            continue
        with pytest.raises(ArgumentError, match=r"(?s)^\w+: got .*(; takes|, which is not taken) .+") as raised:
            bench.read(**{name: value})
        assert raised.value.argument == name
        assert ("has no use for it" in str(raised.value)) == (not used)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nothing", "NAME: got 'nothing'; takes one of gpu, operator"),
        ("floor --k 3", "--k: got 3, which is not taken in bench floor"),
        ("floor --figures f", "--figures: got f, which is not taken in bench floor"),
        ("gpu --shapes 3x5,4x5:full", "--shapes: got '3x5,4x5:full'; takes at least one item, all with the same word"),
        ("gpu --shapes 3x5:long", "--shapes: got 'long'; takes after a colon one of"),
        ("gpu --only !x", "--only: got '!x'"),
        ("gpu --dtype float32,float16", "--dtype: got 'float32,float16'; takes one of"),
        ("gpu --peers 'stream nothing'", "families and policies of our own"),
        ("gpu --peers [3]", "--peers: got '[3]'; takes a JSON list of objects"),
        ("gpu --peers absent.json", "--peers: got absent.json; takes a file"),
        ("general --shapes 5x5", "--shapes: got 'none'; takes general, or rows x width and k"),
        ("blocks --shapes 2x16384", "for blocks of 8 whole blocks, and k = 2048 of them in 0.8 of a row"),
        ("ranks --shapes 2x3:full", "takes rows x width, such as 64x131072 or 64x131072:interleaved"),
        ("chain --shapes 245K:3", "heads of the indexer after the colon: a power of two"),
        ("engines --peers jax", "--peers: got 'jax'; takes some of vllm, sglang"),
        ("cpu --shapes 1x49", "takes rows of at least k = 2048 scores"),
    ],
)
def test_refusals_name_the_option(line, words):
    done = invoke(*(part.strip("'") for part in line.replace("'stream nothing'", "stream+nothing").split()))
    assert isinstance(done.exception, ArgumentError) and words in str(done.exception), done.exception


def test_shapes_of_a_text():
    assert len(shape_lists.OPERATOR) == 20 and len(shape_lists.DECODE) == 63 and len(shape_lists.SHORT) == 90
    read = catalog.find("gpu").read
    assert read().shapes == shape_lists.Listed(list(shape_lists.OPERATOR), "causal", "operator")
    assert read(shapes="decode:full").shapes.how == "full" and read(shapes="decode").shapes.how == "ragged"
    assert read(shapes="3x7, 5X4k").shapes == shape_lists.Listed([(3, 7), (5, 4096)], "causal")
    few = gpu.of_shapes(read(shapes="decode", only="x131072; !8x"))
    assert [case.rows for case in few] == [1, 2, 4, 16, 32, 64, 256]
    assert [case.rows for case in gpu.of_shapes(read(shapes="decode", only="1x131072"))] == [1], "a whole name"
    for name in ("operator", "decode", "short"):
        shapes = shape_lists.SHAPES[name][0]
        assert len(shapes) == len(set(shapes)) and all(width > 2048 for _, width in shapes)
    assert shape_lists.prompt_of("245k") == 245_000 and shape_lists.prompt_of(9000) == 9000
    for bad in ("", "12x", "0", -3):
        with pytest.raises(ArgumentError, match=r"^shapes: got"):
            shape_lists.prompt_of(bad)


def test_peers_and_plans_of_our_own(tmp_path):
    (tmp_path / "plans.json").write_text('[{"name": "wide", "family": "stream", "ctas_per_sm": 3}]')
    names, variants = runner.contenders(f"sglang,stream_split,stream paper-64,direct,{tmp_path / 'plans.json'}")
    assert names == ["sglang"] and [variant.name for variant in variants] == [
        "stream_split", "stream paper-64", "direct", "wide",
    ]  # fmt: skip
    assert (variants[1].family, variants[1].policy) == ("stream", "paper-64") and variants[2].family is None
    assert runner.contenders("all,stream") == (None, [Variant("stream", "stream")])
    assert runner.contenders("stream")[0] == [] and runner.contenders("none") == ([], [])
    assert runner.contenders('[{"family": "stream"}]')[1][0].family == "stream"
    slow = catalog.find("trace")
    assert slow.read().torch_rounds == 0 and slow.read(peers="torch.topk").torch_rounds == 1


def test_a_result_file_keeps_the_kind_of_its_scores():
    assert runner.source_name("factors:a/b.safetensors") == "factors:b.safetensors"
    assert runner.source_name("endpoint") == "endpoint"


# ---- benches of shapes ------------------------------------------------------------------------------------


def test_shapes_are_measured_and_judged(host):
    found = []
    bench = catalog.find("gpu")
    made = bench.run(runner.Live(each=found.append), shapes="8x4096,16x4096,16x9000", k=64, peers="all,stream")
    assert made["results"]["shapes"] == found and len(found) == 3
    shape = made["results"]["shapes"][0]
    assert (shape["floor_us"], shape["floor_kernel"]) == (FLOOR_US, "read a")
    own = shape["selectors"]["ksieve"]
    assert (own["exact"], own["of_floor"], own["family"]) == (True, FLOOR_US / OWN_US, "register_block")
    assert shape["selectors"]["torch.topk"] == {
        "median_us": OTHER_US, "min_us": OTHER_US, "spread": 0.0, "exact": True, "of_floor": 0.5, "peer": True,
    }  # fmt: skip
    assert shape["selectors"]["stream"]["family"] == "stream"
    assert made["settings"] == {
        "shapes": [(8, 4096), (16, 4096), (16, 9000)], "k": 64, "lengths": "causal", "dtype": "float32",
        "scores": "endpoint", "rounds": 7, "seed": 0,
    }  # fmt: skip
    assert {plan.problem.k for plan in host} == {64}


def test_what_a_command_prints(host, tmp_path, monkeypatch):
    own = gpu.filled
    monkeypatch.setattr(gpu, "filled", lambda case, here: own(case, here) if case.rows < 99 else "34.4 GB of scores")
    done = invoke("gpu", "--shapes", "8x4096,8192x1048576", "--k", 64, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    said = " ".join((done.output + done.stderr).split())
    assert "8 x 4096 register_block 10.0 12.5 (0.80) 20.0 (0.50)" in said
    assert "8192 x 1048576 skipped, 34.4 GB of scores" in said
    assert "gpu 64 float32 endpoint-structured 1 0.800 0.800 8 x 4,096 1.60" in said
    assert "not compared: " in said and "flashinfer" in said


def test_a_wrong_answer_of_ours_fails_the_command(host, monkeypatch):
    for name in ("topk", "select"):
        monkeypatch.setattr(api, name, lambda *_, out, **__: out.copy_(torch.arange(out.shape[1]).expand_as(out)))
    assert set(payload("gpu", shapes="8x4096", k=64)["results"]["of_floor"]) == {"torch.topk"}
    for name, line in (("gpu", ()), ("worst", ("--only", "normal")), ("options", ("--only", "windows"))):
        done = invoke(name, "--shapes", "4x4096", "--k", 64, *line)
        assert done.exit_code == 1 and "INEXACT" in done.output and "not exact" in done.output, name


def test_a_summary_never_averages_inexact_answers():
    def shape(**shares):
        return {"selectors": {n: {"exact": e, "of_floor": v} for n, (v, e) in shares.items()}}

    found = gpu.summary([shape(a=(0.5, True), b=(0.9, False)), shape(a=(0.8, True), b=(0.4, True)), {"skipped": "x"}])
    assert found["a"] == {"geometric_mean": pytest.approx(math.sqrt(0.4)), "least": 0.5, "shapes": 2}
    assert found["b"]["shapes"] == 1


def test_a_named_bench_is_drawn(host, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(shape_lists.SHAPES, "decode", (((2, 4096), (4, 4096), (4, 8192)), "ragged"))
    done = invoke("decode", "--k", 32, "--out", tmp_path, "--figures", tmp_path, "--scores", "normal")
    assert done.exit_code == 0, done.output
    stem = "gpu-decode-normal-k32"
    assert (tmp_path / f"{stem}-of-floor.svg").exists()
    assert (tmp_path / f"{stem}-decode.svg").exists(), "few rows are drawn as decode curves"
    assert invoke("nothing").exit_code
    done = bench_host.run("plot", tmp_path / f"{stem}.json", "--figures", tmp_path / "f")
    assert done.exit_code == 0 and len(list((tmp_path / "f").iterdir())) == 4, done.output


def test_a_trace_is_summed(host):
    bench = catalog.find("trace")
    small = replace(bench, fixed={"step_tokens": 128, "budget_bytes": 100_000, "decode_steps": 2, "batch": 3})
    made = small.run(shapes="300", k=16)
    found = made["results"]["traces"]["300"]
    calls = found["invocations"]
    assert sum(c["rows"] for c in calls) == 3 * 302 and calls[-1]["phase"] == "decode"
    assert found["floor_us"] == pytest.approx(FLOOR_US * len(calls))
    assert found["selectors"]["ksieve"]["total_us"] == pytest.approx(OWN_US * len(calls))
    assert found["selectors"]["ksieve"]["of_floor"] == pytest.approx(0.8)
    _, _, rows = cells(specs.section_of("trace").tables[0], [File("trace", made)])
    assert rows[0] == ["300", str(len(calls)), f"{len(calls) / 100:.2f}", "ksieve",
                       f"{OWN_US * len(calls) / 1e3:.2f}", "0.800", "target 0.9: missed"]  # fmt: skip
    assert made["settings"]["prompts"] == {"300": 300} and made["settings"]["decode_steps"] == 2


def test_a_trace_sums_only_exact_and_complete_selectors():
    def call(**selectors):
        return {"floor_us": 2.0, "selectors": selectors}

    good, wrong, broken = {"median_us": 4.0, "exact": True}, {"median_us": 1.0, "exact": False}, {"error": "no"}
    found = gpu.total([call(a=good, b=good, c=good), call(a=good, b=wrong, c=broken)])
    assert found["selectors"]["a"] == {"total_us": 8.0, "of_floor": 0.5, "exact": True}
    assert found["selectors"]["b"] == {"exact": False}
    assert found["selectors"]["c"] == {"exact": None}
    assert gpu.total([call(a=good), {"skipped": "too large"}]) == {"skipped": 1}


def test_the_worst_case_is_found(host):
    results = payload("worst", shapes="4x4096,4x5000", k=64, peers="none")["results"]
    assert len(results["cases"]) == 2 * len(hard.FAMILIES) and set(results["worst"]) == set(hard.FAMILIES)
    assert all(case["selectors"]["ksieve"]["exact"] for case in results["cases"])

    def case(rows, share, exact=True):
        selectors = {"ksieve": {"of_floor": share, "exact": exact, "median_us": 1.0}}
        return {"family": "descending", "rows": rows, "width": 8, "selectors": selectors}

    some = [case(1, 0.5), case(2, 0.25), case(3, 0.1, exact=False), {"family": "x", "skipped": "y"}]
    found = gpu.found_worst(some, catalog.find("worst").read())["worst"]
    assert found == {"descending": {"ksieve": {"ratio": 4.0, "rows": 2, "width": 8}}, "x": {}}


# ---- shapes from outside the indexer ----------------------------------------------------------------------


def test_the_general_list_is_long_and_every_case_has_a_plan():
    listed = gpu.of_everything(catalog.find("general").read())
    assert len({case.ask for case in listed}) == len(listed) >= 40
    assert set(shape_lists.MANY_SHORT) < set(shape_lists.GENERAL)
    for name in ("h100", "b200", "a100"):
        for case in listed:
            plan = PLANNED.plan(*case.ask, DEVICES[name])
            assert (plan.problem.rows, plan.problem.width, plan.problem.k, plan.problem.dtype) == case.ask


def test_every_dtype_is_timed_beside_torch(host, monkeypatch):
    made = payload("general", shapes="30x70:4,3x5000:40,2x64:64")
    results = made["results"]
    assert len(results["shapes"]) == 9 == results["over_torch"]["shapes"] and len(made["settings"]["cases"]) == 9
    for case in results["shapes"]:
        assert case["selectors"]["ksieve"]["exact"] is True and case["selectors"]["torch.topk"]["exact"] is True
        assert case["times_faster"] == OTHER_US / OWN_US
    assert results["slower"] == []
    assert {(plan.problem.k, plan.problem.dtype) for plan in host} >= {(64, "bfloat16"), (4, "float16")}
    monkeypatch.setattr(bench_host, "OWN_US", 2 * OTHER_US)
    found = payload("general", shapes="30x70:4", dtype="float32")["results"]
    assert found["slower"] == ["30 x 70, top 4, float32"] and found["over_torch"]["least"] == 0.5
    assert gpu.found_general([], catalog.find("general").read()) == {"shapes": [], "over_torch": None, "slower": []}


# ---- serving options --------------------------------------------------------------------------------------


def test_every_option_is_timed_against_the_plain_call(host):
    results = payload("options", shapes="8x4096,3x5003", k=64)["results"]
    even, odd = results["shapes"]
    assert set(even["selectors"]) == {option.name for option in options.OPTIONS}
    assert set(even["selectors"]) - set(odd["selectors"]) == {"next_n"}, "three rows are no pairs of tokens"
    for shape in results["shapes"]:
        for facts in shape["selectors"].values():
            assert facts["exact"] is True and facts["of_plain"] == 1.0 and facts["median_us"] == OTHER_US
    assert results["of_plain"]["windows"] == {"geometric_mean": 1.0, "most": 1.0, "shapes": 2}


def test_options_are_told_apart(host):
    asked = {"shapes": "8x4096", "k": 64, "only": "windows; by value; int64; k per row"}
    payload("options", **asked)
    settings = catalog.find("options").read(**asked)
    (case,) = options.cases(settings)
    compiled = [make() for make in options.plans(case, gpu.Here(bench_host.H200, settings, (), None))]
    assert list(dict.fromkeys(host)) == compiled, "what is timed was compiled before"
    asked = {plan.problem.options for plan in host}
    assert len(asked) == 5 and PLAIN in asked
    assert {(o.windows, o.order, o.index_dtype, o.per_row_k) for o in asked} == {
        ("none", "any", "int32", False), ("ends", "any", "int32", False), ("none", "value", "int32", False),
        ("none", "any", "int64", False), ("none", "any", "int32", True),
    }  # fmt: skip


def test_short_rows_are_read_from_memory_as_others_are(host, monkeypatch):
    """What they read fits L2 although the matrices do not: a call counts by the bytes that it reads."""
    asked, own = [], timing.measure

    def measure(contenders, sets, read_bytes, **settings):
        asked.append(read_bytes)
        return own(contenders, sets, read_bytes, **settings)

    monkeypatch.setattr(timing, "measure", measure)
    for only in ("windows", "short rows"):
        payload("options", shapes="8x4096:full", k=64, only=only)
    short = next(option for option in options.OPTIONS if option.name == "short rows")
    full = tasks.Task([torch.zeros(8, 4096)], torch.full((8,), 4096, dtype=torch.int32), 64)
    lengths = short.keywords(full)["lengths"]
    assert asked == [8 * 4096 * 4, int(lengths.sum()) * 4]
    assert asked[1] < asked[0] / 2


@pytest.mark.parametrize("broken", ["out", "values", "raw"])
def test_a_wrong_option_is_found(host, monkeypatch, broken):
    right = api.select

    def wrong(*arguments, **keywords):
        found = right(*arguments, **keywords)
        if broken in keywords:
            keywords[broken][2, 1] = keywords[broken][2, 0] + (1 if broken == "values" else 0)
        return found

    monkeypatch.setattr(api, "select", wrong)
    names = {"out": "windows", "values": "values", "raw": "page table and raw"}
    found = payload("options", shapes="8x4096", k=64, only=names[broken])["results"]["shapes"][0]["selectors"]
    assert found[names[broken]]["exact"] is False


# ---- a layer's sequence -----------------------------------------------------------------------------------


def test_a_variant_of_a_layer_that_fails_or_does_not_wait_leaves_the_others(host, monkeypatch):
    (produce, gather), asked = layer.producers.load_layer(), {"shapes": "3x4096:full", "k": 64}
    (shape,) = payload("layer", **asked)["results"]["shapes"]
    assert list(shape["selectors"]) == list(layer.VARIANTS) and shape["layers"] == 2
    assert all(facts["exact"] is True and facts["added_us"] == 0 for facts in shape["selectors"].values())
    assert {plan.problem.options.overlap for plan in host} == {False, True}
    for raises in (False, True):

        def early(cache, at, out, overlap, raises=raises):
            if overlap and raises:
                raise RuntimeError("no launch")
            gather(cache, at.roll(1, 0) if overlap else at, out, overlap)

        monkeypatch.setattr(layer.producers, "load_layer", lambda early=early: (produce, early))
        found = payload("layer", **asked)["results"]["shapes"][0]["selectors"]
        for name, (_, around) in layer.VARIANTS.items():
            assert found[name]["exact"] is (True if not around else None if raises else False)


# ---- times of before --------------------------------------------------------------------------------------


@pytest.fixture
def small(host, monkeypatch, tmp_path):
    """Let the fixed set of calls run here, on small shapes, in a folder of its own."""
    listed = []
    for shapes, k, dtypes, how, calls in regress.LISTED:
        rows, width = shape_lists.plain(shapes).items[0]
        listed.append((f"{min(rows, 8)}x{min(width, 4096)}", min(k, 64), dtypes, how, calls))
    monkeypatch.setattr(regress, "LISTED", listed)
    monkeypatch.chdir(tmp_path)
    return tmp_path / record.RESULTS / "gpu-regress-h200.json"


def test_every_call_of_the_fixed_set_has_a_plan():
    settings = catalog.find("regress").read()
    listed = regress.cases(settings)
    names = [regress.name_of(case, call) for case in listed for call in case.calls]
    assert len(set(names)) == len(names) and 55 <= len(names) <= 70
    for device in ("h100", "h200", "b200"):
        here = gpu.Here(DEVICES[device], settings, (), None)
        for case in listed:
            made = [plan() for plan in regress.plans(case, here)]
            assert len(made) == len(case.calls) or (not made and case.calls[0] == "segments"), case
            assert all(plan.problem.device.kind == "cuda" for plan in made)


def test_times_are_compared_with_those_of_before(small, monkeypatch):
    done = invoke("regress")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "nothing: first result of this card" in " ".join(done.output.split())
    first = record.read_json(small)
    assert first["results"]["of_before"] is None and first["settings"]["card"] == "NVIDIA H200"
    assert len(first["results"]["shapes"]) >= 50 and all(told.verdicts(first))
    again = payload("regress", only="values")
    assert again["results"]["of_before"] == {"calls": 4, "geometric_mean": 1.0, "most": 1.0, "reads": 1.0}
    assert again["settings"]["against"] == small.name and again["results"]["regressed"] == []
    assert not any(path.name != small.name for path in small.parent.iterdir())

    monkeypatch.setattr(bench_host, "OTHER_US", OTHER_US * (1 + regress.MARGIN) + regress.MARGIN_US)
    assert invoke("regress", "--only", "values").exit_code == 0, "a margin is allowed"
    monkeypatch.setattr(bench_host, "OTHER_US", 2 * OTHER_US)
    done = invoke("regress", "--only", "windows", "--out", "new.json")
    assert done.exit_code == 1 and "512" not in done.stderr
    assert "8x4096, top 64, float32, causal, windows: 40.0 us for 20.0" in " ".join(done.stderr.split())
    for case in record.read_json("new.json")["results"]["shapes"]:
        assert case["selectors"]["ksieve"]["of_before"] == 2.0
    assert invoke("regress", "--only", "windows", "--against", "new.json").exit_code == 0
    assert record.read_json(small) == first


def test_a_slow_call_is_timed_again(small, monkeypatch):
    assert invoke("regress", "--only", "by index", "--out", "old.json").exit_code == 0
    own, asked = bench_host.measure, []

    def measure(contenders, *settings, **more):
        found = own(contenders, *settings, **more)
        asked.append([timing.name for timing in found])
        if len(asked) == 1:
            found[-1].rounds = [99.0]
        return found

    monkeypatch.setattr(timing, "measure", measure)
    results = payload("regress", only="by index", against="old.json")["results"]
    assert len(asked) == 2 and results["regressed"] == []
    assert results["shapes"][0]["selectors"]["ksieve"]["median_us"] == OTHER_US
    monkeypatch.setattr(api, "select", lambda *_, out, **__: out.fill_(len(asked)))
    monkeypatch.setattr(bench_host, "OTHER_US", 99.0)
    assert (
        payload("regress", only="by index", against="old.json")["results"]["shapes"][0]["selectors"]["ksieve"]["exact"]
        is False
    )


@pytest.mark.parametrize(("change", "words"), [
    ({"bench": "gpu"}, "a result of this bench"), ({"settings": {"card": "NVIDIA A100"}}, "a result of NVIDIA H200"),
    ({"schema": 0}, "a result file"),
])  # fmt: skip
def test_other_results_are_not_compared_with(small, change, words):
    assert invoke("regress", "--only", "descending", "--out", "old.json").exit_code == 0
    Path("old.json").write_text(json.dumps(record.read_json("old.json") | change))
    with pytest.raises(ArgumentError, match=words):
        payload("regress", only="descending", against="old.json")
