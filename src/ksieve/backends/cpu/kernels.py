"""Compiled kernels of the CPU backend: one row at a time, the three phases of the model.

Steps of `select_rows`, per row of L > k valid scores:

1. Propose (`sample_keys`): the sampled scores give the keys at the policy's sample ranks; a coarse policy widens them
   to the cutoff of their coarse bin.
2. Certify (`sieve`): one read of the row stores every (index, key) up to the cutoff. At least k of them prove
   containment. Underfilled: the rescue cutoff, then every score.
3. Refine (`kth`, `emit`): the exact k-th key of the stored ones, then all better candidates and enough ties.

Storage is bounded for any data. When it is full, a tighter cutoff is guessed from a sample that depends on the call's
seed (`ksieve.model.guess`). If that does not make enough room, the best candidates are kept and only better scores pass
from then on. No frontier is therefore scanned again. `Stats.scans` counts the reads of a row as they happen, and the
model counts the same reads (`ksieve.model.reference`).

What only some calls need is compiled alone, and called through an address that is 0 in all others. `convert` ranks and
widens scores (`ksieve.backends.cpu.converting`), `account` fills the statistics, and `emit_last` ends HIGHEST_TIES.

A row of at most `SHORT` scores is searched in cache instead (`ksieve.backends.cpu.short`), into the same slots. Calls
with HIGHEST_TIES, or with statistics, which describe these steps, do not.

Another thread may rewrite the scores during a call, so that two reads of a score may differ. No loop bound or address
may depend on a second read. Every selection works on keys that are stored once, and writes every slot from them.
"""

from __future__ import annotations

import numpy as np

from ksieve.backends.cpu import scratch as at
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
    account,
    bin_of,
)
from ksieve.backends.cpu.compiled import entry, kernel, prepare
from ksieve.backends.cpu.ranking import emit, emit_last, kth
from ksieve.backends.cpu.short import select_short
from ksieve.backends.cpu.sieve import sieve
from ksieve.backends.cpu.simd import SHORT, Int, call, i32s, i64s, jit, larger, smaller, store_i32, u32s
from ksieve.backends.cpu.views import guess_cutoff, offset, sample_keys, view_size
from ksieve.core.keys import NAN_KEY
from ksieve.core.policy import SamplingPolicy
from ksieve.model.guess import BLOCK, MOST_GUESSES


@jit
def _tightened(
    tau: Int, rank: Int, groups: Int, first: Int, group: Int, period: Int, share: Int, jitter: Int, memory: Int
) -> Int:
    """`SamplingPolicy.tightened`; samples the groups at the row's ends again."""
    each, keys, fits = group // share, at.spare_of(memory), i64s(memory + at.ASKED)[at.ROOM] + BLOCK
    few, most = (rank // 4 + 2 * each - 1) // each, (rank - rank // 4) // each
    for end in range(2 if few <= most else 0):
        found = tau
        for some in (most, few):  # the few are among the most
            low = (groups - some) * end
            count = sample_keys(first, group, period, 0, jitter, share, rank, keys, fits, keys, memory, low, low + some)
            worst = kth(keys, count, count, keys, memory)
            if worst >= tau:
                break
            found = worst
        tau = found
    return tau


@jit
def _propose(policy: Int, bin_cutoffs: Int, memory: Int) -> Int:
    """Step 1: put the inclusive ordered-key cutoffs into TAUS; return how many there are.

    There are 0 if the sample is not usable (`SamplingPolicy.usable`).

    APART states for each whether scores equal to it are counted separately: an exact cutoff that occurs more than once
    in the sample, or NaN.
    """
    (_, row_id, length, _, _), asked = at.row_of(memory), i64s(memory + at.ASKED)
    numbers, taus, apart = i64s(policy), i64s(memory + at.TAUS), i64s(memory + at.APART)
    stats, room = i32s(asked[at.STATISTICS]), asked[at.ROOM]
    taus[0] = taus[1] = 0
    stride, group, multiplier, primary = numbers[0], numbers[1], numbers[2], numbers[3]
    rescue, exact, share, jitter = numbers[4], numbers[5], numbers[6], numbers[7]
    if primary == 0:
        return 0
    period = stride * group
    first = 0 if jitter > 1 else (row_id * multiplier) % stride * group
    last = first + offset(row_id, length // period, jitter) * group
    sampled = view_size(length, last, group, period)
    most = larger(primary, rescue)
    if 2 * ((sampled + share - 1) // share) < 3 * most:
        return 0
    stats[SAMPLED] = sampled
    keys, spare = at.key_of(memory), at.spare_of(memory)
    # One more than the largest rank, so that a second sample equal to a boundary is kept.
    count = sample_keys(first, group, period, 0, jitter, share, most + 1, keys, room + BLOCK, spare, memory, 0, length)
    key, proposals = u32s(keys), 2 if rescue else 1
    for attempt in range(proposals):
        tau = kth(keys, count, rescue if attempt else primary, spare, memory)
        apart[attempt] = 0
        if exact:
            seen = 0
            for i in range(count):
                seen += key[i] == tau
            if share > 1 and attempt == 0:
                groups = (sampled + group - 1) // group
                tau = _tightened(tau, primary, groups, first, group, period, share, jitter, memory)
            stats[TAU + attempt] = tau
            apart[attempt] = seen > 1 or tau == NAN_KEY
        else:
            coarse = bin_of(bin_cutoffs, tau)
            stats[TAU + attempt] = coarse
            tau = np.int64(u32s(bin_cutoffs)[coarse])
        taus[attempt] = tau
    return proposals


@kernel
def guessed(bound: Int, attempt: Int, memory: Int) -> Int:
    """Read the row up to a guess; after each guess that admits too few, up to a safer one; finally up to `bound`.

    Returns the result of `sieve`.
    """
    asked, cutoff = i64s(memory + at.ASKED), 0
    stats, k = i32s(asked[at.STATISTICS]), asked[at.K]
    while cutoff < bound:
        cutoff = bound
        if attempt < MOST_GUESSES:
            cutoff = smaller(bound, guess_cutoff(attempt, memory))
        stats[SCANS] += 1
        stored = sieve(cutoff, 0, memory)
        if stored >= k:
            break
        attempt += 1
    return stored


@jit
def _certify(proposals: Int, memory: Int) -> Int:
    """Step 2: store at least the k best scores by the cheapest route that has them.

    Returns the result of `sieve`, and after its cutoff in FOUND the boundary: if they are equal, all scores up to it
    are stored.
    """
    asked, found, taus = i64s(memory + at.ASKED), i64s(memory + at.FOUND), i64s(memory + at.TAUS)
    stats, k, tau, stored = i32s(asked[at.STATISTICS]), asked[at.K], NAN_KEY, 0
    stats[ROUTE] = DIRECT if proposals == 0 else RECOVERED + proposals - 1
    for attempt in range(proposals + 1):
        bound = taus[attempt] if attempt < proposals else NAN_KEY
        if attempt == 1 and bound == tau:
            continue  # the rescue band is empty: the same boundary would underfill again
        tau, guesses = bound, 0
        if attempt < proposals:
            stats[SCANS] += 1
            stored = sieve(tau, 1, memory)
            guesses = 1
        if guesses == 0 or (stored < k and found[0] != tau):
            stored = guessed(tau, guesses, memory)
        if stored >= k:
            if attempt < proposals:
                stats[ROUTE] = CERTIFIED + attempt
            break
    found[1] = tau
    return stored


@entry
def select_rows(
    scores: Int, pitch: Int, size: Int, convert: Int, lengths: Int, begin: Int, end: Int, k: Int, out: Int,
    out_pitch: Int, starts: Int, ks: Int, policy: Int, bin_cutoffs: Int, room: Int, seed: Int, raw: Int,
    accounting: Int, ending: Int, work: Int, memory: Int,
) -> None:  # fmt: skip
    """Select rows [begin, end).

    Arguments are numbers and addresses, 0 where absent; a pitch counts bytes. `scores`, `out`: of row 0. `size`: bytes
    of a score. `convert`: of the scores' converter (`converting.converter`); 0 for float32, the largest first.
    `lengths`: int32 (rows,), of the rows' windows, already clamped. `starts`: int64 (rows,), first positions of the
    windows, from which indices count; without `starts` all are 0. `ks`: int32 (rows,), each row's own k, clamped to [0,
    k]. `policy`: int64 (8,) of `runner._policy_numbers`. `bin_cutoffs`: `ksieve.core.keys.BIN_CUTOFF_KEY`. `room`:
    candidates stored per worker, the largest length, or at least 2 k and twice the largest sample rank. `seed`: of the
    guesses (`ksieve.model.guess`), not negative; no answer depends on it. `raw`: int32 (rows, 16), receives the
    statistics. `accounting`, `ending`: the kernels `account` and `emit_last`, for statistics and for HIGHEST_TIES.
    `work`: int64 (rows,), receives the number of scores sampled, stored, and compared again in later passes. `memory`:
    the thread's scratch memory.
    """
    found, counter, asked = i64s(memory + at.FOUND), i64s(memory + at.WORK), i64s(memory + at.ASKED)
    asked[3], asked[4], asked[at.SEED], asked[at.ROOM] = size, convert, seed, room
    keys = at.key_of(memory)
    for r in range(begin, end):
        length = np.int64(i32s(lengths)[r])
        row, slots = scores + r * pitch, out + r * out_pitch
        if starts != 0:
            row += i64s(starts)[r] * size
        most = np.int64(i32s(ks)[r]) if ks != 0 else k
        statistics = raw + 4 * STATS_WIDTH * r if raw != 0 else memory + at.STATS
        stats, used = i32s(statistics), smaller(length, most)
        for i in range(STATS_WIDTH):
            stats[i] = -1 if TAU <= i < ADMITTED + 2 else 0
        for i in range(used, k):
            store_i32(slots + 4 * i, np.int32(-1))
        counter[0] = 0
        if length <= most or most == 0:
            stats[COMMITTED] = used
            for i in range(used):
                store_i32(slots + 4 * i, np.int32(i))
        elif raw == 0 and work == 0 and ending == 0 and length <= SHORT:
            ahead = row + larger(pitch, size * length)  # segments have no pitch
            select_short(row, length, convert, slots, most, memory + at.WIDE, ahead, ahead + size * length)
        else:
            asked[0], asked[1], asked[2], asked[at.K], asked[at.STATISTICS] = row, r, length, most, statistics
            stored = _certify(_propose(policy, bin_cutoffs, memory), memory)
            cutoff, bound = found[0], found[1]
            worst = kth(keys, stored, most, at.spare_of(memory), memory)
            ties, equal = found[0], found[1]
            emit(slots, most, i32s(memory + at.INDEX), u32s(keys), stored, worst, ties)
            counter[0] += 2 * stored
            if ending != 0:
                call(ending, (slots, ties, equal, worst, stored, cutoff, memory))
            if accounting != 0:
                call(accounting, (worst, stored, cutoff == bound, bin_cutoffs, memory))
        if work != 0:
            i64s(work)[r] = counter[0]


def bytes_needed(room: int, policy: SamplingPolicy | None) -> int:
    """Bytes of scratch memory for `room` candidates and the groups of a policy's samples."""
    return at.INDEX + 12 * (room + BLOCK) + 6 * max(at.BATCH, policy.group if policy else 1)


def ready(statistics: bool, highest: bool) -> tuple[int, int]:
    """Prepare `select_rows`; return the addresses of `account` and `emit_last`, 0 where they are not needed."""
    if select_rows.address and not (statistics or highest):
        return 0, 0
    prepare(select_rows, *(account,) * statistics, *(emit_last,) * highest)
    return account.address if statistics else 0, emit_last.address if highest else 0
