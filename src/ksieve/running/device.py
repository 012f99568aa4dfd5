"""The best scores so far on a CUDA device: one kernel reads a tile and appends what can be among them to lists."""

from __future__ import annotations

from typing import Any

from ksieve.backends.cuda import arrays, keep
from ksieve.core.arrays import inspect
from ksieve.core.problem import row_pitch
from ksieve.core.selection import Selection
from ksieve.running.best import _ALL, Best


class DeviceBest(Best):
    """The k best scores of each row so far, among scores that are not compared yet.

    A push is one launch. Scores that a row's bound excludes are only read; the others are appended to the row's list.
    The kernel compacts a full list to its k best, which raises the bound.
    """

    def _make_lists(self) -> None:
        """Make lists with room to append; the other ones only take the k best of a merge."""
        self._capacity = keep.capacity_of(self.k)
        sizes = self._capacity, self.k
        self._values = [self.empty((self.rows, slots), self.dtype) for slots in sizes]
        self._places = [self.empty((self.rows, slots), "int32") for slots in sizes]
        self._places[0][:, : self.k] = -1
        self._held = self.empty((self.rows,), "int32")
        self._bounds = self.empty((self.rows,), "int64")

    def reset(self) -> None:
        """Forget all scores."""
        self._held[:] = 0
        self._bounds[:] = -1  # the largest number without a sign
        self.cutoff[:] = self.everything

    def room(self, count: int) -> tuple[Any, Any]:
        """Arrays for up to k scores and positions of each row, which `merge` takes; -1 where there is none."""
        self._launch(flags=keep.SETTLE)
        return super().room(count)

    def within(self, windows: dict[str, Any], first: int, width: int) -> dict[str, Any]:
        """The bounds as they are: the kernel clips them to the tile."""
        return windows

    def take(self, tile: Any, first: int, windows: dict[str, Any], num_rows: Any = None) -> None:
        """Take a tile into account; `windows` are from `within`, by their names in `ksieve.topk`."""
        self._launch(tile, first, windows.get("starts"), windows.get("ends", windows.get("lengths")), num_rows)

    @property
    def usual_capacity(self) -> int:
        """Default slots of the lists of candidates: of these lists."""
        return self._capacity

    def lists(self, capacity: int) -> tuple[Any, Any]:
        """Arrays of scores and positions for lists of candidates: these lists, unless they have too few slots."""
        if capacity > self._capacity:
            return super().lists(capacity)
        return self._values[0][:, :capacity], self._places[0][:, :capacity]

    def adopt(self, scores: Any, positions: Any, counts: Any, held: Any) -> Any:
        """Take over the lists of the rows in `held`, and return the k-th best score of each other row's list."""
        if scores.data_ptr() != self._values[0].data_ptr():
            return super().adopt(scores, positions, counts, held)
        adopted = self.xp.where(held, counts, self._held)
        self._held.copy_(counts.masked_fill(held, 0))
        self._bounds.fill_(-1)
        self._launch()  # compacts lists of k scores, and writes the worst of these
        self._held.copy_(adopted)
        self._bounds.fill_(-2)  # as good as none, but a push compacts no list that is not full
        return self.cutoff

    def finish(self, **outputs: Any) -> Selection[Any]:
        """Return the best so far as `ksieve.select` returns them."""
        return self._finish(self._values[0], self._places[0], self._held, outputs)

    def _bound_rows(self, rows: Any = _ALL) -> None:
        """Take over what a merge has written, and rewrite what bounds the rows."""
        for lists in (self._values, self._places):
            lists.reverse()
            lists[0][:, : self.k] = lists[1]
        self._launch(flags=keep.RECOUNT)

    def _launch(
        self, tile: Any = None, first: int = 0, starts: Any = None, ends: Any = None, num_rows: Any = None, *,
        flags: int = 0,
    ) -> None:  # fmt: skip
        ties = self.options.tie_break
        flags |= keep.TIES * (ties != "any") | keep.HIGH_FIRST * (ties == "high")
        flags |= keep.LONG_STARTS * _is_long(starts) | keep.LONG_ENDS * _is_long(ends)
        rows = self.rows
        if num_rows is not None and not hasattr(num_rows, "data_ptr"):
            rows, num_rows = min(max(int(num_rows), 0), rows), None
        own = self.own_k if self.per_row else None
        of_row = (self._values[0], self._places[0], self._held, self._bounds, self.cutoff)
        given = (tile, starts, ends, num_rows, own, *of_row)
        pitch, width = (0, 0) if tile is None else (row_pitch(inspect(tile, "tile")), tile.shape[1])
        index, stream = arrays.place_of(self.device)
        keep.launch(
            (*(0 if array is None else array.data_ptr() for array in given), pitch, width, first, self.k,
             self._capacity, flags, 0), rows, dtype=self.dtype, index=index, stream=stream,
            ranking=self.options.ranking,
        )  # fmt: skip


def _is_long(array: Any) -> bool:
    return array is not None and array.element_size() == 8
