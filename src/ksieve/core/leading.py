"""Leading strides: how the rows of an array, or its numbers of one for each row, lie in memory.

Leading dimensions count in C order. Contiguous ones are merged. One stride remains, as of a matrix or a vector, or two.
A specialisation of the kernels takes two: the array is then described with an outer and an inner leading dimension.
More than two are refused.
"""

from __future__ import annotations

import math

from ksieve.core.arrays import UNEVEN, ArrayInfo
from ksieve.core.errors import ArgumentError

Steps = list[tuple[int, int]]
"""Size and stride of each leading dimension."""


def contiguous(info: ArrayInfo, name: str) -> str:
    """Expression that makes a contiguous copy of an array in its own library, for error messages."""
    if info.library == "torch":
        return f"{name}.contiguous()"
    return f"{'cupy' if info.library == 'cupy' else 'np'}.ascontiguousarray({name})"


def _merged(info: ArrayInfo, name: str, leading: int, filled: bool) -> Steps:
    """Sizes and strides of the leading dimensions, merged: at most two; an empty array's are arbitrary."""
    steps: Steps = []
    if 0 in info.shape:
        return steps
    for n, stride in zip(reversed(info.shape[:leading]), reversed(info.strides[:leading]), strict=True):
        if n > 1:
            if steps and stride == steps[0][0] * steps[0][1]:
                steps[0] = (n * steps[0][0], steps[0][1])
            else:
                steps.insert(0, (n, stride))
    got = f"shape {info.shape} with strides {info.strides}"
    if any(stride == UNEVEN for _, stride in steps):
        got = f"shape {info.shape} with strides that are no multiple of {info.itemsize} bytes"
        raise ArgumentError(name, got, "strides of whole elements" + _remedy(info, name, filled))
    if len(steps) > 2:
        takes = "leading dimensions that merge to at most two, each with one stride"
        raise ArgumentError(name, got, takes + _remedy(info, name, filled))
    return steps


def _remedy(info: ArrayInfo, name: str, filled: bool) -> str:
    return "" if filled else f": {contiguous(info, name)}"


def of_rows(info: ArrayInfo, name: str, *, filled: bool = False) -> ArrayInfo:
    """Describe an array by its rows, along its last dimension, without a copy.

    `filled` is true of an output, where a copy is no remedy.

    The result has shape (rows, width) if rows are one pitch of at least the width apart, or all the same one. Else it
    has shape (outer, inner, width). Raises `ArgumentError` if there are no dimensions, or more than two leading
    strides.
    """
    if len(info.shape) == 2:
        (rows, width), pitch = info.shape, info.strides[0]
        if pitch >= width or pitch == 0 or rows < 2:
            return info
    if not info.shape:
        raise ArgumentError(name, "shape ()", "an array of at least one dimension, the last of which is a row")
    *leading, width = info.shape
    steps = _merged(info, name, len(leading), filled) or [(math.prod(leading), width)]
    unit = info.strides[-1]
    if len(steps) == 1 and (steps[0][1] >= width or steps[0][1] == 0):
        return info._replace(shape=(steps[0][0], width), strides=(steps[0][1], unit))
    (outer, far), (inner, near) = steps if len(steps) == 2 else ((1, 0), steps[0])
    return info._replace(shape=(outer, inner, width), strides=(far, near, unit))


def of_segments(info: ArrayInfo, bounds: ArrayInfo) -> ArrayInfo:
    """Describe flat scores as a matrix each row of which is the whole of them: segments are windows of its rows."""
    if len(info.shape) != 1:
        raise ArgumentError("scores", f"shape {info.shape}", "flat scores of shape (n,), of which Segments are parts")
    if len(bounds.shape) != 1 or not bounds.shape[0]:
        raise ArgumentError("indptr", f"shape {bounds.shape}", "shape (rows + 1,)")
    return info._replace(shape=(bounds.shape[0] - 1, info.shape[0]), strides=(0, info.strides[0]))


def of_numbers(info: ArrayInfo, name: str, *, filled: bool = False) -> ArrayInfo:
    """Describe an array of one number for each row: of shape (rows,) and stride 1, or of shape (outer, inner)."""
    if len(info.shape) == 1 and (info.strides[0] == 1 or info.shape[0] < 2):
        return info
    size = math.prod(info.shape)
    steps = _merged(info, name, len(info.shape), filled) or [(size, 1)]
    if steps == [(size, 1)]:
        return info._replace(shape=(size,), strides=(1,))
    (outer, far), (inner, near) = steps if len(steps) == 2 else ((1, 0), steps[0])
    return info._replace(shape=(outer, inner), strides=(far, near))


def overlaps_itself(info: ArrayInfo) -> bool:
    """Whether two elements may share memory: whether a stride is shorter than what lies within it."""
    if 0 in info.shape:  # strides are arbitrary
        return False
    reach = 1
    for stride, n in sorted((abs(s), n) for n, s in zip(info.shape, info.strides, strict=True) if n > 1):
        if stride < reach:
            return True
        reach = stride * (n - 1) + reach
    return False


def numbers(info: ArrayInfo | None, vector: bool) -> tuple[int, int, int, int]:
    """Fields of `Leading` in kernels/common/leading.cuh; zeros for an array that is absent or has no elements."""
    if info is None or 0 in info.shape:
        return 0, 0, 1, 0
    shape, strides = (info.shape, info.strides) if vector else (info.shape[:-1], info.strides[:-1])
    return (0 if len(shape) == 1 else strides[0], strides[-1], max(shape[-1], 1), 0)
