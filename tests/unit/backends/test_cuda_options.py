"""Calls with options on CUDA without a GPU: what is packed behind the parameters, allocated, refused and returned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ksieve
from cases import OPTION_CASES, build_call, options_of
from cuda_fakes import FakeArray, fake_backend, make_plan, plan_of
from ksieve import Options
from ksieve.backends.cuda import call
from ksieve.backends.cuda.jit import spec
from ksieve.backends.cuda.runtime import launch
from ksieve.core.errors import ArgumentError
from ksieve.planning import memory
from ksieve.planning.devices import DEVICES
from ksieve_lab.oracle import assert_served

H200 = DEVICES["h200"]
FAMILIES = ("stream", "stream_unsampled", "stream_split", "resident_block", "resident_cluster")


@pytest.fixture
def driver(monkeypatch):
    yield from fake_backend(monkeypatch)


FLOAT32_CASES = [case for case in OPTION_CASES if case["dtype"] == "float32"]


@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("number", range(len(FLOAT32_CASES)))
def test_pairwise(driver, number, stats):
    """What reaches the driver is what was asked for: a kernel made of the model gives the right answer."""
    inputs, asked = build_call(FLOAT32_CASES[number])
    rows, width = inputs.scores.shape
    options = driver.asked = options_of(inputs.k, asked)
    index = np.dtype(options.index_dtype)
    outputs = {"out": np.full((rows, inputs.k), 77, index)}
    outputs |= {"values_out": np.full((rows, inputs.k), 77, np.float32)} if options.values else {}
    outputs |= {"raw_out": np.full((rows, inputs.k + 2), 77, index)[:, : inputs.k]} if options.raw else {}
    given = {n: v for n, v in asked.items() if n not in ("lengths", "ks", "live", *outputs)}
    given |= {n: FakeArray(v) for n, v in given.items() if isinstance(v, np.ndarray)}
    given |= {n: FakeArray(v) for n, v in outputs.items()}
    k = inputs.k
    if options.per_row_k:
        k, given["max_k"] = FakeArray(asked["ks"]), inputs.k
    if "live" in asked:
        given["num_rows"] = FakeArray(np.array([asked["live"]], np.int32))
    lengths = FakeArray(asked["lengths"]) if "lengths" in asked else None
    plan = plan_of(rows, width, inputs.k, options)
    result = ksieve.topk(FakeArray(inputs.scores), lengths, k, plan=plan, return_stats=stats, **given)
    (seen,) = driver.launches
    assert (seen["options"] is not None) == spec.extended(plan)
    parts = list(result) if isinstance(result, tuple) else [result]
    expected = [given["out"], *(given[n] for n in ("values_out", "raw_out") if n in given)]
    assert all(a is b for a, b in zip(parts, expected, strict=False)) and len(parts) == len(expected) + stats
    if stats:
        assert len(parts[-1].raw) == asked.get("live", rows)
    answer = {"indices": outputs["out"], "values": outputs.get("values_out"), "raw": outputs.get("raw_out")}
    assert_served(inputs.scores, inputs.k, asked, answer)


def test_a_page_table_without_entries_is_still_one(driver):
    driver.asked = Options(transform="pages")
    out = FakeArray(np.full((2, 3), 77, np.int32))
    table = FakeArray(np.zeros((2, 0), np.int32))
    ksieve.topk(
        FakeArray(np.ones((2, 9), np.float32)), k=3, plan=plan_of(2, 9, 3, driver.asked), page_table=table, out=out
    )
    assert driver.launches[0]["options"]["flags"] == 2 | 16 and (out.array == -1).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_overlap_is_a_launch_attribute_from_hopper_on(driver, monkeypatch, family, capability):
    if capability == (8, 0):
        if family == "resident_cluster":
            pytest.skip("clusters need 9.0")
        monkeypatch.setattr(driver, "device_info", lambda index: DEVICES["a100"])
    plan = plan_of(4, 64, 4, Options(overlap=True), family)
    plan = replace(plan, device=DEVICES["a100"] if capability == (8, 0) else H200)
    out = FakeArray(np.zeros((4, 4), np.int32))
    ksieve.topk(FakeArray(np.ones((4, 64), np.float32)), plan=plan, out=out, overlap=True)
    (seen,) = driver.launches
    assert seen["overlap"] == (capability == (9, 0))
    assert seen["options"] is None, "an overlapping call is a plain one otherwise"
    assert seen["cluster"] == ([8, 1, 1] if family == "resident_cluster" else None)


def test_outputs_that_cannot_be_made_have_to_be_brought(driver):
    scores, out = FakeArray(np.ones((4, 64), np.float32)), FakeArray(np.zeros((4, 4), np.int32))
    with pytest.raises(ArgumentError, match=r"values_out: got None; takes a float32 array of shape \(rows, k\)"):
        ksieve.topk(scores, plan=plan_of(4, 64, 4, Options(values=True)), out=out, return_values=True)
    with pytest.raises(ArgumentError, match=r"raw_out: got None; takes an int32 array of shape \(rows, k\)"):
        ksieve.topk(scores, plan=plan_of(4, 64, 4, Options(raw=True)), out=out, return_raw=True)
    assert not driver.launches


def test_no_rows_need_no_launch(driver):
    options = Options(values=True, raw=True)
    given = {"out": np.zeros((0, 4), np.int32), "values_out": np.zeros((0, 4), np.float32), "raw_out": None}
    given["raw_out"] = np.zeros((0, 4), np.int32)
    result = ksieve.topk(
        FakeArray(np.zeros((0, 64), np.float32)), plan=plan_of(4, 64, 4, options), return_stats=True,
        **{name: FakeArray(array) for name, array in given.items()},
    )  # fmt: skip
    assert len(result) == 4 and not driver.launches


# ---- plans -------------------------------------------------------------------------------------------------


def test_plain_plans_are_what_they_were():
    plain = ksieve.plan(rows=128, width=131_072, k=2048, device=H200)
    assert memory.sort_bytes(plain.problem) == memory.sort_slots(plain) == 0
    for options in (Options(overlap=True), Options(windows="ends"), Options(values=True), Options(tie_break="low")):
        made = ksieve.plan(rows=128, width=131_072, k=2048, device=H200, options=options)
        assert replace(made, problem=plain.problem) == plain


def test_workspaces_of_other_layouts_are_not_shared(driver, monkeypatch):
    """A plan that sorts in its workspace must not write where another one counts."""
    monkeypatch.setattr(memory, "shared_bytes", lambda plan: 1000)
    held = call.implicit_workspaces
    sorting, plain = plan_of(4, 64, 4, Options(order="value")), make_plan(4, family="stream_unsampled")
    first, second = held.get(sorting, 0, "none"), held.get(plain, 0, "none")
    assert memory.sort_slots(sorting) and first is not second
    assert held.get(plain, 0, "none") is second


def test_params_and_options_are_as_long_as_the_kernels_say():
    assert launch.OPTIONS.size == 104 and launch._PATCH_OPTIONS.size == launch.PARAMS.size + 104 + 4
    assert launch._PATCH_SLOTS.size == launch._PATCH_OPTIONS.size + launch.SLOTS.size and launch.SLOTS.size == 40
