"""Where rows lie on the host: addresses for kernels, and rows two leading strides apart, which are read in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ksieve.core.arrays import as_numpy
from ksieve.core.call import Call
from ksieve.core.dtypes import held


class Placed(NamedTuple):
    """Rows of an array where they lie, with what keeps them alive."""

    array: Any
    address: int
    pitch: int
    """Bytes from one row to the next."""
    shape: tuple[int, ...] = (0, 0)
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    group: int = 0
    """Rows that are a pitch apart, where not all are; 0 otherwise."""
    skip: int = 0
    """Bytes added between groups."""


ABSENT = Placed(None, 0, 0)


def address_of(array: NDArray[Any]) -> int:
    """Address of the first element."""
    return int(array.__array_interface__["data"][0])


def placed(array: NDArray[Any] | None) -> Placed:
    """Where the rows of an array lie; `ABSENT` for None."""
    return ABSENT if array is None else Placed(array, address_of(array), array.strides[0], array.shape, array.dtype)


def rows_in(call: Call, name: str, count: int) -> Placed:
    """Where the first rows of an array of a call lie: as it is described, without a view where that needs none."""
    info, array = call.described[name], call.arrays[name]
    address = info.pointer
    if info.library not in ("numpy", "torch"):  # the view that was described may have been a copy
        array = as_numpy(array)
        address = address_of(array)
    # The pitch of a single row may be no whole number of elements.
    near, group = info.strides[-2] * info.itemsize if count > 1 else 0, info.shape[1] if len(info.shape) == 3 else 0
    skip = info.strides[0] * info.itemsize - group * near if group else 0
    dtype = held(info.dtype)
    return Placed(array, address, near, (count, info.shape[-1]), dtype, group, skip)


def by_group(work: Callable[[int, int], None], groups: tuple[int, ...]) -> Callable[[int, int], None]:
    """Return a function like `work`, which is called with rows [begin, end) of one group of each of the sizes."""
    sizes = [size for size in groups if size]
    if not sizes:
        return work

    def divided(begin: int, end: int) -> None:
        while begin < end:
            last = min(end, *((begin // size + 1) * size for size in sizes))
            work(begin, last)
            begin = last

    return divided
