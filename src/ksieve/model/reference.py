"""NumPy model of the algorithm: every backend must equal its indices, routes and counts.

Written to be read, not for speed. One row at a time, in the notation of the paper (Siran Liu et al., "Sample-Guided
Exact Top-K Selection for Long-Context Sparse Attention", Tencent):

1. Propose (`_propose`): a sampled view gives a primary and a rescue boundary.
2. Certify (`_certify`): one scan counts C(tau0); an underfilled row tries the rescue band, then exact
   coarse recovery. Every route ends in the same state (E_0, Q_0, k_0).
3. Refine (`_refine`): three exact digits; better groups are committed, the boundary group is kept.

Positions count from the start of a row's window, which may be the whole row; `ksieve.model.epilogue` turns them into
the outputs of a call.

Storage is part of the model. A backend stores at most `capacity` candidates. On CUDA, the row is scanned again for a
frontier that does not fit, one exact digit narrower (`Stats.scans` counts it). If all scores of that frontier are
equal, any k stored members suffice (`capacity` >= k) and no scan follows. With a tie-break, one more scan collects the
members that were not stored. The CPU backend drops the worst candidates when its storage is full and guesses its
cutoffs (`ksieve.model.guess`), so it reads a row fewer times. `_kept_scans` counts those reads. All other numbers are
the same.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.keys import BIN_CUTOFF_KEY, COARSE_BINS, NAN_KEY, coarse_bin, digit, order_key, widen
from ksieve.core.options import PLAIN, Options, TieBreak
from ksieve.core.policy import SamplingPolicy
from ksieve.core.ranking import ranked
from ksieve.core.stats import STATS_COLUMNS, Route, Stats
from ksieve.core.windows import I64, windows
from ksieve.model.guess import BLOCK, MOST_GUESSES, cutoff

U32 = NDArray[np.uint32]

UNBOUNDED = 1 << 62
"""Candidate capacity of a model with unlimited storage: the paper's own accounting."""


@dataclass
class RowTrace:
    """Statistics of one row while it is processed; `columns` gives the entries of `Stats`."""

    row: int
    length: int
    route: Route = Route.SHORT
    tau: tuple[int, int] = (-1, -1)
    admitted: tuple[int, int] = (-1, -1)
    frontier: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    committed: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    filled: int = 0
    scans: int = 0
    sampled: int = 0

    def columns(self) -> list[int]:
        """Values in the order of `STATS_COLUMNS`."""
        sets = (*self.tau, *self.admitted, *self.frontier, *self.committed)
        numbers = np.array([self.route, *sets, self.filled, self.scans, self.sampled], np.int64)
        wrapped: list[int] = numbers.astype(np.int32).tolist()  # a tau may have 32 bits
        return wrapped


@dataclass
class _Boundary:
    """A proposed cutoff (inclusive ordered key). `apart`: scores equal to the cutoff are counted, not stored, because
    many may equal it. True for an exact cutoff that occurs more than once in the sample, and for NaN.
    """

    cutoff: int
    apart: bool


@dataclass
class _Certified:
    """The interface between validation and refinement: (E_0, Q_0); k_0 follows as k - |E_0|.

    `counted`: the members of the frontier were counted, not stored.
    """

    committed: I64
    frontier: I64
    counted: bool = False


def select(
    scores: Any,
    lengths: Any,
    k: int,
    *,
    policy: SamplingPolicy | None,
    capacity: int = UNBOUNDED,
    resident_width: int = 0,
    splits: int = 1,
    seed: int | None = None,
    options: Options = PLAIN,
    starts: Any = None,
    ks: Any = None,
) -> tuple[NDArray[np.int32], Stats]:
    """Select the top k of every row exactly, and return the statistics of every row.

    `scores` (array_like, shape (rows, width)): float32, or a narrower float that widens exactly; uint16 is read as
    bfloat16 bits. `lengths`, `starts`: as of `ksieve.core.windows`. `options`: `windows`, `next_n`, `tie_break`,
    `largest` and `nan` are used here, the others in `ksieve.model.epilogue`. `k`: the sample ranks of every row follow
    from it, also with `ks` (array_like of int, shape (rows,)), each row's own k, clamped to [0, k]. `policy`: None
    takes the direct-exact route on every row. `capacity`: candidates that a backend can store per row, at least k; see
    the module docstring. `resident_width`: rows of at most this length stay on chip in the direct-exact route, which
    then scans once.

    `splits`: segments of the KV-split composition. It changes two returned numbers: each further segment reads the
    samples again, and candidates that exceed `capacity` together cost one more scan.

    `seed`: count the scans of the CPU backend, whose guesses use this seed. `resident_width` and `splits` are then not
    used, and `capacity` must be at least `ksieve.planning.choose_cpu.least_capacity` or the length of the longest row.

    The indices (ndarray of int32, shape (rows, k)) are positions in the window, best groups first; -1 in unused slots.
    """
    matrix = np.asarray(scores)
    rows, width = matrix.shape
    begins, valid = windows(options, rows, width, lengths=lengths, starts=starts)
    wanted = np.full(rows, k) if ks is None else np.clip(np.asarray(ks, np.int64), 0, k)
    indices = np.full((rows, k), -1, dtype=np.int32)
    raw = np.zeros((rows, len(STATS_COLUMNS)), dtype=np.int32)
    for r in range(rows):
        row = widen(ranked(matrix[r, begins[r] : begins[r] + valid[r]], options.ranking))
        chosen, trace = select_row(
            row, int(wanted[r]), row_id=r, policy=policy, capacity=capacity, resident_width=resident_width,
            splits=splits, max_k=k, tie_break=options.tie_break, seed=seed,
        )  # fmt: skip
        indices[r, : chosen.size] = chosen
        raw[r] = trace.columns()
    return indices, Stats(raw)


def select_row(
    row: NDArray[np.float32],
    k: int,
    *,
    row_id: int = 0,
    policy: SamplingPolicy | None,
    capacity: int = UNBOUNDED,
    resident_width: int = 0,
    splits: int = 1,
    max_k: int | None = None,
    tie_break: TieBreak = "any",
    seed: int | None = None,
) -> tuple[I64, RowTrace]:
    """Select the top k of one valid row; arguments as in `select`. `max_k` determines its sample ranks."""
    trace = RowTrace(row_id, row.size)
    if row.size <= k or k == 0:
        trace.committed[0] = min(row.size, k)
        return np.arange(trace.committed[0], dtype=np.int64), trace
    keys = order_key(row)
    boundaries = _propose(row, keys, max_k or k, policy, trace, splits)
    state = _certify(row, keys, k, boundaries, trace, resident_width, splits, capacity)
    chosen = _refine(keys, k, state, capacity, tie_break, trace)
    if seed is not None:
        trace.scans = _kept_scans(keys, k, boundaries or [], capacity, tie_break, seed, row_id)
    return chosen, trace


# ---- phase 1: propose ------------------------------------------------------------------------------------


def _propose(
    row: NDArray[np.float32],
    keys: U32,
    k: int,
    policy: SamplingPolicy | None,
    trace: RowTrace,
    splits: int,
) -> list[_Boundary] | None:
    """Turn the samples into the primary and the rescue boundary; None means the direct-exact route."""
    if policy is None:
        return None
    view = policy.view(trace.row, row.size)
    statistics = policy.statistics(coarse_bin(row[view]) if policy.boundary == "coarse" else keys[view])
    if not policy.usable(statistics.size, k):
        return None
    trace.sampled = view.size * splits
    ordered = np.sort(statistics)
    primary, rescue = policy.primary_rank(k), policy.rescue_rank(k)
    taus = [int(ordered[rank - 1]) for rank in (primary, rescue) if rank]
    repeated = [int(np.count_nonzero(ordered == tau)) > 1 for tau in taus]
    if policy.peaks and policy.boundary == "exact":
        taus[0] = policy.tightened(taus[0], primary, statistics)
    trace.tau = (taus[0], taus[1] if rescue else -1)
    if policy.boundary == "coarse":
        return [_Boundary(int(BIN_CUTOFF_KEY[tau]), False) for tau in taus]
    return [_Boundary(tau, tau == NAN_KEY or again) for tau, again in zip(taus, repeated, strict=True)]


# ---- phase 2: certify ------------------------------------------------------------------------------------


def _certify(
    row: NDArray[np.float32],
    keys: U32,
    k: int,
    boundaries: list[_Boundary] | None,
    trace: RowTrace,
    resident_width: int,
    splits: int,
    capacity: int,
) -> _Certified:
    """Return the state of the cheapest route that admits at least k scores.

    If the candidates of all segments exceed the storage together, the whole row is scanned once more.
    """
    if boundaries is None:
        trace.route = Route.DIRECT
        trace.scans = 1 if row.size <= resident_width else 2
        return _exact_coarse(row, k, trace)
    counts = [-1, -1]
    for attempt, boundary in enumerate(boundaries):
        trace.scans += 1
        admitted = _admit(keys, boundary.cutoff, splits)
        counts[attempt] = admitted.size
        trace.admitted = (counts[0], counts[1])
        if admitted.size >= k:
            trace.route = Route.RESCUED if attempt else Route.CERTIFIED
            state = _whole(admitted, trace)
            if boundary.apart:
                state = _divide_ties(keys, admitted, boundary.cutoff, k, trace)
            if splits > 1 and attempt == 0 and not state.counted and state.frontier.size > capacity:
                trace.scans += 1
            return state
    trace.scans += 2
    trace.route = Route.RECOVERED_AFTER_BAND if len(boundaries) == 2 else Route.RECOVERED
    return _exact_coarse(row, k, trace)


def _admit(keys: U32, cutoff: int, splits: int) -> I64:
    """A(tau), gathered segment by segment: the KV-split composition is a plain disjoint union."""
    bounds = np.linspace(0, keys.size, splits + 1).astype(np.int64)
    parts = [begin + np.flatnonzero(keys[begin:end] <= np.uint32(cutoff)) for begin, end in itertools.pairwise(bounds)]
    return np.concatenate(parts)


def _whole(admitted: I64, trace: RowTrace) -> _Certified:
    trace.frontier[0] = admitted.size
    return _Certified(np.empty(0, np.int64), admitted)


def _divide_ties(keys: U32, admitted: I64, cutoff: int, k: int, trace: RowTrace) -> _Certified:
    """Three-way test of an exact boundary: scores strictly better first, scores equal to it only if needed."""
    tie = keys[admitted] == np.uint32(cutoff)
    better, ties = admitted[~tie], admitted[tie]
    if better.size >= k:
        return _whole(better, trace)
    trace.committed[0], trace.frontier[0] = better.size, ties.size
    return _Certified(better, ties, counted=True)


def _exact_coarse(row: NDArray[np.float32], k: int, trace: RowTrace) -> _Certified:
    """Coarse boundary of the complete row: better bins are committed, the boundary bin is the frontier."""
    bins = coarse_bin(row)
    prefix = np.cumsum(np.bincount(bins, minlength=COARSE_BINS))
    boundary = int(np.searchsorted(prefix, k))
    committed, frontier = np.flatnonzero(bins < boundary), np.flatnonzero(bins == boundary)
    trace.committed[0], trace.frontier[0] = committed.size, frontier.size
    return _Certified(committed, frontier)


# ---- phase 3: refine -------------------------------------------------------------------------------------


def _refine(keys: U32, k: int, state: _Certified, capacity: int, tie_break: TieBreak, trace: RowTrace) -> I64:
    """Commit better digit groups, keep the boundary group, fill the last slots from equal keys.

    Every set is in index order, so that a tie-break only decides from which end the last slots are filled.
    """
    chosen, frontier = [state.committed], state.frontier
    quota = k - state.committed.size
    for j in range(3):
        if frontier.size == quota:
            break
        if frontier.size > capacity and np.unique(keys[frontier]).size > 1:
            trace.scans += 1
        digits = digit(keys[frontier], j)
        boundary = int(np.searchsorted(np.cumsum(np.bincount(digits)), quota))
        better = frontier[digits < boundary]
        chosen.append(better)
        quota -= better.size
        frontier = frontier[digits == boundary]
        trace.committed[j + 1] = better.size
        trace.frontier[j + 1] = frontier.size
    trace.filled = quota
    if tie_break != "any" and (state.counted or frontier.size > max(capacity, quota)):
        trace.scans += 1
    chosen.append(frontier[frontier.size - quota :] if tie_break == "high" else frontier[:quota])
    return np.concatenate(chosen)


# ---- the CPU backend's reads -----------------------------------------------------------------------------


def _kept_scans(
    keys: U32, k: int, boundaries: list[_Boundary], capacity: int, tie_break: TieBreak, seed: int, row_id: int
) -> int:
    """Count the reads of a row by the CPU backend, which keeps the best candidates and guesses its cutoffs.

    - One for each boundary; none for a rescue boundary that equals the primary one.
    - One up to a guess, where no boundary admits k.
    - One more for each guess that admits fewer than k scores, by chance. Such a guess is also made where a boundary
      admits more than `capacity`.
    - One for the tie-break to the highest positions, where half of `capacity` might not hold the scores better than
      or equal to the k-th.
    """

    def admitted(bound: int, end: int | None = None) -> int:
        return int(np.count_nonzero(keys[:end] <= np.uint32(bound)))

    def unlucky(bound: int) -> int:
        """Number of guesses below `bound` that admit fewer than k, before the first that admits enough."""
        for attempt in range(MOST_GUESSES):
            guess = cutoff(keys, k, seed, row_id, attempt)
            if guess is None or guess >= bound or admitted(guess) >= k:
                return attempt
        return MOST_GUESSES

    scans, last_block = 0, (keys.size - 1) // BLOCK * BLOCK
    for bound in dict.fromkeys(b.cutoff for b in boundaries):
        scans += 1
        if admitted(bound) >= k:
            scans += unlucky(bound) if admitted(bound, last_block) > capacity else 0
            break
    else:
        scans += 1 + unlucky(NAN_KEY)
    worst = int(np.partition(keys, k - 1)[k - 1])
    if tie_break == "high" and keys.size > capacity and admitted(worst) > max(k, capacity // 2):
        scans += 1
    return scans
