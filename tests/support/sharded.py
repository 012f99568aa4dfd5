"""Answers of whole rows by sorting, and how shards hold them; nothing of the package but the layouts under test."""

from __future__ import annotations

import numpy as np

from oracle import ranks


def expected(scores, k, begin=None, end=None, ks=None, *, tie_break="low", largest=True, nan="last"):
    """Positions of the k best of every row, ascending."""
    x = ranks(scores, largest=largest, nan=nan)
    rows, width = x.shape
    begin = np.zeros(rows, int) if begin is None else np.clip(begin, 0, width)
    end = np.full(rows, width) if end is None else np.clip(end, 0, width)
    sign = -1 if tie_break == "high" else 1
    found = []
    for r in range(rows):
        mine = k if ks is None else min(max(int(ks[r]), 0), k)
        order = sorted(range(begin[r], end[r]), key=lambda p, r=r: (-x[r, p], sign * p))
        found.append(sorted(order[:mine]))
    return found


def check_simulated(simulated, want, owner):
    """The positions of every rank are those of the answer that it owns, and every rank has all of them if asked to."""
    for r, row in enumerate(want):
        owners = [owner(p) for p in row]
        for rank, held in enumerate(simulated.owned):
            assert held[r].tolist() == [p for p, its in zip(row, owners, strict=True) if its == rank], (r, rank)
        if simulated.everywhere is not None:
            slots = simulated.everywhere.shape[1]
            assert simulated.everywhere[r].tolist() == row + [-1] * (slots - len(row)), r
