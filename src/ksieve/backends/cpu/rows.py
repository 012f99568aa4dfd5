"""Where rows lie on the host: addresses for kernels, and rows two leading strides apart, which are read in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

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


class Placed(NamedTuple):
    """An array with its address; keeping both together keeps the array alive."""

    array: NDArray[Any] | None
    address: int
    pitch: int
    """Bytes from one row to the next."""
    group: int = 0
    """Rows that are a pitch apart, where not all are; 0 otherwise."""
    skip: int = 0
    """Bytes added between groups."""

    def of(self, row: int) -> int:
        """Address of row 0 by which kernels find the rows of a row's group."""
        return self.address + row // self.group * self.skip if self.group else self.address


ABSENT = Placed(None, 0, 0)


def address_of(array: NDArray[Any]) -> int:
    """Address of the first element."""
    return int(array.__array_interface__["data"][0])


def placed(array: NDArray[Any] | Rows | None) -> Placed:
    """Where the rows of an array lie; `ABSENT` for None."""
    if isinstance(array, Rows):
        (far, near, _), group = array.array.strides, array.array.shape[1]
        return Placed(array.array, address_of(array.array), near, group, far - group * near)
    return ABSENT if array is None else Placed(array, address_of(array), array.strides[0])
