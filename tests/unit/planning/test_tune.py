"""`ksieve tune` without a GPU: what is asked and tried, and how winners become a file that the planner uses."""

from __future__ import annotations

import itertools
import json
import os

import pytest
from typer.testing import CliRunner

import ksieve
from bench_host import H200, OWN_US, host  # noqa: F401
from ksieve.backends.cuda.jit import cache
from ksieve.backends.cuda.jit.compile import Cubin
from ksieve.backends.cuda.jit.spec import kernel_spec
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.planning import shapes, tuned
from ksieve.planning.families import RESIDENT
from ksieve.tuning import run as tune
from ksieve.tuning import table as tune_table
from ksieve.tuning import tasks
from ksieve.tuning.variants import PLANNED, Variant

H100 = DEVICES["h100"]


def invoke_app(*arguments):
    from ksieve_lab.cli.app import app

    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


TARGET = tune.Target(H100)
NAMES = ("h100", "h20", "b200", "rtx5090")


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv(tuned.VARIABLE, "off")
    tuned._shapes_of.cache_clear()
    yield
    tuned._shapes_of.cache_clear()


@pytest.mark.extended
@pytest.mark.parametrize(("name", "dtype"), [*((name, "float32") for name in NAMES), ("h100", "bfloat16")])
def test_questions_and_candidates_fit_the_device(name, dtype):
    target = tune.Target(DEVICES[name], dtype)
    asked = tune.questions(target)
    assert len(asked) == len(set(asked)) <= 400
    kernels, answers = set(), 0
    for question in asked:
        rows, width, k = question
        assert k == min(2048, width // 2)
        found = tune.candidates(rows, width, target)
        assert len({variant.name for variant in found}) == len(found) <= 50
        for variant in found:
            plan = tune.planned(variant, question, target)
            if plan is None:
                continue
            answers += 1
            kernels.add(kernel_spec(plan))
            assert plan.family == variant.family
            if variant.geometry:
                asked_for = dict(variant.geometry)
                own = tune_table.shape_of(variant.name, width)
                per_row = own.pop("ctas_per_row", plan.splits)
                assert per_row == plan.splits
                for field, value in own.items():
                    assert value == getattr(plan, field) == asked_for[field], (variant, field)
            elif variant.policy:
                assert (plan.policy.name, plan.splits) == (variant.policy, 1)
    assert 60 <= len(kernels) <= 500
    assert answers <= 7000, "0.033 s each on an H100: under four minutes"


@pytest.mark.extended
def test_every_kind_of_question_is_answered_by_its_own_candidates():
    target = tune.Target(H100)

    def names(rows, width):
        return {variant.name for variant in tune.candidates(rows, width, target)}

    assert {f"stream {policy}" for policy in tune.POLICIES} <= names(528, 131_072)
    assert {"stream 512x2 s6", "stream 256x4 s4", "stream 1024x1 s8"} <= names(132, 131_072)
    assert {"stream_split x16", "stream_split 1024x1 x16 s8"} <= names(8, 1_048_576)
    assert "stream_split x16" in names(8, 2_097_152) and "stream_split 1024x1 x16 s8" not in names(8, 2_097_152)
    few = {name.partition(" ")[0] for variant in tune.questions(target) for name in names(*variant[:2])}
    assert few == {"stream", "stream_split", *RESIDENT}
    half = tune.Target(H100, "bfloat16")
    assert tune.questions(half) == tune.questions(target)
    found = [v for rows, width, _ in tune.questions(half) for v in tune.candidates(rows, width, half)]
    assert {v.family for v in found} == {"stream", "stream_split", *RESIDENT}
    resident = [dict(v.geometry) for v in found if v.family in RESIDENT]
    assert all(g["resident_width"] % (8 * g["threads"] * g["ctas_per_row"]) == 0 for g in resident)


def test_every_shipped_shape_that_a_question_reaches_is_a_candidate():
    missing = []
    for family, listed in shapes.of(H100).resident.items():
        for shape in listed:
            widths = tune.SHARED_WIDTHS if "block" not in family else tune.ONE_CTA_WIDTHS
            if shape.resident_width not in widths or shape.plain:
                continue
            rows = 1 if shape.ctas_per_row > 1 else 132
            names = [v.name for v in tune.candidates(rows, shape.resident_width, TARGET) if v.family == family]
            share = f" x{shape.ctas_per_row}" if shape.ctas_per_row > 1 else ""
            if not any(name.startswith(f"{family} {shape.threads}x{shape.ctas_per_sm}{share}") for name in names):
                missing.append((family, shape))
    assert missing == []


RESULTS = {
    "132x16384k2048": {"us": {"register_block 512x1": 6.0, "resident_block 512x2": 7.0, "stream": 12.0}, "choice": 6.2},
    "264x16384k2048": {"us": {"register_block 512x1": 9.0, "resident_block 512x2": 8.0, "stream": 13.0}, "choice": 8.0},
    "528x16384k2048": {
        "us": {"resident_block 512x2": 14.1, "resident_block 256x3": 14.0, "stream": 20.0},
        "choice": 14.0,
    },
    "2112x16384k2048": {
        "us": {"resident_block 512x2": 60.0, "resident_block 256x3": 50.0, "stream": 70.0},
        "choice": 50.0,
    },
    "1x131072k2048": {
        "us": {"resident_cluster 256x2 x16": 5.0, "resident_grid 512x1 x16": 6.0, "stream": 9.0},
        "choice": 5.0,
    },
    "8x131072k2048": {
        "us": {"resident_cluster 512x2 x8": 6.0, "resident_grid 512x1 x16": 5.0, "stream": 9.0},
        "choice": 6.0,
    },
    "16x131072k2048": {"us": {"stream_split": 7.0, "resident_cluster 512x2 x8": 8.0}, "choice": 8.0},
    "64x131072k2048": {"us": {}, "choice": None},
}
SHAPES = [name.partition("k")[0] for name in RESULTS]


def test_winners_become_entries_with_their_advantage():
    found = tune_table.table(RESULTS, TARGET)["resident"]
    kept = {family: tuple(e for e in entries if "us" not in e) for family, entries in found.items()}
    for family, listed in shapes.of(H100).resident.items():
        measured = (131_072,) if family in ("resident_cluster", "resident_grid") else (16_384,)
        others = [shape for shape in listed if shape.resident_width not in measured]
        assert [
            shapes.Geometry(**entry, registers=family == "register_block", source=shape.source)
            for entry, shape in zip(kept[family], others, strict=True)
        ] == others
    found = {family: tuple(e for e in entries if "us" in e) for family, entries in found.items()}
    assert found == {
        "register_block": ({"threads": 512, "ctas_per_sm": 1, "resident_width": 16_384, "most_rows": 132, "us": 6.0,
                            "beat": "resident_block 512x2", "by": 1.167},),
        "resident_block": (
            {"threads": 512, "ctas_per_sm": 2, "resident_width": 16_384, "most_rows": 528, "us": 14.1,
             "beat": "resident_block 256x3", "by": 0.993},  # within 2 %: no kernel of its own
            {"threads": 256, "ctas_per_sm": 3, "resident_width": 16_384, "us": 50.0,
             "beat": "resident_block 512x2", "by": 1.2},
        ),
        "resident_cluster": ({"threads": 256, "ctas_per_sm": 2, "resident_width": 131_072, "ctas_per_row": 16,
                              "most_rows": 7, "us": 5.0, "beat": "resident_grid 512x1 x16", "by": 1.2},),
        "resident_grid": ({"threads": 512, "ctas_per_sm": 1, "resident_width": 131_072, "ctas_per_row": 16,
                           "fewest_rows": 8, "most_rows": 8, "us": 5.0, "beat": "resident_cluster 512x2 x8",
                           "by": 1.2},),
    }  # fmt: skip


@pytest.fixture
def measured(monkeypatch):
    """A GPU that takes the times of `RESULTS`."""
    monkeypatch.setattr(tasks, "require_device", lambda: H100)
    monkeypatch.setattr(tune, "prepare", lambda shapes, *_: {shape: [] for shape in shapes})
    asked = []

    def run(options, target, done, *, keep, progress, **_):
        for shape in options:
            asked.append(shape)
            done[tune.name_of(shape)] = (RESULTS | STREAMED).get(tune.name_of(shape), {"us": {}, "choice": None})
            keep()

    monkeypatch.setattr(tune, "run", run)
    monkeypatch.setattr(tune_table, "without_spills", lambda found, *_: found)
    return asked


def test_the_command_writes_a_file_that_the_planner_then_uses(measured, tmp_path, monkeypatch):
    listed = ",".join(SHAPES)
    done = invoke_app("tune", "--shapes", listed)
    assert done.exit_code == 0, done.output
    path = tuned.default_path(H100)
    assert f"written: {path}" in done.stdout.replace("\n", "") and path.is_file()
    monkeypatch.delenv(tuned.VARIABLE)
    for rows, width, family, threads in (
        (100, 16_384, "register_block", 512), (500, 16_384, "resident_block", 512),
        (4096, 16_384, "resident_block", 256), (1, 131_072, "resident_cluster", 256),
        (8, 131_072, "resident_grid", 512),
    ):  # fmt: skip
        plan = ksieve.plan(rows=rows, width=width, k=512, device=H100)
        assert (plan.family, plan.threads) == (family, threads)
        assert f"tuned by {path.name}" in plan.reason
    about = json.loads(path.read_text())
    assert about["device"] == tuned.described(H100) and about["k"] == 2048 and about["date"]


@pytest.mark.extended
def test_quick_writes_nothing_and_says_what_it_would_gain(measured, tmp_path):
    done = invoke_app("tune", "--quick", "--shapes", ",".join(SHAPES))
    assert done.exit_code == 0, done.output
    assert "nothing is written" in done.stdout and not tuned.default_path(H100).exists()
    assert "3 have a launch shape that is over 3 % faster" in " ".join(done.stdout.split())


@pytest.mark.extended
def test_a_run_goes_on_where_it_stopped(measured, monkeypatch, tmp_path):
    names = SHAPES
    complete = tune.run

    def stops(options, target, done, **settings):
        complete(dict(itertools.islice(options.items(), 3)), target, done, **settings)

    monkeypatch.setattr(tune, "run", stops)
    assert invoke_app("tune", "--shapes", ",".join(names)).exit_code == 0
    assert len(measured) == 3
    monkeypatch.setattr(tune, "run", complete)
    done = invoke_app("tune", "--shapes", ",".join(names))
    assert "3 shapes are taken from" in done.stdout and len(measured) == len(names)
    assert invoke_app("tune", "--shapes", ",".join(names)).exit_code == 0 and len(measured) == len(names)
    again = invoke_app("tune", "--restart", "--shapes", ",".join(names))
    assert again.exit_code == 0 and len(measured) == 2 * len(names)


def test_wide_rows_of_a_small_k_are_still_streamed():
    results = {
        "2112x65536k2048": {"us": {"resident_block 512x1 +8": 200.0, "stream": 210.0}, "choice": 1.0},
        "264x65536k512": {"us": {"resident_block 512x1": 30.0, "stream": 21.0}, "choice": 1.0},  # of another k
    }
    (entry,) = (
        e for e in tune_table.table(results, TARGET)["resident"]["resident_block"] if e["resident_width"] == 65_536
    )
    (shipped,) = {s.most_rows for s in shapes.of(H100).resident["resident_block"] if s.resident_width == 65_536}
    assert entry["us"] == 200.0 and entry["most_rows"] == shipped > 0


def test_the_planner_s_own_shape_is_a_candidate_by_the_same_name():
    for rows, width in ((1, 131_072), (8, 1_048_576), (132, 4096), (132, 28_672), (528, 65_536), (2112, 16_384)):
        question = TARGET.asked(rows, width)
        name = tune.choice_of(question, TARGET)
        plan = PLANNED.plan(*question, "float32", H100)
        own = tune_table.shape_of(name, width)
        assert name.partition(" ")[0] == plan.family and own["resident_width"] == plan.resident_width >= width
        assert (own["threads"], own.get("ctas_per_row", plan.splits)) == (plan.threads, plan.splits)
        if " w" not in name:
            assert name in {variant.name for variant in tune.candidates(rows, width, TARGET)}
    assert tune.choice_of(TARGET.asked(528, 1_048_576), TARGET) == "", "a streamed plan is no launch shape alone"


def test_a_variant_is_planned_with_a_file(tmp_path, monkeypatch):
    path = tmp_path / "mine.json"
    about = {"device": tuned.described(H100), "dtype": "float32"}
    tuned.write(path, tuned.Tuned(about, tune_table.table(RESULTS, TARGET)))
    variant = Variant("tuned", shapes_file=str(path))
    asked = (8, 131_072, 512, "float32", H100)
    assert (variant.plan(*asked).family, PLANNED.plan(*asked).family) == ("resident_grid", "resident_cluster")
    assert os.environ[tuned.VARIABLE] == "off"


STREAMED = {
    "66x32768k2048": {"us": {"stream 256x4 s4": 7.0, "stream 1024x1 s8": 5.0}, "choice": None},
    "528x32768k2048": {"us": {"stream 256x4 s4": 50.0, "stream 1024x1 s8": 60.0}, "choice": None},
    "66x131072k2048": {"us": {"stream 256x4 s4": 17.0, "stream 1024x1 s8": 15.0, "stream_split x2": 20.0,
                               "stream": 18.0}, "choice": None},
    "528x131072k2048": {"us": {"stream 256x4 s4": 150.0, "stream 1024x1 s8": 160.0, "stream quads-16": 160.0,
                          "stream lines-16": 151.0, "stream lines-64": 150.0, "stream lines-128": 149.0},
                   "choice": None},
    "66x524288k2048": {"us": {"stream 512x2 s6": 60.0, "stream 1024x1 s8": 50.0}, "choice": None},
    "528x524288k2048": {"us": {"stream 512x2 s6": 600.0, "stream 1024x1 s8": 500.0}, "choice": None},
    "132x1048576k2048": {"us": {"stream lines-16": 180.0, "stream lines-64": 170.0, "stream lines-128": 150.0},
                    "choice": None},
    "528x1048576k2048": {"us": {"stream lines-16": 180.0, "stream lines-64": 150.0, "stream lines-128": 151.0},
                    "choice": None},
    "4x262144k2048": {"us": {"stream_split x32": 10.0, "stream": 40.0, "stream_split 1024x1 x32 s8": 9.0,
                        "stream_split 512x2 x32 s6": 9.5}, "choice": None},
    "16x262144k2048": {"us": {"stream_split x8": 30.0, "stream": 40.0, "stream_split 1024x1 x8 s8": 33.0,
                         "stream_split 512x2 x8 s6": 30.0}, "choice": None},
    "33x262144k2048": {"us": {"stream_split x4": 50.0, "stream": 40.0}, "choice": None},
    "66x262144k2048": {"us": {"stream_split x2": 35.0, "stream": 40.0}, "choice": None},
    "66x2097152k2048": {"us": {"stream_split x2": 350.0, "stream": 400.0}, "choice": None},
    "33x2097152k2048": {"us": {"stream_split x4": 350.0, "stream": 400.0}, "choice": None},
}  # fmt: skip


@pytest.mark.extended
def test_shapes_splits_and_strides_of_streamed_rows():
    found = tune_table.table(STREAMED, TARGET)
    assert found == {
        "streamed": {
            "stream": [  # those of 32,768 are those of 131,072 too
                {"threads": 1024, "ctas_per_sm": 1, "stages": 8, "most_rows": 66, "us": 15.0,
                 "beat": "stream 256x4 s4", "by": 1.133, "widest": 131_072},
                {"threads": 256, "ctas_per_sm": 4, "stages": 4, "us": 150.0, "beat": "stream 1024x1 s8", "by": 1.067,
                 "widest": 131_072},
                {"threads": 1024, "ctas_per_sm": 1, "stages": 8, "us": 500.0, "beat": "stream 512x2 s6", "by": 1.2},
            ],
            "stream_split": [
                {"threads": 512, "ctas_per_sm": 2, "stages": 6, "us": 16.88, "beat": "stream_split 1024x1 s8",
                 "by": 1.021},
            ],
        },
        "splits": [  # at 262,144 two CTAs a row won, and four did not: that is chance
            {"fewest": 8, "us": 30.0, "beat": "stream", "by": 1.333},
            {"fewest": 2, "narrowest": 2_097_152, "us": 350.0, "beat": "stream", "by": 1.143},
        ],
        "strides": [  # the densest that is as good as the best
            {"policy": "lines-16", "us": 151.0, "beat": "stream lines-128", "by": 0.987},
            {"policy": "lines-64", "ratio": 512, "us": 150.0, "beat": "stream lines-128", "by": 1.007},
            {"policy": "lines-128", "ratio": 512, "narrowest": 1_048_576, "most_rows": 132, "us": 150.0,
             "beat": "stream lines-64", "by": 1.133},
        ],
    }  # fmt: skip


def test_a_width_that_was_timed_in_part_has_no_streamed_shape():
    part = {"2112x262144k2048": {"us": {"stream 256x4 s4": 400.0, "stream 1024x1 s8": 500.0}}}
    whole = tune_table.table(STREAMED, TARGET)["streamed"]
    assert tune_table.table(STREAMED | part, TARGET)["streamed"] == whole
    more = {f"{rows}x32768k2048": STREAMED["528x32768k2048"] for rows in (330, 1056, 4224)}
    assert tune_table.table(STREAMED | more, TARGET)["streamed"] == whole, "further row counts make no width partial"
    (entry,) = tune_table.table(part, TARGET)["streamed"]["stream"]
    assert entry["threads"] == 256, "if nothing else was timed, it is what is known"


def test_the_shape_of_shared_rows_is_the_one_that_is_best_where_sharing_wins():
    small, large = "stream_split 512x1 x8 s8", "stream_split 1024x1 x8 s8"
    results = {
        "16x262144k2048": {"us": {small: 15.0, large: 20.0, "resident_cluster 512x1 x4": 10.0}},
        "16x1048576k2048": {"us": {small: 29.0, large: 28.0, "stream": 60.0}},
    }
    (entry,) = tune_table.table(results, TARGET)["streamed"]["stream_split"]
    assert entry == {"threads": 1024, "ctas_per_sm": 1, "stages": 8, "us": 28.0, "beat": "stream_split 512x1 s8",
                     "by": 1.036}  # fmt: skip


@pytest.mark.parametrize(("half", "full", "fewest"), [(33.0, 54.0, 2), (30.0, 54.0, 4), (33.0, 53.9, 4)])
def test_two_ctas_a_row_pay_if_they_gain_and_lose_nowhere_over_2_percent(half, full, fewest):
    results = {
        "17x524288k2048": {"us": {"stream_split x4": 20.0, "stream": 33.0}},
        "34x524288k2048": {"us": {"stream_split x2": 30.0, "stream": half}},
        "66x524288k2048": {"us": {"stream_split x2": 55.0, "stream": full}},
    }
    (entry,) = tune_table.table(results, TARGET)["splits"]
    assert entry["fewest"] == fewest


def test_a_shape_whose_kernel_for_options_spills_is_for_calls_without(monkeypatch):
    """512 threads spill with slots in order; then the next shape of the width is asked, which spills in no case."""
    entry = {"threads": 512, "ctas_per_sm": 2, "resident_width": 16_384}
    narrow = {"threads": 256, "ctas_per_sm": 3, "resident_width": 16_384}
    rounds = []

    def compile_plans(plans, progress):
        found = {kernel_spec(plan): plan for plan in plans}
        rounds.append(len(found))
        return {
            spec: Cubin(
                b"",
                f"0 bytes stack frame, {8 * (plan.threads == 512 and plan.problem.options.order == 'value')} bytes "
                "spill stores, 0 bytes spill loads, Used 32 registers",
            )
            for spec, plan in found.items()
        }

    monkeypatch.setattr(tune, "compile_plans", compile_plans)
    about = {"device": tuned.described(H100), "dtype": "float32"}
    parts = {"resident": {"resident_block": [entry, narrow]}}
    found = tune_table.without_spills(tuned.Tuned(about, parts), TARGET, lambda *_: None)
    assert found.parts == {"resident": {"resident_block": [entry | {"plain": True}, narrow]}} and len(rounds) == 2


def test_kernels_that_spill_or_do_not_compile_are_left_out(monkeypatch, caplog):
    seen = []

    def compile_all(specs):
        for number, spec in enumerate(specs):
            made = Cubin(
                b"",
                f"0 bytes stack frame, {4 * (number == 1)} bytes spill stores, 0 bytes spill loads, Used 32 registers",
            )
            yield spec, BackendError("no such instruction") if number == 2 else (made, True)

    monkeypatch.setattr(cache, "compile_all", compile_all)
    question = (528, 131_072, 2048)
    found = tune.prepare([question], TARGET, lambda done, of: seen.append((done, of)))
    every = [v.name for v in tune.candidates(*question[:2], TARGET) if tune.planned(v, question, TARGET)]
    assert 0 < len(found[question]) < len(every) and seen[-1][0] == seen[-1][1] == len(seen)
    assert "left out: no such instruction" in caplog.text


def test_a_question_is_timed_and_its_answers_are_verified(host):  # noqa: F811
    assert tune._times((8, 4096, 64), [], "float32", 1, H200) == {"ksieve": OWN_US}


def test_the_shapes_of_a_trace_are_tuned(measured, tmp_path):
    trace = tmp_path / "mine.json"
    calls = [{"rows": rows, "width": 131_072} for rows in (1, 8, 8, 16)]
    trace.write_text(json.dumps({"ksieve_trace": 1, "k": 777, "calls": calls}))
    done = invoke_app("tune", "--quick", "--of", str(trace))
    assert done.exit_code == 0 and measured == [(8, 131_072, 777), (1, 131_072, 777), (16, 131_072, 777)]
    with pytest.raises(ArgumentError, match="--of: got --shapes too; takes one of the two"):
        invoke_app("tune", "--of", str(trace), "--shapes", "1x4096")


@pytest.mark.extended
def test_a_dtype_has_a_file_of_its_own(measured, monkeypatch):
    done = invoke_app("tune", "--dtype", "bfloat16", "--shapes", "132x1048576,528x1048576")
    assert done.exit_code == 0, done.output
    path = tuned.default_path(H100, "bfloat16")
    assert path.name == "nvidia-h100-80gb-hbm3-bfloat16.json" and json.loads(path.read_text())["dtype"] == "bfloat16"
    assert not tuned.default_path(H100).exists()
    monkeypatch.delenv(tuned.VARIABLE)
    policies = [
        ksieve.plan(rows=132, width=1_048_576, k=2048, dtype=dtype, device=H100).policy.name
        for dtype in ("bfloat16", "float16")
    ]
    assert policies == ["lines-128", "lines-128"]
