"""Rows in rank order: the best scores of a row with their positions, and exact counts over all of it.

A study needs only the upper tail of a row, so only the best `keep` scores are ordered. Ranks past them are counted over
the complete row. The rank of a value counts ties: it is the number of scores at least as good, which an inclusive
boundary there would admit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.installation import require_torch
from ksieve.core.keys import BIN_CUTOFF_KEY, coarse_bin, order_key, score_of_key, widen
from ksieve_lab.captures.format import Capture
from ksieve_lab.study.rows import read_blocks

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]


class RankedRow:
    """One valid row, its upper tail in order.

    `scores`: the complete valid row, float32. Of the best scores, best first: `order` has the positions, ties in any
    order; `keys` the ordered keys, ascending. `ranks` has the ranks from 1; equal scores share the largest.
    """

    def __init__(self, scores: F32, order: I64) -> None:
        self.scores = scores
        self.order = order
        self.keys: U32 = order_key(scores[order])
        self.ranks: I64 = np.searchsorted(self.keys, self.keys, side="right").astype(np.int64)
        if order.size < scores.size and order.size:
            # The last kept value may have equals beyond the kept ones.
            tied = self.ranks == order.size
            self.ranks[tied] = self._count_row(self.keys[-1:])[0]

    @cached_property
    def deeper(self) -> RankedRow:
        """The row with eight times as many scores in order."""
        return RankedRow(self.scores, _best(self._row_keys, 8 * max(self.order.size, 1)))

    @cached_property
    def _row_keys(self) -> U32:
        return order_key(self.scores)

    @property
    def length(self) -> int:
        """Valid scores."""
        return self.scores.size

    def count_keys(self, cutoffs: Any) -> I64:
        """How many scores of the row have an ordered key of at most each cutoff (uint32)."""
        wanted = np.asarray(cutoffs, dtype=np.uint32)
        counts = np.searchsorted(self.keys, wanted, side="right").astype(np.int64)
        if self.order.size < self.length:
            beyond = wanted >= self.keys[-1]
            counts[beyond] = self._count_row(wanted[beyond])
        return counts

    def count_at_least(self, thresholds: Any) -> I64:
        """How many scores are at or above each threshold (float64, finite)."""
        wanted = np.asarray(thresholds, dtype=np.float64)
        with np.errstate(over="ignore"):
            rounded = wanted.astype(np.float32)
        # The least float32 at or above the threshold admits exactly the same float32 scores.
        rounded = np.where(rounded < wanted, np.nextafter(rounded, np.float32(np.inf)), rounded).astype(np.float32)
        return self.count_keys(order_key(rounded))

    def coarse_ranks(self) -> I64:
        """Scores that the coarse bin of each kept score admits: at least its rank."""
        bins = coarse_bin(score_of_key(self.keys))
        _, first, back = np.unique(bins, return_index=True, return_inverse=True)
        return self.count_keys(BIN_CUTOFF_KEY[bins[first]])[back]

    def _count_row(self, cutoffs: U32) -> I64:
        counts = [np.count_nonzero(self._row_keys <= cutoff) for cutoff in cutoffs]
        return np.array(counts, dtype=np.int64)


def rank_rows(scores: Any, lengths: I64, keep: int, device: str = "cpu") -> Iterator[RankedRow]:
    """Order the upper tail, the best `keep` scores, of every row of a block as a capture gives it.

    `lengths` are clamped to the width. `device`: "cpu" or "cuda", where the best are found; the rows come out the same
    but for the order of ties.
    """
    matrix = widen(scores)
    if device == "cuda":
        yield from _rank_on_cuda(matrix, lengths, keep)
        return
    for row, length in zip(matrix, lengths, strict=True):
        valid = row[:length]
        yield RankedRow(valid, _best(order_key(valid), keep))


def ranked_rows(capture: Capture, rows: I64, keep: int, device: str = "cpu") -> Iterator[RankedRow]:
    """Read chosen rows of a capture block by block, and order the upper tail of each as `rank_rows` does."""
    for block in read_blocks(capture, rows):
        yield from rank_rows(block.scores, block.lengths, keep, device)


def _best(keys: U32, keep: int) -> I64:
    """Positions of the lowest keys, in order."""
    if keep >= keys.size:
        return np.argsort(keys, kind="stable").astype(np.int64, copy=False)
    best = np.argpartition(keys, keep - 1)[:keep]
    return best[np.argsort(keys[best], kind="stable")].astype(np.int64, copy=False)


def _rank_on_cuda(matrix: F32, lengths: I64, keep: int) -> Iterator[RankedRow]:
    torch = require_cuda()
    values = torch.from_numpy(np.ascontiguousarray(matrix)).cuda()
    valid = torch.from_numpy(np.ascontiguousarray(lengths, dtype=np.int64)).cuda()
    # Below every valid score, NaN included: torch ranks NaN first, ksieve last.
    comparable = torch.where(torch.isnan(values), float("-inf"), values)
    columns = torch.arange(matrix.shape[1], device=values.device)
    comparable = torch.where(columns < valid[:, None], comparable, float("-inf"))
    best = torch.topk(comparable, min(keep, matrix.shape[1]), dim=1, sorted=True).indices.cpu().numpy()
    for row, length, found in zip(matrix, lengths, best, strict=True):
        # -inf, NaN and the padding tie on the device: keys on the host separate valid scores from padding.
        order = found[found < length]
        kept = row[order]
        if order.size < min(keep, int(length)) or (order.size and not kept.min() > -np.inf):
            order = np.argsort(order_key(row[:length]), kind="stable")[:keep]
        else:
            order = order[np.argsort(order_key(kept), kind="stable")]
        yield RankedRow(row[:length], order.astype(np.int64))


def check_backend(backend: str) -> None:
    """Refuse a backend that rows cannot be ranked on, before anything is read; `require_cuda` says if it is here."""
    if backend not in ("cpu", "cuda"):
        raise ArgumentError("backend", repr(backend), "'cpu' or 'cuda'")


def require_cuda() -> Any:
    """Return torch where it sees a CUDA GPU, else raise `BackendError`, which names the remedy."""
    torch = require_torch("--backend cuda ranks rows with PyTorch", ", or use --backend cpu")
    if not torch.cuda.is_available():
        raise BackendError("--backend cuda needs a CUDA GPU, and PyTorch sees none; use --backend cpu")
    return torch
