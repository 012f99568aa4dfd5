"""The epilogue of a producer in Triton: keep the scores that `ksieve.tiles.Candidates` asks for, and count them.

Triton is imported when this module is; nothing else of the library imports it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def keep(  # type: ignore[no-untyped-def]
    score, valid, row, position,
    cutoff_ptr, counts_ptr, scores_ptr, positions_ptr, pitch, capacity,
    LARGEST: tl.constexpr = True,
):  # fmt: skip
    """Append the scores of a block that are not worse than their row's cutoff to the lists of their rows.

    Parameters
    ----------
    score : block (P, R)
        Scores of P positions of R rows.
    valid : block (P, R) of bool
        Whether the position exists in the row; scores of others may be anything.
    row, position : blocks (R,) and (P,) of int
        Numbers of the rows, each once; rows without a valid position may be out of range. Positions in their rows.
    cutoff_ptr, counts_ptr, scores_ptr, positions_ptr
        The arrays of the `Candidates`.
    pitch, capacity
        ``candidates.scores.stride(0)`` and ``candidates.capacity``.
    LARGEST : constexpr
        Whether larger scores are better.

    Notes
    -----
    One atomic addition for each row that keeps a score; nothing else where none does. The order of a list is that of
    the additions, which changes from run to run; answers do not depend on it with `deterministic`.
    """
    some = tl.max(valid.to(tl.int32), axis=0) > 0
    cutoff = tl.load(cutoff_ptr + row, mask=some, other=0.0)
    stored = score.to(scores_ptr.dtype.element_ty)
    compared = stored.to(tl.float32)
    # A comparison with NaN is false, so that NaN is kept.
    if LARGEST:  # noqa: SIM108 (one branch is compiled)
        worse = compared < cutoff[None, :]
    else:
        worse = compared > cutoff[None, :]
    kept = (valid & (worse == 0)).to(tl.int32)
    count = tl.sum(kept, axis=0)
    if tl.max(count, axis=0) > 0:
        before = tl.cumsum(kept, axis=0) - kept
        slot = tl.atomic_add(counts_ptr + row, count, mask=count > 0, sem="relaxed")[None, :] + before
        fits = (kept > 0) & (slot < capacity)
        at = row.to(tl.int64)[None, :] * pitch + slot
        tl.store(scores_ptr + at, stored, mask=fits)
        tl.store(positions_ptr + at, tl.broadcast_to(position.to(tl.int32)[:, None], kept.shape), mask=fits)
