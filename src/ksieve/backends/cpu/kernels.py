"""Compiled kernels of the CPU backend: one row at a time, the three phases of the model.

Steps of `select_rows`, per row of L > k valid scores:

1. Propose (`sample_keys`): the policy's view gives the keys at its sample ranks; a coarse policy widens them to
   the cutoff of their coarse bin.
2. Certify (`_sieve`): one read of the row stores every (index, key) up to the cutoff. At least k of them prove
   containment. Underfilled: the rescue cutoff, then every score.
3. Refine (`kth`, `emit`): the exact k-th key of what is stored, then everything better and enough ties.

Storage is bounded whatever the data. When it is full, a second view, jittered so that no period in the data can fool
it, guesses a tighter cutoff; and where that is not enough, the k best are kept and only better scores pass from then
on. So no frontier is ever scanned again here: a row is read at most once per proposal and once more, and
`Stats.scans`, the model's count, bounds what this backend reads.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from ksieve import keys
from ksieve import policy as policies
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
from ksieve.backends.cpu.lanes import (
    BLOCK,
    FLOAT32,
    HIGHEST_TIES,
    INF_KEY,
    TILE,
    Int,
    Word,
    bit_count,
    block_mask,
    jit,
    load_u32,
    lowest_bit,
    make_keys,
    prefetch_block,
    raw_limit,
    store_i32,
    tile_of,
    valid_mask,
)
from ksieve.backends.cpu.ranking import HIST_BINS, emit, emit_better, keep_best, kth
from ksieve.backends.cpu.scratch import BATCH, Scratch
from ksieve.backends.cpu.ties import emit_last_of_row, emit_last_stored
from ksieve.backends.cpu.views import guess_cutoff, offset, sample_keys, view_size
from ksieve.keys import NAN_KEY

# ---- step 2: certify -------------------------------------------------------------------------------------


@jit
def _tighten(
    row: Int, length: Int, dtype: Int, cutoff: Word, k: Int, count: Int, may_guess: bool, scratch: Any
) -> tuple[Int, Word]:
    """Make room among `count` stored candidates; return how many stay and the new, better cutoff."""
    index, key = scratch.index, scratch.key
    if may_guess:
        guess = guess_cutoff(row, length, dtype, k, scratch)
        if guess < cutoff:
            cutoff = guess
            kept = 0
            for i in range(count):
                this = key[i]
                index[kept] = index[i]
                key[kept] = this
                kept += this <= guess
            count = kept
    if 4 * count > 3 * (key.size - BLOCK):
        worst = keep_best(index, key, count, k, scratch.spare, scratch.histogram)
        count = k
        cutoff = np.uint32(worst - np.uint32(1))
    return count, cutoff


@jit
def _append(address: Int, position: Int, mask: Word, hits: Int) -> None:
    """Store the positions of the bits set in `mask`, and up to four stray ones behind them.

    Four at a time and at least four, because most blocks have a few hits or none: a branch that tells them apart
    would be mispredicted too often.
    """
    while True:
        for j in range(4):
            store_i32(address + 4 * j, np.int32(position + lowest_bit(mask)))
            mask &= mask - np.uint64(1)
        address += 16
        hits -= 4
        if hits <= 0:
            break


@jit
def _look_up(tile: Int, first: Int, begin: Int, end: Int, index: Any, key: Any) -> None:
    """Put the scores of freshly stored indices, as bits, where their keys belong, while their tile is in cache."""
    for j in range(begin, end):
        key[j] = load_u32(tile + 4 * (np.int64(index[j]) - first))


@jit
def _sieve(row: Int, length: Int, dtype: Int, cutoff: Word, k: Int, may_guess: bool, scratch: Any) -> tuple[Int, bool]:
    """Read the row once and store its scores whose key is at most `cutoff`.

    Returns how many are stored and whether those are all of them. If they are not, they contain the k best of
    the row, provided that k or more are stored.
    """
    index, key = scratch.index, scratch.key
    slots = np.int64(index.ctypes.data)
    count, keyed, complete = 0, 0, True
    room = index.size - BLOCK
    limit = raw_limit(cutoff)
    for first in range(0, length, TILE):
        last = min(first + TILE, length)
        tile = tile_of(row, first, last, dtype, scratch.wide)
        looked_up = count
        for begin in range(first, last, BLOCK):
            block = tile + 4 * (begin - first)
            if dtype == FLOAT32:
                prefetch_block(block, 4)
            valid = valid_mask(last - begin)
            mask = block_mask(block, limit) & valid
            if count > room:
                _look_up(tile, first, looked_up, count, index, key)
                make_keys(keyed, count, key)
                count, cutoff = _tighten(row, length, dtype, cutoff, k, count, may_guess, scratch)
                looked_up, keyed, complete, may_guess = count, count, False, False
                if cutoff < np.uint32(INF_KEY):
                    return count, complete  # k infinities are stored: nothing beats them
                limit = raw_limit(cutoff)
                mask = block_mask(block, limit) & valid
            hits = bit_count(mask)
            _append(slots + 4 * count, begin, mask, hits)
            count += hits
        _look_up(tile, first, looked_up, count, index, key)
    make_keys(keyed, count, key)
    return count, complete


# ---- one row, and the entry ------------------------------------------------------------------------------


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

    There are 0 if the view is not usable (`SamplingPolicy.usable`).

    `apart` tells of each whether the model counts scores equal to it apart: an exact one seen more than once, or NaN.
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
    # One more than the largest rank, so that a second score equal to a boundary is among them.
    count = sample_keys(row, length, dtype, first, group, period, row_id, jitter, share, most + 1, key, spare, scratch)
    proposals = 2 if rescue else 1
    for attempt in range(proposals):
        rank = rescue if attempt else primary
        tau, _ = kth(key, count, rank, spare, scratch.histogram)
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
def _certify(
    row: Int, length: Int, dtype: Int, k: Int, held: Int, taus: Any, proposals: Int, stats: Any, scratch: Any
) -> tuple[Int, bool]:
    """Step 2: store at least the k best scores by the cheapest route that has them; result as of `_sieve`."""
    stats[ROUTE] = DIRECT if proposals == 0 else RECOVERED + proposals - 1
    stats[SCANS] = 2 + proposals
    if proposals == 0 and length <= held:
        stats[SCANS] = 1
    for attempt in range(proposals):
        if attempt == 1 and taus[1] == taus[0]:
            continue  # the band is empty: what underfilled once does so again
        stored, complete = _sieve(row, length, dtype, taus[attempt], k, True, scratch)
        if stored < k and not complete:
            stored, complete = _sieve(row, length, dtype, taus[attempt], k, False, scratch)
        if stored >= k:
            stats[ROUTE] = CERTIFIED + attempt
            stats[SCANS] = 1 + attempt
            return stored, complete
    guess = guess_cutoff(row, length, dtype, k, scratch)
    stored, complete = _sieve(row, length, dtype, guess, k, False, scratch)
    if stored < k:
        stored, complete = _sieve(row, length, dtype, np.uint32(NAN_KEY), k, False, scratch)
    elif guess != np.uint32(NAN_KEY):
        complete = False
    return stored, complete


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
        capacity: Int,
        held: Int,
        size: Int,
        raw: Any,
    ) -> None:
        """Select rows [begin, end); the only compiled function that Python calls.

        Parameters
        ----------
        scores, out : int
            Addresses of row 0; `pitch` and `out_pitch` count bytes.
        dtype : int
            FLOAT32, FLOAT16 or BFLOAT16.
        lengths : array of int32
            Already clamped: those of the rows' windows.
        starts : int
            Address of int32 first positions of the windows, which indices count from; 0 where all of them are 0.
        ks : int
            Address of each row's own int32 k, clamped to [0, k]; 0 where that is k.
        tie_break : int
            ANY_TIES, LOWEST_TIES or HIGHEST_TIES.
        policy : tuple of int
            stride, group, phase multiplier, primary rank (0: no view), rescue rank (0: none), exact boundary,
            sampled scores per statistic, groups that a jittered view chooses from (1: none).
        bin_cutoffs : array of uint32, shape (2048,)
            `ksieve.keys.BIN_CUTOFF_KEY`.
        capacity, held : int
            Of the plan; they enter the statistics alone.
        size : int
            Candidates stored per worker: the largest length, or at least 2 k and twice the largest sample rank.
        raw : array of int32, shape (rows, 16)
            Statistics; of shape (0, 16) when not asked for.
        """
        assert source  # closes over it
        scratch = Scratch(
            np.empty(size + BLOCK, np.int32),
            np.empty(size + BLOCK, np.uint32),
            np.empty(size + BLOCK, np.uint32),
            np.empty(HIST_BINS, np.int32),
            np.empty(TILE, np.uint32),
            np.empty(max(BATCH, policy[1]), np.uint32),
        )
        taus, apart = np.zeros(2, np.uint32), np.zeros(2, np.int64)
        thresholds, counts = np.zeros(THRESHOLDS, np.uint32), np.zeros(THRESHOLDS, np.int64)
        unused = np.zeros(STATS_WIDTH, np.int32)
        wanted = raw.shape[0] > 0
        itemsize = 4 if dtype == FLOAT32 else 2
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
            if length <= most or most == 0:
                used = min(length, most)
                stats[COMMITTED] = used
                for i in range(k):
                    store_i32(slots + 4 * i, np.int32(i if i < used else -1))
                continue
            proposals = _propose(row, r, length, dtype, policy, bin_cutoffs, taus, apart, stats, scratch)
            stored, complete = _certify(row, length, dtype, most, held, taus, proposals, stats, scratch)
            worst, ties = kth(scratch.key, stored, most, scratch.spare, scratch.histogram)
            if tie_break != HIGHEST_TIES:
                emit(slots, most, scratch.index, scratch.key, stored, worst, ties)
            else:
                emit_better(slots, scratch.index, scratch.key, stored, worst)
                if complete:
                    emit_last_stored(slots, most, ties, scratch.index, scratch.key, stored, worst)
                else:
                    emit_last_of_row(row, length, dtype, slots, most, ties, worst, scratch.wide)
            for i in range(most, k):
                store_i32(slots + 4 * i, np.int32(-1))
            if wanted:
                set_thresholds(thresholds, taus, worst, bin_cutoffs)
                if complete:
                    count_stored(scratch.key, stored, thresholds, counts)
                else:
                    count_row(row, length, dtype, thresholds, counts, scratch.wide)
                fill_row(stats, most, capacity, apart, tie_break, counts)

    return select_rows


def source_digest() -> str:
    """Digest of all that is compiled into an entry: the disk cache by itself sees the entry's own bytecode alone."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(keys.__file__), Path(policies.__file__)]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


select_rows = _entry(source_digest())
