"""Answers of calls with entries (`ksieve.core.entries`) or positions, read back as the entries that each row selects.

This module decides what a plain selection cannot say. Do slots hold whole entries and the tail, are the forced entries
among them, and do they lie where the order puts them? The others are left to `ksieve.checking.judge`, as an answer of
the selection among the entries that are not forced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.checking.verdict import Finding, Reason, word
from ksieve.core.entries import I64, Entries, Forced, forced
from ksieve.core.options import Options


class FaultError(Exception):
    """What is wrong with a row beyond its selection: the reason, the columns at fault, and words for a message."""

    def __init__(self, reason: Reason, columns: tuple[int, ...], note: str) -> None:
        self.reason, self.columns, self.note = reason, columns, note


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows read back: the selection among the entries that are not forced.

    `answer` (ndarray of int64, shape (rows, slots)): columns of ``entries.scores``, or with the index base "start"
    counted from the first of the others. Unused slots hold the sentinel. `columns` (list of ndarray of int64): columns
    of the caller's answer in which each entry of `answer`, and the first unused slot, begin. `faults`: by the number of
    the row.
    """

    entries: Entries
    forced: Forced
    answer: I64
    columns: list[I64]
    faults: dict[int, FaultError]

    @property
    def begin(self) -> I64:
        """Column of the first of the others."""
        return self.entries.begin + self.forced.begin

    def number(self, row: int, entry: int) -> int:
        """Number of an entry, which is counted from the row's first one."""
        places = self.entries.places
        return int(self.entries.number[row]) + entry if places is None else int(places[row, entry])

    def placed(self, finding: Finding, row: int, answer: NDArray[Any], k: int) -> Finding:
        """A finding in the selection, in terms of the caller's answer and of the row's own k."""
        options = finding.options
        columns = self.columns[row]
        base = 0 if options.index_base == "start" else int(self.begin[row])
        first = int(self.forced.begin[row])

        def numbered(pair: tuple[int, float] | None) -> tuple[int, float] | None:
            return pair and (self.number(row, pair[0] - base + first), pair[1])

        slots = tuple(int(columns[min(s, columns.size - 1)]) for s in finding.slots)
        excess = finding.reason is Reason.EXCESS
        return replace(
            finding,
            k=k,
            note=_excess(slots[0], k, options) if excess else "",
            slots=slots,
            positions=tuple(int(answer[s]) for s in slots),
            worst=numbered(finding.worst),
            best_left=numbered(finding.best_left),
        )

    def faulty(self, finding: Finding, row: int, answer: NDArray[Any], k: int) -> Finding:
        """The finding of a fault, in place of one in the selection."""
        fault = self.faults[row]
        held = tuple(int(answer[c]) for c in fault.columns)
        scores = (None,) * len(held)
        return replace(finding, k=k, note=fault.note, slots=fault.columns, positions=held, scores=scores)


def read(options: Options, entries: Entries, ks: I64, answer: NDArray[Any], sentinel: int) -> Selection:
    """Read the answer of some rows.

    `ks` (ndarray of int64, shape (rows,)): each row's own k. `answer`: ndarray of integers, shape (rows, columns).
    """
    rows, parts = answer.shape[0], forced(options, entries.total, ks)
    found = Selection(entries, parts, np.full(answer.shape, sentinel, np.int64), [], {})
    for r in range(rows):
        row = answer[r].astype(np.int64)
        end = int(np.argmax(np.append(row == sentinel, True)))
        try:
            own, columns = _entries_of(found, r, row, end, options, sentinel)
            others, kept = _others(found, r, own, columns, end, int(ks[r]), options)
        except FaultError as error:
            found.faults[r] = error.with_traceback(None)
            others = kept = np.empty(0, np.int64)
        base = 0 if options.index_base == "start" else int(found.begin[r])
        found.answer[r, : others.size] = others + base
        found.columns.append(np.append(kept, min(end, max(row.size - 1, 0))))
    return found


def _entries_of(found: Selection, r: int, row: I64, end: int, options: Options, sentinel: int) -> tuple[I64, I64]:
    """Entries in the used slots of a row, counted from the row's first one, and the column in which each begins."""
    if (row[end:] != sentinel).any():
        note = f"slot {end} holds the sentinel {sentinel} and later slots hold positions"
        raise FaultError(Reason.MISPLACED, (end,), note)
    entries, expand = found.entries, options.expand
    low, high, tail = int(entries.low[r]), int(entries.high[r]), np.empty(0, np.int64)
    if options.tail:
        tail = np.arange(entries.tail[r], high)
    body = row[: max(end - tail.size, 0)]
    if not np.array_equal(row[body.size : end], tail):
        at = min(body.size, row.size - 1)
        note = f"slots before {end} do not end with the tail [{int(entries.tail[r])}, {high})"
        raise FaultError(Reason.BROKEN, (at,), note)
    numbers = body // expand
    first = np.ones(body.size, bool)
    first[1:] = (np.diff(body) != 1) | (np.diff(numbers) != 0)
    columns = np.flatnonzero(first)
    numbers = numbers[columns]
    if entries.places is None:
        own = numbers - entries.number[r]
        known = (own >= 0) & (own < entries.total[r])
    else:
        held = entries.places[r, : entries.total[r]]
        own = np.searchsorted(held, numbers)
        known = own < held.size
        known[known] = held[own[known]] == numbers[known]
    if not known.all():
        at = int(columns[np.argmin(known)])
        of = "which is of no entry" if options.entries else "the position of no score"
        raise FaultError(Reason.OUT_OF_RANGE, (at,), f"slot {at} holds {row[at]}, {of} of the row")
    if expand > 1:
        begins = np.maximum(numbers * expand, low)
        whole = (body[columns] == begins) & (
            np.diff(np.append(columns, body.size)) == np.minimum((numbers + 1) * expand, high) - begins
        )
        if not whole.all():
            at = int(columns[np.argmin(whole)])
            number = int(numbers[np.argmin(whole)])
            note = f"slots from {at} on do not hold the positions of entry {number}, all of them in ascending order"
            raise FaultError(Reason.BROKEN, (at,), note)
    return own.astype(np.int64), columns


def _others(found: Selection, r: int, own: I64, columns: I64, end: int, k: int, options: Options) -> tuple[I64, I64]:
    """The entries that are not forced, counted from the first of these, with their columns; checks the forced ones."""
    ordered = np.sort(own)
    if (twice := np.flatnonzero(np.diff(ordered) == 0)).size:
        entry = int(ordered[twice[0]])
        one, two = (int(c) for c in columns[own == entry][:2])
        note = f"{word(options)} {found.number(r, entry)} stands in slots {one} and {two}"
        raise FaultError(Reason.DUPLICATE, (one, two), note)
    parts, total = found.forced, int(found.entries.total[r])
    before = int(parts.begin[r])
    behind = before + int(parts.total[r])
    above = (own < before) | (own >= behind)
    required = np.concatenate(
        [np.arange(parts.first[r], parts.first_end[r]), np.arange(parts.last[r], parts.last_end[r])]
    )
    free = options.tie_break == "any" and required.size < before + total - behind
    missing = required[~np.isin(required, own)]
    if np.count_nonzero(above) < required.size or (missing.size and not free):
        at = min(end, found.answer.shape[1] - 1)
        note = f"entry {found.number(r, int(missing[0]))} is forced, and not selected"
        raise FaultError(Reason.NOT_FORCED, (at,), note)
    if np.count_nonzero(above) > required.size:
        at = int(columns[above][required.size])
        raise FaultError(Reason.EXCESS, (at,), _excess(at, k, options))
    if options.order == "value":
        expected = np.concatenate([np.sort(own[above]), own[~above]])
        if options.tie_break == "high":
            expected[: required.size] = expected[: required.size][::-1]
    else:
        expected = ordered if options.order == "index" else own
    if (wrong := np.flatnonzero(own != expected)).size:
        rule = "forced entries stand first, in the order of equal scores" if options.order == "value" else "by position"
        at = int(columns[wrong[0]])
        note = f"slot {at} does not hold {word(options)} {found.number(r, int(expected[wrong[0]]))}: {rule}"
        raise FaultError(Reason.UNSORTED, (at,), note)
    return own[~above] - before, columns[~above]


def _excess(column: int, k: int, options: Options) -> str:
    return f"slot {column} holds an entry beyond the {k + options.beside} of the row"
