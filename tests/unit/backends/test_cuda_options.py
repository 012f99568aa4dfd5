"""Calls with options and of any shape on CUDA without a GPU: what is packed, allocated, refused and returned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ksieve
from cases import OPTION_CASES, build_call, options_of
from cuda_fakes import FakeArray, fake_backend, make_plan, plan_of
from flat_calls import ask
from ksieve import dispatch
from ksieve.backends.cuda import arrays, call
from ksieve.backends.cuda.jit import build, cache, spec
from ksieve.backends.cuda.jit.compile import Cubin
from ksieve.backends.cuda.runtime import launch
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.options import Options
from ksieve.planning import memory
from ksieve_lab.oracle import assert_exact, assert_served

H200 = DEVICES["h200"]
SCORES = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
TABLED = Options(order="value", tie_break="low", values=True)
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
    outputs |= {"values": np.full((rows, inputs.k), 77, np.float32)} if options.values else {}
    outputs |= {"raw": np.full((rows, inputs.k + 2), 77, index)[:, : inputs.k]} if options.raw else {}
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
    result = ask(FakeArray(inputs.scores), lengths, k, plan=plan, stats=stats, **given)
    (seen,) = driver.launches
    assert (seen["options"] is not None) == spec.extended(plan)
    parts = list(result) if isinstance(result, tuple) else [result]
    expected = [given["out"], *(given[n] for n in ("values", "raw") if n in outputs)]
    assert all(a is b for a, b in zip(parts, expected, strict=False)) and len(parts) == len(expected) + stats
    if stats:
        assert len(parts[-1].raw) == asked.get("live", rows)
    answer = {"indices": outputs["out"], "values": outputs.get("values"), "raw": outputs.get("raw")}
    assert_served(inputs.scores, inputs.k, asked, answer)


def test_a_page_table_without_entries_is_still_one(driver):
    driver.asked = Options(transform="pages")
    out = FakeArray(np.full((2, 3), 77, np.int32))
    table = FakeArray(np.zeros((2, 0), np.int32))
    ksieve.topk(
        FakeArray(np.ones((2, 9), np.float32)),
        k=3,
        plan=plan_of(2, 9, 3, driver.asked),
        transform=ksieve.PageTable(table),
        out=out,
    )
    assert driver.launches[0]["options"]["flags"] == 2 | 16 and (out.array == -1).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["a100", "h200"])
def test_overlap_is_a_launch_attribute_from_hopper_on(driver, monkeypatch, family, name):
    monkeypatch.setattr(driver, "device_info", lambda index: DEVICES[name])
    plan = replace(plan_of(4, 64, 4, Options(overlap=True), family), device=DEVICES[name])
    out = FakeArray(np.zeros((4, 4), np.int32))
    ask(FakeArray(np.ones((4, 64), np.float32)), plan=plan, out=out)
    (seen,) = driver.launches
    assert seen["overlap"] == (name == "h200")
    assert seen["options"] is None, "an overlapping call is a plain one otherwise"
    assert seen["cluster"] == ([8, 1, 1] if family == "resident_cluster" else None)


def test_outputs_that_cannot_be_made_have_to_be_brought(driver):
    scores, out = FakeArray(np.ones((4, 64), np.float32)), FakeArray(np.zeros((4, 4), np.int32))
    with pytest.raises(ArgumentError, match=r"values: got None; takes a float32 array of shape \(rows, k\)"):
        ask(scores, plan=plan_of(4, 64, 4, Options(values=True)), out=out, values=True)
    with pytest.raises(ArgumentError, match=r"raw: got None; takes an int32 array of shape \(rows, k\)"):
        ask(scores, plan=plan_of(4, 64, 4, Options(raw=True)), out=out, raw=True)
    assert not driver.launches


def test_no_rows_need_no_launch(driver):
    out, values, raw = (FakeArray(np.zeros((0, 4), dtype)) for dtype in (np.int32, np.float32, np.int32))
    plan = plan_of(4, 64, 4, Options(values=True, raw=True))
    given = {"out": out, "values": values, "raw": raw, "stats": True}
    result = ask(FakeArray(np.zeros((0, 64), np.float32)), plan=plan, **given)
    assert len(result) == 4 and result[3].raw.shape == (0, 16) and not driver.launches


# ---- plans -------------------------------------------------------------------------------------------------


def test_plain_plans_are_what_they_were():
    plain = ksieve.plan(rows=128, width=131_072, k=2048, device=H200)
    assert memory.sort_bytes(plain.problem) == memory.sort_slots(plain) == 0
    for options in (Options(overlap=True), Options(windows="ends"), Options(values=True), Options(tie_break="low")):
        made = dispatch.plan_of(rows=128, width=131_072, k=2048, device=H200, options=options)
        assert replace(made, problem=plain.problem) == plain


def test_a_call_without_a_plan_loads_what_a_build_for_its_shape_makes(driver, monkeypatch):
    loaded = set()
    monkeypatch.setattr(cache, "obtain", lambda spec, *_: (loaded.add(spec), (Cubin(b"code", ""), True))[1])
    ksieve.topk(FakeArray(np.ones((4, 3000), np.float32)), k=64, out=FakeArray(np.zeros((4, 64), np.int32)))
    assert loaded and loaded <= build.needed(H200, rows=[4], widths=[3000], ranks=[64], unplanned=True).keys()


def test_workspaces_of_other_layouts_are_not_shared(driver, monkeypatch):
    """A plan that sorts in its workspace must not write where another one counts."""
    monkeypatch.setattr(memory, "shared_bytes", lambda plan: 1000)
    held = call.implicit_workspaces
    sorting, plain = plan_of(4, 64, 4, Options(order="value")), make_plan(4, family="stream_unsampled")
    first, second = held.get(sorting, 0, "none"), held.get(plain, 0, "none")
    assert memory.sort_slots(sorting) and first is not second
    assert held.get(plain, 0, "none") is second


def test_params_and_options_are_as_long_as_the_kernels_say(driver):
    asked = (Options(), Options(windows="ends"), Options(windows="ends", expand=2, block_size=1))
    launchers = [launch.launcher_of(plan_of(4, 64, 4, options), stats=False, stream=0) for options in asked]
    sizes = [launcher._patch.size - launch.PARAMS.size for launcher in launchers]
    assert sizes == [4, 104 + 4, 104 + 40 + 4]


# ---- any rank, pitch 0, an int num_rows, k = 0 ---------------------------------------------------------------


def topk(scores, lengths=None, k=4, shape=(6,), options=None, **more):
    """Call with a plan that needs no planner, and return the host memory of the outputs."""
    out = np.full((*shape, k), 77, np.int32)
    plan = plan_of(8, 64, k, options) if options else make_plan(8, 64, k)
    result = ask(FakeArray(scores), lengths, plan=plan, out=FakeArray(out), **more)
    return out, result


def test_rows_of_pitch_0_reach_the_kernel_as_such(driver):
    same = np.broadcast_to(SCORES[:1], (6, 64))
    out, _ = topk(same)
    assert driver.launches[-1]["pitch"] == 0
    assert_exact(same, None, 4, out)
    for row in (SCORES[:1], np.lib.stride_tricks.as_strided(SCORES, (1, 64), (4, 4))):  # a library's own short pitch
        topk(row, shape=(1,))
        assert driver.launches[-1]["pitch"] == 64


def test_the_planner_plans_for_pitch_0_as_for_dense_rows():
    for device in DEVICES.values():
        for rows, width, k in ((1000, 2000, 64), (8, 200_000, 2048)):
            asked = {"rows": rows, "width": width, "k": k, "device": device}
            dense, same = dispatch.plan_of(**asked), dispatch.plan_of(**asked, pitch=0)
            assert replace(same, problem=dense.problem) == dense and same.problem.pitch == 0


@pytest.mark.parametrize("leading", [(), (6,), (2, 3), (3, 1, 2)])
def test_leading_dimensions_are_rows_of_the_kernel(driver, leading):
    rows = int(np.prod(leading))
    lengths = np.arange(rows, dtype=np.int32) * 12
    scores = SCORES[:rows].reshape(*leading, 64)
    out, _ = topk(scores, FakeArray(lengths.reshape(leading)), shape=leading)
    launch = driver.launches[-1]
    assert (launch["rows"], launch["width"], launch["pitch"], launch["out_pitch"]) == (rows, 64, 64, 4)
    assert_exact(SCORES[:rows], lengths, 4, out.reshape(rows, 4))
    driver.asked = TABLED
    values = np.full((*leading, 6), 77, np.float32)[..., :4]
    out, _ = topk(scores, FakeArray(lengths.reshape(leading)), shape=leading, options=TABLED, values=FakeArray(values))
    assert driver.launches[-1]["options"]["values_pitch"] == (6 if rows > 1 else 4)
    call = {"lengths": lengths, "sorted": True, "tie_break": "low"}
    answer = {"indices": out.reshape(rows, 4), "values": np.ascontiguousarray(values).reshape(rows, 4)}
    assert_served(SCORES[:rows], 4, call, answer)


def test_new_arrays_have_the_leading_shape(driver, monkeypatch):
    made = []

    def new(library, shape, dtype, index, name="out"):
        made.append((shape, dtype))
        return FakeArray(np.full(shape, 77, dtype))

    monkeypatch.setattr(arrays, "new", new)
    driver.asked = TABLED
    indices, values = ask(FakeArray(SCORES.reshape(2, 3, 64)), plan=plan_of(8, 64, 4, TABLED), values=True)
    assert made == [((2, 3, 4), "int32"), ((2, 3, 4), "float32")]
    answer = {"indices": indices.array.reshape(6, 4), "values": values.array.reshape(6, 4)}
    assert_served(SCORES, 4, {"sorted": True, "tie_break": "low"}, answer)


def test_an_int_num_rows_becomes_an_array_where_it_matters(driver, monkeypatch):
    made = []

    def number(library, shape, dtype, index, name, value):
        made.append(FakeArray(np.array([value], np.int32)))
        return made[-1]

    for count in (6, 7, 2**40):
        topk(SCORES, num_rows=count)
        assert driver.launches[-1]["num_rows"] == 0
    with pytest.raises(ArgumentError, match=r"^num_rows: got 2; takes an int32 array of shape \(1,\): only torch"):
        topk(SCORES, num_rows=2)
    monkeypatch.setattr(arrays, "new", number)
    for count in (2, 0, -3, np.int64(5)):
        out, (_, stats) = topk(SCORES, num_rows=count, stats=True)
        live = max(int(count), 0)
        assert driver.launches[-1]["num_rows"] == made[-1].array.ctypes.data and len(stats) == live
        assert_exact(SCORES[:live], None, 4, out[:live])
        assert (out[live:] == -1).all()


def test_no_slots_launch_nothing(driver):
    out = FakeArray(np.zeros((6, 0), np.int32))
    assert ksieve.topk(FakeArray(SCORES), k=0, out=out) is out
    live = FakeArray(np.array([4], np.int32))
    _, stats = ask(FakeArray(SCORES, stream=5), k=0, out=out, num_rows=live, stats=True)
    assert len(stats) == 4 and driver.waits == [5] and not driver.launches and not driver.loads
    driver.capturing.add(5)
    with pytest.raises(BackendError, match="stats"):
        ask(FakeArray(SCORES, stream=5), k=0, out=out, num_rows=live, stats=True)
    with pytest.raises(ArgumentError, match=r"^lengths: "):
        ksieve.topk(FakeArray(SCORES), FakeArray(np.zeros(5, np.int32)), 0, out=out)
