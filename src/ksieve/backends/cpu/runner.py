"""Rows of a checked selection, spread over threads that run the Numba kernels.

The machine code lives in `ksieve.backends.cpu.kernels`, which is imported by the first `run` of a process, and
kept on disk by `ksieve.backends.code_cache`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ksieve.backends.cpu.rows import ABSENT, Placed, address_of, by_group, placed
from ksieve.backends.cpu.sharing import Work, share
from ksieve.core.arrays import dtype_name
from ksieve.core.entries import Blocks, Entries, Forced
from ksieve.core.keys import BIN_CUTOFF_KEY
from ksieve.core.options import Options
from ksieve.core.policy import PEAK, SamplingPolicy
from ksieve.core.ranking import Ranking
from ksieve.core.stats import STATS_COLUMNS, Stats
from ksieve.core.windows import clamped
from ksieve.model import gathering, reference
from ksieve.model.epilogue import Finish, filled
from ksieve.model.guess import fresh_seed
from ksieve.planning.choose_cpu import least_capacity
from ksieve.planning.plan import Plan

INLINE_SCORES = 1 << 16
"""Matrices up to this size run on the calling thread: waking another thread costs more than it saves."""

PORTION_SCORES = 1 << 18
"""Smallest portion of scores for a helper thread, about 80 us of work: a hand-over takes some us under the GIL."""

SLOTS_AT_A_TIME = 1 << 14
"""Slots that one epilogue call processes: they fit a core's cache."""

KEPT_BYTES = 1 << 20
"""Most scratch memory that a thread keeps between calls."""

_TRANSFORMS = {"none": 0, "pages": 1, "offsets": 2}


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


def run(
    plan: Plan,
    scores: Placed,
    lengths: NDArray[Any],
    out: NDArray[np.int32],
    return_stats: bool,
) -> Stats | None:
    """Select every row of checked arguments into `out`.

    `scores` (shape (rows, width)): float32, float16, or bfloat16 (as such or as uint16 bits); last stride 1, any row
    pitch, any alignment. `lengths` (ndarray of int32, shape (rows,)): clamped to [0, width]. `out` (ndarray of
    int32, shape (rows, k)): every slot is written; last stride 1, any row pitch.
    """
    rows, width = scores.shape
    valid = np.ascontiguousarray(clamped(lengths, 0, width), dtype=np.int32)
    select, raw = _selector(plan, scores, valid, return_stats)
    slots = placed(out)
    spread(lambda begin, end: select(begin, end, slots.address, slots.pitch), plan.threads, rows, width, scores.group)
    return Stats(raw) if return_stats else None


def row_work(plan: Plan, scores: NDArray[Any], seed: int | None = None) -> NDArray[np.int64]:
    """Return the number of scores that each row makes a thread sample, store and compare again.

    A deterministic measure of the cost of a row beyond its reads: equal in every run with the same seed.

    `plan`: as of `run`. `scores`: ndarray. `seed`: of the guesses. Default: random, as in a call. Returns ndarray of
    int64, shape (rows,).
    """
    rows, width = scores.shape
    work, out = np.zeros(rows, np.int64), np.empty((rows, plan.problem.k), np.int32)
    select, _ = _selector(plan, placed(scores), np.full(rows, width, np.int32), False, work=work, seed=seed)
    select(0, rows, address_of(out), out.strides[0])
    return work


def run_finished(
    plan: Plan,
    scores: Any,
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    ks: NDArray[np.int32] | None,
    finish: Finish,
    return_stats: bool,
    model: bool,
) -> Stats | None:
    """Select every row of a call with options and run its epilogue.

    `plan`, `scores`, `return_stats`: as of `run`. `begins`, `lengths` (ndarray of int64, shape (rows,)): windows of the
    rows (`ksieve.core.windows`). `ks` (ndarray of int32, shape (rows,), or None): each row's k, clamped. `finish`: the
    epilogue and its output arrays. `model`: by the NumPy model, of an ndarray.
    """
    (rows, width), k = scores.shape, plan.problem.k
    if model:
        options = replace(finish.options, windows="lengths", next_n=1)
        local, stats = reference.select(
            scores, lengths, k, options=options, starts=begins, ks=ks, **model_arguments(plan, width)
        )
        finish.write(0, rows, local)
        return stats
    select, raw = _selector(plan, scores, lengths.astype(np.int32), return_stats, begins, ks)
    work = _finishing(select, k, scores, begins, finish)
    spread(work, plan.threads, rows, min(width, plan.problem.usual), scores.group)
    return Stats(raw) if return_stats else None


def run_gathering(
    plan: Plan,
    scores: Placed,
    positions: Placed,
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    by_position: bool,
) -> tuple[Placed, NDArray[np.int32], NDArray[np.int32]]:
    """Gather the scores that have a position: `ksieve.model.gathering.gather`, compiled and spread over threads."""
    from ksieve.backends.cpu.compiled import prepare
    from ksieve.backends.cpu.entries import gather_rows
    from ksieve.backends.cpu.finishing import bytes_needed

    rows, width = scores.shape
    found = gathering.empty(scores)
    target, places, counts = map(placed, found)
    first, valid, room = _flat(begins), _flat(lengths), bytes_needed(width if by_position else 0)
    prepare(gather_rows)

    def work(begin: int, end: int) -> None:
        memory = _scratch(room)
        gather_rows(
            begin, end, width, _base(scores, begin), scores.pitch, scores.dtype.itemsize, _base(positions, begin),
            positions.pitch, first.address, valid.address, int(by_position), target.address, places.address,
            counts.address, memory.address,
        )  # fmt: skip

    spread(work, plan.threads, rows, width, scores.group, positions.group)
    return target, found.places, found.lengths


def run_pooling(plan: Plan, scores: Placed, blocks: Blocks, ranking: Ranking) -> Placed:
    """Return the best score of each block: `ksieve.model.pooling.pool`, compiled and spread over threads."""
    from ksieve.backends.cpu.compiled import prepare
    from ksieve.backends.cpu.entries import POOLING_BYTES, pool_rows

    rows, width = scores.shape
    target = placed(np.empty((rows, -(-width // blocks.size)), scores.dtype))
    reading, size, *lists = _reading(scores, ranking), *blocks
    parts = [_flat(each) for each in lists]
    prepare(pool_rows)

    def work(begin: int, end: int) -> None:
        memory = _scratch(POOLING_BYTES)
        pool_rows(
            begin, end, _base(scores, begin), scores.pitch, *reading, size, *(part.address for part in parts),
            target.address, target.pitch, memory.address,
        )  # fmt: skip

    spread(work, plan.threads, rows, width, scores.group)
    return target


def run_arranging(
    plan: Plan, entries: Entries, forced: Forced, chosen: NDArray[np.int32], finish: Finish, options: Options
) -> None:
    """Write rows of selected entries: `ksieve.model.entries.arrange`, compiled, and the epilogue.

    `entries`, `forced`, `chosen`: as of `ksieve.model.entries.arrange`. `finish`: the epilogue and its output arrays,
    except the values, which are the entries'. `options`: of the call.
    """
    from ksieve.backends.cpu.compiled import prepare
    from ksieve.backends.cpu.entries import arrange_rows

    (rows, k), columns, scores = chosen.shape, finish.out.shape[1], cast(Placed, entries.scores)
    ranges = _flat(np.stack(forced[:5]))
    facts = _flat(np.stack([entries.begin, entries.number, entries.low, entries.high, entries.tail]))
    places, values, picked = map(placed, (entries.places, finish.values, np.ascontiguousarray(chosen)))
    by_value, highest = int(options.order == "value"), int(options.tie_break == "high")
    size, least = scores.dtype.itemsize, _least(scores, options)
    prepare(arrange_rows)

    def arrange(begin: int, end: int, out: int, pitch: int) -> None:
        arrange_rows(
            begin, end, k, out, pitch, columns, picked.address, ranges.address, facts.address, rows, places.address,
            places.pitch, by_value, highest, options.expand, int(options.tail), _base(scores, begin), scores.pitch,
            size, least, values.address, values.pitch,
        )  # fmt: skip

    work = _finishing(arrange, columns, scores, entries.begin, replace(finish, values=None))
    spread(work, plan.threads, rows, columns, scores.group)


def _finishing(select: _Select, k: int, scores: Placed, begins: NDArray[np.int64], finish: Finish) -> Work:
    """Return a function that selects rows and runs their epilogue, a few rows at a time.

    Positions that are the indices are selected into the output, and put in order there.
    """
    from ksieve.backends.cpu import finishing
    from ksieve.backends.cpu.compiled import prepare

    options, first = finish.options, _flat(begins)
    out, raw, values, table, row_to_request, offsets, places, counts = map(
        placed,
        (
            finish.out, finish.raw, finish.values, finish.page_table, finish.row_to_request, finish.offsets,
            finish.places, finish.counts,
        ),
    )  # fmt: skip
    requests, pages = (0, 0) if finish.page_table is None else finish.page_table.shape
    from_row = int(options.index_base == "row" and options.windows != "none")
    wide, transform = int(options.index_dtype == "int64"), _TRANSFORMS[options.transform]
    written = bool(from_row or wide or transform or raw.address or places.address or counts.address)
    by_value = int(options.order == "value")
    flip = finishing.LAST_INDEX if by_value and options.tie_break == "high" else 0
    size, convert = _reading(scores, options.ranking)
    least = _least(scores, options) if values.address else 0
    shape = scores.pitch, scores.shape[1], size
    ordered = options.order != "any"
    room, step = finishing.bytes_needed(k), max(1, SLOTS_AT_A_TIME // max(k, 1))
    finished, target = written or values.address != 0, out.address if written else 0
    prepare(*(finishing.order_rows,) * ordered, *(finishing.write_rows,) * finished)

    def work(begin: int, end: int) -> None:
        local = placed(np.empty((min(step, end - begin), k), np.int32)) if written else out
        for at in range(begin, end, step):
            last = min(at + step, end)
            # Kernels count slots from row 0; local ones begin with row `at`.
            slots = local.address - at * local.pitch if written else local.address
            select(at, last, slots, local.pitch)
            part = at, last, k, slots, local.pitch, first.address, _base(scores, at), *shape
            if ordered:
                memory = _scratch(room)
                finishing.order_rows(*part, convert, by_value, flip, memory.address)
            if finished:
                finishing.write_rows(
                    *part, least, values.address, values.pitch, from_row, target, out.pitch, raw.address, raw.pitch,
                    wide, transform, table.address, table.pitch, requests, pages, options.page_size,
                    row_to_request.address, options.next_n, offsets.address, places.address, places.pitch,
                    counts.address,
                )  # fmt: skip

    return work


def spread(work: Work, threads: int, rows: int, width: int, *groups: int) -> None:
    """Spread the work over threads, 0 for `thread_count`; `groups` are those of `Placed`."""
    threads = 1 if rows * width <= INLINE_SCORES else min(threads or thread_count(), rows)
    share(by_group(work, groups), rows, threads, -(-PORTION_SCORES // max(width, 1)))


def _base(rows: Placed, row: int) -> int:
    """Address of row 0 by which kernels find the rows of a row's group."""
    return rows.address + row // rows.group * rows.skip if rows.group else rows.address


def _reading(scores: Placed, ranking: Ranking) -> tuple[int, int]:
    """The size of a score and the address of its converter, 0 where scores are compared in place."""
    if ranking == "largest" and scores.dtype == _FLOAT32:
        return 4, 0
    from ksieve.backends.cpu.converting import address

    return scores.dtype.itemsize, address(dtype_name(scores.dtype), ranking)


def _least(scores: Placed, options: Options) -> int:
    """The bits of an unused slot's value."""
    return int(filled(scores.dtype, options.unused_value).view(f"u{scores.dtype.itemsize}"))


class _Own(threading.local):
    memory = ABSENT


_own = _Own()


def _scratch(size: int) -> Placed:
    """Memory from the start of a cache line, for one kernel at a time; of usual sizes the thread keeps it."""
    memory = _own.memory
    if memory.pitch < size:
        array = np.empty(size + 63, np.uint8)
        memory = Placed(array, (address_of(array) + 63) // 64 * 64, size)
        if size <= KEPT_BYTES:
            _own.memory = memory
    return memory


_FLOAT32 = np.dtype(np.float32)
_CUTOFFS = address_of(BIN_CUTOFF_KEY)


def _flat(array: NDArray[Any]) -> Placed:
    """Int64 without gaps."""
    return placed(np.ascontiguousarray(array, np.int64))


def _selector(
    plan: Plan,
    scores: Placed,
    lengths: NDArray[np.int32],
    return_stats: bool,
    begins: NDArray[np.int64] | None = None,
    ks: NDArray[np.int32] | None = None,
    work: NDArray[np.int64] | None = None,
    seed: int | None = None,
) -> tuple[_Select, NDArray[np.int32]]:
    """Return the kernel call and the statistics array that it fills. Its rows, and the address and byte pitch of their
    slots, are not bound.
    """
    from ksieve.backends.cpu import kernels

    (rows, width), k, options = scores.shape, plan.problem.k, plan.problem.options
    raw = np.zeros((rows if return_stats else 0, len(STATS_COLUMNS)), np.int32)
    policy, room = _policy_numbers(plan.policy, k), stored_candidates(plan, width)
    drawn = fresh_seed() if seed is None else seed
    valid, starts, own, counted = map(placed, (lengths, begins, ks, work))
    statistics, reading = placed(raw if return_stats else None), _reading(scores, options.ranking)
    after = kernels.ready(return_stats, options.tie_break == "high")
    needed = kernels.bytes_needed(room, plan.policy)

    def select(begin: int, end: int, out: int, out_pitch: int) -> None:
        memory = _scratch(needed)
        kernels.select_rows(
            _base(scores, begin), scores.pitch, *reading, valid.address, begin, end, k, out, out_pitch, starts.address,
            own.address, policy.address, _CUTOFFS, room, drawn, statistics.address, *after, counted.address,
            memory.address,
        )  # fmt: skip

    return select, raw


@lru_cache
def _policy_numbers(policy: SamplingPolicy | None, k: int) -> Placed:
    """Policy as the kernels take it: stride, group, phase multiplier, ranks (0: none), exact boundary, sampled scores
    per statistic, jitter in groups (1: none).
    """
    numbers = (1, 1, 1, 0, 0, 0, 1, 1)
    if policy is not None:
        numbers = (
            policy.stride, policy.group, policy.phase_multiplier, policy.primary_rank(k), policy.rescue_rank(k) or 0,
            int(policy.boundary == "exact"), PEAK if policy.peaks else 1, policy.stride if policy.jitter else 1,
        )  # fmt: skip
    return placed(np.array(numbers))
