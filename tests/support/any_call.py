"""Any call: scores, k and all options of the table at once, drawn together; and what the contract refuses.

A call is a flat mapping, as `ksieve_lab.oracle` reads it: ``ks`` is an array k, ``live`` the live rows. An option of
the table that no call draws is an error of `tests/contract/test_fuzz.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ksieve
from cases import DTYPES, FAMILIES, scores_of
from entry_calls import columns_of
from flat_calls import verified
from ksieve.core.table import names
from ksieve.core.windows import clamped
from ksieve_lab.oracle import PER_REQUEST, PER_ROW

Call = dict[str, Any]
WIDTHS = (0, 1, 2, 5, 17, 63, 64, 65, 100, 128, 200, 255, 300, 300)
SEGMENTS = ("indptr", "max_length", "mean_length")
ENTRIES = {"block_size", "tail", "positions", "block_table"}
JUDGED = names(lambda option: option.judged)
POISON = 77
FAR = np.array([-(2**31), 2**31 - 1, -1, 0, 2**40 + 1, -(2**40) - 1, 2**62])
"""Numbers far out; of those that int32 does not hold, the low half says something else."""


class Draw:
    """A generator, and how options are drawn with it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def one(self, *values: Any) -> Any:
        return values[self.rng.integers(len(values))]

    def often(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def numbers(self, shape: Any, low: int, high: int, dtype: str = "int32") -> np.ndarray:
        """Numbers from low to high, one in sixteen of them far out; in some draws all are the same one."""
        far = FAR if dtype == "int64" else FAR[np.abs(FAR) < 2**32].clip(-(2**31), 2**31 - 1)
        drawn = np.where(self.rng.random(shape) < 0.0625, self.rng.choice(far, shape), 0)
        found = np.where(drawn == 0, self.rng.integers(low, high + 1, shape), drawn).astype(dtype)
        return np.broadcast_to(found[:1], found.shape) if self.often(0.1) else found


def draw(d: Draw, rows: int, widths: tuple[int, ...] = WIDTHS) -> tuple[np.ndarray, int, Call]:
    """A matrix of about so many rows, k, and the options of a call that is not refused."""
    call: Call = {"next_n": d.one(1, 1, 2, 3)}
    rows = -(-rows // call["next_n"]) * call["next_n"]
    width, dtype = int(d.one(*widths)), d.one(*DTYPES)
    x, other = (scores_of(d.one(*FAMILIES), rows, width, 20, dtype, int(d.rng.integers(1 << 20))) for _ in "ab")
    x[::2] = other[::2]
    _draw_entries(d, call, rows, width)
    entries = -(-width // call.get("block_size", 1))
    k = min(int(d.one(0, 1, 2, 7, d.rng.integers(1, 80), entries // 8, entries // 4, entries // 2, entries + 2)), 300)
    k = max(k, 0 if call.get("forced_extra") else call.get("force_first", 0) + call.get("force_last", 0))
    _draw_bounds(d, call, k, rows, width)
    _draw_written(d, call, rows, columns_of(width, call))
    call["sorted"] = d.one(False, False, True, "value", "index")
    call["tie_break"] = d.one(None, None, "any", "low", "high")
    call |= {"largest": d.one(None, True, False), "nan": d.one(None, "last", "highest")}
    if call["tie_break"] != "any":
        call["deterministic"] = d.one(None, False, True)
    if "page_table" in call and not (call["raw"] or call.get("deterministic")):
        call |= {"values": None, "sorted": None}  # entries that are written alike may stand in each other's slots
    if d.often(0.3):
        call["ks"] = d.numbers(rows, -1, k + 2)
    if d.often(0.15):
        call["live"] = int(d.one(0, 1, rows - 1, rows // 2, rows + 5))
    return x, k, {name: value for name, value in call.items() if value is not None}


def _draw_entries(d: Draw, call: Call, rows: int, width: int) -> None:
    """Blocks, or scores that stand for positions; forced entries, a tail; positions of the scores."""
    if d.often():
        call["block_size"] = d.one(1, 1, 2, 3, 8, 8, 64, 256)
        call["expand"] = d.one(1, call["block_size"]) if call["block_size"] > 1 else d.one(1, 2, 4, 7, 64)
        call |= {"force_first": d.one(0, 0, 1, 3), "force_last": d.one(0, 0, 1, 2), "forced_extra": d.often()}
    size, expand = call.get("block_size", 1), call.get("expand", 1)
    if expand > 1 and (d.often() or (size == 1 and call["next_n"] > 1)):
        call["tail"] = d.numbers(rows // call["next_n"], -2, (1 if size > 1 else expand) * (width + 1) + 2)
    if size == 1 and width and d.often(0.3):
        block = max(g for g in (1, 3, 7) if width % g == 0)
        name, count = d.one(("positions", width), ("block_table", width // block))
        held = np.stack([d.rng.permutation(3 * count + 1)[:count] for _ in range(rows)])
        call[name] = np.where(held % 4 == 0, -1 - held, held).astype(np.int32)


def _draw_bounds(d: Draw, call: Call, k: int, rows: int, width: int) -> None:
    """Windows of rows: lengths or ends, about k and anywhere, and starts; or segments, which `presented` makes."""
    low, high = d.one((k - 2, k + 3), (-1, width + 2), (width // 2, width + 2), (width // 2, width + 2))
    if kind := d.one(None, "lengths", "lengths", "ends"):
        call[kind] = d.numbers(rows // call["next_n"], low, high, d.one("int32", "int64"))
    if d.often(0.3) and not call.keys() & ENTRIES and call["next_n"] == 1 and kind == "lengths":
        call |= {"indptr": d.one("int32", "int64"), "index_base": "start"}
        call |= {"max_length": d.one(0, width), "mean_length": d.one(0, 1, width)}
        return
    if d.often(0.25):
        call["starts"] = d.numbers(rows, -1, width // 2 + 1, d.one("int32", "int64"))
    if not call.keys() & {"positions", "block_table"}:
        call["index_base"] = d.one(None, "row", "start")


def _draw_written(d: Draw, call: Call, rows: int, most: int) -> None:
    """Where indices point, and what is written beside them."""
    call["index_dtype"] = d.one("int32", "int64")
    transform = d.one(None, None, "offsets", "pages", "mapped")
    if transform == "offsets":
        call["offsets"] = d.numbers(rows, -(2**31), 2**31 - 1)
    elif transform:
        size = call["page_size"] = d.one(1, 4, 64)
        pages = d.one(0, 1, max(most // size, 1), 2 * most // size + 1)
        requests = d.one(rows, rows // call["next_n"], 3)
        call["page_table"] = d.numbers((requests, pages), 0, 99)
        if transform == "mapped":
            call["row_to_request"] = d.numbers(rows, -1, requests)
    call |= {name: d.one(None, False, True, "given") for name in ("values", "raw", "counts")}
    if transform and call.get("expand", 1) > 1:
        call["raw"] = d.one(True, "given")  # the positions of an entry are judged by them
    call["fill"] = d.one(None, True, False) if call["counts"] else d.one(None, True)


# ---- in memory -------------------------------------------------------------------------------------------------


def laid(d: Draw, array: np.ndarray, leading: tuple[int, ...]) -> np.ndarray:
    """The same numbers in C order, or with gaps, leading dimensions in another order, or strides below 1."""
    row = array.shape[1:]
    if array.size and array.strides[0] == 0 and d.often():
        return np.broadcast_to(array[0], (*leading, *row))
    if d.often() or len(leading) > 2 or not array.size:
        return np.ascontiguousarray(array).reshape(*leading, *row)
    held = np.full((*leading[::-1], *(n + 3 for n in row or (0,))), POISON, array.dtype)
    view = held[..., 1 : 1 + row[0]] if row else held[..., 1]
    view = view.transpose(*reversed(range(len(leading))), *range(len(leading), view.ndim))[:: d.one(1, -1)]
    view[...] = array.reshape(view.shape)
    return view


def presented(d: Draw, x: np.ndarray, k: int, call: Call) -> tuple[np.ndarray, tuple[int, ...], Call]:
    """Scores of any leading shape, this shape, and the flat keywords of `ksieve.select`, with poisoned outputs."""
    n, rows = call["next_n"], len(x)
    outer = d.one(*(i for i in range(1, rows // n + 1) if rows // n % i == 0))
    leading = d.one((rows,), (rows,), (outer, rows // outer), (1, outer, rows // outer))
    requests = (*leading[:-1], leading[-1] // n) if n == 1 or d.often() else (rows // n,)
    shapes = dict.fromkeys(PER_ROW, leading) | dict.fromkeys(PER_REQUEST, requests)
    if "indptr" in call:
        leading, shapes = (rows,), dict.fromkeys(PER_ROW, (rows,))
    given = {name: laid(d, value, shapes[name]) if name in shapes else value for name, value in call.items()}
    slots, live = given.pop("ks", None), given.pop("live", None)
    given |= {"k": k} if slots is None else {"k": slots, "max_k": k}
    given["num_rows"] = live if live is None or d.often() else np.array(d.one(live, [live]), np.int32)
    outputs = {name: given[name] for name in ("values", "raw", "counts") if name in given}
    outputs |= {"out": "given"} if d.often(0.3) else {}
    dtypes = {"values": x.dtype, "counts": np.dtype(np.int32)}
    for name in [name for name, kind in outputs.items() if kind == "given"]:
        shape = (rows,) if name == "counts" else (rows, columns_of(k, call))
        given[name] = laid(d, np.full(shape, POISON, dtypes.get(name, call["index_dtype"])), leading)
    if "out" in given and d.often():
        del given["index_dtype"]  # out tells it
    if "indptr" not in call:
        return laid(d, x, leading), leading, given
    # Each row's scores with others around all of them, which are no segment.
    lengths = clamped(given.pop("lengths").astype(np.int64), 0, x.shape[1])
    given |= {"indptr": np.append(0, lengths.cumsum()).astype(call["indptr"]) + x.shape[1]}
    given |= dict.fromkeys(("next_n", "index_base"))
    around = x.ravel()[: x.shape[1]]
    return np.concatenate([around, x[np.arange(x.shape[1]) < lengths[:, None]], around]), leading, given


def verdict(x: np.ndarray, call: Call, raw: np.ndarray, counts: np.ndarray | None = None) -> ksieve.Verdict:
    """What `ksieve.verify` says of an answer's indices before pages and offsets."""
    asked = {name: call[name] for name in (*JUDGED, "sorted") if name in call and name not in SEGMENTS}
    if call.get("deterministic"):
        asked |= {"sorted": asked.get("sorted") or "index", "tie_break": asked.get("tie_break") or "low"}
    if call.get("fill") is False:
        raw = np.where(np.arange(raw.shape[1]) < counts[:, None], raw, 0)
        asked |= {"counts": counts}
    return verified(x, asked.pop("lengths", None), raw, k=call.get("ks"), num_rows=call.get("live"), **asked)


def written_outside(view: np.ndarray) -> bool:
    """Whether the memory of an output that was poisoned holds anything else behind its slots."""
    base = view
    while base.base is not None:
        base = base.base
    held = view.copy()
    view[...] = POISON
    found = bool((base != POISON).any())
    view[...] = held
    return found


# ---- what is refused -------------------------------------------------------------------------------------------

PLAIN = dict.fromkeys(
    ("block_size", "expand", "force_first", "force_last", "tail", "positions", "block_table", "index_base")
)
REFUSED: dict[str, Callable[[Call, tuple[int, ...], int], Call]] = {
    "indptr": lambda c, s, w: {"lengths": np.ones(s, np.int32), "indptr": np.zeros(s[-1] + 1, np.int32)},
    "ends": lambda c, s, w: dict.fromkeys(("lengths", "ends"), np.ones(s, np.int32)) | {"next_n": 1, "tail": None},
    "fill": lambda c, s, w: {"fill": False, "counts": None},
    "tail": lambda c, s, w: PLAIN | {"tail": np.ones(s, np.int32)},
    "expand": lambda c, s, w: PLAIN | {"block_size": 8, "expand": 4},
    "index_base": lambda c, s, w: PLAIN | {"positions": np.zeros((*s, w), np.int32), "index_base": "start"},
    "block_size": lambda c, s, w: PLAIN | {"positions": np.zeros((*s, w), np.int32), "block_size": 2},
    "force_first": lambda c, s, w: PLAIN | {"force_first": c.get("max_k", c["k"]) + 1, "forced_extra": False},
    "next_n": lambda c, s, w: {"next_n": max(s[-1], 1) * 1000 + 1},
    "page_size": lambda c, s, w: {"page_table": np.zeros((1, 1), np.int32), "page_size": 3, "offsets": None},
    "max_k": lambda c, s, w: {"k": 3, "max_k": 3},
    "tie_break": lambda c, s, w: {"tie_break": "any", "deterministic": True},
}
"""Of a call, its leading shape and width: what makes it one that the contract refuses, by the option that is named."""
