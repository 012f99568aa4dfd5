"""The result of a verification: the reason of each row, the first wrong row in detail, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.errors import VerificationError
from ksieve.core.keys import order_key


class Reason(IntEnum):
    """Why a row is not exact; a row with several faults reports the first in this order."""

    EXACT = 0
    OUT_OF_RANGE = 1
    """A slot holds neither the sentinel nor a position in [0, length)."""
    DUPLICATE = 2
    """Two slots hold the same position."""
    MISSING = 3
    """Fewer than min(length, k) positions."""
    MISPLACED = 4
    """A sentinel stands before a position."""
    NOT_LARGEST = 5
    """An unselected score is better than a selected one."""

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Finding:
    """The first row that is not exact: the slots at fault and the values involved.

    Attributes
    ----------
    row, length : int
        Row number and its valid length.
    reason : Reason
    slots : tuple of int
        Columns of the index array at fault: both copies of a duplicate, the misplaced sentinel, the first
        empty slot, the slot of the worst selected score.
    positions : tuple of int
        Contents of those slots.
    worst : tuple of (int, float) or None
        Position and score of the worst selected score; None when no slot holds a valid position.
    best_left : tuple of (int, float) or None
        Position and score of the best unselected valid score; None when every one is selected.
    """

    row: int
    length: int
    reason: Reason
    slots: tuple[int, ...]
    positions: tuple[int, ...]
    worst: tuple[int, float] | None
    best_left: tuple[int, float] | None

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes, the reason by name."""
        return {
            "row": self.row,
            "length": self.length,
            "reason": str(self.reason),
            "slots": list(self.slots),
            "positions": list(self.positions),
            "worst": self.worst and {"position": self.worst[0], "score": self.worst[1]},
            "best_left": self.best_left and {"position": self.best_left[0], "score": self.best_left[1]},
        }

    def __str__(self) -> str:
        where = f"row {self.row} (length {self.length}), {self.reason}: "
        if self.reason is Reason.NOT_LARGEST and self.worst and self.best_left:
            return where + (
                f"slot {self.slots[0]} holds position {self.worst[0]} with score {self.worst[1]!r}, "
                f"but position {self.best_left[0]} with score {self.best_left[1]!r} is not selected"
            )
        if self.reason is Reason.DUPLICATE:
            return where + f"position {self.positions[0]} stands in slots {self.slots[0]} and {self.slots[1]}"
        if self.reason is Reason.OUT_OF_RANGE:
            return where + f"slot {self.slots[0]} holds {self.positions[0]}, outside [0, {self.length})"
        text = f"slot {self.slots[0]} holds the sentinel {self.positions[0]}"
        if self.reason is Reason.MISPLACED:
            return where + f"{text} and later slots hold positions"
        return where + (
            f"{text} with valid positions left"
            + (f", the best of them {self.best_left[0]} with score {self.best_left[1]!r}" if self.best_left else "")
        )


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The result of `verify`. True in a boolean context if every row is exact.

    Attributes
    ----------
    rows, k : int
        Rows checked (all of them, never a sample) and slots per row.
    reasons : ndarray of uint8, shape (rows,)
        `Reason` of each row, 0 where it is exact.
    first : Finding or None
        The first row that is not exact, in detail.
    nan_scores, nan_selected : int
        Valid scores that are NaN, and how many of them were selected.
    tied_rows : int
        Exact rows in which an unselected score equals the worst selected one, so another exact answer exists.
    """

    rows: int
    k: int
    reasons: NDArray[np.uint8]
    first: Finding | None
    nan_scores: int
    nan_selected: int
    tied_rows: int

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
        if self.first is None:
            return f"exact: all {_count(self.rows, 'row')} checked, k={self.k}; {notes}"
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.reason_counts().items())
        return (
            f"NOT exact: {self.failed} of {_count(self.rows, 'row')} failed, k={self.k} ({reasons}); {notes}\n"
            f"  first: {self.first}"
        )


def explain(row_id: int, row: NDArray[np.float32], slots: NDArray[np.int64], sentinel: int, reason: Reason) -> Finding:
    """Find the slots and values behind a row's reason; `row` holds only the valid scores."""
    length = row.size
    pad = slots == sentinel
    good = ~pad & (slots >= 0) & (slots < length)
    keys = order_key(row)
    chosen = np.flatnonzero(good)
    worst_slot = int(chosen[np.argmax(keys[slots[chosen]])]) if chosen.size else -1
    left = np.ones(length, dtype=bool)
    left[slots[chosen]] = False
    rest = np.flatnonzero(left)
    best = int(rest[np.argmin(keys[rest])]) if rest.size else -1
    if reason is Reason.OUT_OF_RANGE:
        at = [int(np.flatnonzero(~pad & ~good)[0])]
    elif reason is Reason.DUPLICATE:
        order = chosen[np.argsort(slots[chosen], kind="stable")]
        first = int(np.flatnonzero(slots[order][1:] == slots[order][:-1])[0])
        at = [int(order[first]), int(order[first + 1])]
    elif reason in (Reason.MISSING, Reason.MISPLACED):
        at = [int(np.flatnonzero(pad)[0])]
    else:
        at = [worst_slot]
    return Finding(
        row_id,
        length,
        reason,
        tuple(at),
        tuple(int(slots[s]) for s in at),
        (int(slots[worst_slot]), _shown(row[slots[worst_slot]])) if worst_slot >= 0 else None,
        (best, _shown(row[best])) if best >= 0 else None,
    )


def _shown(score: np.float32) -> float:
    """Convert a score to float, a subnormal through its bits: in a flush-to-zero mode a cast gives 0.0."""
    bits = int(score.view(np.uint32))
    if bits & 0x7F800000:
        return float(score)
    return (bits & 0x7FFFFF) * 2.0**-149 * (-1 if bits >> 31 else 1)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
