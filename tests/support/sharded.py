"""Answers of whole rows by the oracle, and how shards hold them."""

from __future__ import annotations

import numpy as np

from ksieve_lab import oracle


def expected(scores, k, begin=None, end=None, ks=None, *, tie_break="low", **ranking):
    """Positions of the k best of every row, ascending."""
    bounds = {"starts": begin, "ends": end, "ks": ks}
    call = {name: None if array is None else np.asarray(array) for name, array in bounds.items()}
    found = oracle.best(np.asarray(scores), k, call | ranking | {"tie_break": tie_break, "sorted": "index"})
    return [row[row >= 0].tolist() for row in found]


def owner_of(layout, widths):
    """Return a function of a position: the rank that holds it."""
    held = ((rank, layout.positions(np.arange(width), rank, widths)) for rank, width in enumerate(widths))
    return {p: rank for rank, positions in held for p in positions.tolist()}.__getitem__


def check_simulated(simulated, want, owner):
    """The positions of every rank are those of the answer that it owns, and every rank has all of them if asked to."""
    for r, row in enumerate(want):
        owners = [owner(p) for p in row]
        for rank, held in enumerate(simulated.owned):
            assert held[r].tolist() == [p for p, its in zip(row, owners, strict=True) if its == rank], (r, rank)
        if simulated.everywhere is not None:
            slots = simulated.everywhere.shape[1]
            assert simulated.everywhere[r].tolist() == row + [-1] * (slots - len(row)), r
