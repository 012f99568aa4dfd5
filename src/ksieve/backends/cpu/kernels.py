"""Compiled kernels of the CPU backend: one row at a time, the three phases of the model.

Steps of `select_rows`, per row of L > k valid scores:

1. Propose (`sample_keys`): the sampled scores give the keys at the policy's sample ranks; a coarse policy widens them
   to the cutoff of their coarse bin.
2. Certify (`sieve`): one read of the row stores every (index, key) up to the cutoff. At least k of them prove
   containment. Underfilled: the rescue cutoff, then every score.
3. Refine (`kth`, `emit`): the exact k-th key of the stored ones, then all better candidates and enough ties.

Storage is bounded for any data. When it is full, a tighter cutoff is guessed from a sample that depends on the call's
seed (`ksieve.core.guess`). If that does not make enough room, the best candidates are kept and only better scores pass
from then on. No frontier is therefore scanned again. `Stats.scans` counts the reads of a row as they happen, and the
model counts the same reads (`ksieve.model.reference`).

A row of at most `TILE` scores is bisected instead (`ksieve.backends.cpu.short`), into the same slots, except in calls
with statistics, which describe these steps, or with HIGHEST_TIES.

Another thread may rewrite the scores during a call, so that two reads of a score may differ. No loop bound or address
may depend on a second read: every selection works on keys that are stored once, and every slot is written from them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from ksieve.backends.cpu.accounting import (
    ADMITTED,
    CERTIFIED,
    COMMITTED,
    DIRECT,
    RECOVERED,
    ROUTE,
    SAMPLED,
    SCANS,
    STATS_WIDTH,
    TAU,
    THRESHOLDS,
    count_row,
    count_stored,
    fill_row,
    set_thresholds,
)
from ksieve.backends.cpu.compiled import cached_jit
from ksieve.backends.cpu.ranking import HIST_BINS, emit, kth
from ksieve.backends.cpu.scratch import BATCH, GROUPS_AHEAD, Scratch
from ksieve.backends.cpu.short import select_short
from ksieve.backends.cpu.sieve import sieve
from ksieve.backends.cpu.simd import (
    HIGHEST_TIES,
    TILE,
    Int,
    Word,
    item_size,
    jit,
    load_u32,
    store_i32,
)
from ksieve.backends.cpu.ties import emit_last_of_row, emit_last_stored
from ksieve.backends.cpu.views import guess_cutoff, offset, sample_keys, view_size
from ksieve.core import guess, keys
from ksieve.core import policy as policies
from ksieve.core.guess import BLOCK, MOST_GUESSES
from ksieve.core.keys import NAN_KEY


@jit
def _propose(
    row: Int,
    row_id: Int,
    length: Int,
    dtype: Int,
    policy: Any,
    bin_cutoffs: Any,
    taus: Any,
    apart: Any,
    stats: Any,
    scratch: Any,
) -> Int:
    """Step 1: put the inclusive ordered-key cutoffs into `taus`; return how many there are.

    There are 0 if the sample is not usable (`SamplingPolicy.usable`).

    `apart` states for each whether scores equal to it are counted separately: an exact cutoff that occurs more than
    once in the sample, or NaN.
    """
    stride, group, multiplier, primary, rescue, exact, share, jitter = policy
    if primary == 0:
        return 0
    period = stride * group
    first = 0 if jitter > 1 else (row_id * multiplier) % stride * group
    last = first + offset(row_id, length // period, jitter) * group
    sampled = view_size(length, last, group, period)
    most = max(primary, rescue)
    if 2 * ((sampled + share - 1) // share) < 3 * most:
        return 0
    stats[SAMPLED] = sampled
    key, spare = scratch.key, scratch.spare
    # One more than the largest rank, so that a second sample equal to a boundary is kept.
    count = sample_keys(
        row, length, dtype, first, group, period, row_id, np.uint64(0), jitter, share, most + 1, key, spare, scratch
    )
    proposals = 2 if rescue else 1
    for attempt in range(proposals):
        rank = rescue if attempt else primary
        tau, _, _ = kth(key, count, rank, spare, scratch.histogram, scratch.work)
        stats[TAU + attempt] = np.int32(tau)
        apart[attempt] = 0
        if exact:
            seen = 0
            for i in range(count):
                seen += key[i] == tau
            apart[attempt] = seen > 1 or tau == np.uint32(NAN_KEY)
        if not exact:
            coarse = np.searchsorted(bin_cutoffs, tau)
            stats[TAU + attempt] = coarse
            tau = bin_cutoffs[coarse]
        taus[attempt] = tau
    return proposals


@jit
def _guessed(
    row: Int,
    row_id: Int,
    length: Int,
    dtype: Int,
    k: Int,
    bound: Word,
    attempt: Int,
    seed: Int,
    stats: Any,
    scratch: Any,
) -> tuple[Int, Word]:
    """Read the row up to a guess; after each guess that admits too few, up to a safer one; finally up to `bound`.

    Returns the result of `sieve`.
    """
    while attempt < MOST_GUESSES:
        tighter = guess_cutoff(row, row_id, length, dtype, k, attempt, seed, scratch)
        if tighter >= bound:
            break
        stats[SCANS] += 1
        stored, cutoff = sieve(row, row_id, length, dtype, tighter, k, -1, scratch)
        if stored >= k:
            return stored, cutoff
        attempt += 1
    stats[SCANS] += 1
    return sieve(row, row_id, length, dtype, bound, k, -1, scratch)


@jit
def _certify(
    row: Int,
    row_id: Int,
    length: Int,
    dtype: Int,
    k: Int,
    taus: Any,
    proposals: Int,
    seed: Int,
    stats: Any,
    scratch: Any,
) -> tuple[Int, Word, Word]:
    """Step 2: store at least the k best scores by the cheapest route that has them.

    Returns the result of `sieve`, and the boundary: if the cutoff equals it, all scores up to it are stored.
    """
    stats[ROUTE] = DIRECT if proposals == 0 else RECOVERED + proposals - 1
    for attempt in range(proposals):
        if attempt == 1 and taus[1] == taus[0]:
            continue  # the rescue band is empty: the same boundary would underfill again
        tau = taus[attempt]
        stats[SCANS] += 1
        stored, cutoff = sieve(row, row_id, length, dtype, tau, k, seed, scratch)
        if stored < k and cutoff != tau:
            stored, cutoff = _guessed(row, row_id, length, dtype, k, tau, 1, seed, stats, scratch)
        if stored >= k:
            stats[ROUTE] = CERTIFIED + attempt
            return stored, cutoff, tau
    every = np.uint32(NAN_KEY)
    stored, cutoff = _guessed(row, row_id, length, dtype, k, every, 0, seed, stats, scratch)
    return stored, cutoff, every


@jit
def _emit(
    row: Int,
    length: Int,
    dtype: Int,
    slots: Int,
    k: Int,
    tie_break: Int,
    worst: Word,
    ties: Int,
    equal: Int,
    stored: Int,
    cutoff: Word,
    stats: Any,
    scratch: Any,
) -> None:
    """Step 3: write the k best stored candidates; of the scores equal to the k-th key, the first or the last ones.

    The last ones may have been dropped, but only if the scores better than or equal to the k-th key fill more than half
    of the storage. In that case the row is always read from its end, so that the number of reads does not depend on the
    guesses.
    """
    emit(slots, k, scratch.index, scratch.key, stored, worst, ties)
    scratch.work[0] += 2 * stored
    if tie_break == HIGHEST_TIES:
        room = scratch.key.size - BLOCK
        all_stored = worst <= cutoff
        if length > room and (not all_stored or k - ties + equal > max(k, room // 2)):
            stats[SCANS] += 1
            emit_last_of_row(row, length, dtype, slots, k, ties, worst, scratch.wide)
        elif equal > ties:
            emit_last_stored(slots, k, ties, scratch.index, scratch.key, stored, worst)
            scratch.work[0] += stored


def _entry(source: str) -> Any:
    """Make `select_rows`. The disk cache keys on the values a function closes over, so on `source` too."""

    @cached_jit
    def select_rows(
        scores: Int,
        pitch: Int,
        dtype: Int,
        lengths: Any,
        begin: Int,
        end: Int,
        k: Int,
        out: Int,
        out_pitch: Int,
        starts: Int,
        ks: Int,
        tie_break: Int,
        policy: tuple[int, ...],
        bin_cutoffs: Any,
        size: Int,
        seed: Int,
        raw: Any,
        work: Any,
    ) -> None:
        """Select rows [begin, end); the only compiled function that Python calls.

        Parameters
        ----------
        scores, out : int
            Addresses of row 0; `pitch` and `out_pitch` count bytes.
        dtype : int
            FLOAT32, FLOAT16 or BFLOAT16, with a ranking (`simd.RANKED`).
        lengths : array of int32
            Already clamped: those of the rows' windows.
        starts : int
            Address of the int32 first positions of the windows, from which indices count; 0 if all of them are 0.
        ks : int
            Address of each row's own int32 k, clamped to [0, k]; 0 if every row has k slots.
        tie_break : int
            ANY_TIES, LOWEST_TIES or HIGHEST_TIES.
        policy : tuple of int
            stride, group, phase multiplier, primary rank (0: no view), rescue rank (0: none), exact boundary,
            sampled scores per statistic, groups that a jittered view chooses from (1: none).
        bin_cutoffs : array of uint32, shape (2048,)
            `ksieve.core.keys.BIN_CUTOFF_KEY`.
        size : int
            Candidates stored per worker: the largest length, or at least 2 k and twice the largest sample rank.
        seed : int
            Seed of the guesses (`ksieve.core.guess`), not negative; no answer depends on it.
        raw : array of int32, shape (rows, 16)
            Receives the statistics; shape (0, 16) for none.
        work : array of int64, shape (rows,)
            Receives the number of scores sampled, stored, and compared again in later passes; shape (0,) for none.
        """
        assert source  # closes over it
        scratch = Scratch(
            np.empty(size + BLOCK, np.int32),
            np.empty(size + BLOCK, np.uint32),
            np.empty(size + BLOCK, np.uint32),
            np.empty(HIST_BINS, np.int32),
            np.empty(TILE, np.uint32),
            np.empty(max(BATCH, policy[1]), np.uint32),
            np.empty(BATCH + GROUPS_AHEAD, np.int64),
            np.zeros(1, np.int64),
        )
        taus, apart = np.zeros(2, np.uint32), np.zeros(2, np.int64)
        thresholds, counts = np.zeros(THRESHOLDS, np.uint32), np.zeros(THRESHOLDS, np.int64)
        unused = np.zeros(STATS_WIDTH, np.int32)
        wanted = raw.shape[0] > 0
        bisects = not wanted and work.size == 0 and tie_break != HIGHEST_TIES
        itemsize = item_size(dtype)
        for r in range(begin, end):
            length = np.int64(lengths[r])
            row, slots = scores + r * pitch, out + r * out_pitch
            if starts != 0:
                row += np.int64(load_u32(starts + 4 * r)) * itemsize
            most = np.int64(load_u32(ks + 4 * r)) if ks != 0 else k
            stats = raw[r] if wanted else unused
            stats[:] = 0
            stats[TAU : TAU + 2] = -1
            stats[ADMITTED : ADMITTED + 2] = -1
            used = min(length, most)
            for i in range(used, k):
                store_i32(slots + 4 * i, np.int32(-1))
            if length <= most or most == 0:
                stats[COMMITTED] = used
                if work.size > 0:
                    work[r] = 0
                for i in range(used):
                    store_i32(slots + 4 * i, np.int32(i))
                continue
            if bisects and length <= TILE:
                select_short(row, length, dtype, slots, most, scratch.wide)
                continue
            scratch.work[0] = 0
            proposals = _propose(row, r, length, dtype, policy, bin_cutoffs, taus, apart, stats, scratch)
            stored, cutoff, bound = _certify(row, r, length, dtype, most, taus, proposals, seed, stats, scratch)
            worst, ties, equal = kth(scratch.key, stored, most, scratch.spare, scratch.histogram, scratch.work)
            _emit(row, length, dtype, slots, most, tie_break, worst, ties, equal, stored, cutoff, stats, scratch)
            if work.size > 0:
                work[r] = scratch.work[0]
            if wanted:
                set_thresholds(thresholds, taus, worst, bin_cutoffs)
                if cutoff == bound:
                    count_stored(scratch.key, stored, thresholds, counts)
                else:
                    count_row(row, length, dtype, thresholds, counts, scratch.wide)
                fill_row(stats, most, apart, counts)

    return select_rows


def source_digest() -> str:
    """Digest of all sources that are compiled into an entry; Numba's cache key covers only the entry's own bytecode."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), *(Path(str(m.__file__)) for m in (guess, keys, policies))]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


select_rows = _entry(source_digest())
