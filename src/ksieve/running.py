"""`Running`: exact selection from rows whose columns arrive in tiles, without the matrix.

Between two pushes each row holds its k best scores so far, with their positions. A push selects from the tile alone and
then among these and the best of the tile, by position: two calls of `ksieve.topk`, so that everything about exactness,
ties and NaN is what it is there. The best of parts are the best of the whole for any partition of a row.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Literal

import numpy as np

from ksieve import api
from ksieve.core import problem
from ksieve.core.arrays import ArrayInfo, inspect, is_array
from ksieve.core.errors import ArgumentError, shown
from ksieve.core.keys import widen
from ksieve.core.options import INTEGERS, MAX_BLOCK, Nan, TieBreak, dtype_text

_OUTPUTS = (
    "out", "values_out", "raw_out", "counts_out", "return_values", "return_raw", "sorted", "index_dtype", "page_table",
    "page_size", "row_to_request", "offsets", "num_rows",
)  # fmt: skip
"""Keyword arguments of `Running.finish`: those of `ksieve.topk` that say what is written for a selected entry."""


class Running:
    """Select the k best scores of rows that are produced tile by tile, exactly.

    Memory is that of two lists of ``k + min(k, max_tile)`` scores and positions for each row, for rows of any
    width. On CUDA the lists are device memory, every call enqueues on the current stream and returns, and nothing is
    copied to the host; the kernels must be able to take `positions`.

    Parameters
    ----------
    rows : int
    k : int, or array of int32, shape (rows,)
        Slots per row, as in `ksieve.topk`; an array gives every row its own, clamped to [0, max_k] in each push.
    max_tile : int
        Most columns of a tile.
    max_k : int
        Slots per row where k is an array.
    dtype : str or dtype
        Of the scores: "float32", "float16" or "bfloat16", or such a dtype of NumPy or PyTorch. With a dtype of PyTorch,
        or on CUDA, arrays are tensors, otherwise those of NumPy, where bfloat16 is uint16 bits.
    device : str or torch.device
        "cpu", or a CUDA device.
    largest, nan, tie_break, deterministic
        As in `ksieve.topk`. Ties go by position, for tiles in any order.
    block_size : int
        Select among blocks of adjacent scores, as in `ksieve.topk`. Tiles then begin at whole blocks, and one that does
        not end at a whole block ends its rows.

    Attributes
    ----------
    cutoff : array of float32, shape (rows,)
        On the scores' device, rewritten by each push: a score that is worse cannot be selected any more, so that a
        producer need not store it. One that is equal can, by its position. -inf (inf with ``largest=False``) while a
        row has fewer than k scores, or NaN among its best.

    Raises
    ------
    ArgumentError, BackendError
        As `ksieve.topk`, when the object is made.

    Notes
    -----
    One object serves one stream. `reset`, pushes and `finish` can be captured in one CUDA graph after the same calls
    have run outside of it.

    Examples
    --------
    >>> import numpy as np, ksieve
    >>> scores = np.array([[5, 1, 7, 2, 9, 3]], dtype=np.float32)
    >>> running = ksieve.Running(rows=1, k=2, max_tile=4)
    >>> running.push(scores[:, :4], 0)
    >>> running.cutoff.tolist()
    [5.0]
    >>> running.push(scores[:, 4:], 4)
    >>> running.finish(sorted=True).tolist()
    [[4, 2]]
    """

    def __init__(
        self,
        rows: int,
        k: Any,
        max_tile: int,
        *,
        max_k: int | None = None,
        dtype: Any = "float32",
        device: Any = "cpu",
        largest: bool = True,
        nan: Nan = "last",
        tie_break: TieBreak | None = None,
        deterministic: bool = False,
        block_size: int = 1,
    ) -> None:
        self.rows = problem.check_size(rows, "rows")
        self.max_tile = problem.check_size(max_tile, "max_tile", 1)
        self.block_size = problem.check_size(block_size, "block_size", 1, MAX_BLOCK, "the largest block")
        self._per_row = is_array(k)
        if not self._per_row and max_k is not None:
            raise ArgumentError("max_k", shown(max_k), "nothing where k is an int")
        self.k = problem.check_k(max_k, "max_k") if self._per_row else problem.check_k(k)
        self._k = k
        name = dtype_text(dtype)
        name = "bfloat16" if name == "uint16" else name
        if not isinstance(name, str) or name not in problem.SCORE_DTYPES:
            raise ArgumentError("dtype", shown(dtype), f"one of {list(problem.SCORE_DTYPES)}")
        self.dtype: str = name
        self._ranking: dict[str, Any] = {"largest": largest, "nan": nan}
        if tie_break is not None or deterministic:
            self._ranking["tie_break"] = "low" if tie_break is None else tie_break
        self._deterministic = deterministic
        self._most = min(self.k, -(-self.max_tile // self.block_size))
        self._arrays: _Arrays = _arrays_of(type(dtype).__module__ == "torch", str(device))
        slots = self.k + self._most
        self._values = [self._arrays.empty((self.rows, slots), self.dtype) for _ in range(2)]
        self._places = [self._arrays.empty((self.rows, slots), "int32") for _ in range(2)]
        self._first = self._arrays.empty((self.rows,), "int32")
        self._bounds = [self._arrays.empty((self.rows,), "int32") for _ in range(2)]
        self.cutoff = self._arrays.empty((self.rows,), "float32")
        self._device = inspect(self.cutoff, "device").device
        self._worst = -np.inf if largest else np.inf
        self.reset()
        self._merge(0)  # refuses what topk refuses, and loads its kernels

    def reset(self) -> None:
        """Forget all tiles. On CUDA this enqueues two fills."""
        self._places[0][:, : self.k] = -1
        self._values[0][:, : self.k] = 0
        self.cutoff[:] = self._worst
        self._pushed: list[tuple[int, int]] = []
        self._end: int | None = None

    def push(
        self,
        tile: Any,
        first_column: int,
        lengths: Any = None,
        *,
        starts: Any = None,
        ends: Any = None,
        num_rows: Any = None,
    ) -> None:
        """Take a tile of columns into account; tiles may come in any order.

        Parameters
        ----------
        tile : array, shape (rows, columns)
            Scores of 1 to `max_tile` columns, laid out as those of `ksieve.topk`; read once, and not kept.
        first_column : int
            Position of the tile's first column. No column is pushed twice, and with `block_size` it is a multiple of
            that.
        lengths : array of int32 or int64, shape (rows,), optional
            Valid scores at the start of each whole row. Default: all of the tile.
        starts, ends : array of int32 or int64, shape (rows,), optional
            In place of `lengths`: windows ``[start, end)`` of the whole rows.
        num_rows : int, or array of int32 of shape (1,), optional
            Number of live rows; the same in every push and in `finish`.

        Raises
        ------
        ArgumentError
            Before anything is enqueued or written.
        """
        info = self._check_tile(tile)
        first, width = self._check_columns(first_column, info.shape[1])
        if lengths is not None and (starts is not None or ends is not None):
            raise ArgumentError("lengths", "an array with starts or ends", "either lengths, or starts and ends")
        if starts is not None and ends is None:
            raise ArgumentError("ends", "nothing with starts", "the end of each window: starts + lengths")
        given = {"lengths": lengths, "starts": starts, "ends": ends}
        windows = {name: array for name, array in given.items() if array is not None}
        for name, array in windows.items():
            problem.check_vector(inspect(array, name), name, ((self.rows,),), self._device, INTEGERS)
        for (name, array), bound in zip(windows.items(), self._bounds, strict=False):
            self._arrays.clip(array, first, first + width, bound)
            bound -= first
            windows[name] = bound
        self._first[:] = first // self.block_size
        count = min(self._most, -(-width // self.block_size))
        slots = slice(self.k, self.k + count)
        blocks = {"block_size": self.block_size} if self.block_size > 1 else {}
        select: Any = api.topk
        select(
            tile, windows.pop("lengths", None), offsets=self._first, out=self._places[0][:, slots],
            values_out=self._values[0][:, slots], num_rows=num_rows, **self._slots(count), **windows, **self._ranking,
            **blocks,
        )  # fmt: skip
        self._pushed.insert(bisect_left(self._pushed, (first, first)), (first, first + width))
        if width % self.block_size:
            self._end = first + width
        self._merge(count, num_rows)

    def finish(self, **outputs: Any) -> Any:
        """Return the answer for all tiles pushed since `reset`; more may follow, and `finish` again.

        Parameters
        ----------
        **outputs
            Keyword arguments of `ksieve.topk` about what is written: `out`, `values_out`, `raw_out`, `counts_out`,
            `return_values`, `return_raw`, `sorted`, `index_dtype`, `page_table`, `page_size`, `row_to_request`,
            `offsets` and `num_rows`.

        Returns
        -------
        indices, or tuple
            As `ksieve.topk` returns them for the whole rows. Values of blocks are their best scores.
        """
        for name in outputs:
            if name not in _OUTPUTS:
                raise ArgumentError(name, shown(outputs[name]), f"only {', '.join(_OUTPUTS)} in finish")
        values, places = self._values[0][:, : self.k], self._places[0][:, : self.k]
        how, select = self._ranking | {"deterministic": self._deterministic}, api.topk
        return select(values, positions=places, **self._slots(self.k), **how, **outputs)

    def _merge(self, count: int, num_rows: Any = None) -> None:
        """Select among the best so far and `count` of a tile, into the other lists; then these are the lists."""
        taken = slice(0, self.k + count)
        select: Any = api.topk
        select(
            self._values[0][:, taken], positions=self._places[0][:, taken], out=self._places[1][:, : self.k],
            values_out=self._values[1][:, : self.k], num_rows=num_rows, **self._slots(self.k), **self._ranking,
        )  # fmt: skip
        self._values.reverse()
        self._places.reverse()
        best = self._values[0][:, : self.k]
        self._arrays.worst(best, self._beyond(), self._worst, self.cutoff)

    def _slots(self, most: int) -> dict[str, Any]:
        """Arguments k and max_k of a call with `most` slots."""
        return {"k": self._k, "max_k": most} if self._per_row else {"k": most}

    def _beyond(self) -> Any:
        """Mask of the slots that a row of its own k has not; None without such rows."""
        return self._arrays.columns(self.k)[None] >= self._k[:, None] if self._per_row else None

    def _check_tile(self, tile: Any) -> ArrayInfo:
        info = inspect(tile, "tile")
        dtype = problem.check_scores(info, "tile")
        if info.shape[0] != self.rows or not 1 <= info.shape[1] <= self.max_tile:
            takes = f"shape ({self.rows}, n) with n from 1 to max_tile, {self.max_tile}"
            raise ArgumentError("tile", f"shape {info.shape}", takes)
        if dtype != self.dtype:
            raise ArgumentError("tile", f"dtype {dtype}", f"dtype {self.dtype}, as this object was made for")
        if info.device != self._device or info.library != self._arrays.library:
            takes = f"an array of {self._arrays.library} on {self._device}, as this object was made for"
            raise ArgumentError("tile", f"an array of {info.library} on {info.device}", takes)
        return info

    def _check_columns(self, first_column: Any, width: int) -> tuple[int, int]:
        first = problem.check_size(first_column, "first_column", 0, problem.MAX_SIZE - width, "positions fit int32")
        if first % self.block_size:
            takes = f"a multiple of block_size, {self.block_size}: tiles begin at whole blocks"
            raise ArgumentError("first_column", first, takes)
        if self._end is not None and first + width > self._end:
            takes = f"tiles up to column {self._end}, where a tile ended inside a block"
            raise ArgumentError("first_column", f"{first} with {width} columns", takes)
        at = bisect_left(self._pushed, (first + width, 0)) - 1
        if at >= 0 and self._pushed[at][1] > first:
            begin, end = self._pushed[at]
            takes = f"columns that no tile had since reset, and not those of [{begin}, {end})"
            raise ArgumentError("first_column", f"{first} with {width} columns", takes)
        if width % self.block_size and self._pushed and self._pushed[-1][1] > first + width:
            takes = f"a multiple of block_size, {self.block_size}, in tiles that are not the last of the row"
            raise ArgumentError("tile", f"{width} columns", takes)
        return first, width


class _Numpy:
    """What `Running` needs of NumPy beside `ksieve.topk`."""

    library: Literal["numpy"] = "numpy"

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return np.empty(shape, "uint16" if dtype == "bfloat16" else dtype)

    def columns(self, count: int) -> Any:
        return np.arange(count, dtype=np.int32)

    def clip(self, array: Any, low: int, high: int, out: Any) -> None:
        np.clip(array, low, high, out=out, casting="same_kind")

    def worst(self, values: Any, beyond: Any, fill: float, out: Any) -> None:
        """Write the worst of each row: `fill` where it is NaN or an unused slot; slots `beyond` the row's k apart."""
        found = widen(values)
        found = found if beyond is None else np.where(beyond, np.float32(-fill), found)
        (found.min if fill < 0 else found.max)(axis=1, out=out)
        out[np.isnan(out)] = fill


class _Torch:
    """The same of PyTorch."""

    library: Literal["torch"] = "torch"

    def __init__(self, device: str) -> None:
        import torch

        self._torch, self._device = torch, device

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self._torch.empty(shape, dtype=getattr(self._torch, dtype), device=self._device)

    def columns(self, count: int) -> Any:
        return self._torch.arange(count, dtype=self._torch.int32, device=self._device)

    def clip(self, array: Any, low: int, high: int, out: Any) -> None:
        self._torch.clamp(array, low, high, out=out)

    def worst(self, values: Any, beyond: Any, fill: float, out: Any) -> None:
        """As `_Numpy.worst`."""
        found = values.float() if beyond is None else values.float().masked_fill(beyond, -fill)
        out.copy_((found.amin if fill < 0 else found.amax)(dim=1)).nan_to_num_(fill, np.inf, -np.inf)


_Arrays = _Numpy | _Torch


def _arrays_of(torch_dtype: bool, device: str) -> _Arrays:
    return _Torch(device) if torch_dtype or device != "cpu" else _Numpy()
