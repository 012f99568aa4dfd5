"""The epilogue on the host: order, index base, transform, values and output of selected rows.

The model of all backends; `ksieve.backends.cpu.finishing` is its compiled form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.dtypes import SCORE_DTYPES, canonical
from ksieve.core.keys import order_key, widen
from ksieve.core.options import Options
from ksieve.core.ranking import ranked

I64 = NDArray[np.int64]

SLOTS_AT_A_TIME = 1 << 16
"""Slots processed together: their temporaries fit a core's cache, and are bounded for any number of rows."""

_UNUSED = np.uint64(0xFFFFFFFFFFFFFFFF)
"""Sort key of an unused slot: after every score's, whose index is at most `_LAST_INDEX`."""

_LAST_INDEX = 0x7FFFFFFF


@dataclass(frozen=True)
class Finish:
    """Turns window-local positions into the outputs of a call.

    `scores` (ndarray, shape (rows, width)): bfloat16 as uint16 bits. `begin` (ndarray of int64, shape (rows,)): first
    position of each window. `out`, `raw`, `values` (ndarray, shape (rows, k)): of the options' index dtype, and of the
    scores' dtype. `page_table`, `row_to_request`, `offsets`: as of `ksieve.topk`. `places` (ndarray of int32, shape
    (rows, width)): position of each score, in place of its index (`ksieve.model.gathering`). `counts` (ndarray of
    int32, shape (rows,)): receives the number of used slots. None: the call has none.
    """

    options: Options
    scores: NDArray[Any]
    begin: I64
    out: NDArray[Any]
    raw: NDArray[Any] | None = None
    values: NDArray[Any] | None = None
    page_table: NDArray[np.int32] | None = None
    row_to_request: NDArray[np.int32] | None = None
    offsets: NDArray[np.int32] | None = None
    places: NDArray[np.int32] | None = None
    counts: NDArray[np.int32] | None = None

    def write(self, first: int, last: int, local: NDArray[Any]) -> None:
        """Write rows [first, last), given their positions within the windows in any order, -1 in unused slots."""
        step = max(1, SLOTS_AT_A_TIME // max(local.shape[1], 1))
        for begin in range(first, last, step):
            end = min(begin + step, last)
            self._write(slice(begin, end), local[begin - first : end - first].astype(np.int64))

    def clear(self, first: int, last: int) -> None:
        """Fill rows [first, last) like rows without valid scores."""
        rows = slice(first, last)
        self.out[rows] = -1
        if self.raw is not None:
            self.raw[rows] = -1
        if self.values is not None:
            self.values[rows] = filled(self.scores.dtype, self.options.unused_value)
        if self.counts is not None:
            self.counts[rows] = 0

    def _write(self, rows: slice, local: I64) -> None:
        begin = self.begin[rows, None]
        local = self._ordered(rows, local)
        used = local >= 0
        if self.values is not None:
            unused = filled(self.scores.dtype, self.options.unused_value)
            self.values[rows] = np.where(used, self._scores(rows, local), unused)
        if self.counts is not None:
            self.counts[rows] = used.sum(1)
        index = local + (begin if self.options.index_base == "row" else 0)
        if self.places is not None and self.places.shape[1]:
            index = np.take_along_axis(self.places[rows], np.maximum(local, 0), axis=1).astype(np.int64)
        if self.raw is not None:
            self.raw[rows] = np.where(used, index, -1)
        self.out[rows] = np.where(used, self._transformed(rows, index), -1)

    def _scores(self, rows: slice, local: I64) -> NDArray[Any]:
        """Scores at local positions; arbitrary scores in unused slots."""
        if not self.scores.shape[1]:
            return np.zeros(local.shape, self.scores.dtype)
        position = np.maximum(local, 0) + self.begin[rows, None]
        return np.take_along_axis(self.scores[rows], np.minimum(position, self.scores.shape[1] - 1), axis=1)

    def _ordered(self, rows: slice, local: I64) -> I64:
        """Slots in the order of the options, unused ones last."""
        if self.options.order == "any":
            return local
        # An index of 32 bits below a key of 32 bits: one sort of integers orders by both.
        flip = np.uint64(_LAST_INDEX if self.options.tie_break == "high" and self.options.order == "value" else 0)
        sortable = (local.astype(np.uint64) & np.uint64(0xFFFFFFFF)) ^ flip
        if self.options.order == "value":
            sortable |= order_key(widen(ranked(self._scores(rows, local), self.options.ranking))).astype(
                np.uint64
            ) << np.uint64(32)
        ordered = np.sort(np.where(local >= 0, sortable, _UNUSED), axis=1)
        index = ((ordered & np.uint64(0xFFFFFFFF)) ^ flip).astype(np.int64)
        return np.where(ordered == _UNUSED, np.int64(-1), index)

    def _transformed(self, rows: slice, index: I64) -> I64:
        """Indices of used slots after the transform; -1 where the page table has no entry, or a negative one."""
        if self.offsets is not None:
            return index + self.offsets[rows, None].astype(np.int64)
        if self.page_table is None:
            return index
        requests, pages = self.page_table.shape
        if self.row_to_request is not None:
            request = self.row_to_request[rows].astype(np.int64)
        else:
            request = np.arange(rows.start, rows.stop, dtype=np.int64) // self.options.next_n
        page, within = index // self.options.page_size, index % self.options.page_size
        known = (page >= 0) & (page < pages) & ((request >= 0) & (request < requests))[:, None]
        if not known.any():
            return np.full(index.shape, -1, np.int64)
        entry = self.page_table[np.clip(request, 0, requests - 1)[:, None], np.clip(page, 0, pages - 1)]
        return np.where(known & (entry >= 0), entry.astype(np.int64) * self.options.page_size + within, -1)


def filled(dtype: np.dtype[Any], fill: float) -> Any:
    """An infinity as a score; unsigned 16-bit integers hold bfloat16 bits."""
    known = SCORE_DTYPES[canonical(dtype.name)]
    bits = np.dtype(f"u{known.size}").type(known.infinity | (fill < 0) << (8 * known.size - 1))
    return bits.view(dtype)
