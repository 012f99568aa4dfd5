"""The independent judge of a Top-K answer: it sorts, and shares no code with the package.

A score becomes a finite float64 whose order is the contract's: NaN below -inf, and positions past the row's
length below everything. An answer is exact when its positions are distinct and valid, the sentinel follows
them, and their sorted scores equal the first k of the sorted row.
"""

from __future__ import annotations

import numpy as np

NAN, PAST = -1e301, -1e302


def widen(scores):
    """float32 view of a score matrix; uint16 holds bfloat16 bits, which are the high half of a float32."""
    scores = np.asarray(scores)
    if scores.dtype == np.uint16:
        halves = np.zeros((*scores.shape, 2), dtype="<u2")
        halves[..., 1] = scores
        return halves.view("<f4")[..., 0].astype(np.float32)
    with np.errstate(invalid="ignore"):
        return scores.astype(np.float32)


def ranks(scores, lengths=None, *, largest=True, nan="last"):
    """Scores as float64 in contract order; shape kept, positions past `lengths` at PAST."""
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        x = widen(scores).astype(np.float64)
    is_nan, sign = np.isnan(x), 1 if largest else -1
    x = np.where(is_nan, -NAN if largest and nan == "highest" else NAN, sign * np.clip(x, -1e300, 1e300))
    if lengths is None:
        return x
    return np.where(np.arange(x.shape[1]) < np.asarray(lengths)[:, None], x, PAST)


def clamp(lengths, rows, width):
    if lengths is None:
        return np.full(rows, width)
    return np.clip(np.asarray(lengths, dtype=np.int64), 0, width)


def exact_rows(scores, lengths, k, indices, sentinel=-1):
    """Whether each row of `indices` is an exact answer; bool, shape (rows,)."""
    rows, width = np.shape(scores)
    valid = clamp(lengths, rows, width)
    indices = np.asarray(indices, dtype=np.int64)
    if indices.shape != (rows, k):
        raise AssertionError(f"indices have shape {indices.shape}, expected {(rows, k)}")
    needed = np.minimum(valid, k)
    real = np.arange(k) < needed[:, None]
    ok = np.where(real, (indices >= 0) & (indices < valid[:, None]), indices == sentinel).all(axis=1)
    positions = np.sort(np.where(real, indices, -1 - np.arange(k)), axis=1)
    ok &= (np.diff(positions, axis=1) != 0).all(axis=1)
    if width == 0:
        return ok
    x = ranks(scores, valid)
    inside = np.clip(indices, 0, width - 1)
    chosen = np.where(real, np.take_along_axis(x, inside, axis=1), PAST)
    best = np.full((rows, k), PAST)
    top = min(k, width)
    best[:, :top] = np.sort(x, axis=1)[:, ::-1][:, :top]
    best = np.where(real, best, PAST)
    return ok & (np.sort(chosen, axis=1) == np.sort(best, axis=1)).all(axis=1)


def assert_exact(scores, lengths, k, indices, sentinel=-1):
    """Fail with the first row that is no exact answer."""
    ok = exact_rows(scores, lengths, k, indices, sentinel)
    if not ok.all():
        row = int(np.flatnonzero(~ok)[0])
        length = int(clamp(lengths, *np.shape(scores))[row])
        raise AssertionError(
            f"row {row} of {len(ok)} (length {length}, k {k}) is not exact; {int((~ok).sum())} rows fail; "
            f"its indices begin {np.asarray(indices)[row][:8].tolist()}"
        )


def first_k(scores, lengths, k):
    """An exact answer by sorting: best first, ties by position, -1 after; int64, shape (rows, k)."""
    rows, width = np.shape(scores)
    valid = clamp(lengths, rows, width)
    order = np.argsort(-ranks(scores, valid), axis=1, kind="stable")[:, :k]
    answer = np.full((rows, k), -1, dtype=np.int64)
    answer[:, : order.shape[1]] = order
    return np.where(np.arange(k) < np.minimum(valid, k)[:, None], answer, -1)


# ---- options -----------------------------------------------------------------------------------------------


def window_of(row, width, call):
    """Window [begin, end) of a row of a call, by the rules as they are written down; Python's integers never wrap."""
    next_n = call.get("next_n", 1)
    later = next_n - 1 - row % next_n
    begin = 0 if call.get("starts") is None else min(max(int(call["starts"][row]), 0), width)
    if row >= call.get("live", row + 1):
        return begin, begin
    if call.get("lengths") is not None:
        length = int(call["lengths"][row // next_n]) - later
        return begin, min(begin + max(length, 0), width)
    end = (width if call.get("ends") is None else int(call["ends"][row // next_n])) - later
    return begin, min(max(end, begin), width)


def written(index, row, call):
    """What is written in place of an index: `call` has the arguments of `ksieve.topk`."""
    value = index
    if call.get("offsets") is not None:
        value = index + int(call["offsets"][row])
    elif call.get("page_table") is not None:
        table, size = call["page_table"], call.get("page_size", 1)
        named = call.get("row_to_request")
        request = row // call.get("next_n", 1) if named is None else int(named[row])
        if not (0 <= request < table.shape[0] and index // size < table.shape[1]):
            return -1
        if (entry := int(table[request, index // size])) < 0:
            return -1
        value = entry * size + index % size
    if call.get("index_dtype", "int32") == "int32":
        value = (value + (1 << 31)) % (1 << 32) - (1 << 31)
    return value


def assert_served(scores, k, call, answer):
    """Fail unless an answer, a dict of indices, values and raw (or None), is what the call asks for, row by row."""
    rows, width = np.shape(scores)
    x = ranks(scores, largest=call.get("largest") is not False, nan=call.get("nan"))
    for row in range(rows):
        begin, end = window_of(row, width, call)
        mine = k if call.get("ks") is None else min(max(int(call["ks"][row]), 0), k)
        used = min(end - begin, mine)
        base = 0 if call.get("index_base", "row") == "start" else begin
        where = f"row {row}, window [{begin}, {end}), k {mine}"
        slots = {name: array[row].tolist() for name, array in answer.items() if array is not None and name != "values"}
        for name, got in slots.items():
            assert got[used:] == [-1] * (k - used), (where, name, got[used:])
        ranked = x[row, begin:end].tolist()  # Python compares its own numbers several times faster than NumPy's
        local = _positions(slots, row, base, used, end - begin, call)
        if local is None:  # a transform that cannot be inverted: the call must fix every byte
            assert call.get("sorted") and call.get("tie_break"), where
            local = _determined(ranked, used, call)
        assert [written(p + base, row, call) for p in local] == slots["indices"][:used], where
        assert len(set(local)) == used and all(0 <= p < end - begin for p in local), (where, local)
        assert sorted(ranked[p] for p in local) == sorted(ranked, reverse=True)[:used][::-1], where
        if call.get("tie_break"):
            assert sorted(local) == sorted(_determined(ranked, used, call)), where
        if call.get("sorted"):
            assert local == _in_order(local, ranked, call), where
        if answer.get("values") is not None:
            bits = np.dtype(f"u{np.dtype(scores.dtype).itemsize}")
            smallest = call.get("largest") is False
            least = np.array(np.inf if smallest else -np.inf, np.float16 if scores.dtype == np.uint16 else scores.dtype)
            least = np.uint16(0x7F80 if smallest else 0xFF80) if scores.dtype == np.uint16 else least
            expected = [*(scores[row, begin + p] for p in local), *[least] * (k - used)]
            np.testing.assert_array_equal(answer["values"][row].view(bits), np.array(expected, scores.dtype).view(bits))


def _positions(slots, row, base, used, length, call):
    """Positions within the window of the used slots; None where they cannot be told from what is written."""
    if "raw" in slots or (call.get("offsets") is None and call.get("page_table") is None):
        return [i - base for i in slots.get("raw", slots["indices"])[:used]]
    inverse = {written(p + base, row, call): p for p in range(length)}
    if len(inverse) < length or -1 in inverse:
        return None
    assert all(i in inverse for i in slots["indices"][:used]), slots["indices"][:used]
    return [inverse[i] for i in slots["indices"][:used]]


def _determined(ranked, used, call):
    """The one answer of a call with an order and a tie-break."""
    return _in_order(_best_first(range(len(ranked)), ranked, call)[:used], ranked, call)


def _in_order(local, ranked, call):
    if call.get("sorted") == "index":
        return sorted(local)
    return _best_first(local, ranked, call) if call.get("sorted") else list(local)


def _best_first(positions, ranked, call):
    """Positions by their scores, equal ones by the tie-break: a sort leaves equal ones in their order."""
    return sorted(sorted(positions, reverse=call.get("tie_break") == "high"), key=lambda p: -ranked[p])
