"""Operations of the judge on NumPy arrays and on torch tensors: move, sort and gather arrays, and count scores.

Scores are compared as levels (`ksieve.core.keys.level`): int32, larger for a larger score, lowest for NaN. The host
takes them from the bits of a score, since float comparisons change in a flush-to-zero mode; CUDA comparisons do not
flush.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.core import problem
from ksieve.core.arrays import ArrayInfo
from ksieve.core.installation import require_torch
from ksieve.core.keys import NAN_LEVEL, level, widen

BEST = 0x7F800000
"""The largest level of a number: infinity's."""

_WIDE = 4096
"""Scores per row from which NumPy counts row by row (fast 1-D counting) instead of over a masked matrix."""

_PIECE = 1 << 16
"""Scores compared at a time in a wide row: 256 KiB, so that the three comparisons share one read."""


class NumpyOps:
    """Operations on host arrays."""

    xp: Any = np
    arange = staticmethod(np.arange)
    integers = staticmethod(np.asarray)
    vector = staticmethod(np.asarray)
    to_numpy = staticmethod(np.asarray)

    def matrix(self, array: Any, rows: int, columns: int) -> Any:
        """View an array of any library as a matrix; an array on a device is copied to the host."""
        return on_host(array).reshape(rows, columns)

    def groups(self, array: Any, info: ArrayInfo) -> Any:
        """View an array whose rows have two leading strides, as `info` describes it, as matrices one after another."""
        strides = [stride * info.itemsize for stride in info.strides]
        return np.lib.stride_tricks.as_strided(on_host(array), info.shape, strides)

    def elements(self, block_bytes: int) -> int:
        """Elements of working memory that keep temporaries below `block_bytes`."""
        return max(1, min(1 << 17, block_bytes // 32))

    def row_cost(self, width: int) -> int:
        """Elements of working memory that one row of a block takes."""
        return width if width < _WIDE else _WIDE

    def sort(self, indices: Any) -> Any:
        """Sort each row, ascending."""
        return np.sort(indices, axis=1)

    def levels(self, scores: Any, positions: Any) -> Any:
        """Levels of the scores at positions of each row; zeros where rows have no scores."""
        if scores.shape[1] == 0:
            return np.zeros(positions.shape, dtype=np.int32)
        return level(widen(np.take_along_axis(scores, positions, 1)))

    def count(self, scores: Any, begin: Any, end: Any, worst: Any, elements: int) -> tuple[Any, Any, Any]:
        """Count per row the scores of [begin, end) whose level is above `worst`, equal to it, and that of NaN."""
        counts = np.zeros((3, scores.shape[0]), dtype=np.int64)
        if scores.shape[1] < _WIDE:
            x = level(widen(scores))
            position = np.arange(x.shape[1])
            valid = (position >= begin[:, None]) & (position < end[:, None])
            for j, mask in enumerate((x > worst[:, None], x == worst[:, None], x == NAN_LEVEL)):
                counts[j] = (mask & valid).sum(1)
        else:
            step = min(_PIECE, elements)
            for r, last in enumerate(end):
                for low in range(int(begin[r]), int(last), step):
                    counts[:, r] += _count_levels(widen(scores[r, low : min(low + step, int(last))]), int(worst[r]))
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


class TorchOps:
    """Operations on torch tensors, in practice on a CUDA device."""

    def __init__(self, scores: Any) -> None:
        tensor = as_torch(scores)
        import torch

        self.xp = torch
        self.device = tensor.device

    def matrix(self, array: Any, rows: int, columns: int) -> Any:
        """View an array of any library as a matrix on the device of the scores; others are copied there."""
        tensor = as_torch(array).to(self.device)
        if tensor.dtype is self.xp.uint16:
            tensor = tensor.view(self.xp.bfloat16)
        return tensor.reshape(rows, columns)

    def groups(self, array: Any, info: ArrayInfo) -> Any:
        """As `NumpyOps.groups`."""
        tensor = as_torch(array)
        return self.matrix(tensor.as_strided(info.shape, info.strides), -1, info.shape[2]).reshape(info.shape)

    def integers(self, indices: Any) -> Any:
        """Indices that can be compared with vectors and gathered by."""
        return indices.long()

    def vector(self, array: Any) -> Any:
        """Copy a vector from the host."""
        return self.xp.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def arange(self, count: int) -> Any:
        """Integers from 0 to count - 1."""
        return self.xp.arange(count, device=self.device)

    def elements(self, block_bytes: int) -> int:
        """Elements of working memory that keep temporaries near `block_bytes`."""
        # Widened scores, three masks and their sums take about 16 bytes per score in flight.
        return max(1, block_bytes // 16)

    def row_cost(self, width: int) -> int:
        """Elements of working memory that one row of a block takes."""
        return width

    def sort(self, indices: Any) -> Any:
        """Sort each row, ascending."""
        return self.xp.sort(indices, 1).values

    def levels(self, scores: Any, positions: Any) -> Any:
        """Levels of the scores at positions of each row; zeros where rows have no scores."""
        if scores.shape[1] == 0:
            return self.xp.zeros(positions.shape, dtype=self.xp.int32, device=self.device)
        return self.level(self.xp.gather(scores, 1, positions))

    def level(self, scores: Any) -> Any:
        """`ksieve.core.keys.level` of a few scores; bfloat16 is widened as bits, float16 subnormals become normal."""
        if scores.dtype is self.xp.bfloat16:
            bits = scores.contiguous().view(self.xp.int16).int() << 16
        else:
            bits = scores.float().contiguous().view(self.xp.int32)
        size = bits & 0x7FFFFFFF
        return self.xp.where(size > BEST, NAN_LEVEL, self.xp.where(bits < 0, -size, size))

    def to_numpy(self, array: Any) -> Any:
        """Copy to the host."""
        return problem.as_numpy(array.cpu())

    def count(self, scores: Any, begin: Any, end: Any, worst: Any, elements: int) -> tuple[Any, Any, Any]:
        """Count per row the scores of [begin, end) whose level is above `worst`, equal to it, and that of NaN."""
        rows, width = scores.shape
        counts = [self.xp.zeros(rows, dtype=self.xp.int64, device=self.device) for _ in range(3)]
        # Convert the level back to a score and compare floats: the device flushes no subnormals.
        limit = self.xp.where(worst < 0, -worst | NAN_LEVEL, worst).view(self.xp.float32)[:, None]
        step = max(1, elements // max(rows, 1))
        for low in range(0, width, step):
            x = scores[:, low : low + step].float()
            position = low + self.arange(x.shape[1])
            valid = (position >= begin[:, None]) & (position < end[:, None])
            for j, mask in enumerate((x > limit, x == limit, x != x)):
                counts[j] += (mask & valid).sum(1)
        better, equal, nans = counts
        is_nan = worst == NAN_LEVEL
        return self.xp.where(is_nan, end - begin - nans, better), self.xp.where(is_nan, nans, equal), nans


def on_host(array: Any) -> Any:
    """NumPy array of an array of any library; a copy if it is on a device."""
    return problem.as_numpy(as_torch(array).cpu() if problem.inspect(array, "array").device.kind == "cuda" else array)


def as_torch(array: Any) -> Any:
    """View an array of any library as a torch tensor on the same device."""
    if problem.library_of(array) == "torch":
        return array.detach()
    torch = require_torch("verify on CUDA arrays runs on PyTorch", ", or pass host arrays")
    return torch.from_numpy(np.array(array)) if isinstance(array, np.ndarray) else torch.from_dlpack(array)
