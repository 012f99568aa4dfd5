"""The bench of the engines' operators: on fakes of the engines and on the CPU, and its pages; first calls too."""

from __future__ import annotations

import functools
import importlib
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench_engines import K, bench, fakes, host, measured  # noqa: E402
from bench_host import ENVIRONMENT, OTHER_US, OWN_US, invoke, payload  # noqa: E402
from ksieve.adapters._operators import OPERATORS  # noqa: E402
from ksieve.adapters._tally import TALLY  # noqa: E402
from ksieve.cli import exits  # noqa: E402
from ksieve.core.errors import ArgumentError, BackendError  # noqa: E402
from ksieve.tuning import timing  # noqa: E402
from ksieve_lab.bench import engine_calls, engine_switch, engines, first_calls, record, startup  # noqa: E402
from ksieve_lab.report import specs, tables  # noqa: E402
from ksieve_lab.report.specs import engines as engine_pages  # noqa: E402

__all__ = ["bench", "fakes", "host"]

DEEP = [name for name in engine_switch.names_of(["sglang"]) if "deep_select.topk" in name]


def page_of(*files):
    """What the terminal shows of engines, as Markdown."""
    for file in files:
        tables.judge(engine_pages.MEASURED, file)
    return "\n\n".join(tables.render(table, files) for table in engine_pages.MEASURED.tables)


def test_every_operator_has_a_call_or_a_reason():
    adapters = {operator.adapter for listed in OPERATORS.values() for operator in listed}
    assert adapters == set(engine_calls.CALLS) | set(engine_calls.NOT_TIMED)
    assert not set(engine_calls.CALLS) & set(engine_calls.NOT_TIMED)


def test_all_engines(bench, tmp_path):
    done, payload = measured(tmp_path)
    assert done.exit_code == 0, done.output
    found = payload["results"]
    cases = {(case["operator"], case["dtype"]): case for case in found["shapes"]}
    for (name, _), case in cases.items():
        if "skipped" in case:
            assert case["skipped"] == "it takes k of 2048, not 512" and ".fast_topk" in name
            continue
        own, ours = (case["selectors"][side] for side in (engines.BEFORE, engines.AFTER))
        assert own["exact"] is True and ours["exact"] is True, case
        assert own["median_us"] == OTHER_US and ours["median_us"] == OWN_US
        assert case["times_faster"] == OTHER_US / OWN_US and ours["family"] and case["k"] == K
    every = {o.name for engine in engine_switch.ENGINES for o in OPERATORS[engine]}
    assert {name for name, _ in cases} | set(found["absent"]) == every
    assert {name for name, why in found["absent"].items() if "this version" in why} == {
        "torch.ops._C.cooperative_topk",
        *(name for name in every if "_512" in name),
    }
    deep = "sglang.kernels.ops.attention.deep_select.topk"
    assert (deep, "bfloat16") in cases and ("torch.ops._C.top_k_per_row_decode", "bfloat16") not in cases
    hosts = {each["operator"]: each for each in found["host"]}
    assert set(hosts) == {name for name, _ in cases}
    timed = [each for each in hosts.values() if "skipped" not in each]
    assert {each["operator"] for each in timed} == {c["operator"] for c in found["shapes"] if "skipped" not in c}
    assert all(each[side]["median_us"] > 0 for each in timed for side in (engines.BEFORE, engines.AFTER))
    assert "1.60" in done.output
    deep_select = importlib.import_module("sglang.kernels.ops.attention.deep_select")
    assert deep_select.topk(torch.zeros(1, 8), 2)[1].shape == (1, 2) and bench.CALLS[-1] == "deep_select", "put back"
    assert specs.figures_of(payload) == []


def test_both_sides_are_called(bench, tmp_path):
    done, _ = measured(tmp_path, "--peers", "sglang", "--only", "ragged_v2")
    assert done.exit_code == 0, done.output
    assert bench.CALLS.count("ragged") >= 3, "the engine's own in its rounds"
    assert sum(each.count for each in TALLY.report().calls) >= 3 and not TALLY.fallbacks


def test_a_wrong_answer_of_the_engine_is_no_comparison(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "WRONG", [True])
    done, payload = measured(
        tmp_path, "--peers", "sglang", "--only", "deep_select.topk; ragged_v2", "--dtype", "float32"
    )
    assert done.exit_code == 0, done.output
    for case in payload["results"]["shapes"]:
        own, ours = (case["selectors"][side] for side in (engines.BEFORE, engines.AFTER))
        assert own["exact"] is False and ours["exact"] is True and "times_faster" not in case
    page = page_of(tables.File("gpu-engines", payload))
    assert (
        "`sglang.topk`, 3 x 4,096, float32 | its own answer is not exact |" in page
        and "divided by ksieve's" not in page
    )


def test_errors_in_result_files_have_no_folders(bench, tmp_path, monkeypatch):
    where = "no /usr/local/bin/nvcc in '/root/.cache/a b/x.cu', 1/2 of it\nmore"
    assert engine_calls.line(OSError(where)) == "OSError: no nvcc in 'a b/x.cu', 1/2 of it"

    def fail(*_, **__):
        raise RuntimeError(where)

    monkeypatch.setattr(bench, "best", fail)
    _, payload = measured(tmp_path, "--peers", "sglang", "--only", "ragged_v2", "--dtype", "float32")
    for case in payload["results"]["shapes"]:
        own, ours = (case["selectors"][side] for side in (engines.BEFORE, engines.AFTER))
        assert "no nvcc in" in own["error"] and "/usr" not in own["error"] and ours["exact"] is True
    page = page_of(tables.File("a", payload))
    assert "without a time" in page and "divided by ksieve's" not in page


def test_a_refused_call_is_not_measured_as_ours(bench, tmp_path, monkeypatch):
    module = importlib.import_module("ksieve.adapters.sglang")

    @functools.wraps(module.topk)
    def refuse(*_, **__):
        raise ArgumentError("topk", 1, "no")

    monkeypatch.setattr(module, "topk", refuse)
    monkeypatch.setattr(engines, "prepare", lambda *_: None)
    monkeypatch.setattr(engines, "_plan", refuse)
    done, payload = measured(tmp_path, "--peers", "sglang", "--only", "deep_select.topk", "--dtype", "float32")
    assert done.exit_code != 0
    case, cost = (
        next(found for found in payload["results"][kind] if found["operator"].endswith(".topk"))
        for kind in ("shapes", "host")
    )
    assert "ksieve does not serve the call" in case["selectors"][engines.AFTER]["error"]
    assert "ksieve does not serve the call" in cost[engines.AFTER]["error"] and cost[engines.BEFORE]["median_us"] > 0
    with pytest.raises(tables.InexactError, match="no exact answer"):
        page_of(tables.File("a", payload))
    with engine_switch.installed(["sglang"], DEEP) as (operators, _, _):
        monkeypatch.setattr(bench, "best", refuse)
        for name, error in ((engines.BEFORE, ArgumentError), (engines.AFTER, BackendError)):
            made = engines._small(operators[-1], "float32", K)
            with pytest.raises(error):
                engines._call(name, operators[-1], made.matrix, operators[-1].call.arguments(made))


def test_engines_that_are_not_there(host, tmp_path):
    for engine in ("flashinfer", "tensorrt_llm"):
        done = invoke("engines", "--peers", engine)
        assert isinstance(done.exception, BackendError) and f"no module {engine}" in str(done.exception)
    done = invoke("engines", "--peers", "tensorrt_llm", "--only", "nothing")
    assert isinstance(done.exception, ArgumentError) and done.exception.argument == "--only"


# ---- first calls ------------------------------------------------------------------------------------------------


def test_a_process_measures_its_first_call(capsys):
    first_calls.child(json.dumps({"adapter": "sglang.topk", "rows": 2, "width": 4096, "k": 64, "dtype": "float32"}))
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"] > 0 and found["again_seconds"] > 0 and found["compiled"] == 0


@pytest.fixture
def interpreters(monkeypatch):
    """Stands in for interpreters, which know which caches and bundles hold kernels; yields what was asked of them."""
    built, calls = set(), []

    def fresh(*arguments, seconds, **variables):
        calls.append((arguments, variables))
        cache, bundle = variables["KSIEVE_CACHE_DIR"], variables["KSIEVE_BUNDLE"]
        if "build" in arguments:
            new = cache not in built
            built.update((cache, arguments[arguments.index("--bundle") + 1]))
            return {"kernels": [{}, {}], "compiled": 2 * new}
        assert not list(Path(cache).glob("*")) if Path(cache).exists() else cache.endswith("built")
        if json.loads(arguments[2])["adapter"] == "sglang.topk" and bundle:
            raise BackendError("the process took more than 60 s")
        compiled = int(cache not in built and bundle not in built)
        return {"seconds": 5.0 if compiled else 0.01, "again_seconds": 1e-5, "compiled": compiled}

    monkeypatch.setattr(first_calls, "fresh", fresh)
    return calls


def test_first_calls_and_their_page(host, interpreters, tmp_path):
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    done = invoke("engines-first", "--out", folder)
    assert done.exit_code == 0, done.output
    payload = record.read_json(folder / "gpu-engines-first.json")
    assert not (folder / "gpu-engines.json").exists(), "where the operators' times are"
    found = payload["results"]["first_calls"]
    assert len(found["calls"]) == len(first_calls.FIRSTS)
    for call in found["calls"]:
        assert call[first_calls.EMPTY]["compiled"] == 1 and call[first_calls.BUILT]["compiled"] == 0
        assert ("error" in call[first_calls.BUNDLE]) == (call["adapter"] == "sglang.topk")
    assert [(said["engine"], said["compiled"]) for said in found["builds"]] == [
        ("vllm", 2), ("sglang", 0), ("flashinfer", 0),
    ]  # fmt: skip
    build = next(arguments for arguments, _ in interpreters if "build" in arguments)
    assert build[:12] == (
        "-m", "ksieve", "build", "--for", "vllm", "--dtype", "float32", "--k", "2048", "--max-rows", "2048",
        "--max-width",
    ) and build[12:14] == ("131072", "--bundle")  # fmt: skip
    caches = [variables["KSIEVE_CACHE_DIR"] for _, variables in interpreters]
    assert len({cache for cache in caches if not cache.endswith("built")}) == 2 * len(first_calls.FIRSTS)
    page = page_of(*tables.read(folder))
    assert "| `sglang.topk` | 16 x 131,072 | 5.000 (1) | 0.010 (0) | failed | 10 |" in page
    assert "`ksieve build --for vllm` up to 2,048 x 131,072: 2 kernels, 2 of them compiled, in 0 s on" in page


def test_first_calls_that_are_interrupted_keep_what_is_known(host, interpreters, monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(first_calls, "_build", interrupted)
    assert invoke("engines-first", "--out", tmp_path).exit_code
    found = record.read_json(tmp_path / "gpu-engines-first.json")["results"]["first_calls"]
    for call in found["calls"]:
        assert call[first_calls.EMPTY]["seconds"] == 5.0 and call[first_calls.BUILT] == {"error": "not measured"}
    assert "| 5.000 (1) | failed | failed |  |" in page_of(*tables.read(tmp_path))


def test_a_build_that_fails_leaves_its_error(host, monkeypatch):
    def failed(*_, **__):
        raise BackendError("the process failed: no compiler")

    monkeypatch.setattr(first_calls, "fresh", failed)
    found = payload("engines-first", only="per_row_decode")["results"]["first_calls"]
    assert found["calls"][0][first_calls.BUILT] == {"error": "the process failed: no compiler"}
    assert engine_pages.built(found["builds"][0]).endswith("up to 16 x 131,072: the process failed: no compiler")


def test_a_process_says_what_it_found_or_why_not():
    assert startup.fresh("-c", "import os; print(os.environ['A'])", A="[7]") == [7]
    for code, seconds, why in (
        ("import sys; sys.exit('no such luck in /usr/lib/x.so')", 60, "process failed: no such luck in x.so"),
        ("print('x')", 60, "printed no JSON"),
        ("import time; time.sleep(60)", 0.1, "took more than 0.1 s"),
    ):
        with pytest.raises(BackendError, match=why):
            startup.fresh("-c", code, seconds=seconds)


def test_pages_of_engines(bench, tmp_path):
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    done, payload = measured(folder, "--peers", "sglang", "--shapes", "2x4096,3x8192")
    assert done.exit_code == 0, done.output
    assert payload["environment"] == ENVIRONMENT
    page = page_of(*tables.read(folder))
    assert "| SGLang | `topk_transform_ragged_v2` | float32 | 1.60 | 1.60 |" in page
    assert "| SGLang | `topk` | bfloat16 |" in page and "| FlashInfer | `top_k_page_table_transform` |" in page
    assert "| `sglang.fast_topk_v2`, 2 x 4,096, float32 | it takes k of 2048, not 512 |" in page
    guide = engine_pages.gained(tables.read(folder))
    assert "| SGLang | `topk` | bfloat16 | 1.60 | 1.60 |" in guide


# ---- calls that lose the GPU context ------------------------------------------------------------------------


@pytest.fixture
def device(bench, monkeypatch):
    """A GPU that a call of a `fault` takes down."""
    state = {"lost": False, "fault": lambda name, rows: False}
    best, topk = bench.best, importlib.import_module("ksieve.adapters.sglang").topk

    def call(name, rows, function, *args, **kwargs):
        if rows != 2 and (state["lost"] or state["fault"](name, rows)):  # plans ask with 2 rows, without a GPU
            state["lost"] = True
            raise RuntimeError("CUDA error: operation not supported on global/shared address space\nmore")
        return function(*args, **kwargs)

    @functools.wraps(topk)  # the switch asks for its signature
    def ours(scores, *args, **kwargs):
        return call("ours", len(scores), topk, scores, *args, **kwargs)

    monkeypatch.setattr(bench, "best", lambda name, scores, *a: call(name, len(scores), best, name, scores, *a))
    monkeypatch.setattr("ksieve.adapters.sglang.topk", ours)
    monkeypatch.setattr(timing, "context_lost", lambda: state["lost"])
    monkeypatch.setattr(engines, "prepare", lambda *_: None)
    return state


SOME = ("--peers", "sglang", "--only", "ragged_v2", "--dtype", "float32")
RAGGED = "sglang.kernels.ops.attention.dsv4.topk.topk_transform_ragged_v2"
KPOOL = "sglang.kernels.ops.attention.dsv4.topk.topk_transform_kpool_ragged_v2"
CALL, ERROR = f"{RAGGED} 5 x 4096 float32", "operation not supported on global/shared address space"


def test_an_engine_s_fault_ends_the_measurement(device, tmp_path):
    device["fault"] = lambda name, rows: name == "ragged" and rows == 5
    done, payload = measured(tmp_path, *SOME, "--shapes", "3x4096,5x4096,6x4096")
    assert done.exit_code == exits.Exit.ERROR
    found = payload["results"]
    assert [(lost["call"], lost["by"]) for lost in found["lost"]] == [(CALL, engines.BEFORE)]
    assert ERROR in found["lost"][0]["error"] and "more" not in found["lost"][0]["error"]
    cases = {(case["operator"], case["rows"]): case for case in found["shapes"]}
    assert set(cases) == {(name, rows) for name in (RAGGED, KPOOL) for rows in (3, 5, 6)}
    before = list(cases)[: list(cases).index((RAGGED, 5))]
    assert {(RAGGED, 3), (KPOOL, 3)} <= set(before)
    assert {key for key, case in cases.items() if "times_faster" in case} == set(before)
    assert cases[RAGGED, 5]["lost_by"] == engines.BEFORE and ERROR in cases[RAGGED, 5]["skipped"]
    assert cases[RAGGED, 6]["skipped"] == f"not measured: the GPU context was lost by {CALL}"
    assert len(found["host"]) == 2 and all("lost by" in host["skipped"] for host in found["host"])
    said = " ".join(done.stderr.split())
    assert f"the GPU context was lost by the engine's own operator in {CALL}" in said and f"--only '!{CALL}'" in said


def test_what_is_known_to_fail_comes_last(device, tmp_path, monkeypatch):
    device["fault"] = lambda name, rows: name == "ragged" and rows == 5
    monkeypatch.setattr(engines, "LAST", (CALL,))
    done, payload = measured(tmp_path, *SOME, "--shapes", "3x4096,5x4096,6x4096")
    assert done.exit_code == exits.Exit.ERROR
    found = payload["results"]
    assert [lost["call"] for lost in found["lost"]] == [CALL]
    untimed = [(case["operator"], case["rows"]) for case in found["shapes"] if "times_faster" not in case]
    assert untimed == [(RAGGED, 5)] and ERROR in found["shapes"][-1]["skipped"]
    assert all(host[engines.AFTER]["median_us"] > 0 for host in found["host"])
    page = page_of(tables.File("a", payload))
    assert "`sglang.topk_transform_ragged_v2`, 5 x 4,096, float32 | the engine's own: RuntimeError: CUDA error" in page


def test_a_call_can_be_left_out(device, tmp_path):
    device["fault"] = lambda name, rows: name == "ragged" and rows == 5
    done, payload = measured(tmp_path, *SOME, "--only", f"ragged_v2; !{CALL}", "--shapes", "3x4096,5x4096")
    assert done.exit_code == 0, done.output
    assert {(case["operator"], case["rows"]) for case in payload["results"]["shapes"]} == {
        (RAGGED, 3), (KPOOL, 3), (KPOOL, 5),
    }  # fmt: skip


def test_a_fault_of_ksieve_is_not_the_engine_s(device, tmp_path):
    device["fault"] = lambda name, rows: name == "ours" and rows == 5
    done, payload = measured(tmp_path, "--peers", "sglang", "--only", "deep_select.topk", "--shapes", "3x4096,5x4096")
    assert done.exit_code == exits.Exit.ERROR
    found = payload["results"]
    assert {lost["by"] for lost in found["lost"]} == {engines.AFTER}
    case = next(case for case in found["shapes"] if case["rows"] == 5 and "lost_by" in case)
    assert "not supported" in case["selectors"][engines.AFTER]["error"] and "skipped" not in case
    with pytest.raises(tables.InexactError):
        page_of(tables.File("a", payload))


def test_a_fault_of_the_host_s_part(device, tmp_path, monkeypatch):
    device["fault"] = lambda name, rows: name == "ragged" and rows == engines.HOST_ROWS
    monkeypatch.setattr(engines, "LAST", (f"{RAGGED} 4 x 4096 float32 host",))
    _, payload = measured(tmp_path, *SOME)
    found = payload["results"]
    assert [lost["call"] for lost in found["lost"]] == [f"{RAGGED} 4 x 4096 float32 host"]
    assert all("times_faster" in case for case in found["shapes"])
    assert [host["operator"] for host in found["host"] if engines.AFTER in host] == [KPOOL]


def test_a_first_call_that_takes_the_gpu_down_is_an_error(device, tmp_path):
    device["lost"] = True
    done = invoke("engines", *SOME, "--out", tmp_path)
    assert done.exit_code != 0 and "lost the GPU context: choose others with --only" in str(done.exception)
