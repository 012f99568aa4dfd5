"""Rows that lie two leading strides apart, on the host: the runner addresses them in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from numpy.typing import NDArray


class Rows:
    """The first rows of an array of shape (outer, inner, width): a matrix to code that hands them to kernels.

    Within one entry of the outer dimension, a *group*, they are one pitch apart.
    """

    def __init__(self, array: NDArray[Any], rows: int | None = None) -> None:
        outer, inner, width = array.shape
        self.array = array
        self.shape = (outer * inner if rows is None else rows, width)
        self.dtype, self.itemsize = array.dtype, array.itemsize

    def __getitem__(self, rows: slice) -> Rows:
        assert rows.start is None and rows.step is None  # the first ones
        return Rows(self.array, min(rows.stop, self.shape[0]))


def by_group(work: Callable[[int, int], None], arrays: Iterable[Any]) -> Callable[[int, int], None]:
    """Return a function like `work`, which is called with rows [begin, end) of one group of each of the arrays."""
    sizes = [array.array.shape[1] for array in arrays if type(array) is Rows]
    if not sizes:
        return work

    def divided(begin: int, end: int) -> None:
        while begin < end:
            last = min(end, *((begin // size + 1) * size for size in sizes))
            work(begin, last)
            begin = last

    return divided
