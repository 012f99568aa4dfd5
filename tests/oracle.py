"""The independent judge of a Top-K answer: it sorts, and shares no code with the package.

A score becomes a finite float64 whose order is the contract's: NaN below -inf, and positions past the row's
length below everything. An answer is exact when its positions are distinct and valid, the sentinel follows
them, and their sorted scores equal the first k of the sorted row.
"""

from __future__ import annotations

import numpy as np

NAN, PAST = -1e301, -1e302


def widen(scores):
    """float32 view of a score matrix; uint16 holds bfloat16 bits, which are the high half of a float32."""
    scores = np.asarray(scores)
    if scores.dtype == np.uint16:
        halves = np.zeros((*scores.shape, 2), dtype="<u2")
        halves[..., 1] = scores
        return halves.view("<f4")[..., 0].astype(np.float32)
    with np.errstate(invalid="ignore"):
        return scores.astype(np.float32)


def ranks(scores, lengths=None):
    """Scores as float64 in contract order; shape kept, positions past `lengths` at PAST."""
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        x = widen(scores).astype(np.float64)
    x = np.where(np.isnan(x), NAN, np.clip(x, -1e300, 1e300))
    if lengths is None:
        return x
    return np.where(np.arange(x.shape[1]) < np.asarray(lengths)[:, None], x, PAST)


def clamp(lengths, rows, width):
    if lengths is None:
        return np.full(rows, width)
    return np.clip(np.asarray(lengths, dtype=np.int64), 0, width)


def exact_rows(scores, lengths, k, indices, sentinel=-1):
    """Whether each row of `indices` is an exact answer; bool, shape (rows,)."""
    rows, width = np.shape(scores)
    valid = clamp(lengths, rows, width)
    indices = np.asarray(indices, dtype=np.int64)
    if indices.shape != (rows, k):
        raise AssertionError(f"indices have shape {indices.shape}, expected {(rows, k)}")
    needed = np.minimum(valid, k)
    real = np.arange(k) < needed[:, None]
    ok = np.where(real, (indices >= 0) & (indices < valid[:, None]), indices == sentinel).all(axis=1)
    positions = np.sort(np.where(real, indices, -1 - np.arange(k)), axis=1)
    ok &= (np.diff(positions, axis=1) != 0).all(axis=1)
    if width == 0:
        return ok
    x = ranks(scores, valid)
    inside = np.clip(indices, 0, width - 1)
    chosen = np.where(real, np.take_along_axis(x, inside, axis=1), PAST)
    best = np.full((rows, k), PAST)
    top = min(k, width)
    best[:, :top] = np.sort(x, axis=1)[:, ::-1][:, :top]
    best = np.where(real, best, PAST)
    return ok & (np.sort(chosen, axis=1) == np.sort(best, axis=1)).all(axis=1)


def assert_exact(scores, lengths, k, indices, sentinel=-1):
    """Fail with the first row that is no exact answer."""
    ok = exact_rows(scores, lengths, k, indices, sentinel)
    if not ok.all():
        row = int(np.flatnonzero(~ok)[0])
        length = int(clamp(lengths, *np.shape(scores))[row])
        raise AssertionError(
            f"row {row} of {len(ok)} (length {length}, k {k}) is not exact; {int((~ok).sum())} rows fail; "
            f"its indices begin {np.asarray(indices)[row][:8].tolist()}"
        )


def first_k(scores, lengths, k):
    """An exact answer by sorting: best first, ties by position, -1 after; int64, shape (rows, k)."""
    rows, width = np.shape(scores)
    valid = clamp(lengths, rows, width)
    order = np.argsort(-ranks(scores, valid), axis=1, kind="stable")[:, :k]
    answer = np.full((rows, k), -1, dtype=np.int64)
    answer[:, : order.shape[1]] = order
    return np.where(np.arange(k) < np.minimum(valid, k)[:, None], answer, -1)
