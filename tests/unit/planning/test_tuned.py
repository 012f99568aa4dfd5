"""Files of measured launch shapes: used as a whole, or refused by name and never half."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest

import ksieve
from flat_calls import plan_of
from ksieve.core.arrays import Device
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError
from ksieve.core.problem import Problem
from ksieve.planning import explain, shapes, tuned
from ksieve.tuning.run import possible

H100 = DEVICES["h100"]
ASKED = {"rows": 8, "width": 16_384, "k": 512, "device": H100}
ENTRY = {"threads": 512, "ctas_per_sm": 1, "resident_width": 32_768, "us": 7.5, "beat": "stream lines-64", "by": 1.25}


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch, tmp_path):
    monkeypatch.delenv(tuned.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    tuned._shapes_of.cache_clear()
    yield
    tuned._shapes_of.cache_clear()


def facts(device=H100, dtype="float32", **entries):
    about = {"device": tuned.described(device), "dtype": dtype, "driver": "580.1", "date": "2026-11-25", "k": 2048}
    return tuned.Tuned(about, {"resident": entries or {"resident_block": [ENTRY]}})


def test_a_file_replaces_the_resident_shapes_of_the_device(tmp_path, monkeypatch):
    before = plan_of(**ASKED)
    assert before.family == "resident_cluster"
    path = tmp_path / "mine.json"
    tuned.write(path, facts())
    monkeypatch.setenv(tuned.VARIABLE, str(path))
    plan = plan_of(**ASKED)
    assert (plan.family, plan.threads, plan.ctas_per_sm, plan.resident_width) == ("resident_block", 512, 1, 32_768)
    assert (
        "launch shape tuned by mine.json: 7.5 us where it was measured, 1.25 times as fast as stream lines-64"
        in plan.reason
    )
    assert plan_of(**ASKED | {"width": 65_536}).family == "stream_split", "no entry is wider"
    monkeypatch.setenv(tuned.VARIABLE, "off")
    assert plan_of(**ASKED) == before


def test_the_users_own_file_is_found_and_only_by_its_device():
    path = tuned.default_path(H100)
    assert path.name == "nvidia-h100-80gb-hbm3-float32.json"
    tuned.write(path, facts())
    assert plan_of(**ASKED).family == "resident_block"
    assert plan_of(**ASKED | {"device": DEVICES["h200"]}).family == "resident_cluster"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 1}, "format 1; takes format 2"),
        ({"ksieve": "9.9"}, "ksieve 9.9; takes ksieve"),
        ({"device": tuned.described(DEVICES["h200"])}, "'NVIDIA H200'.*'NVIDIA H100 80GB HBM3'"),
        ({"dtype": "float8"}, "dtype float8; takes dtype float32"),
        ({"format": True}, "format True; takes format 2"),
        ({"resident": {}}, "entries that `ksieve tune` has not written"),
        ({"resident": {"resident_block": [ENTRY | {"us": 7.4}]}}, "entries that `ksieve tune` has not written"),
        ({"splits": [{"fewest": 4}]}, "entries that `ksieve tune` has not written"),
        ({"sha256": None}, "entries that `ksieve tune` has not written"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_as_a_whole(tmp_path, monkeypatch, caplog, changes, words):
    path = tmp_path / "mine.json"
    tuned.write(path, facts())
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    monkeypatch.setenv(tuned.VARIABLE, str(path))
    with pytest.raises(ArgumentError, match=words) as error:
        plan_of(**ASKED)
    assert error.value.argument == tuned.VARIABLE and "mine.json" in str(error.value)
    monkeypatch.delenv(tuned.VARIABLE)
    own = tuned.default_path(H100)
    own.parent.mkdir(parents=True)
    own.write_text(path.read_text())
    with caplog.at_level(logging.WARNING):
        for rows in (8, 9):
            assert plan_of(**ASKED | {"rows": rows}).family == "resident_cluster", "the shipped shapes"
    assert len(caplog.records) == 1 and "float32 scores are as shipped" in caplog.text


def test_a_damaged_or_missing_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "mine.json"
    for text in (None, "", "{", "[]", "null", '{"format": 1}', "[" * 100_000):
        if text is not None:
            path.write_text(text)
        tuned._shapes_of.cache_clear()
        monkeypatch.setenv(tuned.VARIABLE, str(path))
        with pytest.raises(ArgumentError, match="no such file of shapes"):
            plan_of(**ASKED)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["h100", "h20", "b200"])
def test_shipped_shapes_pass_the_same_check(name, dtype):
    device = DEVICES[name]
    found = shapes.of(device, dtype)
    for family in found.resident:
        for shape in found.of_family(family, device):
            may_run = shape.ctas_per_row <= found.cluster_limit(device)
            assert not may_run or possible(family, shape, device, dtype), (family, shape)


def test_a_folder_has_files_of_several_devices(tmp_path, monkeypatch):
    for name in ("h100", "h200"):
        device = DEVICES[name]
        tuned.write(tmp_path / tuned.default_path(device).name, facts(device))
    monkeypatch.setenv(tuned.VARIABLE, str(tmp_path))
    for name, family in (("h100", "resident_block"), ("h200", "resident_block"), ("l40s", "resident_block")):
        plan = plan_of(**ASKED | {"device": DEVICES[name]})
        assert plan.family == family and ("tuned by" in plan.reason) == (name != "l40s")


def test_a_limit_that_comes_to_no_row_is_no_limit_at_all():
    """0 means any number of rows: a shape for less than one row is left out."""
    few = dataclasses.replace(H100, sm_count=16)
    assert ksieve.plan(rows=2, width=32_768, k=512, device=few).family == "resident_cluster"


STREAMED = {
    "streamed": {
        "stream": [
            {"threads": 256, "ctas_per_sm": 3, "stages": 4, "most_rows": 132, "us": 30.0, "beat": "stream 512x2 s6",
             "by": 1.5},
            {"threads": 512, "ctas_per_sm": 1, "stages": 8},
        ]
    },
    "splits": [{"fewest": 16}, {"fewest": 2, "narrowest": 4_194_304}],
    "strides": [{"policy": "lines-16"}, {"policy": "lines-128", "ratio": 500, "most_rows": 140}],
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["h100", "a100", "rtx5090"])
def test_shapes_splits_and_strides_of_streamed_rows_are_taken_from_a_file(tmp_path, monkeypatch, name, dtype):
    device = DEVICES[name]
    count = device.sm_count
    path = tmp_path / "mine.json"
    tuned.write(path, tuned.Tuned(facts(device, dtype).about, STREAMED))
    monkeypatch.setenv(tuned.VARIABLE, str(path))

    def plan(rows, width, k=512):
        found = ksieve.plan(rows=rows, width=width, k=k, dtype=dtype, device=device)
        return found.family, found.threads, found.ctas_per_sm, found.stages, found.splits, found.policy.name

    assert plan(132, 2_097_152) == ("stream", 256, 3, 4, 1, "lines-128")
    assert plan(133, 2_097_152) == ("stream", 512, 1, 8, 1, "lines-128")
    assert plan(141, 1_048_576) == ("stream", 512, 1, 8, 1, "lines-16")
    assert plan(141, 262_144, k=2048)[-1] == "lines-16"
    assert plan(count // 16, 2_097_152)[4] >= 16 and 8 < plan(count // 16 + 1, 2_097_152)[4] < 16
    assert plan(count // 8 + 1, 2_097_152)[4] == 1, "nearer to 8 CTAs a row, of which so few do not pay"
    assert plan(count // 2, 4_194_304)[4] == 2
    considered = explain.considered(Problem(100, 2_097_152, 2_097_152, 512, dtype, Device("cuda", 0)), device)
    assert considered[0].family == "stream" and ": 30.0 us where it was measured" in considered[0].verdict
    other = {"float32": "bfloat16", "bfloat16": "float32"}[dtype]
    monkeypatch.setenv(tuned.VARIABLE, "off")
    shipped = ksieve.plan(rows=141, width=2_097_152, k=512, dtype=other, device=device)
    monkeypatch.setenv(tuned.VARIABLE, str(path))
    assert ksieve.plan(rows=141, width=2_097_152, k=512, dtype=other, device=device) == shipped


def test_a_named_file_is_of_its_dtype_alone_and_others_are_warned(tmp_path, monkeypatch, caplog):
    path = tmp_path / "mine.json"
    tuned.write(path, facts(dtype="float16"))
    assert tuned.read(path, H100, "float16").parts == {"resident": {"resident_block": [ENTRY]}}
    monkeypatch.setenv(tuned.VARIABLE, str(path))
    with caplog.at_level(logging.WARNING):
        assert "tuned by mine.json" in plan_of(**ASKED, dtype="float16").reason
        for rows in (8, 9):
            assert plan_of(**ASKED | {"rows": rows}).family == "resident_cluster"
    assert len(caplog.records) == 1 and "float32 scores are as shipped" in caplog.text and "float16" in caplog.text


def test_shapes_of_16_bit_scores_are_derived_until_they_are_measured():
    single, half = shapes.of(DEVICES["b200"]), shapes.of(DEVICES["b200"], "bfloat16")
    assert half.dtype == "bfloat16" and single.dtype == "float32"
    for family, listed in half.resident.items():
        assert {shape.source for shape in listed} == {shapes.DERIVED_DTYPE}
        widths = {shape.resident_width for shape in single.resident[family]}
        assert {shape.resident_width for shape in listed} <= widths
        assert not any(shape.overflow_vectors for shape in listed)
        assert not any(shape.resident_width % (8 * shape.threads * shape.ctas_per_row) for shape in listed)


def test_the_measured_file_of_a_model_is_chosen_by_its_name():
    assert shapes.of(dataclasses.replace(H100, name="NVIDIA H100 PCIe")) is shapes.of_class("hopper", "H100")
    assert shapes.of(DEVICES["h20"]).resident == shapes.of(H100).resident


def test_options_read_whole_rows_in_the_ring():
    """Values of rows of which 5 of 16 vectors are outside the ring took 172 us in place of 113."""
    shape = {"rows": 4096, "width": 16_384, "k": 2048, "device": H100}
    plain, values = ksieve.plan(**shape), ksieve.plan(**shape, values=True)
    assert (plain.threads, plain.ctas_per_sm, plain.overflow_vectors) == (256, 4, 5)
    assert (values.threads, values.ctas_per_sm, values.overflow_vectors) == (256, 3, 0)
    assert ksieve.plan(**shape, tie_break="low").overflow_vectors == 0
