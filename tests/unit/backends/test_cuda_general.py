"""Any rank, pitch 0, 64-bit lengths, an int num_rows and k = 0 on CUDA without a GPU: what reaches the driver."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ksieve
from cuda_fakes import FakeArray, fake_backend, make_plan, plan_of
from ksieve import ArgumentError, BackendError, Options
from ksieve.backends.cuda import arrays
from ksieve.planning.devices import DEVICES
from ksieve_lab.oracle import assert_exact, assert_served

SCORES = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
TABLED = Options(order="value", tie_break="low", values=True)


@pytest.fixture
def driver(monkeypatch):
    yield from fake_backend(monkeypatch)


def topk(scores, lengths=None, k=4, shape=(6,), options=None, **more):
    """Call with a plan that needs no planner, and return the host memory of the outputs."""
    out = np.full((*shape, k), 77, np.int32)
    plan = plan_of(8, 64, k, options) if options else make_plan(8, 64, k)
    result = ksieve.topk(FakeArray(scores), lengths, plan=plan, out=FakeArray(out), **more)
    return out, result


def test_rows_of_pitch_0_reach_the_kernel_as_such(driver):
    same = np.broadcast_to(SCORES[:1], (6, 64))
    out, _ = topk(same)
    assert driver.launches[-1]["pitch"] == 0
    assert_exact(same, None, 4, out)
    topk(SCORES[:1], shape=(1,))
    assert driver.launches[-1]["pitch"] == 64


def test_the_planner_plans_for_pitch_0_as_for_dense_rows():
    for device in DEVICES.values():
        for rows, width, k in ((1000, 2000, 64), (8, 200_000, 2048)):
            asked = {"rows": rows, "width": width, "k": k, "device": device}
            dense, same = ksieve.plan(**asked), ksieve.plan(**asked, pitch=0)
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
    out, _ = topk(
        scores, FakeArray(lengths.reshape(leading)), shape=leading, options=TABLED, values_out=FakeArray(values)
    )
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
    indices, values = ksieve.topk(FakeArray(SCORES.reshape(2, 3, 64)), plan=plan_of(8, 64, 4, TABLED))
    assert made == [((2, 3, 4), "int32"), ((2, 3, 4), "float32")]
    answer = {"indices": indices.array.reshape(6, 4), "values": values.array.reshape(6, 4)}
    assert_served(SCORES, 4, {"sorted": True, "tie_break": "low"}, answer)


def test_lengths_of_64_bits_are_passed_as_they_are(driver):
    lengths = np.array([2**40, -(2**40), 5, 2**32 + 3, -1, 0], np.int64)
    driver.asked = Options(length_dtype="int64", order="index", tie_break="low")
    held = FakeArray(lengths)
    out, _ = topk(SCORES, held, options=driver.asked)
    assert driver.launches[-1]["lengths"] == lengths.ctypes.data
    assert_exact(SCORES, lengths, 4, out)
    with pytest.raises(ArgumentError, match=r"^plan: got a call with length_dtype 'int64'"):
        topk(SCORES, held)


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
        out, (_, stats) = topk(SCORES, num_rows=count, return_stats=True)
        live = max(int(count), 0)
        assert driver.launches[-1]["num_rows"] == made[-1].array.ctypes.data and len(stats) == live
        assert_exact(SCORES[:live], None, 4, out[:live])
        assert (out[live:] == -1).all()


def test_no_slots_launch_nothing(driver):
    out = FakeArray(np.zeros((6, 0), np.int32))
    assert ksieve.topk(FakeArray(SCORES), k=0, out=out) is out
    live = FakeArray(np.array([4], np.int32))
    _, stats = ksieve.topk(FakeArray(SCORES, stream=5), k=0, out=out, num_rows=live, return_stats=True)
    assert len(stats) == 4 and driver.waits == [5] and not driver.launches and not driver.loads
    driver.capturing.add(5)
    with pytest.raises(BackendError, match="return_stats"):
        ksieve.topk(FakeArray(SCORES, stream=5), k=0, out=out, num_rows=live, return_stats=True)
    with pytest.raises(ArgumentError, match=r"^lengths: "):
        ksieve.topk(FakeArray(SCORES), FakeArray(np.zeros(5, np.int32)), 0, out=out)
