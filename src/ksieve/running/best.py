"""The best scores of rows so far, with their positions: two lists in turn, and the selection among one of them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from ksieve import api
from ksieve.core import problem
from ksieve.core.arrays import Device, inspect, is_array
from ksieve.core.dtypes import SCORE_DTYPES, canonical, held
from ksieve.core.errors import ArgumentError, BackendError, shown
from ksieve.core.groups import Blocks, Offsets, Positions, RowBounds
from ksieve.core.installation import require_torch
from ksieve.core.keys import widen
from ksieve.core.options import Options, check_choice, dtype_text
from ksieve.core.selection import Selection

OUTPUTS = ("out", "sorted", "index_dtype", "transform", "num_rows", "values", "raw", "counts")
"""Keyword arguments of `ksieve.select` that say what is written for a selected entry."""

_ALL = slice(None)


def _torch_on(device: Device) -> Any:
    """PyTorch, which sees the device."""
    torch = require_torch("tiles on CUDA are tensors of PyTorch")
    if device.kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if device.index >= count:
            raise BackendError(f"tiles on {device}: PyTorch sees {count} CUDA GPUs; device='cpu' needs none")
    return torch


class Best:
    """The k best scores of each row so far.

    Tiles are selected from, and then what was selected is merged with the best so far: two calls of `ksieve.topk`.

    `rows`, `k`, `max_k`, `dtype`, `device`, `cutoff`: as of `ksieve.running.Running`. `options`: of the selection.
    `xp`: NumPy or PyTorch, whichever the arrays are of. `place`: its keyword arguments for an array on the device.
    `nothing`, `everything`: cutoffs that no score but infinities reaches, and that all reach.
    """

    ROOM = 1
    """Slots of a list after the best so far, in units of k."""

    def __init__(self, rows: Any, k: Any, max_k: Any, dtype: Any, device: Any, options: Options) -> None:
        self.rows = problem.check_size(rows, "rows")
        self.per_row = is_array(k)
        self.k = problem.check_k(max_k, "max_k") if self.per_row else problem.check_k(k)
        if not self.per_row and max_k is not None:
            raise ArgumentError("max_k", shown(max_k), "nothing unless k is an array")
        self.options = options
        name = canonical(dtype_text(dtype))
        check_choice(name, "dtype", SCORE_DTYPES)
        self.dtype: str = name
        self.xp: ModuleType = np
        self.place: dict[str, Any] = {}
        where = problem.parse_device(device)
        if type(dtype).__module__ == "torch" or where.kind == "cuda":
            self.xp, self.place = _torch_on(where), {"device": str(device)}
        self._make_lists()
        self._first = self.empty((self.rows,), "int32")
        self.cutoff = self.empty((self.rows,), "float32")
        self.device: Device = inspect(self.cutoff, "device").device
        if self.per_row:
            problem.check_vector(inspect(k, "k"), "k", ((self.rows,),), self.device)
            self.own_k = self.xp.asarray(k)
        self.nothing, self.everything = -options.unused_value, options.unused_value
        self.reset()
        self.merge(0)  # refuses what topk refuses, and loads its kernels

    def _make_lists(self) -> None:
        slots = (1 + self.ROOM) * self.k
        self._values = [self.empty((self.rows, slots), self.dtype) for _ in range(2)]
        self._places = [self.empty((self.rows, slots), "int32") for _ in range(2)]

    @property
    def library(self) -> str:
        """Name of the library of the arrays."""
        return "numpy" if self.xp is np else "torch"

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Make an array on the device; bfloat16 is uint16 bits in NumPy."""
        return self.xp.empty(shape, dtype=held(dtype) if self.xp is np else getattr(self.xp, dtype), **self.place)

    def reset(self) -> None:
        """Forget all scores."""
        self._places[0][:, : self.k] = -1
        self._values[0][:, : self.k] = 0
        self.cutoff[:] = self.everything

    def room(self, count: int) -> tuple[Any, Any]:
        """Arrays for up to k scores and positions of each row, which `merge` takes; -1 where there is none."""
        slots = slice(self.k, self.k + count)
        return self._values[0][:, slots], self._places[0][:, slots]

    def within(self, windows: dict[str, Any], first: int, width: int) -> dict[str, Any]:
        """Bounds within a tile from those of whole rows, as `take` wants them."""
        clip = {name: self.xp.clip(array, first, first + width) - first for name, array in windows.items()}
        return {name: self.xp.asarray(array, dtype=self.xp.int32) for name, array in clip.items()}

    def take(self, tile: Any, first: int, windows: dict[str, Any], num_rows: Any = None) -> None:
        """Take a tile into account; `windows` are from `within`, by their names in `ksieve.topk`."""
        size = self.options.block_size
        self._first[:] = first // size
        count = min(self.k, -(-tile.shape[1] // size))
        values, places = self.room(count)
        lengths, ends = windows.get("lengths"), windows.get("ends")
        self.select(
            tile, count, lengths, transform=Offsets(self._first), out=places, values=values, num_rows=num_rows,
            blocks=Blocks(size), bounds=RowBounds(windows.get("starts"), ends) if ends is not None else None,
        )  # fmt: skip
        self.merge(count, num_rows)

    def merge(self, count: int, num_rows: Any = None) -> None:
        """Select among the best so far and those in `room`."""
        taken = slice(0, self.k + count)
        self.select(
            self._values[0][:, taken], self.k, gathered=Positions(self._places[0][:, taken]),
            out=self._places[1][:, : self.k], values=self._values[1][:, : self.k], num_rows=num_rows,
        )  # fmt: skip
        self._values.reverse()
        self._places.reverse()
        self._bound_rows()

    def _bound_rows(self, rows: Any = _ALL) -> None:
        """Rewrite what bounds some rows, after their best have changed."""
        self.cutoff[rows] = self.worst(self._values[0][rows, : self.k], rows)

    def worst(self, values: Any, rows: Any = _ALL) -> Any:
        """Worst score of each of some rows of k slots, as float32; `everything` where one is unused or NaN."""
        found = self.widened(values)
        if self.per_row:  # slots that the row has not
            slot = self.xp.arange(self.k, **self.place)
            found = self.xp.where(slot[None] >= self.own_k[rows, None], self.xp.full_like(found, self.nothing), found)
        return self.bound((self.xp.amin if self.everything < 0 else self.xp.amax)(found, 1))

    def bound(self, found: Any) -> Any:
        """Cutoffs of float32 scores: `everything` in place of NaN, which bounds nothing."""
        return self.xp.nan_to_num(found, nan=self.everything, posinf=np.inf, neginf=-np.inf)

    def widened(self, scores: Any) -> Any:
        """Scores as float32."""
        return widen(scores) if self.xp is np else scores.float()

    def select(self, scores: Any, most: int, lengths: Any = None, rows: Any = _ALL, **more: Any) -> Selection[Any]:
        """`ksieve.select` of scores of some rows, with `most` slots and further arguments."""
        select: Any = api.select  # mypy cannot choose an overload for a mapping
        slots = {"k": self.own_k[rows], "max_k": most} if self.per_row else {"k": most}
        how = {"largest": self.options.largest, "nan": self.options.nan, "tie_break": self.options.tie_break}
        found: Selection[Any] = select(scores, lengths, **slots, **how, **more)
        return found

    @property
    def usual_capacity(self) -> int:
        """Default slots of the lists of candidates.

        The number of scores above a sample spreads by the sample's rank, which a small k makes small.
        """
        return max(2 * self.k, 4096)

    def lists(self, capacity: int) -> tuple[Any, Any]:
        """Arrays of scores and positions for lists of candidates that `adopt` takes."""
        return self.empty((self.rows, capacity), self.dtype), self.empty((self.rows, capacity), "int32")

    def adopt(self, scores: Any, positions: Any, counts: Any, held: Any) -> Any:
        """Take over the lists of the rows in `held`, and return the k-th best score of each row's list.

        Rows have no list before, those that were adopted have no candidates any more, and none that is not has been
        pushed to.
        """
        values, places = self.room(self.k)
        self.select(scores, self.k, counts, gathered=Positions(positions), out=places, values=values)
        worst = self.worst(values)
        places[~held] = -1
        self.merge(self.k)
        return worst

    def finish(self, **outputs: Any) -> Selection[Any]:
        """Return the best so far as `ksieve.select` returns them."""
        return self._finish(self._values[0][:, : self.k], self._places[0][:, : self.k], None, outputs)

    def _finish(self, values: Any, places: Any, lengths: Any, outputs: dict[str, Any]) -> Selection[Any]:
        """Select among scores of some lengths, with positions."""
        for name in outputs:
            if name not in OUTPUTS:
                raise ArgumentError(name, shown(outputs[name]), f"only {', '.join(OUTPUTS)} in finish")
        fixed = self.options.deterministic
        return self.select(values, self.k, lengths, gathered=Positions(places), deterministic=fixed, **outputs)
