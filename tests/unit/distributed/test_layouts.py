"""Layouts: every position lies on one rank, in the place that the definition says."""

from __future__ import annotations

import numpy as np
import pytest

from ksieve import ArgumentError
from ksieve.distributed import Contiguous, Interleaved

LAYOUTS = [Contiguous(), Interleaved(1), Interleaved(3), Interleaved(64)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("width", "world"), [(0, 1), (0, 4), (1, 4), (17, 1), (100, 3), (129, 8), (5, 16)])
def test_every_position_lies_on_one_rank(layout, width, world):
    widths = layout.widths(width, world)
    every = [layout.positions(np.arange(widths[rank]), rank, widths) for rank in range(world)]
    assert sorted(np.concatenate(every).tolist()) == list(range(width)) and layout.extent(widths) == width
    for rank, held in enumerate(every):
        assert (np.diff(held) > 0).all()
        if isinstance(layout, Interleaved):
            assert all((g // layout.size) % world == rank for g in held.tolist())
        for bound in (-(1 << 40), -1, 0, 1, width // 2, width, width + 1, 1 << 40):
            assert int(layout.below(bound, rank, widths)) == sum(g < bound for g in held.tolist())


def test_uneven_and_empty_contiguous_shards():
    widths, layout = (3, 0, 5, 0), Contiguous()
    assert layout.extent(widths) == 8
    assert layout.positions(np.arange(5), 2, widths).tolist() == [3, 4, 5, 6, 7]
    assert [int(layout.below(6, rank, widths)) for rank in range(4)] == [3, 0, 3, 0]


def test_uneven_interleaved_shards_end_where_the_last_one_does():
    """A rank may have room for more blocks than the row fills, or for fewer."""
    layout = Interleaved(4)
    assert layout.extent((8, 2)) == 12 and layout.extent((4, 3)) == 7 and layout.extent((0, 0)) == 0
    assert int(layout.below(100, 1, (8, 2))) == 2


@pytest.mark.parametrize("size", [0, -1, True, 2.0, None, 1 << 31])
def test_a_block_has_a_size(size):
    with pytest.raises(ArgumentError, match=r"^size: got .*; takes an int from 1 to"):
        Interleaved(size)
    assert Interleaved(np.int64(3)) == Interleaved(3)
