"""Slots of a row whose entries are selected (`ksieve.core.entries`): order of the entries, positions and tail.

The model of all backends; `ksieve.backends.cpu.entries` is its compiled form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.entries import I64, Entries, Forced
from ksieve.core.options import Options
from ksieve.model.epilogue import filled


def arrange(
    options: Options, entries: Entries, forced: Forced, chosen: NDArray[np.int32], columns: int
) -> tuple[I64, I64]:
    """Return the slots of every row, and the entry of each slot.

    `chosen` (ndarray of int32, shape (rows, k)): the selected entries that are not forced, counted from the first such
    entry, in the wanted order. Unused slots hold -1, and may stand anywhere. `columns`: `Options.columns`. Returns
    `slots`: numbers of entries, or with `expand` positions; -1 in unused slots. Returns `sources`: entry of each slot,
    counted from the row's first one; -1 in slots of the tail and in unused ones.
    """
    rows = chosen.shape[0]
    slots, sources = np.full((rows, columns), -1, np.int64), np.full((rows, columns), -1, np.int64)
    for r in range(rows):
        found, origins = _row(options, entries, forced, chosen[r], r)
        slots[r, : found.size], sources[r, : origins.size] = found, origins
    return slots, sources


def values_of(entries: Entries, sources: I64, fill: float) -> NDArray[Any]:
    """Score of the entry of each slot; `fill` where the slot has none."""
    unused = filled(entries.scores.dtype, fill)
    if not entries.scores.shape[1]:
        return np.full(sources.shape, unused)
    columns = entries.begin[:, None] + np.maximum(sources, 0)
    found = np.take_along_axis(entries.scores, np.minimum(columns, entries.scores.shape[1] - 1), axis=1)
    return np.where(sources >= 0, found, unused)


def _row(options: Options, entries: Entries, forced: Forced, chosen: NDArray[np.int32], r: int) -> tuple[I64, I64]:
    first = np.arange(forced.first[r], forced.first_end[r])
    last = np.arange(forced.last[r], forced.last_end[r])
    others = forced.begin[r] + chosen[chosen >= 0].astype(np.int64)
    if options.order == "value":
        above = np.concatenate([first, last])
        own = np.concatenate([above[::-1] if options.tie_break == "high" else above, others])
    else:
        own = np.concatenate([first, others, last])
    numbers = entries.number[r] + own if entries.places is None else entries.places[r, own].astype(np.int64)
    if options.expand == 1:
        return numbers, own
    begins = np.maximum(numbers * options.expand, entries.low[r])
    sizes = np.minimum((numbers + 1) * options.expand, entries.high[r]) - begins
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    found = np.repeat(begins, sizes) + within
    if options.tail:
        found = np.concatenate([found, np.arange(entries.tail[r], entries.high[r])])
    return found, np.repeat(own, sizes)
