"""The judge of `ksieve.verify`: reads blocks of rows in order, and decides each row by counting.

For a row with its own k and a window of L scores, the answer holds ``min(L, k)`` distinct positions of the window, then
the sentinel. It is exact if and only if no unselected valid score is better than the worst selected one, which two
counts decide:

    valid scores better than the worst selected  ==  selected scores better than the worst selected

So a row is read once, in pieces, and compared with one number; no score is sorted or ranked. A tie-break takes a second
such count: scores equal to the worst selected one, up to the last selected position among them.

"Better" is a matter of *ranks*: levels (`ksieve.checking.ops`) mapped to int32, larger for a better score. The counts
of a row are those of levels, for every ranking; `_better` turns them into the count of better scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.checking import entries
from ksieve.checking.ops import BEST
from ksieve.checking.verdict import Finding, Reason, Verdict, explain
from ksieve.core.entries import I64, bounds
from ksieve.core.keys import NAN_LEVEL, widen
from ksieve.core.options import Options
from ksieve.model.pooling import entries_of

_TOP = BEST + 1
"""Rank above every number's: of NaN where it ranks first, and of a slot without a position."""

_FAR = 1 << 40
"""Bound on 64-bit lengths and starts, beyond every position: sums of two of them do not wrap."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request: the answer that is to be judged must fit it.

    `rows`, `width`, `slots`, `k`: shape of the scores as a matrix, slots per row, and the largest k of a row. `live`:
    rows from this one on hold the sentinel alone. Of integers: `lengths` (shape (rows // next_n,)), lengths or ends, by
    `options.windows`; `starts`, `ks`, and `counts` of used slots (shape (rows,)); `positions` (shape (rows, width)).
    """

    rows: int
    width: int
    slots: int
    k: int
    options: Options
    sentinel: int = -1
    live: int = (1 << 31) - 1
    lengths: NDArray[Any] | None = None
    starts: NDArray[Any] | None = None
    ks: NDArray[Any] | None = None
    positions: NDArray[np.int32] | None = None
    tails: NDArray[Any] | None = None
    counts: NDArray[Any] | None = None

    def windows(self, low: int, high: int) -> tuple[I64, I64, I64, I64 | None]:
        """Return begin and length of the windows of rows [low, high), their own k, and their lengths in positions."""
        # The window of a row depends on its place among the next_n rows of its request.
        n = self.options.next_n
        first, last = low // n * n, -(-high // n) * n
        begin, length, tails = bounds(
            self.options,
            last - first,
            self.width,
            lengths=None if self.lengths is None else _bounded(self.lengths[first // n : last // n]),
            starts=None if self.starts is None else _bounded(self.starts[first:last]),
            tails=None if self.tails is None else _bounded(self.tails[first // n : last // n]),
        )
        begin, length = begin[low - first : high - first], length[low - first : high - first]
        length[max(self.live - low, 0) :] = 0
        if tails is not None:
            tails = tails[low - first : high - first]
            tails[max(self.live - low, 0) :] = 0
        ks = np.full(high - low, self.k) if self.ks is None else np.clip(_bounded(self.ks[low:high]), 0, self.k)
        return begin, length, ks, tails


def _bounded(array: NDArray[Any]) -> I64:
    if array.dtype.itemsize == 8:
        array = np.clip(array, 0 if array.dtype.kind == "u" else -_FAR, _FAR)
    return array.astype(np.int64)


@dataclass(frozen=True, slots=True)
class _View:
    """Rows as a plain selection sees them: their scores, an answer to it, and its windows and ks as `bounds`.

    With entries or positions, `selection` is what was read from the caller's answer, and `windows` and ks are the
    call's.
    """

    scores: Any
    answer: Any
    bounds: tuple[I64, I64, I64]
    selection: entries.Selection | None = None
    windows: tuple[I64, ...] = ()


class Judge:
    """Checks blocks of rows in order and collects the verdict; `ops` holds the operations of the array library."""

    def __init__(self, ops: Any, asked: Asked, indices: Any, block_bytes: int) -> None:
        self.miscounted = np.zeros(asked.rows, dtype=bool)
        if not asked.slots:  # reductions need a slot: one that must be unused
            indices = ops.matrix(np.full(asked.rows, asked.sentinel), asked.rows, 1)
        if asked.counts is not None:
            used = ops.arange(indices.shape[1]) < ops.vector(_bounded(asked.counts))[:, None]
            indices = ops.xp.where(used, ops.integers(indices), asked.sentinel)
            self.used = ops.to_numpy((indices != asked.sentinel).sum(1))
            self.miscounted = self.used != _bounded(asked.counts)
        self.ops, self.asked, self.indices = ops, asked, indices
        self.ranking = asked.options.ranking
        self.elements = ops.elements(block_bytes)
        self.reasons = np.zeros(asked.rows, dtype=np.uint8)
        self.first: Finding | None = None
        self.totals = np.zeros(3, dtype=np.int64)

    def judge(self, begin: int, scores: Any, progress: Callable[[int], None] | None) -> None:
        """Check the rows of a block whose first row is row `begin` of the matrix."""
        step = max(1, self.elements // max(self.asked.slots, self.ops.row_cost(scores.shape[1]), 1))
        for low in range(0, scores.shape[0], step):
            piece = scores[low : low + step]
            at = slice(begin + low, begin + low + piece.shape[0])
            answer = self.indices[at]
            view = self._viewed(piece, at, answer)
            piece, answer = view.scores, view.answer
            vectors = [self.ops.vector(bound) for bound in view.bounds]
            reasons, *counts = self._rows(piece, vectors, self.ops.integers(answer))
            self.reasons[at] = self.ops.to_numpy(reasons)
            faults = {r: fault.reason for r, fault in view.selection.faults.items()} if view.selection else {}
            exact = self.reasons[at] == Reason.EXACT
            faults = {int(r): Reason.MISCOUNTED for r in np.flatnonzero(self.miscounted[at] & exact)} | faults
            for r, reason in faults.items():
                self.reasons[begin + low + r] = int(reason)
                counts[2][r] = False
            self.totals += [int(c.sum()) for c in counts]
            if self.first is None and self.reasons[at].any():
                self.first = self._finding(view, at, int(np.flatnonzero(self.reasons[at])[0]))
            if progress is not None:
                progress(at.stop)

    def _viewed(self, piece: Any, at: slice, answer: Any) -> _View:
        """The rows [at.start, at.stop) and their answer, as a plain selection."""
        asked = self.asked
        begin, length, ks, tails = asked.windows(at.start, at.stop)
        own = None if asked.positions is None else asked.positions[at]
        if asked.options.entries or own is not None:
            found = entries_of(asked.options, piece, begin, length, tails, positions=own)
            read = entries.read(asked.options, found, ks, answer, asked.sentinel)
            return _View(
                found.scores, read.answer, (read.begin, read.forced.total, read.forced.slots), selection=read,
                windows=(begin, length, ks),
            )  # fmt: skip
        return _View(piece, answer, (begin, length, ks))

    def _finding(self, view: _View, at: slice, r: int) -> Finding:
        """The finding of row r of the rows [at.start, at.stop), which is not exact."""
        asked, row_id, selection = self.asked, at.start + r, view.selection
        given = self.ops.to_numpy(self.indices[at][r])
        start, length, k = (int(bound[r]) for bound in view.bounds)
        found = Finding(
            row_id, length, Reason(int(self.reasons[row_id])), start=start, k=k, live=row_id < asked.live,
            options=asked.options,
        )  # fmt: skip
        if selection is None or r not in selection.faults:
            row = widen(self.ops.to_numpy(view.scores[r]))[start : start + length]
            found = explain(found, row, self.ops.to_numpy(view.answer[r]).astype(np.int64), asked.sentinel)
        if selection is not None:
            begin, length, k = (int(bound[r]) for bound in view.windows)
            placed = selection.faulty if r in selection.faults else selection.placed
            found = replace(placed(found, r, given, k), start=begin, length=length)
        if self.reasons[row_id] == Reason.MISCOUNTED and asked.counts is not None:
            note = f"counts has {asked.counts[row_id]}, but {int(self.used[row_id])} slots are used"
            found = replace(found, note=note, slots=(), positions=(), scores=())
        return found

    def _rows(self, scores: Any, vectors: list[Any], indices: Any) -> tuple[Any, Any, Any, Any]:
        """Return per row: reason, NaN scores, NaN scores selected, and whether an exact row is tied at rank k."""
        begin, length, k = vectors
        xp, ops, options = self.ops.xp, self.ops, self.asked.options
        slot = ops.arange(indices.shape[1])
        end = begin + length
        shift = begin * (options.index_base == "start")  # from an index to a position in the row
        pad = indices == self.asked.sentinel
        good = ~pad & (indices >= (begin - shift)[:, None]) & (indices < (end - shift)[:, None])
        needed = xp.minimum(length, k)
        found = good.sum(1)
        positions = xp.where(good, indices + shift[:, None], -1)
        # Positions are sorted: duplicates become neighbours, and the gather reads the row in memory order.
        chosen = ops.sort(positions)
        real = chosen >= 0
        ranks = self._ranks(scores, chosen)
        worst = xp.amin(xp.where(real, ranks, _TOP), 1)
        limit = self._level(worst)
        above, equal, nans = ops.count(scores, begin, end, limit, self.elements)
        better = self._better(above, equal, nans, length, limit == NAN_LEVEL)
        chosen_better = (real & (ranks > worst[:, None])).sum(1)
        ties = real & (ranks == worst[:, None])
        nan = real & (ranks == (_TOP if self.ranking == "nan_first" else NAN_LEVEL))
        tied = (equal > ties.sum(1)) & (needed > 0)
        reason = (found * 0) + Reason.EXACT
        for fault, rows in (
            (Reason.UNSORTED, self._unsorted(scores, positions, slot, needed)),
            (Reason.WRONG_TIE, self._wrong_tie(scores, begin, end, limit, xp.where(ties, chosen, -1)) & tied),
            (Reason.EXCESS, (good & (slot >= k[:, None])).any(1)),
            (Reason.NOT_LARGEST, (better > chosen_better) & (found > 0)),
            (Reason.MISPLACED, (pad & (slot < needed[:, None])).any(1)),
            (Reason.MISSING, found < needed),
            (Reason.DUPLICATE, ((chosen[:, 1:] == chosen[:, :-1]) & real[:, 1:]).any(1)),
            (Reason.OUT_OF_RANGE, (~pad & ~good).any(1)),
        ):
            reason = xp.where(rows, int(fault), reason)
        return reason, nans, nan.sum(1), tied & (reason == 0)

    def _ranks(self, scores: Any, positions: Any) -> Any:
        """Ranks of the scores at positions; arbitrary ranks where a position is -1."""
        levels = self.ops.levels(scores, positions.clip(0, None))
        if self.ranking == "largest":
            return levels
        is_nan = levels == NAN_LEVEL
        if self.ranking == "smallest":
            return self.ops.xp.where(is_nan, NAN_LEVEL, -levels)
        return self.ops.xp.where(is_nan, _TOP, levels)

    def _level(self, ranks: Any) -> Any:
        """Invert `_ranks`; the rank of a row without positions becomes the level of NaN."""
        numbers = -ranks if self.ranking == "smallest" else ranks
        return self.ops.xp.where((ranks == NAN_LEVEL) | (ranks == _TOP), NAN_LEVEL, numbers)

    def _better(self, above: Any, equal: Any, nans: Any, length: Any, is_nan: Any) -> Any:
        """Count the scores that are better than the worst selected one, which `is_nan` or a number."""
        if self.ranking == "largest":
            return above
        if self.ranking == "smallest":
            return self.ops.xp.where(is_nan, above, length - above - equal - nans)
        return self.ops.xp.where(is_nan, 0, above + nans)

    def _wrong_tie(self, scores: Any, begin: Any, end: Any, limit: Any, ties: Any) -> Any:
        """Whether the selected ties, positions or -1, are others than the first or last scores equal to the limit."""
        xp, tie_break = self.ops.xp, self.asked.options.tie_break
        if tie_break == "any":
            return begin < 0
        low = xp.amin(xp.where(ties < 0, self.asked.width, ties), 1) if tie_break == "high" else begin
        high = xp.amax(ties, 1) + 1 if tie_break == "low" else end
        return self.ops.count(scores, low, high, limit, self.elements)[1] != (ties >= 0).sum(1)

    def _unsorted(self, scores: Any, positions: Any, slot: Any, needed: Any) -> Any:
        """Whether two neighbouring slots, given as positions, are not in the order that was asked for."""
        order, descending = self.asked.options.order, self.asked.options.tie_break == "high"
        if order == "any":
            return needed < 0
        wrong = positions[:, 1:] < positions[:, :-1]
        if order == "value":
            wrong = positions[:, 1:] > positions[:, :-1] if descending else wrong
            ranks = self._ranks(scores, positions)
            wrong = (ranks[:, 1:] > ranks[:, :-1]) | ((ranks[:, 1:] == ranks[:, :-1]) & wrong)
        return (wrong & (slot[1:] < needed[:, None])).any(1)

    def verdict(self) -> Verdict:
        """Verdict on the rows judged so far."""
        nan_scores, nan_selected, tied = (int(t) for t in self.totals)
        return Verdict(
            self.asked.rows, self.asked.k, self.reasons, self.first, nan_scores, nan_selected, tied,
            self.asked.options,
        )  # fmt: skip
