"""Layouts: which rank holds which position of a row. Plain arithmetic on ints, NumPy arrays and PyTorch tensors.

A layout and the widths of all shards determine the global position of every score. Both layouts keep the order of
positions within a shard. So the window [start, end) of a row is the window [n(start), n(end)) of a shard, where n(g)
counts its positions below g.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ksieve.core.errors import ArgumentError, shown
from ksieve.core.problem import MAX_SIZE, check_size

Widths = tuple[int, ...]
"""Scores in a row of each rank's shard, in the order of the ranks."""


@dataclass(frozen=True, slots=True)
class Contiguous:
    """Rank r holds the positions that follow those of rank r - 1: shards of any widths, empty ones included."""

    def widths(self, width: int, world: int) -> Widths:
        """Split a row of `width` scores into shards that differ by at most one score."""
        return tuple(width // world + (rank < width % world) for rank in range(world))

    def extent(self, widths: Widths) -> int:
        """One more than the last position of all shards."""
        return sum(widths)

    def below(self, position: Any, rank: int, widths: Widths) -> Any:
        """Count the positions below `position` that a rank holds.

        Parameters
        ----------
        position : int, or array of int of NumPy or PyTorch
            Any number: the result is clamped to [0, width of the shard].
        rank : int
        widths : tuple of int

        Returns
        -------
        int64, of the shape of `position`
        """
        return _clip(_wide(position) - sum(widths[:rank]), widths[rank])

    def positions(self, local: Any, rank: int, widths: Widths) -> Any:
        """Global positions, int64, of local ones of a rank."""
        return _wide(local) + sum(widths[:rank])


@dataclass(frozen=True, slots=True)
class Interleaved:
    """Position g lives on rank ``(g // size) % world``: blocks of `size` scores, one rank after another.

    Parameters
    ----------
    size : int
        Scores in a block, at least 1.

    Raises
    ------
    ArgumentError
        `size` is no positive int below 2**31.
    """

    size: int

    def __post_init__(self) -> None:
        if isinstance(self.size, np.integer):
            object.__setattr__(self, "size", int(self.size))
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 0 < self.size < 1 << 31:
            raise ArgumentError("size", shown(self.size), "an int from 1 to 2**31 - 1")

    def widths(self, width: int, world: int) -> Widths:
        """Widths of the shards of a row of `width` scores."""
        return tuple(int(self._below(width, rank, world)) for rank in range(world))

    def extent(self, widths: Widths) -> int:
        """One more than the last position of all shards."""
        last = (int(self.positions(w - 1, rank, widths)) for rank, w in enumerate(widths) if w)
        return max(last, default=-1) + 1

    def below(self, position: Any, rank: int, widths: Widths) -> Any:
        """Count the positions below `position` that a rank holds: see `Contiguous.below`."""
        return _clip(self._below(position, rank, len(widths)), widths[rank])

    def positions(self, local: Any, rank: int, widths: Widths) -> Any:
        """Global positions, int64, of local ones of a rank."""
        index = _wide(local)
        return (index // self.size) * (self.size * len(widths)) + rank * self.size + index % self.size

    def _below(self, position: Any, rank: int, world: int) -> Any:
        turn, start = self.size * world, _clip(_wide(position), None)
        return (start // turn) * self.size + _clip(start % turn - rank * self.size, self.size)


Layout = Contiguous | Interleaved


def check_layout(layout: object) -> Layout:
    """Check that an argument is a layout."""
    if not isinstance(layout, (Contiguous, Interleaved)):
        raise ArgumentError("layout", shown(layout), "Contiguous() or Interleaved(size)")
    return layout


def check_widths(widths: Any, layout: Layout) -> Widths:
    """Return the widths of all shards as a tuple of int: one for each rank, of positions that int32 counts."""
    takes = "an int of at least 0 for every rank"
    listed = isinstance(widths, Sequence) or (isinstance(widths, np.ndarray) and widths.ndim == 1)
    if not listed or not len(widths):
        raise ArgumentError("widths", shown(widths), takes)
    try:
        shares = tuple(check_size(width, "widths") for width in widths)
    except ArgumentError:
        raise ArgumentError("widths", shown(widths), takes) from None
    extent_of(shares, layout, "widths")
    return shares


def extent_of(widths: Widths, layout: Layout, name: str) -> int:
    """Return the extent of all shards; `name` is the argument at fault where int32 does not count it."""
    extent = layout.extent(widths)
    if extent > MAX_SIZE:
        raise ArgumentError(name, f"{extent} positions on all ranks", f"at most {MAX_SIZE}, as int32 counts")
    return extent


def _wide(number: Any) -> Any:
    """An int64 array of the same library, so that no product wraps."""
    return number.long() if hasattr(number, "long") else np.asarray(number, np.int64)


def _clip(number: Any, most: int | None) -> Any:
    return number.clamp(0, most) if hasattr(number, "clamp") else np.clip(number, 0, most)
