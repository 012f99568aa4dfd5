"""The oracle: a judge of every answer of a selection, by NumPy or by PyTorch operations where the arrays are.

It shares no code with the library. Scores become order-preserving integers, blocks their maxima, and a stable sort of
whole rows says which entries are the best. An answer is read slot by slot, so that every right one passes. Without an
order, entries may have any; without a tie-break, ties may fall either way. Nothing has a tolerance.

A *call* is a dict of options of `ksieve.select`, fields of groups by their own names. ``ks`` stands for an array k, and
``live`` for ``num_rows``. An *answer* is a dict of arrays: ``indices``, and where there are any ``values``, ``raw`` and
``counts``. What is None counts as absent, in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

NONE, LAST, HIGHEST, FORCED = -(1 << 31), 1 - (1 << 31), (1 << 31) - 2, (1 << 31) - 1
"""Ranks of what is no entry, of NaN below every number and above every number, and of forced entries."""

INFINITY = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80, "uint16": 0x7F80}
"""Bits of infinity; uint16 holds bits of bfloat16."""

FAR = 1 << 40
ON_HOST, ON_DEVICE = 1 << 21, 1 << 25
"""Scores and slots judged at a time: temporaries take about 100 bytes for each."""

NAMES = {"out": "indices", "values": "values", "raw": "raw", "counts": "counts"}
"""Arrays of an answer by the arguments of `ksieve.select` that they fill."""

PER_REQUEST = ("lengths", "ends", "tail")
PER_ROW = ("ks", "starts", "offsets", "row_to_request", "positions", "block_table")
"""Names of arrays of a call that have an entry for each row; of the others, one for each request of `next_n` rows."""


def wrong_rows(scores: Any, k: int, call: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Which rows of an answer are wrong, by reason: arrays of bool, shape (rows,); empty without rows.

    The arrays of the call and of the answer are of the scores' library (NumPy or PyTorch), on the same device. `k` is
    the largest of a row. With pages, the answer to a call that expands entries needs ``raw``.
    """
    call = {name: value for name, value in call.items() if value is not None}
    answer = {name: value for name, value in answer.items() if value is not None}
    rows, width = scores.shape
    n, found = call.get("next_n") or 1, dict[str, list[Any]]()
    most = ON_DEVICE if getattr(scores, "is_cuda", False) else ON_HOST
    step = max(1, most // (n * (width + answer["indices"].shape[1] + 1)))  # requests are not divided
    for first in range(0, rows // n, step):
        requests, part = slice(first, first + step), slice(n * first, n * (first + step))
        own = {name: call[name][part] for name in PER_ROW if name in call}
        own |= {name: call[name][requests] for name in PER_REQUEST if name in call}
        held = {name: array[part] for name, array in answer.items()}
        for reason, wrong in _wrong(scores[part], k, call | own, held, n * first).items():
            found.setdefault(reason, []).append(wrong)
    return {reason: _library(scores).concatenate(parts) for reason, parts in found.items()}


def exact_rows(scores: Any, k: int, call: Mapping[str, Any], answer: Mapping[str, Any]) -> Any:
    """Which rows of an answer are right: array of bool, shape (rows,)."""
    return sum(wrong_rows(scores, k, call, answer).values(), 0 * _arange(len(scores), scores)) == 0


def faults(scores: Any, k: int, call: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """What is wrong with an answer, in words: each reason with its first rows."""
    found = {reason: rows for reason, rows in wrong_rows(scores, k, call, answer).items() if bool(rows.any())}
    where = _library(scores).where
    return [f"{reason}: {int(rows.sum())} rows {where(rows)[0][:6].tolist()}" for reason, rows in found.items()]


def assert_served(scores: Any, k: int, call: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Fail unless an answer is what a call asks for."""
    ok = exact_rows(scores, k, call, answer)
    if not bool(ok.all()):
        row = int((~ok).nonzero()[0].reshape(-1)[0])
        held = {name: array[row] for name, array in answer.items() if array is not None}
        raise AssertionError(f"{'; '.join(faults(scores, k, call, answer))}. Row {row} of {len(ok)} holds {held}")


def assert_exact(scores: Any, lengths: Any, k: int, indices: Any) -> None:
    """Fail unless indices are an answer of NumPy to a call without options."""
    if indices.shape != (len(scores), k):
        raise AssertionError(f"indices have shape {indices.shape}, expected {(len(scores), k)}")
    assert_served(scores, k, {"lengths": None if lengths is None else np.asarray(lengths)}, {"indices": indices})


def best(scores: Any, k: int, call: Mapping[str, Any]) -> Any:
    """The one right answer to a call with an order and a tie-break, without expansion: raw indices, int64."""
    row = _arange(len(scores), scores)
    found = entries_of(scores, call, row)
    order, need = _best_first(found, k, call, row)
    return _listed(found, order, need, k, call)


def ranks(scores: Any, *, largest: bool = True, nan: str | None = "last") -> Any:
    """int32 in the contract's order: greater is better, zeros are equal, and so are all NaN."""
    if not isinstance(scores, np.ndarray):
        import torch

        bits = scores.float().contiguous().view(torch.int32)
    elif scores.dtype == np.uint16:
        bits = (scores.astype(np.uint32) << 16).view(np.int32)
    else:
        bits = np.ascontiguousarray(scores.astype(np.float32)).view(np.int32)
    size, where = bits & 0x7FFFFFFF, _library(scores).where
    rank = where((bits < 0) == largest, -size, size)
    return where(size > 0x7F800000, HIGHEST if nan == "highest" and largest else LAST, rank)


# ---- what NumPy and PyTorch name differently ---------------------------------------------------------------


def _library(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def _arange(count: int, like: Any) -> Any:
    return np.arange(count) if isinstance(like, np.ndarray) else _library(like).arange(count, device=like.device)


def _long(array: Any) -> Any:
    return array.astype(np.int64) if isinstance(array, np.ndarray) else array.long()


def _as(array: Any, like: Any) -> Any:
    """Integers of another size: they wrap."""
    return array.astype(like.dtype) if isinstance(array, np.ndarray) else array.to(like.dtype)


def _bits(array: Any) -> Any:
    """Signed integers of the same bits."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array).view(f"i{array.itemsize}")
    return array.contiguous().view(getattr(_library(array), f"int{8 * array.dtype.itemsize}"))


def _take(array: Any, index: Any) -> Any:
    return np.take_along_axis(array, index, 1) if isinstance(array, np.ndarray) else array.gather(1, index)


def _order(array: Any) -> Any:
    """A stable sort of each row, ascending."""
    if isinstance(array, np.ndarray):
        return np.argsort(array, axis=1, kind="stable")
    return array.sort(dim=1, stable=True).indices


def _find(ordered: Any, values: Any) -> Any:
    """Where values would be in sorted rows."""
    if isinstance(ordered, np.ndarray):
        return np.array([np.searchsorted(*each) for each in zip(ordered, values, strict=True)]).reshape(values.shape)
    return _library(ordered).searchsorted(ordered.contiguous(), values.contiguous())


# ---- entries -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entries:
    """Entries of rows, in ascending order of their numbers: arrays of (rows, entries), `tail` and `high` of (rows,).

    `rank`: greater is better; `NONE` where there is no entry, `FORCED` for forced ones. `number`, `begin`, `size`,
    `column`: number of each entry, its first position, how many it has, and the column of its best score. `tail`,
    `high`: bounds of the positions after the last whole entry.
    """

    rank: Any
    number: Any
    begin: Any
    size: Any
    column: Any
    tail: Any
    high: Any


def _windows(width: int, call: Mapping[str, Any], row: Any) -> tuple[Any, Any, Any]:
    """Windows [begin, end) of rows, and their lengths in positions or None; `row` holds their numbers."""
    xp, n = _library(row), call.get("next_n") or 1
    request, later = (row - row[0]) // n, n - 1 - row % n
    names = ("starts", "lengths", "ends", "tail")
    starts, lengths, ends, tail = (
        None if call.get(name) is None else _long(call[name]).clip(-FAR, FAR) for name in names
    )
    # Rows of a request differ by one position, which scores that stand for several cannot express.
    fewer = 0 * later if not _block(call) and _expand(call) > 1 else later
    begin = 0 * row if starts is None else starts.clip(0, width)
    if lengths is not None:
        end = begin + (lengths[request] - fewer).clip(0, None)
    else:
        end = (width if ends is None else ends[request]) - fewer
    end = xp.maximum(end.clip(None, width), begin)
    live = len(row) + row[0] if call.get("live") is None else int(call["live"])
    end = xp.where(row < live, end, begin)
    if tail is not None:
        tail = xp.where(row < live, (tail[request] - later).clip(0, None), 0)
    return begin, end, tail


def _block(call: Mapping[str, Any]) -> int:
    """Scores of a block, or 0."""
    size = call.get("block_size") or 1
    return size if size > 1 else 0


def _expand(call: Mapping[str, Any]) -> int:
    """Positions that are written of an entry; True stands for the block's."""
    return int(call.get("expand") or 1)


def _named(call: Mapping[str, Any], width: int) -> Any:
    """Positions of candidates as int64, or None."""
    if call.get("block_table") is not None:
        table = _long(call["block_table"])[:, :, None]
        size = width // table.shape[1]
        found = table * size + _arange(size, table)
        return _library(table).where(table < 0, -1, found).reshape(len(table), width)
    return None if call.get("positions") is None else _long(call["positions"])


def entries_of(scores: Any, call: Mapping[str, Any], row: Any) -> Entries:
    """Lay out the entries of rows; `row` holds their numbers."""
    xp, size, expand = _library(scores), _block(call), _expand(call)
    begin, end, length = _windows(scores.shape[1], call, row)
    begin, end, length = begin[:, None], end[:, None], None if length is None else length[:, None]
    base = 0 * begin if call.get("index_base") == "start" else begin
    rank, named = ranks(scores, largest=call.get("largest") is not False, nan=call.get("nan")), None
    if scores.shape[1]:
        named = _named(call, scores.shape[1])
    else:  # one column, outside of every window
        rank = 0 * _as(begin, rank)
    rows, width = rank.shape
    if size:
        count = -(-width // size)
        position = _arange(count * size, scores)
        low, high = base, base + end - begin
        if length is not None:
            high = xp.minimum(xp.maximum(length, low), high)
        shift = begin - base  # from a position to its column
        rank = _take(rank, (position + shift).clip(None, width - 1))
        grouped = xp.where((position < low) | (position >= high), NONE, rank).reshape(rows, count, size)
        rank = xp.amax(grouped, 2)
        first = xp.amin(xp.where(grouped == rank[:, :, None], _arange(size, scores), size), 2)
        number = position[:count] + 0 * begin
        if length is not None:
            rank = xp.where((number + 1) * size > high, NONE, rank)
        tail = xp.maximum(high // size * size, low) if length is not None else high
        column = number * size + first + shift
        start = xp.maximum(number * size, low) if expand > 1 else number
        many = xp.minimum((number + 1) * size, high) - start if expand > 1 else 0 * number + 1
    else:
        column = _arange(width, scores) + 0 * begin
        number = column + base - begin if named is None else named
        there = (column >= begin) & (column < end) & (number >= 0) & ((number + 1) * expand <= 1 << 31)
        if length is not None:
            there &= (number + 1) * expand <= length
        rank = xp.where(there, rank, NONE)
        if named is not None:
            number = xp.where(there, number, FAR)
            column = _order(number)
            number, rank = _take(number, column), _take(rank, column)
        lowest = base * expand if named is None else 0 * begin
        high = xp.maximum(length, lowest) if length is not None else lowest
        tail = xp.maximum(high // expand * expand, lowest) if length is not None else high
        start, many = number * expand, 0 * number + expand
    first_forced, last_forced = call.get("force_first") or 0, call.get("force_last") or 0
    if first_forced or last_forced:
        is_entry = rank != NONE
        place, total = is_entry.cumsum(1) - 1, is_entry.sum(1)[:, None]
        rank = xp.where(is_entry & ((place < first_forced) | (place >= total - last_forced)), FORCED, rank)
    return Entries(rank, number, start, many, column, tail[:, 0], high[:, 0])


# ---- answers -----------------------------------------------------------------------------------------------


def _asked(call: Mapping[str, Any]) -> tuple[Any, Any]:
    """The order and the tie-break of a call."""
    order, tie_break = call.get("sorted"), call.get("tie_break")
    return (order or "index", tie_break or "low") if call.get("deterministic") else (order, tie_break)


def _best_first(found: Entries, k: int, call: Mapping[str, Any], row: Any) -> tuple[Any, Any]:
    """All entries of each row, the best first and equal ones by the tie-break, and how many are to be selected."""
    xp = _library(row)
    beside = (call.get("force_first") or 0) + (call.get("force_last") or 0) if call.get("forced_extra") else 0
    mine = 0 * row + k if call.get("ks") is None else _long(call["ks"]).clip(0, k)
    need = xp.minimum((found.rank != NONE).sum(1), mine + beside)
    if _asked(call)[1] == "high":
        return found.rank.shape[1] - 1 - _order(xp.flip(~found.rank, (1,))), need
    return _order(~found.rank), need


def _listed(found: Entries, order: Any, need: Any, slots: int, call: Mapping[str, Any]) -> Any:
    """Numbers of the entries to select, in their order, -1 in the other slots."""
    xp, slot = _library(order), _arange(slots, order)
    least = min(slots, order.shape[1])
    order = order[:, :least]
    if _asked(call)[0] == "index":
        order = xp.where(slot[:least] < need[:, None], order, FAR)
        order = _take(order, _order(order)).clip(None, found.rank.shape[1] - 1)
    listed = 0 * (need[:, None] + slot) - 1
    listed[:, :least] = xp.where(slot[:least] < need[:, None], _take(found.number, order), -1)
    return listed


def _matched(indices: Any, found: Entries, order: Any, call: Mapping[str, Any], row: Any) -> Any:
    """Numbers of the entries of pages in the slots: of entries that are written alike, the best ones; -2 for others."""
    xp, number = _library(order), _take(found.number, order)
    written = _as(_written(number, call, row), indices)
    written = xp.where(_take(found.rank, order) == NONE, 1 << 62, _long(written))
    by_page = _order(written)
    pages, by_slot = _take(written, by_page), _order(indices)
    held = _take(_long(indices), by_slot)
    turn = _arange(held.shape[1], order) - _find(held, held)  # among slots that hold the same
    at = (_find(pages, held) + turn).clip(None, pages.shape[1] - 1)
    matched = xp.where(_take(pages, at) == held, _take(number, _take(by_page, at)), -2)
    return _take(matched, _order(by_slot))


def _written(raw: Any, call: Mapping[str, Any], row: Any) -> Any:
    """What is written in place of indices; `row` holds the numbers of the rows."""
    if call.get("offsets") is not None:
        return raw + _long(call["offsets"])[:, None]
    if call.get("page_table") is None:
        return raw
    xp, table, size = _library(raw), _long(call["page_table"]), call.get("page_size") or 1
    named = call.get("row_to_request")
    request = row // (call.get("next_n") or 1) if named is None else _long(named)
    page = raw.clip(0, None) // size
    known = ((request >= 0) & (request < len(table)))[:, None] & (page < table.shape[1])
    if not bool(known.any()):  # also of a table without entries
        return 0 * raw - 1
    entry = table[request.clip(0, len(table) - 1)[:, None], page.clip(None, table.shape[1] - 1)]
    return xp.where(known & (entry >= 0), entry * size + raw % size, -1)


def _positions(
    answer: Mapping[str, Any], found: Entries, order: Any, need: Any, call: Mapping[str, Any], row: Any
) -> tuple[Any, Any]:
    """What the slots hold before pages and offsets, and how many of each row are in use."""
    xp, indices = _library(row), answer["indices"]
    slots = indices.shape[1]
    slot = _arange(slots, indices)
    paged = call.get("page_table") is not None
    raw = None
    if "raw" in answer or not (paged or call.get("offsets") is not None):
        raw = _long(answer.get("raw", indices))
    if "counts" in answer:
        used = _long(answer["counts"]).reshape(-1)
    else:
        used = (raw != -1).sum(1) if raw is not None else need
    if raw is None and paged and _expand(call) > 1:
        raise ValueError("pages of expanded entries cannot be judged without raw")
    if raw is None and paged:
        fixed = all(_asked(call))
        raw = _listed(found, order, need, slots, call) if fixed else _matched(indices, found, order, call, row)
        raw = xp.where(slot < used[:, None], raw, -1)
    elif raw is None:
        raw = _long(_as(_long(indices) - _long(call["offsets"])[:, None], indices))
        raw = xp.where(slot < used[:, None], raw, -1)
    return raw, used


def _wrong(scores: Any, k: int, call: Mapping[str, Any], answer: Mapping[str, Any], first: int) -> dict[str, Any]:
    """As `wrong_rows`, of rows from number `first` on."""
    xp, row = _library(scores), first + _arange(len(scores), scores)
    found, expand = entries_of(scores, call, row), _expand(call)
    order_asked, tie_asked = _asked(call)
    is_entry, entries = found.rank != NONE, found.rank.shape[1]
    order, need = _best_first(found, k, call, row)
    worst = _take(_take(found.rank, order), (need - 1).clip(0, None)[:, None])
    raw, used = _positions(answer, found, order, need, call, row)
    indices, slot = _long(answer["indices"]), _arange(raw.shape[1], scores)
    tails = found.high - found.tail
    body = used - tails
    in_use, in_body = slot < used[:, None], slot < body[:, None]
    wrong = {"count": (used < tails) | (used > raw.shape[1])}
    if call.get("fill") is not False:
        wrong["unused slots"] = (~in_use & ((raw != -1) | (indices != -1))).any(1)
    wrong["tail"] = (in_use & ~in_body & (raw != (found.tail - body)[:, None] + slot)).any(1)
    # The entry of each slot.
    number = xp.where(in_body, raw, -expand) // expand
    if call.get("positions") is None and call.get("block_table") is None:
        entry = number - found.number[:, :1]
    else:
        entry = _find(found.number, number)
    known = (entry >= 0) & (entry < entries)
    entry = entry.clip(0, entries - 1)
    known &= (_take(found.number, entry) == number) & _take(is_entry, entry)
    wrong["no entry"] = (in_body & ~known).any(1)
    head = in_body & True
    head[:, 1:] &= number[:, 1:] != number[:, :-1]
    begin, many = _take(found.begin, entry), _take(found.size, entry)
    apart = raw != begin
    apart[:, 1:] = xp.where(head[:, 1:], apart[:, 1:], raw[:, 1:] != raw[:, :-1] + 1)
    wrong["positions"] = (in_body & (apart | (raw >= begin + many))).any(1)
    wrong["positions"] |= (head * many).sum(1) != body.clip(0, None)
    # The selected ones.
    chosen, named = found.rank < NONE, head & known  # of none so far: no rank is lower
    at, slot_at = xp.where(named)
    chosen[at, entry[at, slot_at]] = True
    wrong["twice"] = chosen.sum(1) != named.sum(1)
    wrong["how many"] = chosen.sum(1) != need
    above = (found.rank > worst) & is_entry & (need > 0)[:, None]
    wrong["worse entry"] = ((chosen & (found.rank < worst)) | (above & ~chosen)).any(1)
    place = 0 * order
    place[_arange(len(scores), scores)[:, None], order] = _arange(entries, scores)
    if tie_asked in ("low", "high"):
        wrong["tie"] = (chosen != (place < need[:, None])).any(1)
    if order_asked:
        along = raw if order_asked == "index" else _take(place, entry)
        wrong["order"] = (in_body[:, 1:] & (along[:, 1:] < along[:, :-1])).any(1)
    # What is written for them.
    wrong["written"] = (in_use & (answer["indices"] != _as(_written(raw, call, row), answer["indices"]))).any(1)
    if "values" in answer:
        infinity = INFINITY[str(scores.dtype).removeprefix("torch.")]
        nothing = infinity - (0 if call.get("largest") is False else 1 << 8 * scores.dtype.itemsize - 1)
        held, bits = _bits(answer["values"]), _bits(scores)
        wrong["value"] = (in_use & ~in_body & (held != nothing)).any(1)
        if call.get("fill") is not False:
            wrong["value"] |= (~in_use & (held != nothing)).any(1)
        if scores.shape[1]:
            column = _take(found.column, entry).clip(0, scores.shape[1] - 1)
            wrong["value"] |= (in_body & (held != _take(bits, column))).any(1)
    return wrong
