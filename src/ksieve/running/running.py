"""`Running`: exact selection from rows whose columns arrive in tiles, without the matrix.

Between two pushes each row holds its k best scores so far, with their positions, followed by scores that may be among
these. The best of parts are the best of the whole for any partition of a row. Most tiles are only read for the scores
that may be selected (`ksieve.running.device`, `ksieve.running.host`). Otherwise a push selects from the tile alone, and
then among the best so far and the tile's best, by position: two calls of `ksieve.topk`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import Any

import numpy as np

from ksieve.core import problem
from ksieve.core.arguments import resolve
from ksieve.core.arrays import ArrayInfo, inspect
from ksieve.core.errors import ArgumentError, refuse_at_exit, shown
from ksieve.core.groups import Blocks, RowBounds, flat
from ksieve.core.options import Nan, TieBreak
from ksieve.core.selection import Selection
from ksieve.core.table import INTEGERS
from ksieve.running.best import Best
from ksieve.running.host import HostBest


class Running:
    """Select the k best scores of rows that are produced tile by tile, exactly.

    Rows of any width take memory for 4 k scores and positions each (6 k on the CPU; on CUDA at least 2 k + 2,048). On
    CUDA the lists are device memory, every call enqueues on the current stream and returns, and nothing is copied to
    the host.

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
        or on CUDA, arrays are tensors; otherwise they are NumPy's, with bfloat16 as uint16 bits.
    device : str or torch.device
        "cpu", or a CUDA device.
    largest, nan, tie_break, deterministic
        As in `ksieve.topk`. Ties go by position, for tiles in any order.
    blocks : Blocks, optional
        With a `block_size` alone: select among blocks of adjacent scores, as in `ksieve.topk`. Tiles then begin at
        whole blocks, and one that does not end at a whole block ends its rows.

    Attributes
    ----------
    cutoff : array of float32, shape (rows,)
        On the scores' device, rewritten by pushes: a score that is worse cannot be selected any more, so that a
        producer need not store it. One that is equal can, by its position. -inf (inf with ``largest=False``) while a
        row has fewer than k scores, or NaN as its k-th best, and possibly with NaN among its best. Scores of the last
        pushes may not be in it yet.

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
        blocks: Blocks | None = None,
    ) -> None:
        refuse_at_exit()
        self.max_tile = problem.check_size(max_tile, "max_tile", 1)
        how = {"largest": largest, "nan": nan, "tie_break": tie_break, "deterministic": deterministic}
        options = resolve(flat(how | {"blocks": blocks}), None)
        if replace(options, force_first=0, force_last=0, expand=1, tail=False) != options:
            raise ArgumentError("blocks", shown(blocks), "ksieve.Blocks(block_size) without further fields")
        self.block_size = options.block_size
        if self.block_size > self.max_tile:
            takes = f"at least block_size, {self.block_size}: tiles begin at whole blocks"
            raise ArgumentError("max_tile", self.max_tile, takes)
        self._best = self._lists_of(device, k if max_k is None else max_k)(rows, k, max_k, dtype, device, options)
        self.cutoff = self._best.cutoff
        self._forget()

    def reset(self) -> None:
        """Forget all tiles."""
        self._best.reset()
        self._forget()

    def _lists_of(self, device: Any, most: Any) -> type[Best]:
        """Return the kind of the lists for rows of up to `most` slots.

        On CUDA a kernel takes scores in rows of up to `keep.MOST_SLOTS`, for which it has shared memory. It appends
        scores, not blocks.
        """
        if problem.parse_device(device).kind == "cpu":
            return HostBest
        from ksieve.backends.cuda import keep  # loads the CUDA backend
        from ksieve.running.device import DeviceBest

        known = isinstance(most, (int, np.integer)) and most <= keep.MOST_SLOTS
        return DeviceBest if known and self.block_size == 1 else Best

    def _forget(self) -> None:
        self._pushed: list[tuple[int, int]] = []
        self._end: int | None = None

    def push(
        self,
        tile: Any,
        first_column: int,
        lengths: Any = None,
        *,
        bounds: RowBounds | None = None,
        num_rows: Any = None,
    ) -> None:
        """Take a tile of columns into account; tiles may come in any order.

        Parameters
        ----------
        tile : array, shape (rows, columns)
            Scores of 1 to `max_tile` columns, laid out as for `ksieve.topk`; read once, and not kept.
        first_column : int
            Position of the tile's first column. No column is pushed twice, and with `block_size` it is a multiple of
            that.
        lengths : array of int32 or int64, shape (rows,), optional
            Valid scores at the start of each whole row. Default: all of the tile.
        bounds : RowBounds, optional
            In place of `lengths`: with `ends`, and possibly `starts`, windows ``[start, end)`` of the whole rows.
        num_rows : int, or array of int32 of shape (1,), optional
            Number of live rows; the same in every push and in `finish`.

        Raises
        ------
        ArgumentError
            Before anything is enqueued or written.
        """
        refuse_at_exit()
        best, info = self._best, self.check_tile(tile, "tile", 1, self.max_tile)
        first, width = self._check_columns(first_column, info.shape[1])
        windows = flat({"lengths": lengths, "bounds": bounds})
        if "indptr" in windows or windows.pop("next_n", 1) != 1 or windows.pop("index_base", "row") != "row":
            raise ArgumentError("bounds", shown(bounds), "ksieve.RowBounds(starts, ends) of each row")
        if bounds is not None and lengths is not None:
            raise ArgumentError("lengths", "an array with bounds", "either lengths, or starts and ends")
        if bounds is not None and "ends" not in windows:
            raise ArgumentError("ends", "nothing with starts", "the end of each window: starts + lengths")
        for name, array in windows.items():
            problem.check_vector(inspect(array, name), name, ((best.rows,),), best.device, INTEGERS)
        if num_rows is not None and not problem.is_int(num_rows):
            problem.check_vector(inspect(num_rows, "num_rows"), "num_rows", ((1,), ()), best.device)
        best.take(tile, first, best.within(windows, first, width), num_rows)
        self._pushed.insert(bisect_left(self._pushed, (first, first)), (first, first + width))
        if width % self.block_size:
            self._end = first + width

    def finish(self, **outputs: Any) -> Any:
        """Return the indices of all tiles pushed since `reset`; more may follow, and `finish` again.

        Parameters
        ----------
        **outputs
            Keyword arguments of `ksieve.topk` about what is written: `out`, `sorted`, `index_dtype`, `transform` and
            `num_rows`.

        Returns
        -------
        array
            As `ksieve.topk` returns it for the whole rows.
        """
        return self.select(**outputs).indices

    def select(self, **outputs: Any) -> Selection[Any]:
        """Return what `finish` does, and more.

        Parameters
        ----------
        **outputs
            Those of `finish`, and `values`, `raw` and `counts` of `ksieve.select`.

        Returns
        -------
        Selection
            As `ksieve.select` returns it for the whole rows. Values of blocks are their best scores.
        """
        refuse_at_exit()
        return self._best.finish(**outputs)

    def check_tile(self, tile: Any, name: str, least: int, most: int | None = None) -> ArrayInfo:
        """Check scores of `least` to `most` columns (default: just so many) of these rows; no public API."""
        best, info = self._best, inspect(tile, name)
        dtype = problem.check_scores(info, name)
        if info.shape[0] != best.rows or not least <= info.shape[1] <= (least if most is None else most):
            n = str(least) if most is None else f"n) with n from {least} to max_tile, {most}"
            raise ArgumentError(name, f"shape {info.shape}", f"shape ({best.rows}, {n}{')' if most is None else ''}")
        if dtype != best.dtype:
            raise ArgumentError(name, f"dtype {dtype}", f"dtype {best.dtype}, as this object was made for")
        if info.device != best.device or info.library != best.library:
            takes = f"an array of {best.library} on {best.device}, as this object was made for"
            if info.library == "torch" and best.library == "numpy":
                takes += f" (tensors: dtype=torch.{best.dtype})"
            raise ArgumentError(name, f"an array of {info.library} on {info.device}", takes)
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
