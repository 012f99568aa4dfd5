"""The answer to a call with blocks, forced entries, expansion and a tail, by sorting lists of Python numbers.

It shares no code with the package: a row becomes a list of entries with their scores and positions, in plain integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oracle import ranks, window_of, written


@dataclass
class Entry:
    """One entry: its number, the rank of its best score, where that score lies, and the positions that are written."""

    number: int
    rank: float
    column: int
    positions: list[int]
    forced: bool = False


def window(row, width, call):
    """Window of a row; rows of a request differ by one position, which an entry without blocks cannot express."""
    expand, block = call.get("expand") or 1, call.get("block_size") or 1
    n = call.get("next_n") or 1
    if block == 1 and expand is not True and expand > 1 and n > 1:
        alone = {name: call[name] for name in ("starts", "live") if call.get(name) is not None}
        alone |= {name: np.repeat(call[name], n) for name in ("lengths", "ends") if call.get(name) is not None}
        return window_of(row, width, alone)
    return window_of(row, width, {name: value for name, value in call.items() if value is not None})


def tail_of(row, call):
    """Length of a row in positions; None without `tail`."""
    if call.get("tail") is None:
        return None
    n = call.get("next_n") or 1
    return max(int(call["tail"][row // n]) - (n - 1 - row % n), 0)


def positions_of(row, width, call):
    """Positions of a row's scores, negative where there is none; None where they are columns."""
    if call.get("block_table") is not None:
        table = call["block_table"][row].tolist()
        size = width // len(table)
        return [table[c // size] * size + c % size for c in range(width)]
    return None if call.get("positions") is None else call["positions"][row].tolist()


def entries_of(x, row, call):
    """Entries of a row in ascending order of their numbers, and the positions of its tail; `x` holds ranks."""
    begin, end = window(row, x.shape[1], call)
    block = call.get("block_size") or 1
    expand = block if call.get("expand") is True else (call.get("expand") or 1)
    base = 0 if call.get("index_base") == "start" else begin
    length, tail = tail_of(row, call), []
    columns = range(begin, end)
    if block > 1:
        limit = base + end - begin if length is None else min(base + end - begin, length)
        groups = {}
        for c in columns:
            groups.setdefault((base + c - begin) // block, []).append(c)
        found = []
        for number, own in groups.items():
            own = [c for c in own if base + c - begin < limit]
            positions = [base + c - begin for c in own]
            if length is not None and (number + 1) * block > limit:
                tail += positions
            elif own:
                best = max(own, key=lambda c: (x[row, c], -c))
                found.append(Entry(number, x[row, best], best, positions))
    else:
        named = positions_of(row, x.shape[1], call)
        numbers = {c: base + c - begin if named is None else named[c] for c in columns}
        found = [
            Entry(n, x[row, c], c, list(range(n * expand, (n + 1) * expand)))
            for c, n in numbers.items()
            if n >= 0 and (n + 1) * expand <= 2**31 and (length is None or (n + 1) * expand <= length)
        ]
        found.sort(key=lambda e: e.number)
        if length is not None:
            lowest = base * expand if named is None else 0
            tail = [p for p in range(length // expand * expand, length) if p >= lowest]
    if expand == 1:
        for entry in found:
            entry.positions = [entry.number]
    first, last = call.get("force_first") or 0, call.get("force_last") or 0
    for i, entry in enumerate(found):
        entry.forced = i < first or i >= len(found) - last
    return found, tail


def selected(found, row, k, call):
    """The one answer of a call with a tie-break, best first; equal entries in the order of the tie-break."""
    sign = -1 if call.get("tie_break") == "high" else 1
    mine = k if call.get("ks") is None else min(max(int(call["ks"][row]), 0), k)
    if call.get("force") == "beside":
        mine += (call.get("force_first") or 0) + (call.get("force_last") or 0)
    order = sorted(found, key=lambda e: (not e.forced, 0 if e.forced else -e.rank, sign * e.number))
    return order[:mine]


def check_row(x, scores, row, k, call, out, raw, values, count):
    """Fail unless one row of an answer is what the call asks for."""
    found, tail = entries_of(x, row, call) if row < call.get("live", row + 1) else ([], [])
    best = selected(found, row, k, call) if found else []
    used = int(count)  # of equal entries any, and a cut one among them has fewer positions
    assert len(tail) <= used <= len(out), f"row {row}: a count of {used}"
    slots = raw[:used].tolist()
    where = f"row {row}: {slots}, of {[(e.number, e.rank, e.forced) for e in found]}"
    end = used if call.get("fill") is False else len(out)  # slots from there on may hold anything
    assert (raw[used:end] == -1).all() and (out[used:end] == -1).all(), where
    assert slots[used - len(tail) :] == tail, where
    by_first = {e.positions[0]: e for e in found}
    got, at = [], 0
    while at < used - len(tail):
        assert slots[at] in by_first, where
        entry = by_first[slots[at]]
        assert slots[at : at + len(entry.positions)] == entry.positions, where
        got.append(entry)
        at += len(entry.positions)
    assert at == used - len(tail), where
    numbers = [e.number for e in got]
    assert len(set(numbers)) == len(best), where
    key = [(e.forced, 0 if e.forced else e.rank) for e in got]
    assert sorted(key) == sorted((e.forced, 0 if e.forced else e.rank) for e in best), where
    sign = -1 if call.get("tie_break") == "high" else 1
    if call.get("tie_break"):
        assert sorted(numbers) == sorted(e.number for e in best), where
    if call.get("sorted") == "index":
        assert numbers == sorted(numbers), where
    elif call.get("sorted"):
        assert got == sorted(got, key=lambda e: (not e.forced, 0 if e.forced else -e.rank, sign * e.number)), where
    assert out[:used].tolist() == [written(p, row, call) for p in slots], where
    if values is not None:
        expected = [scores[row, e.column] for e in got for _ in e.positions]
        assert values[: len(expected)].tobytes() == np.array(expected, scores.dtype).tobytes(), where
        assert (ranks(values[None, len(expected) : end], largest=call.get("largest") is not False) == -1e300).all(), (
            where
        )
