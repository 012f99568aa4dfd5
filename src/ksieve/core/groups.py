"""Groups of options: what belongs together in a call, as one argument.

A group is a frozen dataclass. Its arrays are the leaves of a pytree of PyTorch and JAX, and its numbers and strings are
static. So groups pass through ``torch.export``, ``jax.jit`` and ``jax.vmap``. A group checks nothing itself:
unflattening passes placeholders, and the call that takes it checks. In `ksieve.plan`, an array may be given as True, or
as the name of its dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from ksieve.core.errors import ArgumentError, kind_of
from ksieve.core.options import IndexBase
from ksieve.core.table import BY_NAME, INPUTS

_unregistered = {"torch", "jax", "jaxlib"}
"""Packages of arrays whose pytrees do not know the groups yet."""

_NO_ARRAYS = (int, float, str, list, tuple)
"""Values of other kinds; a tuple, since Dynamo traces no union of types."""


class _Group:
    """Base of all groups."""

    def __post_init__(self) -> None:
        if not _unregistered:
            return
        for name in _FIELDS[type(self)]:
            value = getattr(self, name)
            if value is not None and not isinstance(value, _NO_ARRAYS):
                register_pytrees(type(value).__module__.partition(".")[0])


@dataclass(frozen=True)
class RowBounds(_Group):
    """Windows of the rows: which scores of a row are valid.

    Parameters
    ----------
    starts : array of int32 or int64, of the leading shape, optional
        Where each row's window begins, clamped to [0, width]. Its scores are ``[start, start + length)``.
    ends : array of int32 or int64, of the leading shape, optional
        In place of `lengths`: where each window ends, exclusive, clamped to [start, width].
    next_n : int
        Consecutive rows of one request (multi-token prediction). `lengths` or `ends` then has one entry per request:
        shape ``(rows // next_n,)``, or the leading shape with its last dimension divided by next_n. The window of row r
        is ``next_n - 1 - r % next_n`` scores shorter.
    index_base : {"row", "start"}
        Whether indices count from the start of the row, so that ``scores[r, i]`` is the score, or of the window. A
        transform takes the indices as they count.
    """

    starts: Any = None
    ends: Any = None
    next_n: int = 1
    index_base: IndexBase = "row"


@dataclass(frozen=True)
class Segments(_Group):
    """Rows of any length that follow one another in flat scores of shape (n,): the CSR form.

    Row r is ``scores[indptr[r] : indptr[r + 1]]``, and its indices count from its start. The leading shape is
    ``(rows,)``. Together with neither `lengths` nor `Blocks` nor gathered scores.

    Parameters
    ----------
    indptr : array of int32 or int64, shape (rows + 1,)
        On the scores' device, contiguous. Clamped to [0, n], and each end to at least its start. On CUDA it is never
        copied to the host, and may change between replays of a graph.
    max_length : int
        A segment is cut off after so many scores. 0: after the most that the device takes, 2**31 - 2**20 on CUDA.
    mean_length : int
        About how many scores a segment has, for the plan alone. 0: as many as there are scores for each segment.
    """

    indptr: Any
    max_length: int = 0
    mean_length: int = 0


@dataclass(frozen=True)
class Blocks(_Group):
    """What a row's k are selected among: its *entries*, which are blocks of scores, or scores for several positions.

    Parameters
    ----------
    block_size : int
        Adjacent scores of a block, 1 to 256. An entry is then a block, ranked by its best score, and its index is the
        number of the block. `lengths` and `RowBounds` stay positions: the last block may be short, and the first where
        a window begins inside it. With 1 each score is an entry.
    force_first, force_last : int
        So many entries at the beginning and at the end of each row are selected with any score.
    forced_extra : bool
        Whether forced entries come in addition to the k, or count among them. Each row's own k (an array) counts the
        others then.
    expand : int
        Write all positions of each selected entry, in place of its index. The number is the block size, or where each
        score is an entry the positions that it stands for, 2 to 256. The outputs then have ``k * expand`` columns.
    tail : array of int32, of the shape of `lengths`, optional
        With `expand`, the rows' lengths in positions. Only entries that are whole within them are selected. The
        positions after the last whole entry follow the selection, in up to ``expand - 1`` more columns.
    """

    block_size: int = 1
    force_first: int = 0
    force_last: int = 0
    forced_extra: bool = False
    expand: int = 1
    tail: Any = None


@dataclass(frozen=True)
class Positions(_Group):
    """Scores that were gathered from elsewhere, such as several shards: each has a position.

    Parameters
    ----------
    positions : array of int32, of the scores' shape
        Written in place of an index, before a transform; equal scores and `sorted` go by it. A score whose position is
        negative is no part of the row. The others of a row must be distinct.
    """

    positions: Any


@dataclass(frozen=True)
class SelectedBlocks(_Group):
    """Scores of blocks that a first level selected, side by side: the second level of a selection.

    Parameters
    ----------
    block_table : array of int32, of the leading shape and n
        The number b of the block of each ``g = width // n`` scores, whose positions are ``b * g`` and the ones that
        follow it; negative where there is none.
    """

    block_table: Any


@dataclass(frozen=True)
class PageTable(_Group):
    """Write where the index lies in paged memory, in place of the index.

    Parameters
    ----------
    page_table : array of int32, shape (requests, max_pages)
        ``table[request, i // page_size] * page_size + i % page_size`` is written in place of index i, or -1 where that
        entry lies outside the table or is negative.
    page_size : int
        A power of two.
    row_to_request : array of int32, of the leading shape, optional
        The request of each row; by default ``row // next_n``.
    """

    page_table: Any
    page_size: int = 1
    row_to_request: Any = None


@dataclass(frozen=True)
class Offsets(_Group):
    """Write ``i + offsets[row]`` in place of index i.

    Parameters
    ----------
    offsets : array of int32, of the leading shape
    """

    offsets: Any


GROUPS: dict[str, tuple[type[Any], ...]] = {
    "bounds": (RowBounds, Segments),
    "blocks": (Blocks,),
    "gathered": (Positions, SelectedBlocks),
    "transform": (PageTable, Offsets),
}
"""The groups that each keyword takes."""

_FIELDS = {kind: tuple(f.name for f in fields(kind)) for kinds in GROUPS.values() for kind in kinds}
_KEYWORDS = {kind.__name__: (keyword, kind) for keyword, kinds in GROUPS.items() for kind in kinds}


def flat(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a call by their names in the table, if they are not None: groups are taken apart."""
    found: dict[str, Any] = {}
    for keyword, value in keywords.items():
        if value is None:
            continue
        kinds = GROUPS.get(keyword)
        if kinds is None:
            found[keyword] = value
        elif type(value) in kinds:
            for name in _FIELDS[type(value)]:
                if (member := getattr(value, name)) is not None:
                    found[name] = member
        else:
            raise ArgumentError(keyword, kind_of(value), " or ".join(f"ksieve.{kind.__name__}(...)" for kind in kinds))
    return found


def grouped(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of a call with these options: the inverse of `flat`."""
    found: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        where = BY_NAME[name].where if name in BY_NAME else name
        if where in _KEYWORDS:
            groups.setdefault(where, {})[name] = value
        else:
            found[name] = value
    for where, members in groups.items():
        keyword, kind = _KEYWORDS[where]
        if keyword in found:
            raise ArgumentError(keyword, f"{where} and {type(found[keyword]).__name__}", "one of the two")
        found[keyword] = kind(**members)
    return found


def register_pytrees(package: str) -> None:
    """Register the groups as pytrees of a package of arrays, once; other packages have none."""
    if package not in _unregistered:
        return
    if package == "torch":
        import torch

        if torch.compiler.is_compiling():
            return
        from torch.utils._pytree import GetAttrKey, register_pytree_node

        def named(group: Any) -> tuple[list[Any], list[Any]]:
            arrays, context = _flatten(group)
            return list(zip(map(GetAttrKey, context[0]), arrays, strict=True)), context

        for kind in _FIELDS:
            register_pytree_node(
                kind, _flatten, partial(_unflatten, kind), serialized_type_name=f"ksieve.{kind.__name__}",
                flatten_with_keys_fn=named,
            )  # fmt: skip
    else:
        import jax

        for kind, members in _FIELDS.items():
            arrays = [name for name in members if name in INPUTS]
            others = [name for name in members if name not in INPUTS]
            jax.tree_util.register_dataclass(kind, data_fields=arrays, meta_fields=others)
    _unregistered.difference_update({package} if package == "torch" else {"jax", "jaxlib"})


def _flatten(group: Any) -> tuple[list[Any], list[Any]]:
    """Arrays of a group, and for PyTorch how to make it of them again: their names, and its other fields."""
    given = {name: value for name, value in vars(group).items() if value is not None}
    arrays = [name for name in given if name in INPUTS]
    return [given.pop(name) for name in arrays], [arrays, given]


def _unflatten(kind: type[Any], arrays: Any, context: Any) -> Any:
    names, others = context
    return kind(**dict(zip(names, arrays, strict=True)), **others)
