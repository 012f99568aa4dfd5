"""The best scores so far on the CPU: scores of a tile that can be among them are appended to lists."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.arrays import as_numpy
from ksieve.core.groups import Offsets, Positions, RowBounds
from ksieve.core.keys import NAN_KEY, order_key, widen
from ksieve.core.ranking import ranked
from ksieve.core.selection import Selection
from ksieve.core.windows import I64
from ksieve.running.best import _ALL, Best


class HostBest(Best):
    """The k best scores of each row so far, followed by scores that are not compared yet.

    A score of a tile that is worse than the worst of the best is dropped. Another one is appended: late in a row there
    are few. They are merged with the best when a row holds k of them. From a tile with many more than k of them the
    best are selected first, as from the first tile of a row.
    """

    ROOM = 2

    def reset(self) -> None:
        """Forget all scores."""
        super().reset()
        self._held = np.zeros(self.rows, np.int64)
        self._bounds = np.full(self.rows, NAN_KEY, np.uint32)

    def room(self, count: int) -> tuple[Any, Any]:
        """Arrays for up to k scores and positions of each row, which `merge` takes; -1 where there is none."""
        self._settle(self._held > 0)
        return super().room(count)

    def finish(self, **outputs: Any) -> Selection[Any]:
        """Return the best so far as `ksieve.topk` returns them."""
        self._settle(self._held > 0)
        return super().finish(**outputs)

    def take(self, tile: Any, first: int, windows: dict[str, Any], num_rows: Any = None) -> None:
        """Take a tile into account; `windows` are bounds within it, by their names in `ksieve.topk`."""
        if self.options.block_size > 1:
            super().take(tile, first, windows, num_rows)
            return
        from ksieve.backends.cpu.keeping import keep  # Numba is loaded by the first call

        given = {name: as_numpy(array).astype(np.int64) for name, array in windows.items()}
        begins = given.get("starts", np.zeros(self.rows, np.int64))
        ends = given.get("ends", given.get("lengths", np.full(self.rows, tile.shape[1])))
        lengths = np.maximum(ends - begins, 0)
        if num_rows is not None:
            lengths[max(int(np.asarray(num_rows).item()), 0) :] = 0
        scores, (values, places), counts = as_numpy(tile), self._lists(), self._held.copy()
        lists = values[:, self.k :], places[:, self.k :]
        most = self.k + self.k // 4  # a second tile has about k
        keep(scores, begins, lengths, first, self._bounds, *lists, counts, most, self.options.ranking)
        overfull = (counts > self.ROOM * self.k) | (counts > self._held + most)
        if overfull.all():
            super().take(tile, first, windows, num_rows)
            return
        self._held = np.where(overfull, self._held, counts)
        if overfull.any():
            self._select(np.flatnonzero(overfull), scores, begins, begins + lengths, first)
        if (self._held >= self.k).any():
            self._settle(self._held > self.k // 2)  # rows that would be next, too: a call costs as much as some rows

    def _select(self, rows: I64, scores: NDArray[Any], begins: I64, ends: I64, first: int) -> None:
        """Append the k best scores of some rows of a tile."""
        count = min(self.k, scores.shape[1])
        begins, ends = begins.astype(np.int32), ends.astype(np.int32)
        chosen, best, *_ = self.select(
            scores[rows], count, rows=rows, bounds=RowBounds(begins[rows], ends[rows]),
            transform=Offsets(np.full(len(rows), first, np.int32)), values=True,
        )  # fmt: skip
        values, places = self._lists()
        slots = self.k + self._held[rows, None] + np.arange(count)
        values[rows[:, None], slots], places[rows[:, None], slots] = best, chosen
        self._held[rows] += count

    def _settle(self, which: NDArray[np.bool_]) -> None:
        """Merge the scores of some rows that are not compared yet with the best so far."""
        if not which.any():
            return
        (rows,), (values, places) = np.nonzero(which), self._lists()
        ends = self.k + self._held[rows]
        most = ends.max()
        chosen, best, *_ = self.select(
            values[rows, :most], self.k, ends, rows, gathered=Positions(places[rows, :most]), values=True
        )
        values[rows, : self.k], places[rows, : self.k] = best, chosen
        self._held[rows] = 0
        self._bound_rows(rows)

    def _bound_rows(self, rows: Any = _ALL) -> None:
        """Rewrite what bounds some rows, after their best have changed."""
        super()._bound_rows(rows)
        rows = np.arange(self.rows)[rows]
        bits = as_numpy(self.cutoff)[rows].view(np.uint32)
        wide = bits.view(np.float32)
        cutoffs = (bits >> 16).astype(np.uint16) if self.dtype == "bfloat16" else wide.astype(self.dtype)
        ties = self.options.tie_break != "any"  # without one, an equal score is not needed where there are k
        self._bounds[rows] = self._keys(cutoffs) - np.uint32(not ties)
        # A cutoff of zero may stand for subnormal scores, in a flush-to-zero mode; an infinite one, for fewer than k.
        size = bits & np.uint32(0x7FFFFFFF)
        rows = rows[(size < 0x00800000) | (size >= 0x7F800000)]
        values, places = (lists[rows, : self.k] for lists in self._lists())
        keys, missing = self._keys(values).astype(np.int64), places < 0
        if self.per_row:  # slots that the row has not
            beyond = np.arange(self.k) >= as_numpy(self.own_k)[rows, None]
            keys[beyond], missing[beyond] = 0, False
        worst = keys.max(axis=1, initial=0) - (not ties)
        worst[missing.any(axis=1)] = NAN_KEY
        self._bounds[rows] = np.maximum(worst, 0)

    def _keys(self, scores: NDArray[Any]) -> NDArray[np.uint32]:
        """Ordered keys of the ranked scores."""
        return order_key(widen(ranked(scores, self.options.ranking)))

    def _lists(self) -> tuple[NDArray[Any], NDArray[np.int32]]:
        return as_numpy(self._values[0]), as_numpy(self._places[0])
