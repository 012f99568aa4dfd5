"""Rows of a checked selection, spread over threads that run the Numba kernels.

The machine code lives in `ksieve.backends.cpu.kernels`, which is imported by the first `run` of a process; Numba
keeps it in its disk cache (next to the package, or in the user's cache directory where that is read-only).
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve import reference
from ksieve.array_info import dtype_name
from ksieve.finish import SLOTS_AT_A_TIME, Finish
from ksieve.keys import BIN_CUTOFF_KEY
from ksieve.planner import Plan
from ksieve.policy import PEAK, SamplingPolicy
from ksieve.stats import STATS_COLUMNS, Stats

CHUNKS_PER_THREAD = 16
"""Portions of rows handed out per thread: ragged rows stay balanced, the hand-over stays negligible."""

INLINE_SCORES = 1 << 16
"""Matrices up to this size run on the calling thread: waking another costs more than it saves."""

_TIE_BREAKS = {"any": 0, "low": 1, "high": 2}
_DTYPES = {"float32": 0, "float16": 1, "uint16": 2, "bfloat16": 2}


def thread_count() -> int:
    """Threads a call may use: ``NUMBA_NUM_THREADS`` if set, else the processors this process may run on."""
    asked = os.environ.get("NUMBA_NUM_THREADS", "")
    if asked.isascii() and asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def stored_candidates(plan: Plan, width: int) -> int:
    """Candidates that one thread can store: what a row needs at most, else 4 k (`plan.capacity` permitting).

    At least twice k and the largest sample rank, so that keeping the best of a full store frees half of it.
    """
    k = plan.problem.k
    ranks = _policy_numbers(plan.policy, k)[3:5]
    return min(max(min(plan.capacity, max(4096, 4 * k)), 2 * k, 2 * max(ranks) + 2), width)


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
    address, pitch = _address(out), out.strides[0]
    _share(lambda begin, end: select(begin, end, address, pitch), rows, _threads(plan, rows, width))
    return Stats(raw) if return_stats else None


def run_finished(
    plan: Plan,
    scores: NDArray[Any],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    ks: NDArray[np.int32] | None,
    finish: Finish,
    return_stats: bool,
) -> Stats | None:
    """Select every row of a call with options and finish it.

    Parameters
    ----------
    plan, scores, return_stats
        As of `run`.
    begins, lengths : ndarray of int64, shape (rows,)
        Of the windows (`ksieve.windows`).
    ks : ndarray of int32, shape (rows,), or None
        Each row's k, clamped.
    finish : Finish
        Receives the positions within the windows, by the rows that a thread takes at a time.
    """
    rows, width = scores.shape
    k = plan.problem.k
    starts = begins.astype(np.int32)
    select, raw = _selector(plan, scores, lengths.astype(np.int32), return_stats, starts, ks)

    def select_and_finish(begin: int, end: int) -> None:
        step = max(1, SLOTS_AT_A_TIME // k)
        local = np.empty((min(step, end - begin), k), np.int32)
        for first in range(begin, end, step):
            last = min(first + step, end)
            select(first, last, _address(local) - first * local.strides[0], local.strides[0])
            finish.write(first, last, local[: last - first])

    _share(select_and_finish, rows, _threads(plan, rows, width))
    return Stats(raw) if return_stats else None


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _threads(plan: Plan, rows: int, width: int) -> int:
    return 1 if rows * width <= INLINE_SCORES else min(plan.threads or thread_count(), rows)


def _selector(
    plan: Plan,
    scores: NDArray[Any],
    lengths: NDArray[np.int32],
    return_stats: bool,
    begins: NDArray[np.int32] | None = None,
    ks: NDArray[np.int32] | None = None,
) -> tuple[Callable[[int, int, int, int], None], NDArray[np.int32]]:
    """Kernel call with everything bound but its rows and the address and byte pitch of its slots; and the statistics
    that it fills.
    """
    from ksieve.backends.cpu.kernels import select_rows

    rows, width = scores.shape
    k = plan.problem.k
    raw = np.zeros((rows if return_stats else 0, len(STATS_COLUMNS)), np.int32)
    policy = _policy_numbers(plan.policy, k)
    size = stored_candidates(plan, width)
    address, pitch = _address(scores), scores.strides[0]
    starts, own = (0 if array is None else _address(array) for array in (begins, ks))
    dtype = _DTYPES[dtype_name(scores.dtype)]
    tie_break = _TIE_BREAKS[plan.problem.options.tie_break]

    def select(begin: int, end: int, out: int, out_pitch: int) -> None:
        select_rows(
            address, pitch, dtype, lengths, begin, end, k, out, out_pitch, starts, own, tie_break, policy,
            BIN_CUTOFF_KEY, plan.capacity, plan.held, size, raw,
        )  # fmt: skip

    return select, raw


def run_reference(
    plan: Plan,
    scores: NDArray[Any],
    lengths: NDArray[Any],
    out: NDArray[np.int32],
    return_stats: bool,
) -> Stats | None:
    """Same arguments and result as `run`, by the NumPy model."""
    indices, stats = reference.select(
        scores, lengths, plan.problem.k, policy=plan.policy, capacity=plan.capacity, held=plan.held
    )
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


def _share(select: Callable[[int, int], None], rows: int, threads: int) -> None:
    """Run ``select(begin, end)`` over all rows, in chunks that idle threads fetch; the caller is one of them.

    Python threads around kernels that release the GIL, not Numba's own threading layer: that one aborts the
    process when two threads of a server call at once, and hangs after a fork.
    """
    if threads <= 1:
        select(0, rows)
        return
    chunk = max(1, rows // (threads * CHUNKS_PER_THREAD))
    begins = itertools.count(0, chunk)  # next() on it is atomic under the GIL

    def work() -> None:
        while (begin := next(begins)) < rows:
            select(begin, min(begin + chunk, rows))

    helpers = [_pool(threads - 1, os.getpid()).submit(work) for _ in range(threads - 1)]
    work()
    for helper in helpers:
        if not helper.cancel():  # not started yet means no rows left for it
            helper.result()


@functools.lru_cache(maxsize=4)
def _pool(workers: int, pid: int) -> ThreadPoolExecutor:
    """Threads kept between calls; a forked child, which inherits none of them, makes its own."""
    return ThreadPoolExecutor(workers, thread_name_prefix="ksieve")
