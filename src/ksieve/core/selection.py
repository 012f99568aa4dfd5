"""What a selection returns."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

Array = TypeVar("Array")


class Selection(NamedTuple, Generic[Array]):
    """Answer of `ksieve.select`: what was asked for, and None in place of the rest.

    Attributes
    ----------
    indices : array of int32 or int64, of the leading shape and k
    values : array of the scores' dtype, of the same shape, or None
    raw : array like `indices`, or None
    counts : array of int32, of the leading shape, or None
    stats : Stats or None
    """

    indices: Array
    values: Any = None
    raw: Any = None
    counts: Any = None
    stats: Any = None
