"""The epilogue of a producer in Triton: keep the scores that `ksieve.running.Candidates` asks for, and count them.

Triton is imported when this module is; nothing else of the library imports it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def keep(  # type: ignore[no-untyped-def]
    score, valid, row, position, cutoff,
    counts_ptr, scores_ptr, positions_ptr, pitch, capacity,
    LARGEST: tl.constexpr = True, NAN_FIRST: tl.constexpr = False,
):  # fmt: skip
    """Append the scores of a block that reach their row's cutoff to the lists of their rows.

    Parameters
    ----------
    score : block
        Scores of some positions of some rows, in any shape.
    valid : block of bool, of the same shape
        Whether the position exists in the row; scores of others may be anything.
    row, position, cutoff : blocks of int, int and float32 that broadcast to this shape
        The score's row and position, and the row's cutoff, loaded from ``candidates.cutoff``. A row without a valid
        position may be out of range.
    counts_ptr, scores_ptr, positions_ptr
        The arrays of the `Candidates`.
    pitch, capacity
        ``candidates.scores.stride(0)`` and ``candidates.capacity``.
    LARGEST : constexpr
        Whether larger scores are better.
    NAN_FIRST : constexpr
        Whether NaN is the best of all scores (larger ones are better, with ``nan="highest"``). Otherwise it reaches no
        cutoff.

    Notes
    -----
    One comparison for each score, and for each that is kept an atomic addition and two stores; no reduction. The order
    of a list follows the additions, which change order from run to run; answers do not depend on it with
    `deterministic`.
    """
    stored = score.to(scores_ptr.dtype.element_ty)
    compared = stored.to(tl.float32)
    if LARGEST:  # noqa: SIM108 (one branch is compiled)
        reaches = compared >= cutoff
    else:
        reaches = compared <= cutoff
    if NAN_FIRST:
        reaches = reaches | (compared != compared)
    # Compared with 1, which changes nothing of it. Otherwise Triton moves the comparison to another layout, through
    # shared memory, which took a tenth of a producer's time (docs/decisions/0042-lists-in-place.md).
    kept = valid & (reaches == 1)
    slot = tl.atomic_add(tl.broadcast_to(counts_ptr + row, kept.shape), 1, mask=kept, sem="relaxed")
    fits = kept & (slot < capacity)
    begin = row.to(tl.int64) * pitch
    tl.store(scores_ptr + begin + slot, stored, mask=fits)
    tl.store(positions_ptr + begin + slot, tl.broadcast_to(position.to(tl.int32), kept.shape), mask=fits)
