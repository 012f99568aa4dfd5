"""The result of a verification: the reason of each row, the first wrong row in detail, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.errors import VerificationError
from ksieve.core.keys import order_key
from ksieve.core.options import PLAIN, Options
from ksieve.core.ranking import Ranking, ranked


class Reason(IntEnum):
    """Why a row is not exact; a row with several faults reports the first in this order.

    With the options of entries (`ksieve.core.entries`), faults of forced entries and of slots come before the others.

    Positions lie in the row's window, [0, length) without `starts`.
    """

    EXACT = 0
    OUT_OF_RANGE = 1
    """A slot holds neither the sentinel nor a position of the window."""
    DUPLICATE = 2
    """Two slots hold the same position."""
    MISSING = 3
    """Fewer than min(length, k) positions."""
    MISPLACED = 4
    """A sentinel stands before a position."""
    NOT_LARGEST = 5
    """An unselected score is better than a selected one: larger, or what `largest` and `nan` make better."""
    EXCESS = 6
    """A position stands in a slot from the row's own k on."""
    WRONG_TIE = 7
    """Of the scores equal to the worst selected one, others are selected than `tie_break` says."""
    UNSORTED = 8
    """Two neighbouring slots are not in the order that `sorted` says."""
    NOT_FORCED = 9
    """An entry is not selected that `force_first` or `force_last` forces."""
    BROKEN = 10
    """Slots do not hold all positions of an entry side by side, or the tail does not follow the entries."""
    MISCOUNTED = 11
    """`counts` is not the number of slots that the row uses."""

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")

    def text(self, ranking: Ranking) -> str:
        """Words for a message: "not smallest" where smaller scores are better."""
        return "not smallest" if self is Reason.NOT_LARGEST and ranking == "smallest" else str(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """The first row that is not exact: the slots at fault and the values involved.

    Attributes
    ----------
    row, length : int
        Row number, in C order over all leading dimensions, and the number of its valid scores.
    reason : Reason
    slots : tuple of int
        Columns of the index array at fault; none of a count. A duplicate has both copies, and a wrong order two
        neighbours. Others have one: the misplaced sentinel, the first empty slot, the worst selected score, the first
        slot from the row's k on, the selected tie.
    positions : tuple of int
        Contents of those slots.
    worst : tuple of (int, float) or None
        Position and score of the worst selected score; None when no slot holds a valid position. All positions count
        as the indices do (`index_base`).
    best_left : tuple of (int, float) or None
        Position and score of the best unselected valid score; None when every one is selected.
    scores : tuple of (float or None)
        Scores at `positions`; None where there is none.
    start : int
        First position of the window in the row.
    k : int
        The row's own k.
    live : bool
        Whether the row is one of the first `num_rows`.
    options : Options
        Options of the call that was judged.
    note : str
        Text of the fault, where the attributes do not say it all.
    """

    row: int
    length: int
    reason: Reason
    slots: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    worst: tuple[int, float] | None = None
    best_left: tuple[int, float] | None = None
    scores: tuple[float | None, ...] = ()
    start: int = 0
    k: int = 0
    live: bool = True
    options: Options = PLAIN
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes but `options` and `note`, the reason by name."""
        return {
            "row": self.row,
            "start": self.start,
            "length": self.length,
            "k": self.k,
            "live": self.live,
            "reason": str(self.reason),
            "slots": list(self.slots),
            "positions": list(self.positions),
            "scores": list(self.scores),
            "worst": self.worst and {"position": self.worst[0], "score": self.worst[1]},
            "best_left": self.best_left and {"position": self.best_left[0], "score": self.best_left[1]},
        }

    def __str__(self) -> str:
        facts = [f"start {self.start}"] if self.start else []
        facts += [f"length {self.length}"] if self.live else ["past num_rows"]
        facts += [f"k {self.k}"] if self.options.per_row_k and self.live else []
        where = f"row {self.row} ({', '.join(facts)}), {self.reason.text(self.options.ranking)}: "
        return where + self._fault()

    def _fault(self) -> str:
        if self.note:
            return self.note
        slot, holds = self.slots[0], f"slot {self.slots[0]} holds"
        if self.reason in (Reason.NOT_LARGEST, Reason.WRONG_TIE) and self.worst and self.best_left:
            what, (place, score), (other, better) = word(self.options), self.worst, self.best_left
            both = f"{holds} {what} {place} with score {score!r}, but {what} {other} with"
            if self.reason is Reason.NOT_LARGEST:
                return f"{both} score {better!r} is not selected{self._because(score, better)}"
            return f"{both} an equal score is not selected, and tie_break is {self.options.tie_break!r}"
        if self.reason is Reason.UNSORTED:
            rule = "the order is by position"
            if self.options.order == "value":
                one, two = self.scores
                because = self._because(one, two)
                rule = because.removeprefix(": ") or "larger scores rank first"
                if one == two or (one != one and two != two):
                    rule = f"equal scores are ordered by {'descending ' * (self.options.tie_break == 'high')}position"
            held = [f"position {p} with score {s!r}" for p, s in zip(self.positions, self.scores, strict=True)]
            return f"{holds} {held[0]}, slot {self.slots[1]} {held[1]}: {rule}"
        if self.reason is Reason.DUPLICATE:
            return f"position {self.positions[0]} stands in slots {slot} and {self.slots[1]}"
        if self.reason is Reason.EXCESS:
            return f"{holds} {self.positions[0]}; slots from {self.k} on must hold the sentinel"
        if self.reason is Reason.OUT_OF_RANGE:
            first = self.start if self.options.index_base == "row" else 0
            rule = f"outside [{first}, {first + self.length})" if self.live else "not the sentinel"
            return f"{holds} {self.positions[0]}, {rule}"
        text = f"{holds} the sentinel {self.positions[0]}"
        if self.reason is Reason.MISPLACED:
            return f"{text} and later slots hold positions"
        left = "entries" if self.options.entries else "valid positions"
        return f"{text} with {left} left" + (
            f", the best of them {self.best_left[0]} with score {self.best_left[1]!r}" if self.best_left else ""
        )

    def _because(self, *scores: float | None) -> str:
        """Rule that ranks two scores, where it is not the plain one of numbers."""
        ranking = self.options.ranking
        if any(score != score for score in scores):
            return f": NaN ranks {'first' if ranking == 'nan_first' else 'last'}"
        return ": smaller scores rank first" if ranking == "smallest" else ""


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The result of `verify`. True in a boolean context if every row is exact.

    Attributes
    ----------
    rows, k : int
        Rows checked (all of them, never a sample), in C order over all leading dimensions, and the largest k of a row.
    reasons : ndarray of uint8, shape (rows,)
        `Reason` of each row, 0 where it is exact.
    first : Finding or None
        The first row that is not exact, in detail.
    nan_scores, nan_selected : int
        Valid scores that are NaN, and how many of them were selected.
    tied_rows : int
        Exact rows in which an unselected score equals the worst selected one, so that without a tie-break another
        exact answer exists.
    options : Options
        Options of the call that was judged.
    """

    rows: int
    k: int
    reasons: NDArray[np.uint8]
    first: Finding | None
    nan_scores: int
    nan_selected: int
    tied_rows: int
    options: Options = PLAIN

    @property
    def ok(self) -> bool:
        """Whether every row is exact."""
        return self.first is None

    @property
    def failed_rows(self) -> NDArray[np.intp]:
        """Numbers of the rows that are not exact, ascending."""
        return np.flatnonzero(self.reasons)

    @property
    def failed(self) -> int:
        """Count of rows that are not exact."""
        return int(np.count_nonzero(self.reasons))

    def reason_counts(self) -> dict[Reason, int]:
        """Count failed rows per reason, only reasons that occurred."""
        values, counts = np.unique(self.reasons[self.reasons != 0], return_counts=True)
        return {Reason(int(v)): int(c) for v, c in zip(values, counts, strict=True)}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of ``ksieve verify --json``: numbers as numbers, reasons by name."""
        first = self.first
        return {
            "exact": self.ok,
            "rows": self.rows,
            "k": self.k,
            "failed": self.failed,
            "reasons": {str(reason): count for reason, count in self.reason_counts().items()},
            "first": None if first is None else first.as_dict(),
            "nan_scores": self.nan_scores,
            "nan_selected": self.nan_selected,
            "tied_rows": self.tied_rows,
        }

    def raise_if_failed(self) -> None:
        """Raise `VerificationError` with this verdict's text unless every row is exact."""
        if not self.ok:
            raise VerificationError(str(self), self)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        notes = (
            f"{_count(self.nan_scores, 'NaN score')} ({self.nan_selected} selected)" if self.nan_scores else "no NaN"
        )
        notes += f"; {_count(self.tied_rows, 'row')} tied at rank k" if self.tied_rows else "; no ties at rank k"
        k = f"k<={self.k}" if self.options.per_row_k else f"k={self.k}"
        if self.first is None:
            return f"exact: all {_count(self.rows, 'row')} checked, {k}; {notes}"
        ranking = self.options.ranking
        reasons = ", ".join(f"{count} {reason.text(ranking)}" for reason, count in self.reason_counts().items())
        return (
            f"NOT exact: {self.failed} of {_count(self.rows, 'row')} failed, {k} ({reasons}); {notes}\n"
            f"  first: {self.first}"
        )


def explain(finding: Finding, row: NDArray[np.float32], slots: NDArray[np.int64], sentinel: int) -> Finding:
    """Add the slots and values that explain a finding; `row` holds the valid scores of the window alone."""
    length, options, reason = row.size, finding.options, finding.reason
    first = finding.start if options.index_base == "row" else 0
    pad = slots == sentinel
    good = ~pad & (slots >= first) & (slots < first + length)
    keys = order_key(ranked(row, options.ranking))
    chosen = np.flatnonzero(good)
    local = np.where(good, slots - first, -1)
    left = np.ones(length, dtype=bool)
    left[local[chosen]] = False
    worst_slot, best = _worst_slot(keys, local, chosen, options), _best_left(keys, left, options)
    if reason is Reason.OUT_OF_RANGE:
        at = [int(np.flatnonzero(~pad & ~good)[0])]
    elif reason is Reason.DUPLICATE:
        order = chosen[np.argsort(slots[chosen], kind="stable")]
        copy = int(np.flatnonzero(slots[order][1:] == slots[order][:-1])[0])
        at = [int(order[copy]), int(order[copy + 1])]
    elif reason in (Reason.MISSING, Reason.MISPLACED):
        at = [int(np.flatnonzero(pad)[0])]
    elif reason is Reason.EXCESS:
        at = [int(chosen[chosen >= finding.k][0])]
    elif reason is Reason.UNSORTED:
        at = _unsorted_slots(keys, local[chosen], options)
    else:
        at = [worst_slot]
    held, scores = tuple(int(slots[s]) for s in at), tuple(_shown(row[local[s]]) if good[s] else None for s in at)
    worst = (int(slots[worst_slot]), _shown(row[local[worst_slot]])) if worst_slot >= 0 else None
    left_best = (best + first, _shown(row[best])) if best >= 0 else None
    return replace(finding, slots=tuple(at), positions=held, worst=worst, best_left=left_best, scores=scores)


def _worst_slot(keys: NDArray[np.uint32], local: NDArray[np.int64], chosen: NDArray[np.intp], options: Options) -> int:
    """Slot of the worst selected score, with a tie-break of the last one to be selected; -1 without any."""
    if not chosen.size:
        return -1
    ties = chosen[keys[local[chosen]] == keys[local[chosen]].max()]
    place = {"any": 0, "low": np.argmax(local[ties]), "high": np.argmin(local[ties])}
    return int(ties[place[options.tie_break]])


def _best_left(keys: NDArray[np.uint32], left: NDArray[np.bool_], options: Options) -> int:
    """Position of the best unselected score, with a tie-break of the first one to be selected; -1 without any."""
    rest = np.flatnonzero(left)
    if not rest.size:
        return -1
    ties = rest[keys[rest] == keys[rest].min()]
    return int(ties[-1 if options.tie_break == "high" else 0])


def _unsorted_slots(keys: NDArray[np.uint32], local: NDArray[np.int64], options: Options) -> list[int]:
    """Return the first two neighbouring slots that are not in order."""
    wrong = local[1:] < local[:-1]
    if options.order == "value":
        wrong = local[1:] > local[:-1] if options.tie_break == "high" else wrong
        key = keys[local]
        wrong = (key[1:] < key[:-1]) | ((key[1:] == key[:-1]) & wrong)
    slot = int(np.flatnonzero(wrong)[0])
    return [slot, slot + 1]


def _shown(score: np.float32) -> float:
    """Convert a score to float, a subnormal through its bits: in a flush-to-zero mode a cast gives 0.0."""
    bits = int(score.view(np.uint32))
    if bits & 0x7F800000:
        return float(score)
    return (bits & 0x7FFFFF) * 2.0**-149 * (-1 if bits >> 31 else 1)


def word(options: Options) -> str:
    """What a row's k are selected of, in messages."""
    return "entry" if options.entries else "position"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
