"""What a call may not ask for: every refusal names the argument, before anything is written."""

from __future__ import annotations

import html
import inspect

import numpy as np
import pytest

import ksieve
from cuda_fakes import FakeArray
from flat_calls import ask, plan_of
from ksieve import ArgumentError
from ksieve.core.call import parse
from ksieve.core.device import DEVICES
from ksieve.core.options import PLAIN, Options
from ksieve.core.problem import MAX_K
from ksieve.planning.memory import sort_bytes

ROWS, WIDTH, K = 6, 50, 5


def scores(rows=ROWS, dtype=np.float32):
    return np.random.default_rng(0).random((rows, WIDTH)).astype(dtype)


def ints(*shape, dtype=np.int32):
    return np.zeros(shape, dtype)


def refusal(x=None, **arguments):
    with pytest.raises(ArgumentError) as error:
        ask(scores() if x is None else x, **{"k": K, **arguments})
    return str(error.value)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (ints(2, 9, dtype=np.int64), "page_table: got dtype int64; takes dtype int32: page_table.astype(np.int32)"),
        (ints(9), "page_table: got shape (9,); takes a matrix of shape (requests, max_pages)"),
        (
            ints(2, 18)[:, ::2],
            "page_table: got last stride 2; takes last stride 1 (rows contiguous): np.ascontiguousarray(page_table)",
        ),
        (ints(2, 9)[::-1], "page_table: got row pitch -9; takes a row pitch of at least 0"),
    ],
)
def test_page_tables(bad, message):
    assert refusal(page_table=bad) == message


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"k": ints(ROWS)}, "max_k: got None; takes an int from 0 to 1048576"),
        ({"k": ints(ROWS), "max_k": -1}, "max_k: got -1; takes an int from 0 to 1048576"),
        ({"k": ints(ROWS), "max_k": 2.0}, "max_k: got float 2.0; takes an int from 0 to 1048576"),
        ({"k": ints(ROWS + 1), "max_k": 9}, "k: got shape (7,); takes shape (6,)"),
        ({"k": ints(ROWS, dtype=np.int64), "max_k": 9}, "k: got dtype int64; takes dtype int32: k.astype(np.int32)"),
        ({"max_k": 9}, "max_k: got 9, which is not taken unless k is an array"),
        ({"next_n": 0}, "next_n: got 0; takes an int from 1 to 2147483647"),
        ({"next_n": True}, "next_n: got True; takes an int from 1 to 2147483647"),
        ({"next_n": 4}, "next_n: got 4; takes a divisor of the scores' 6 rows"),
        ({"next_n": 2, "lengths": ints(ROWS)}, "lengths: got shape (6,); takes shape (3,)"),
        ({"next_n": 1 << 31}, "next_n: got 2147483648; takes an int from 1 to 2147483647"),
        (
            {"lengths": ints(ROWS), "ends": ints(ROWS)},
            "ends: got an array together with lengths; takes either lengths or ends",
        ),
        ({"index_base": "window"}, "index_base: got 'window'; takes one of 'row', 'start'"),
        ({"index_dtype": "int16"}, "index_dtype: got 'int16'; takes one of 'int32', 'int64'"),
        ({"page_table": ints(1, 1), "page_size": 12}, "page_size: got 12; takes a power of two"),
        (
            {"page_table": ints(1, 1), "offsets": ints(ROWS)},
            "transform: got Offsets and PageTable; takes one of the two",
        ),
        ({"sorted": "best"}, "sorted: got 'best'; takes False, True, 'value' or 'index'"),
        ({"sorted": 1}, "sorted: got 1; takes False, True, 'value' or 'index'"),
        ({"tie_break": "first"}, "tie_break: got 'first'; takes one of 'any', 'low', 'high'"),
        ({"deterministic": True, "tie_break": "any"}, "tie_break: got 'any'; takes 'low' or 'high' with deterministic"),
        ({"deterministic": 1}, "deterministic: got 1; takes True or False"),
        ({"fill": 0}, "fill: got 0; takes True or False"),
        ({"fill": "none", "out": ints(ROWS, K)}, "fill: got 'none'; takes True or False"),
        ({"values": ints(ROWS, K)}, "values: got dtype int32; takes dtype float32"),
        ({"raw": ints(ROWS, K + 1)}, "raw: got shape (6, 6); takes shape (6, 5)"),
        ({"raw": ints(ROWS, K, dtype=np.int64)}, "raw: got dtype int64; takes dtype int32"),
        (
            {"out": ints(ROWS, K, dtype=np.int64), "raw": ints(ROWS, K)},
            "raw: got dtype int32; takes dtype int64",
        ),
        ({"out": ints(ROWS, K), "index_dtype": "int64"}, "out: got dtype int32; takes dtype int64, the index_dtype"),
        ({"out": ints(ROWS, K, dtype=np.int16), "sorted": True}, "out: got dtype int16; takes dtype int32 or int64"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_contradicts_itself_or_does_not_exist(bad, message):
    assert refusal(**bad) == message


def test_an_order_or_tie_break_has_no_largest_k_of_its_own():
    for more in ({"sorted": True}, {"tie_break": "low"}, {"deterministic": True}):
        ask(scores(), k=20_000, **more)
        parse(FakeArray(scores()), None, MAX_K, given=more)
    for options in (Options(order="index"), Options(tie_break="high")):
        plan = plan_of(rows=1, width=2 * MAX_K, k=MAX_K, options=options, device=DEVICES["h200"])
        assert plan.workspace_bytes > sort_bytes(plan.problem)


def test_every_output_apart_from_every_other_array():
    held = np.zeros(4000, np.int32)
    table = held[:90].reshape(2, 45)
    given = {"page_table": table, "k": held[500:506], "max_k": K, "num_rows": held[600:601]}
    given |= {name: held[at : at + 6] for name, at in (("lengths", 200), ("starts", 300), ("row_to_request", 400))}
    places = {"page_table": 60, "lengths": 200, "starts": 305, "row_to_request": 380, "k": 505, "num_rows": 600}
    for name in ("out", "raw"):
        for other, at in places.items():
            output = held[at : at + ROWS * K].reshape(ROWS, K)
            message = f"{name}: got memory that overlaps {other}; takes memory of its own"
            assert refusal(**given, **{name: output}) == message
    out = held[700 : 700 + ROWS * K].reshape(ROWS, K)
    values = held[729 : 729 + ROWS * K].view(np.float32).reshape(ROWS, K)
    assert refusal(out=out, values=values) == "values: got memory that overlaps out; takes memory of its own"
    raw = held[730 : 730 + ROWS * K].reshape(ROWS, K)
    assert refusal(values=values, raw=raw) == "raw: got memory that overlaps values; takes memory of its own"
    assert (held == 0).all()


def test_none_and_false_are_the_same_as_leaving_out():
    x = scores()
    plainly = ksieve.topk(x, k=K)
    defaults = {name: parameter.default for name, parameter in inspect.signature(ksieve.select).parameters.items()}
    nothing = {name: default for name, default in defaults.items() if name not in ("scores", "lengths", "k")}
    assert set(nothing.values()) == {None, False, True} and nothing["largest"] is True
    for given in (nothing, dict.fromkeys(nothing) | {"stats": False}):
        indices, *others = ksieve.select(x, k=K, **given)
        assert others == [None] * 4 and indices.dtype == np.int32
        np.testing.assert_array_equal(indices, plainly)


def test_an_int64_out_decides():
    out = np.full((ROWS, K), 7, np.int64)
    assert ksieve.topk(scores(), k=K, out=out) is out
    np.testing.assert_array_equal(np.sort(out), np.sort(ksieve.topk(scores(), k=K)))


def test_options_print_what_is_asked_for():
    assert str(PLAIN) == "plain" and PLAIN.plain and Options().plain
    asked = Options(order="value", page_size=4)
    assert str(asked) == "page_size=4, order='value'" and not asked.plain and not asked.deterministic
    assert Options(order="index", tie_break="low").deterministic and Options(values=True).finished
    assert "options" not in str(ksieve.plan(rows=1, width=9, k=2))
    assert "\n  options    page_size=4, order='value'\n" in str(plan_of(rows=1, width=9, k=2, options=asked))


def test_a_plan_fills_in_what_a_call_leaves_open():
    options = Options(per_row_k=True, transform="pages", page_size=8, mapped=True, values=True, order="value")
    plan = plan_of(rows=ROWS, width=WIDTH, k=K, options=options)
    table, requests = np.arange(7, dtype=np.int32)[None], ints(ROWS)
    given = {"plan": plan, "page_table": table, "page_size": 8, "row_to_request": requests, "values": True}
    indices, values = ask(scores(), k=np.arange(ROWS, dtype=np.int32), **given)
    np.testing.assert_array_equal((indices >= 0).sum(axis=1), np.minimum(np.arange(ROWS), K))
    assert (np.diff(values[5]) <= 0).all()
    for k, message in (
        (None, "plan: got a call with per_row_k False (an array k); takes per_row_k True, which the plan was made for"),
        (K, "plan: got a call with per_row_k False (an array k); takes per_row_k True, which the plan was made for"),
        (4, "k: got 4; takes 5, the plan's k, or nothing"),
    ):
        assert refusal(k=k, **given) == message
    assert refusal(k=requests, max_k=4, **given) == "max_k: got 4; takes 5, the plan's k, or nothing"
    plainly = ksieve.plan(rows=ROWS, width=WIDTH, k=K)
    assert "per_row_k True (an array k); takes per_row_k False" in refusal(k=requests, plan=plainly)


def test_every_part_belongs_to_the_callers_library_in_its_dtype():
    torch = pytest.importorskip("torch")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    asked = {"k": K, "sorted": True, "values": True, "raw": True, "tie_break": "low"}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.from_numpy(scores()).to(dtype)
        indices, values, raw = ask(x, starts=torch.full((ROWS,), 2, dtype=torch.int32), **asked)
        assert values.dtype is dtype and raw.dtype is indices.dtype is torch.int32 and torch.equal(raw, indices)
        assert torch.equal(values, x.gather(1, indices.long())) and bool((values[:, 1:] <= values[:, :-1]).all())
        given = {"values": torch.empty_like(values), "raw": torch.empty_like(raw), "out": torch.empty_like(raw)}
        parts = ask(x, starts=torch.full((ROWS,), 2, dtype=torch.int32), **asked | given)
        assert parts[0] is given["out"] and parts[1] is given["values"] and parts[2] is given["raw"]
        assert all(torch.equal(a, b) for a, b in zip(parts, (indices, values, raw), strict=True))
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        x = scores(dtype=dtype)
        indices, values, _ = ask(x, **asked)
        assert values.dtype == x.dtype and (values == np.take_along_axis(x, indices.astype(np.int64), axis=1)).all()
        out = np.empty_like(values)
        assert ask(x, **asked | {"values": out})[1] is out and out.tobytes() == values.tobytes()
    bits = scores().view(np.uint16)
    assert ask(bits, **asked)[1].dtype == np.uint16


def test_plans_and_statistics_show_themselves_in_notebooks():
    device = ksieve.DeviceInfo("cpu", name="<script>alert(1)</script> & co", threads=2)
    plan = plan_of(rows=3, width=900, k=4, device=device, options=Options(order="value"))
    shown = plan._repr_html_()
    assert "<script" not in shown and "&lt;script&gt;" in shown
    assert html.escape("order='value'") in shown and html.escape(plan.reason) in shown
    lengths = np.array([1, 900, 900], np.int32)
    _, stats = ask(np.random.default_rng(0).random((3, 900), np.float32), lengths, 4, stats=True)
    shown = stats._repr_html_()
    assert all(f">{text}<" in shown for text in ("3 rows", "short", "direct")) and len(shown) < 2000
    _, none = ask(np.zeros((0, 9), np.float32), k=4, stats=True)
    assert ">0 rows<" in none._repr_html_()
