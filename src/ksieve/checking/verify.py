"""Exactness verdicts: proves or refutes any library's answer, row by row, without sorting a row.

For a row of length L the answer must hold ``min(L, k)`` distinct positions below L, then the sentinel. It is
exact if and only if no unselected valid score is better than the worst selected one, which two counts decide:

    valid scores better than the worst selected  ==  selected scores better than the worst selected

So a row is read once, in pieces, and compared with one number; no score is sorted or ranked. "Better" is the contract's
order: NaN below -inf, ``-0.0`` equal to ``+0.0``. The host compares integers made of the scores' bits, since float
comparisons change in a flush-to-zero mode; CUDA comparisons do not flush. The same steps run on NumPy arrays and on
torch tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ksieve.checking.verdict import Finding, Reason, Verdict, explain
from ksieve.core import problem
from ksieve.core.errors import ArgumentError, BackendError, kind_of, shown
from ksieve.core.keys import NAN_LEVEL, level, widen

BLOCK_BYTES = 64 << 20
"""Default bound on score bytes in memory at a time."""

_WIDE = 4096
"""Scores per row from which NumPy counts row by row (fast 1-D counting) instead of over a masked matrix."""

_PIECE = 1 << 16
"""Scores compared at a time in a wide row: 256 KiB, so that the three comparisons share one read."""


_INDEX_DTYPES = ("int32", "int64")
_INT64 = 1 << 63

_BEST = 0x7F800000
"""The largest level (`ksieve.core.keys.level`): that of infinity."""


def verify(
    scores: Any,
    lengths: Any = None,
    indices: Any = None,
    *,
    k: int | None = None,
    sentinel: int = -1,
    block_bytes: int = BLOCK_BYTES,
    progress: Callable[[int], None] | None = None,
) -> Verdict:
    """Check every row of a Top-K index array for set-valued exactness.

    Parameters
    ----------
    scores : array, shape (rows, width), or source
        float32, float16 or bfloat16 (a NumPy uint16 array is read as bfloat16 bits) of NumPy, PyTorch, CuPy
        or JAX. Or a source such as a capture: an object with ``rows``, ``width`` and
        ``rows_block(begin, end)``, whose blocks are such arrays, so that the whole is never in memory.
    lengths : array of integers, shape (rows,), optional
        Number of valid scores of each row, clamped to [0, width]. Default: the lengths of the source, else full rows.
    indices : array of int32 or int64, shape (rows, k)
        The answer to check, of any library, in any order within a row. Required; the third argument, or a keyword.
    k : int, optional
        Expected number of slots; checked against `indices`.
    sentinel : int
        Value of unused slots. Must not be a position of the matrix.
    block_bytes : int
        Bound on the score bytes in memory at a time; temporaries take a small multiple of it. At least one row of a
        source is read at a time.
    progress : callable, optional
        Called after every block with the number of rows checked.

    Returns
    -------
    Verdict
        On the host. For CUDA arrays the call waits for its kernels, so it cannot be captured in a CUDA graph.

    Raises
    ------
    ArgumentError
        An argument cannot be used; the message names it.
    BackendError
        The arrays are CUDA arrays of another library, and PyTorch is not installed.

    Notes
    -----
    CUDA scores are checked on their device, with PyTorch; lengths and indices on other devices are copied there. Each
    score is read once; the selected scores are gathered in addition.

    Examples
    --------
    >>> import numpy as np, ksieve
    >>> scores = np.array([[5, 1, 7, 2]], dtype=np.float32)
    >>> bool(ksieve.verify(scores, None, np.array([[2, 0]])))
    True
    >>> bool(ksieve.verify(scores, None, np.array([[2, 1]])))
    False
    """
    if indices is None:
        got = None if lengths is None else "only a second argument, which is lengths"
        raise ArgumentError("indices", got, "the answer to check: verify(scores, lengths, indices), lengths or None")
    is_source = _is_source(scores)
    if is_source:
        rows, width, _ = problem.check_shape(scores.rows, scores.width)
        lengths = getattr(scores, "lengths", None) if lengths is None else lengths
        on_cuda = False
    else:
        info = problem.inspect(scores, "scores")
        if info.dtype in _INDEX_DTYPES and _dtype_of(indices) in problem.SCORE_DTYPES:
            takes = f"dtype {', '.join(problem.SCORE_DTYPES)} (are scores and indices swapped?)"
            raise ArgumentError("scores", f"dtype {info.dtype}", takes)
        problem.check_scores(info)
        rows, width = info.shape
        on_cuda = info.device.kind == "cuda"
    if isinstance(block_bytes, bool) or not isinstance(block_bytes, (int, np.integer)) or block_bytes < 1:
        raise ArgumentError("block_bytes", shown(block_bytes), "an int of at least 1")
    if isinstance(sentinel, bool) or not isinstance(sentinel, (int, np.integer)) or not -_INT64 <= sentinel < _INT64:
        raise ArgumentError("sentinel", shown(sentinel), "an int of 64 bits, such as -1")
    if progress is not None and not callable(progress):
        raise ArgumentError("progress", kind_of(progress), "a function of the number of rows done, or None")
    if 0 <= sentinel < width:
        raise ArgumentError("sentinel", sentinel, f"an int that is no position, outside [0, {width})")
    slots = _check_indices(indices, rows, k)
    if lengths is not None:
        _check_lengths(lengths, rows)
    ops: Any = _TorchOps(scores) if on_cuda else _NumpyOps()
    judged = _Judge(ops, rows, width, slots, ops.host(lengths), ops.host(indices), int(sentinel), int(block_bytes))
    for begin, block in _source_blocks(scores, rows, width, int(block_bytes)) if is_source else [(0, scores)]:
        judged.judge(begin, ops.matrix(block), progress)
    return judged.verdict()


def _is_source(scores: Any) -> bool:
    try:
        return all(hasattr(scores, name) for name in ("rows_block", "width", "rows")) and not isinstance(scores, type)
    except Exception:  # an attribute of a foreign class may raise anything; `inspect` then reports the fault
        return False


def _dtype_of(array: Any) -> str:
    try:
        return problem.inspect(array, "indices").dtype
    except ArgumentError:
        return ""


def _check_indices(indices: Any, rows: int, k: int | None) -> int:
    info = problem.inspect(indices, "indices")
    if info.dtype not in _INDEX_DTYPES:
        remedy = f": {problem.converted(info, 'indices', 'int64')}" if info.dtype.startswith(("int", "uint")) else ""
        raise ArgumentError("indices", f"dtype {info.dtype}", f"dtype int32 or int64{remedy}")
    if len(info.shape) != 2 or info.shape[0] != rows:
        raise ArgumentError("indices", f"shape {info.shape}", f"shape ({rows}, k), one row for each row of scores")
    slots = info.shape[1]
    if k is not None and problem.check_k(k) != slots:
        raise ArgumentError("k", k, f"{slots}, the width of indices")
    return problem.check_k(slots)


def _check_lengths(lengths: Any, rows: int) -> None:
    info = problem.inspect(lengths, "lengths")
    if not info.dtype.startswith(("int", "uint")):
        raise ArgumentError("lengths", f"dtype {info.dtype}", "an integer dtype")
    if info.shape != (rows,):
        raise ArgumentError("lengths", f"shape {info.shape}", f"shape ({rows},)")


def _source_blocks(source: Any, rows: int, width: int, block_bytes: int) -> Iterator[tuple[int, Any]]:
    step = max(1, block_bytes // max(4 * width, 1))
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        block = source.rows_block(begin, end)
        info = problem.inspect(block, "scores")
        problem.check_scores(info)
        if info.shape != (end - begin, width) or info.device.kind != "cpu":
            got = f"a block of shape {info.shape} on {info.device} for rows {begin} to {end}"
            raise ArgumentError("scores", got, f"blocks of shape {(end - begin, width)} on cpu")
        yield begin, block


class _Judge:
    """Checks blocks of rows in order and collects the verdict; `ops` holds the operations of the array library."""

    def __init__(
        self, ops: Any, rows: int, width: int, k: int, lengths: Any, indices: Any, sentinel: int, block_bytes: int
    ) -> None:
        self.ops, self.rows, self.width, self.k, self.sentinel = ops, rows, width, k, sentinel
        self.lengths, self.indices = lengths, indices
        self.elements = ops.elements(block_bytes)
        self.reasons = np.zeros(rows, dtype=np.uint8)
        self.first: Finding | None = None
        self.totals = np.zeros(3, dtype=np.int64)

    def judge(self, begin: int, scores: Any, progress: Callable[[int], None] | None) -> None:
        """Check the rows of a block whose first row is row `begin` of the matrix."""
        step = max(1, self.elements // max(self.k, self.ops.row_cost(self.width), 1))
        for low in range(0, scores.shape[0], step):
            piece = scores[low : low + step]
            at = slice(begin + low, begin + low + piece.shape[0])
            lengths = self.ops.lengths(self.lengths, at, self.width)
            reasons, *counts = self._rows(piece, lengths, self.ops.integers(self.indices[at]))
            self.reasons[at] = self.ops.to_numpy(reasons)
            self.totals += [int(c.sum()) for c in counts]
            if self.first is None and self.reasons[at].any():
                r = int(np.flatnonzero(self.reasons[at])[0])
                row = widen(self.ops.to_numpy(piece[r]))[: int(lengths[r])]
                slots = self.ops.to_numpy(self.indices[at][r]).astype(np.int64)
                self.first = explain(at.start + r, row, slots, self.sentinel, Reason(int(self.reasons[at][r])))
            if progress is not None:
                progress(at.stop)

    def _rows(self, scores: Any, lengths: Any, indices: Any) -> tuple[Any, Any, Any, Any]:
        """Return per row: reason, NaN scores, NaN scores selected, and whether an exact row is tied at rank k."""
        xp, ops = self.ops.xp, self.ops
        pad = indices == self.sentinel
        good = ~pad & (indices >= 0) & (indices < lengths[:, None])
        needed = lengths.clip(0, self.k)
        found = good.sum(1)
        slot = ops.arange(self.k)
        # Positions are sorted: duplicates become neighbours, and the gather reads the row in memory order.
        chosen = ops.sort(xp.where(good, indices, -1))
        real = chosen >= 0
        levels = ops.gather(scores, xp.where(real, chosen, 0))
        worst = xp.amin(xp.where(real, levels, _BEST), 1)
        better, equal, nans = ops.count(scores, lengths, worst, self.elements)
        chosen_better = (real & (levels > worst[:, None])).sum(1)
        chosen_worst = (real & (levels == worst[:, None])).sum(1)
        nan = real & (levels == NAN_LEVEL)
        tied = (equal > chosen_worst) & (needed > 0)
        reason = (found * 0) + Reason.EXACT
        for fault, rows in (
            (Reason.NOT_LARGEST, (better > chosen_better) & (needed > 0)),
            (Reason.MISPLACED, (pad & (slot < needed[:, None])).any(1)),
            (Reason.MISSING, found < needed),
            (Reason.DUPLICATE, ((chosen[:, 1:] == chosen[:, :-1]) & real[:, 1:]).any(1)),
            (Reason.OUT_OF_RANGE, (~pad & ~good).any(1)),
        ):
            reason = xp.where(rows, int(fault), reason)
        return reason, nans, nan.sum(1), tied & (reason == 0)

    def verdict(self) -> Verdict:
        nan_scores, nan_selected, tied = (int(t) for t in self.totals)
        return Verdict(self.rows, self.k, self.reasons, self.first, nan_scores, nan_selected, tied)


class _NumpyOps:
    """Operations of `_Judge` on host arrays."""

    xp: Any = np
    arange = staticmethod(np.arange)
    integers = staticmethod(np.asarray)

    def host(self, array: Any) -> Any:
        if array is None:
            return None
        return problem.as_numpy(
            _as_torch(array).cpu() if problem.inspect(array, "array").device.kind == "cuda" else array
        )

    def matrix(self, scores: Any) -> Any:
        return problem.as_numpy(scores)

    def elements(self, block_bytes: int) -> int:
        return max(1, min(1 << 17, block_bytes // 32))

    def row_cost(self, width: int) -> int:
        """Elements of working memory that one row of a block takes."""
        return width if width < _WIDE else _WIDE

    def lengths(self, lengths: Any, at: slice, width: int) -> Any:
        if lengths is None:
            return np.full(at.stop - at.start, width, dtype=np.int64)
        return np.clip(lengths[at], 0, width).astype(np.int64)

    def sort(self, indices: Any) -> Any:
        return np.sort(indices, axis=1)

    def gather(self, scores: Any, indices: Any) -> Any:
        if scores.shape[1] == 0:
            return np.zeros(indices.shape, dtype=np.int32)
        return level(widen(np.take_along_axis(scores, indices, 1)))

    def to_numpy(self, array: Any) -> Any:
        return np.asarray(array)

    def count(self, scores: Any, lengths: Any, worst: Any, elements: int) -> tuple[Any, Any, Any]:
        """Count per row the valid scores whose level is above `worst`, equal to it, and that of NaN."""
        counts = np.zeros((3, scores.shape[0]), dtype=np.int64)
        if scores.shape[1] < _WIDE:
            x = level(widen(scores))
            valid = np.arange(x.shape[1]) < lengths[:, None]
            for j, mask in enumerate((x > worst[:, None], x == worst[:, None], x == NAN_LEVEL)):
                counts[j] = (mask & valid).sum(1)
        else:
            step = min(_PIECE, elements)
            for r, length in enumerate(lengths):
                for low in range(0, int(length), step):
                    counts[:, r] += _count_levels(widen(scores[r, low : min(low + step, int(length))]), int(worst[r]))
        return counts[0], counts[1], counts[2]


def _count_levels(x: Any, worst: int) -> tuple[int, int, int]:
    """Count the scores whose level is above `worst`, equal to it, and that of NaN, in three passes over the bits."""
    if np.isnan(x.max()):  # max propagates NaN
        levels = level(x)
        wanted = (levels > worst, levels == worst, levels == NAN_LEVEL)
        return tuple(int(np.count_nonzero(mask)) for mask in wanted)  # type: ignore[return-value]
    if worst == NAN_LEVEL:
        return x.size, 0, 0
    bits = x.view(np.uint32)
    if worst >= 0:  # level and bits are the same number
        better = np.count_nonzero(bits.view(np.int32) > worst)
        equal = np.count_nonzero(bits == worst)
        zeros = 0 if worst else np.count_nonzero(bits == np.uint32(1 << 31))
        return int(better), int(equal + zeros), 0
    limit = np.uint32((1 << 31) - worst)  # the bits of a negative number increase as the number decreases
    return int(np.count_nonzero(bits < limit)), int(np.count_nonzero(bits == limit)), 0


class _TorchOps:
    """Operations of `_Judge` on torch tensors, in practice on a CUDA device."""

    def __init__(self, scores: Any) -> None:
        tensor = _as_torch(scores)
        import torch

        self.xp = torch
        self.device = tensor.device

    def host(self, array: Any) -> Any:
        if array is None:
            return None
        return _as_torch(array).to(self.device)

    def matrix(self, scores: Any) -> Any:
        tensor = _as_torch(scores)
        return tensor.view(self.xp.bfloat16) if tensor.dtype is self.xp.uint16 else tensor

    def integers(self, indices: Any) -> Any:
        return indices.long()

    def arange(self, count: int) -> Any:
        return self.xp.arange(count, device=self.device)

    def elements(self, block_bytes: int) -> int:
        # Widened scores, three masks and their sums take about 16 bytes per score in flight.
        return max(1, block_bytes // 16)

    def row_cost(self, width: int) -> int:
        return width

    def lengths(self, lengths: Any, at: slice, width: int) -> Any:
        if lengths is None:
            return self.xp.full((at.stop - at.start,), width, device=self.device)
        return lengths[at].long().clip(0, width)

    def sort(self, indices: Any) -> Any:
        return self.xp.sort(indices, 1).values

    def gather(self, scores: Any, indices: Any) -> Any:
        if scores.shape[1] == 0:
            return self.xp.zeros(indices.shape, dtype=self.xp.int32, device=self.device)
        return self.level(self.xp.gather(scores, 1, indices))

    def level(self, scores: Any) -> Any:
        """`ksieve.core.keys.level` of a few scores; bfloat16 is widened as bits, float16 subnormals become normal."""
        if scores.dtype is self.xp.bfloat16:
            bits = scores.contiguous().view(self.xp.int16).int() << 16
        else:
            bits = scores.float().contiguous().view(self.xp.int32)
        size = bits & 0x7FFFFFFF
        return self.xp.where(size > _BEST, NAN_LEVEL, self.xp.where(bits < 0, -size, size))

    def to_numpy(self, array: Any) -> Any:
        return problem.as_numpy(array.cpu())

    def count(self, scores: Any, lengths: Any, worst: Any, elements: int) -> tuple[Any, Any, Any]:
        """Count per row the valid scores whose level is above `worst`, equal to it, and that of NaN."""
        rows, width = scores.shape
        counts = [self.xp.zeros(rows, dtype=self.xp.int64, device=self.device) for _ in range(3)]
        # Convert the level back to a score and compare floats: the device flushes no subnormals.
        limit = self.xp.where(worst < 0, -worst | NAN_LEVEL, worst).view(self.xp.float32)[:, None]
        step = max(1, elements // max(rows, 1))
        for low in range(0, width, step):
            x = scores[:, low : low + step].float()
            valid = low + self.arange(x.shape[1]) < lengths[:, None]
            for j, mask in enumerate((x > limit, x == limit, x != x)):
                counts[j] += (mask & valid).sum(1)
        better, equal, nans = counts
        is_nan = worst == NAN_LEVEL
        return self.xp.where(is_nan, lengths - nans, better), self.xp.where(is_nan, nans, equal), nans


def _as_torch(array: Any) -> Any:
    """View an array of any library as a torch tensor on the same device."""
    if problem.library_of(array) == "torch":
        return array.detach()
    try:
        import torch
    except ImportError:
        raise BackendError("verify on CUDA arrays runs on PyTorch: install torch, or pass host arrays") from None
    return torch.from_numpy(np.array(array)) if isinstance(array, np.ndarray) else torch.from_dlpack(array)
