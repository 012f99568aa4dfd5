"""`ksieve tune` without a GPU: what is asked and tried, and how winners become a file that the planner uses."""

from __future__ import annotations

import itertools
import json
import os

import pytest
from typer.testing import CliRunner

import ksieve
from ksieve.backends.cuda.jit.spec import kernel_spec
from ksieve.lab import tune
from ksieve.lab.bench import gpu
from ksieve.lab.bench.variants import PLANNED, variants_of
from ksieve.planning import shapes, tuned
from ksieve.planning.devices import DEVICES

H100 = DEVICES["h100"]


def invoke_app(*arguments):
    from ksieve.lab.cli.app import app

    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


NAMES = ("h100", "h20", "b200", "rtx5090")


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv(tuned.VARIABLE, "off")
    for cached in (tuned.find, tuned._shapes_of):
        cached.cache_clear()
    yield
    for cached in (tuned.find, tuned._shapes_of):
        cached.cache_clear()


@pytest.mark.parametrize("name", NAMES)
def test_questions_and_candidates_fit_the_device(name):
    device = DEVICES[name]
    asked = tune.questions(device)
    assert len(asked) == len(set(asked)) <= 190
    kernels = set()
    for rows, width in asked:
        found = tune.candidates(rows, width, device)
        assert len({variant.name for variant in found}) == len(found) <= 40
        for variant in found:
            plan = tune.planned(variant, (rows, width), 2048, device)
            if plan is None:
                continue
            kernels.add(kernel_spec(plan))
            assert plan.family == variant.family
            if variant.geometry:
                asked_for = dict(variant.geometry)
                assert (plan.resident_width, plan.overflow_vectors) == (
                    asked_for["resident_width"], asked_for["overflow_vectors"]
                ), variant  # fmt: skip
                assert tune._shape_of(variant.name, plan.resident_width).items() <= asked_for.items()
    assert 60 <= len(kernels) <= 290


def test_every_shipped_shape_that_a_question_reaches_is_a_candidate():
    missing = []
    for family, listed in shapes.of(H100).resident.items():
        for shape in listed:
            widths = tune.SHARED_WIDTHS if "block" not in family else tune.ONE_CTA_WIDTHS
            if shape.resident_width not in widths or shape.plain:
                continue
            rows = 1 if shape.ctas_per_row > 1 else 132
            names = [v.name for v in tune.candidates(rows, shape.resident_width, H100) if v.family == family]
            share = f" x{shape.ctas_per_row}" if shape.ctas_per_row > 1 else ""
            if not any(name.startswith(f"{family} {shape.threads}x{shape.ctas_per_sm}{share}") for name in names):
                missing.append((family, shape))
    assert missing == []


RESULTS = {
    "132x16384": {"us": {"register_block 512x1": 6.0, "resident_block 512x2": 7.0, "stream": 12.0}, "choice": 6.2},
    "264x16384": {"us": {"register_block 512x1": 9.0, "resident_block 512x2": 8.0, "stream": 13.0}, "choice": 8.0},
    "528x16384": {"us": {"resident_block 512x2": 14.1, "resident_block 256x3": 14.0, "stream": 20.0}, "choice": 14.0},
    "2112x16384": {"us": {"resident_block 512x2": 60.0, "resident_block 256x3": 50.0, "stream": 70.0}, "choice": 50.0},
    "1x131072": {
        "us": {"resident_cluster 256x2 x16": 5.0, "resident_grid 512x1 x16": 6.0, "stream": 9.0},
        "choice": 5.0,
    },
    "8x131072": {
        "us": {"resident_cluster 512x2 x8": 6.0, "resident_grid 512x1 x16": 5.0, "stream": 9.0},
        "choice": 6.0,
    },
    "16x131072": {"us": {"stream_split": 7.0, "resident_cluster 512x2 x8": 8.0}, "choice": 8.0},
    "64x131072": {"us": {}, "choice": None},
}


def test_winners_become_entries_with_their_advantage():
    found = tune.table(RESULTS, H100)
    kept = {family: tuple(e for e in entries if "us" not in e) for family, entries in found.items()}
    for family, listed in shapes.of(H100).resident.items():
        measured = (131_072,) if family in ("resident_cluster", "resident_grid") else (16_384,)
        others = [shape for shape in listed if shape.resident_width not in measured]
        assert [
            tuned.geometry_of(family, entry, shape.source) for entry, shape in zip(kept[family], others, strict=True)
        ] == others
    found = {family: tuple(e for e in entries if "us" in e) for family, entries in found.items()}
    assert found == {
        "register_block": ({"threads": 512, "ctas_per_sm": 1, "resident_width": 16_384, "most_rows": 132, "us": 6.0,
                            "beat": "resident_block 512x2", "by": 1.167},),
        "resident_block": (
            {"threads": 512, "ctas_per_sm": 2, "resident_width": 16_384, "most_rows": 528, "us": 14.1,
             "beat": "resident_block 256x3", "by": 0.993},  # within 1.5 %: no kernel of its own
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
    monkeypatch.setattr(gpu, "require_device", lambda: H100)
    monkeypatch.setattr(tune, "prepare", lambda shapes, *_: {shape: [] for shape in shapes})
    asked = []

    def run(options, k, done, *, keep, progress, **_):
        for shape in options:
            asked.append(shape)
            done[tune.name_of(shape)] = RESULTS.get(tune.name_of(shape), {"us": {}, "choice": None})
            keep()

    monkeypatch.setattr(tune, "run", run)
    return asked


def test_the_command_writes_a_file_that_the_planner_then_uses(measured, tmp_path, monkeypatch):
    listed = ",".join(RESULTS)
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


def test_quick_writes_nothing_and_says_what_it_would_gain(measured, tmp_path):
    done = invoke_app("tune", "--quick", "--shapes", ",".join(RESULTS))
    assert done.exit_code == 0, done.output
    assert "nothing is written" in done.stdout and not tuned.default_path(H100).exists()
    assert "3 have a launch shape that is over 3 % faster" in " ".join(done.stdout.split())


def test_a_run_goes_on_where_it_stopped(measured, monkeypatch, tmp_path):
    names = list(RESULTS)
    complete = tune.run

    def stops(options, k, done, **settings):
        complete(dict(itertools.islice(options.items(), 3)), k, done, **settings)

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
    """One k is measured; the limit on rows of a small k is that of the shipped shapes."""
    found = tune.table({"2112x65536": {"us": {"resident_block 512x1 +6": 200.0, "stream": 210.0}, "choice": 1.0}}, H100)
    (entry,) = (e for e in found["resident_block"] if e["resident_width"] == 65_536)
    assert entry["most_rows"] == 511 and entry["us"] == 200.0


def test_a_variant_is_planned_with_a_file(tmp_path, monkeypatch):
    path = tmp_path / "mine.json"
    tuned.write(path, tuned.Tuned({"device": tuned.described(H100), "dtype": "float32"}, tune.table(RESULTS, H100)))
    (variant,) = variants_of([], [], json.dumps([{"name": "tuned", "tuned": str(path)}]))
    asked = (8, 131_072, 512, "float32", H100)
    assert (variant.plan(*asked).family, PLANNED.plan(*asked).family) == ("resident_grid", "resident_cluster")
    assert os.environ[tuned.VARIABLE] == "off"
