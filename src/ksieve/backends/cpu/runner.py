"""Rows of a checked selection, spread over threads that run the Numba kernels.

The machine code lives in `ksieve.backends.cpu.kernels`, which is imported by the first `run` of a process, and
kept on disk by `ksieve.backends.code_cache`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ksieve.backends.cpu.sharing import Work, share
from ksieve.core import gathering
from ksieve.core.arrays import dtype_name
from ksieve.core.gathering import Gathered
from ksieve.core.guess import fresh_seed
from ksieve.core.keys import BIN_CUTOFF_KEY
from ksieve.core.policy import PEAK, SamplingPolicy
from ksieve.core.ranking import RANKINGS, Ranking
from ksieve.core.stats import STATS_COLUMNS, Stats
from ksieve.model import reference
from ksieve.model.epilogue import Finish
from ksieve.planning.cpu import least_capacity
from ksieve.planning.plan import Plan

INLINE_SCORES = 1 << 16
"""Matrices up to this size run on the calling thread: waking another thread costs more than it saves."""

PORTION_SCORES = 1 << 18
"""Smallest portion of scores for a helper thread, about 80 us of work: a hand-over takes some us under the GIL."""

SLOTS_AT_A_TIME = 1 << 14
"""Slots that one epilogue call processes: they fit a core's cache."""

_TIE_BREAKS = {"any": 0, "low": 1, "high": 2}
_DTYPES = {"float32": 0, "float16": 1, "uint16": 2, "bfloat16": 2}
_ORDERS = {"any": 0, "value": 1, "index": 2}
_TRANSFORMS = {"none": 0, "pages": 1, "offsets": 2}


class _Placed(NamedTuple):
    """An array with its address; keeping both together keeps the array alive."""

    array: NDArray[Any] | None
    address: int
    pitch: int
    """Bytes from one row to the next."""


_Select = Callable[[int, int, int, int], None]
"""Selects rows [begin, end) into slots at an address and with a pitch."""


def thread_count() -> int:
    """Threads a call may use: ``NUMBA_NUM_THREADS`` if set, else the processors this process may run on."""
    asked = os.environ.get("NUMBA_NUM_THREADS", "")
    if asked.isascii() and asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def stored_candidates(plan: Plan, width: int) -> int:
    """Candidate capacity of one thread in a call of that width: the plan's capacity, at most the width.

    At least `least_capacity`, also for a plan that `dataclasses.replace` changed.
    """
    return min(max(plan.capacity, least_capacity(plan.problem.k, plan.policy)), width)


def model_arguments(plan: Plan, width: int) -> dict[str, Any]:
    """Arguments of `reference.select` for which it counts the same scans as a call of that width."""
    return {"policy": plan.policy, "capacity": stored_candidates(plan, width), "seed": fresh_seed()}


def scratch_bytes(plan: Plan) -> int:
    """Memory that one thread needs besides the arguments: fixed by the plan, never by the data."""
    from ksieve.backends.cpu import scratch

    return scratch.bytes_needed(stored_candidates(plan, plan.problem.width), _policy_numbers(plan.policy, 1)[1])


def run(
    plan: Plan,
    scores: NDArray[Any],
    lengths: NDArray[Any],
    out: NDArray[np.int32],
    return_stats: bool,
) -> Stats | None:
    """Select every row of checked arguments into `out`.

    Parameters
    ----------
    plan : Plan
    scores : ndarray, shape (rows, width)
        float32, float16, or bfloat16 (as such or as uint16 bits); last stride 1, any row pitch, any alignment.
    lengths : ndarray of int32, shape (rows,)
        Clamped to [0, width].
    out : ndarray of int32, shape (rows, k)
        Every slot is written; last stride 1, any row pitch.
    return_stats : bool

    Returns
    -------
    Stats or None
    """
    rows, width = scores.shape
    valid = np.ascontiguousarray(np.clip(lengths, 0, width), dtype=np.int32)
    select, raw = _selector(plan, scores, valid, return_stats)
    slots = _placed(out)
    _share(lambda begin, end: select(begin, end, slots.address, slots.pitch), plan, rows, width, "plain")
    return Stats(raw) if return_stats else None


def row_work(plan: Plan, scores: NDArray[Any], seed: int | None = None) -> NDArray[np.int64]:
    """Return the number of scores that each row makes a thread sample, store and compare again.

    A deterministic measure of the cost of a row beyond its reads: equal in every run with the same seed.

    Parameters
    ----------
    plan, scores
        As of `run`.
    seed : int, optional
        Seed of the guesses. Default: random, as in a call.

    Returns
    -------
    ndarray of int64, shape (rows,)
    """
    rows, width = scores.shape
    work, out = np.zeros(rows, np.int64), np.empty((rows, plan.problem.k), np.int32)
    select, _ = _selector(plan, scores, np.full(rows, width, np.int32), False, work=work, seed=seed)
    select(0, rows, _address(out), out.strides[0])
    return work


def run_finished(
    plan: Plan,
    scores: NDArray[Any],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    ks: NDArray[np.int32] | None,
    finish: Finish,
    return_stats: bool,
) -> Stats | None:
    """Select every row of a call with options and run its epilogue.

    Parameters
    ----------
    plan, scores, return_stats
        As of `run`.
    begins, lengths : ndarray of int64, shape (rows,)
        Windows of the rows (`ksieve.core.windows`).
    ks : ndarray of int32, shape (rows,), or None
        Each row's k, clamped.
    finish : Finish
        The epilogue and its output arrays.
    """
    rows, width = scores.shape
    starts = begins.astype(np.int32)
    select, raw = _selector(plan, scores, lengths.astype(np.int32), return_stats, starts, ks)
    work = _finishing(select, plan.problem.k, np.ascontiguousarray(begins), finish)
    _share(work, plan, rows, width, "finished")
    return Stats(raw) if return_stats else None


def run_gathering(
    plan: Plan,
    scores: NDArray[Any],
    positions: NDArray[np.int32],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    by_position: bool,
) -> Gathered:
    """Gather the scores that have a position: `ksieve.core.gathering.gather`, compiled and spread over threads."""
    from ksieve.backends.cpu.gathering import gather_rows

    rows, width = scores.shape
    found = gathering.empty(scores)
    unused = np.empty((0, 0), np.uint16), np.empty((0, 0), np.uint32)
    bits = found.scores.view(f"u{scores.itemsize}")
    narrow, wide = (bits, unused[1]) if scores.itemsize == 2 else (unused[0], bits)
    matrix, own = _placed(scores), _placed(positions)
    begins, lengths = np.ascontiguousarray(begins), np.ascontiguousarray(lengths)

    def work(begin: int, end: int) -> None:
        gather_rows(
            begin, end, matrix.address, matrix.pitch, scores.itemsize, own.address, own.pitch, begins, lengths,
            int(by_position), narrow, wide, found.places, found.lengths,
        )  # fmt: skip

    _share(work, plan, rows, width, "gathering")
    return found


def _finishing(select: _Select, k: int, begins: NDArray[np.int64], finish: Finish) -> Work:
    """Return a function that selects rows and runs their epilogue, a few rows at a time."""
    from ksieve.backends.cpu.finishing import finish_rows

    options = finish.options
    scores, out, raw, values, table = map(
        _placed, (finish.scores, finish.out, finish.raw, finish.values, finish.page_table)
    )
    requests, pages = (0, 0) if finish.page_table is None else finish.page_table.shape
    row_to_request, offsets = _placed(finish.row_to_request), _placed(finish.offsets)
    places, counts = _placed(finish.places), _placed(finish.counts)
    width, dtype = finish.scores.shape[1], _dtype_number(finish.scores, options.ranking)
    order, highest = _ORDERS[options.order], int(options.tie_break == "high")
    from_row, wide = int(options.index_base == "row"), int(options.index_dtype == "int64")
    transform, step = _TRANSFORMS[options.transform], max(1, SLOTS_AT_A_TIME // k)

    def work(begin: int, end: int) -> None:
        local = np.empty((min(step, end - begin), k), np.int32)
        address, pitch = _address(local), local.strides[0]
        for first in range(begin, max(end, begin + 1), step):  # once even for no rows, to compile
            last = min(first + step, end)
            select(first, last, address - first * pitch, pitch)
            finish_rows(
                first, last, local, begins, scores.address, scores.pitch, width, dtype, order, highest, from_row,
                out.address, out.pitch, raw.address, raw.pitch, wide, values.address, values.pitch, transform,
                table.address, table.pitch, requests, pages, options.page_size, row_to_request.address,
                options.next_n, offsets.address, places.address, places.pitch, counts.address,
            )  # fmt: skip

    return work


def _share(work: Work, plan: Plan, rows: int, width: int, kind: str) -> None:
    """Call `share`; the first time, compile on the calling thread before. If a helper compiled, an interrupted call
    would have to wait for the compiler.
    """
    if kind not in _compiled:
        work(0, 0)
        _compiled.add(kind)
    share(work, rows, _threads(plan, rows, width), -(-PORTION_SCORES // max(width, 1)))


_compiled: set[str] = set()
"""Kinds of work whose kernels are compiled: plain calls, calls with an epilogue, and gathering."""


def _dtype_number(scores: NDArray[Any], ranking: Ranking) -> int:
    """The kernels' number of a dtype and ranking."""
    from ksieve.backends.cpu.simd import RANKED

    return _DTYPES[dtype_name(scores.dtype)] + RANKED * RANKINGS.index(ranking)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _placed(array: NDArray[Any] | None) -> _Placed:
    return _Placed(None, 0, 0) if array is None else _Placed(array, _address(array), array.strides[0])


def _threads(plan: Plan, rows: int, width: int) -> int:
    return 1 if rows * width <= INLINE_SCORES else min(plan.threads or thread_count(), rows)


def _selector(
    plan: Plan,
    scores: NDArray[Any],
    lengths: NDArray[np.int32],
    return_stats: bool,
    begins: NDArray[np.int32] | None = None,
    ks: NDArray[np.int32] | None = None,
    work: NDArray[np.int64] | None = None,
    seed: int | None = None,
) -> tuple[_Select, NDArray[np.int32]]:
    """Return the kernel call with all arguments bound except its rows and the address and byte pitch of their slots,
    and the statistics array that it fills.
    """
    from ksieve.backends.cpu.kernels import select_rows

    rows, width = scores.shape
    k = plan.problem.k
    raw = np.zeros((rows if return_stats else 0, len(STATS_COLUMNS)), np.int32)
    policy = _policy_numbers(plan.policy, k)
    size, drawn = stored_candidates(plan, width), fresh_seed() if seed is None else seed
    counted = np.zeros(0, np.int64) if work is None else work
    matrix, starts, own = map(_placed, (scores, begins, ks))
    dtype = _dtype_number(scores, plan.problem.options.ranking)
    tie_break = _TIE_BREAKS[plan.problem.options.tie_break]

    def select(begin: int, end: int, out: int, out_pitch: int) -> None:
        select_rows(
            matrix.address, matrix.pitch, dtype, lengths, begin, end, k, out, out_pitch, starts.address, own.address,
            tie_break, policy, BIN_CUTOFF_KEY, size, drawn, raw, counted,
        )  # fmt: skip

    return select, raw


def run_reference(
    plan: Plan,
    scores: NDArray[Any],
    lengths: NDArray[Any],
    out: NDArray[np.int32],
    return_stats: bool,
) -> Stats | None:
    """Run the NumPy model; arguments and result as of `run`."""
    indices, stats = reference.select(scores, lengths, plan.problem.k, **model_arguments(plan, scores.shape[1]))
    out[...] = indices
    return stats if return_stats else None


def _policy_numbers(policy: SamplingPolicy | None, k: int) -> tuple[int, ...]:
    """Policy as the kernels take it: stride, group, phase multiplier, ranks (0: none), exact boundary,
    sampled scores per statistic, groups that a jittered view chooses from (1: none).
    """
    if policy is None:
        return 1, 1, 1, 0, 0, 0, 1, 1
    return (
        policy.stride,
        policy.group,
        policy.phase_multiplier,
        policy.primary_rank(k),
        policy.rescue_rank(k) or 0,
        int(policy.boundary == "exact"),
        PEAK if policy.peaks else 1,
        policy.stride if policy.jitter else 1,
    )
