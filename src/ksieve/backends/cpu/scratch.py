"""Scratch memory of one thread: bounded, allocated once per call, reused for every row."""

from __future__ import annotations

from typing import Any, NamedTuple

from ksieve.backends.cpu.ranking import HIST_BINS
from ksieve.backends.cpu.simd import TILE
from ksieve.core.guess import BLOCK


class Scratch(NamedTuple):
    """Scratch arrays of one thread."""

    index: Any
    """int32 (size,): positions of the stored candidates."""
    key: Any
    """uint32 (size,): their ordered keys."""
    spare: Any
    """uint32 (size,): keys that a selection narrows down."""
    histogram: Any
    """int32 (HIST_BINS,)."""
    wide: Any
    """uint32 (TILE,): float32 bits of a tile that cannot be read in place."""
    batch: Any
    """uint32 (at least BATCH,): sampled scores, before they are ranked; holds one group at the least."""
    places: Any
    """int64 (BATCH + GROUPS_AHEAD,): where the groups of a batch begin, and some of the next one."""
    work: Any
    """int64 (1,): scores sampled, stored, and compared again, so far of this row."""


BATCH = 512
"""Samples fetched at a time."""


GROUPS_AHEAD = 16
"""Sampled groups prefetched ahead: about the number of cache misses that a core keeps in flight."""


def bytes_needed(size: int, group: int) -> int:
    """Bytes of the `Scratch` that `select_rows` makes."""
    return 12 * (size + BLOCK) + 4 * (HIST_BINS + TILE + max(BATCH, group)) + 8 * (BATCH + GROUPS_AHEAD + 1)
