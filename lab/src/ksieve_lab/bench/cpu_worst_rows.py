"""Rows made to cost the CPU backend as much as possible, found by climbing.

A row is changed at random, and the change is kept when it raises the work that the kernels count
(`ksieve.backends.cpu.runner.row_work`). Changes aim at the policy's view, whose hash is public, and at the guess of one
known seed. They also aim at the storage of candidates, which sorted scores and plateaus fill again and again. Each row
is judged under seeds that the search does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ksieve.backends.cpu import runner
from ksieve.model import guess
from ksieve.planning.plan import Plan

F32 = NDArray[np.float32]

SHAPES = ((524_288, 2048), (131_072, 2048), (131_072, 16_384), (16_384, 2048), (131_072, 512))
"""Width and k of the searches that are published."""

STEPS = 2000
"""Changes that each of them tries."""

KNOWN_SEED = 1
"""The guess that rows are aimed at; calls never use it."""

SHIFTS = (-10.0, -1.0, -0.05, 0.05, 1.0, 10.0)
"""Changes of scores that are uniform in [0, 1) to begin with."""


@dataclass(frozen=True)
class Found:
    """The row of a search that costs the most work.

    `work`: the minimum over several fresh seeds, so that one unlucky seed does not count. `random_work`: the median of
    plain random rows.
    """

    row: F32
    work: int
    random_work: float

    @property
    def times_random(self) -> float:
        """Work in units of a random row's."""
        return self.work / self.random_work


def search(plan: Plan, steps: int, seed: int) -> Found:
    """Climb from each of several beginnings, by so many steps in all.

    `plan`: for the CPU and rows of one width, longer than k. `seed`: of the search, and of the seeds that it judges
    under.
    """
    rng = np.random.default_rng(seed)
    width = plan.problem.width
    plain = rng.random((9, width), dtype=np.float32)
    usual = float(np.median(runner.row_work(plan, plain, _fresh(rng))))
    beginnings = _beginnings(plan, plain)
    best = [(_least_work(plan, row, rng), row) for row in beginnings]
    best.sort(key=lambda entry: -entry[0])
    kept = best[:3]
    for step in range(steps):
        at = step % len(kept)
        row = kept[at][1].copy()
        for _ in range(1 + int(rng.integers(3))):
            _CHANGES[int(rng.integers(len(_CHANGES)))](plan, row, rng)
        work = _least_work(plan, row, rng)
        if work >= kept[at][0]:
            kept[at] = (work, row)
    work, row = max(kept, key=lambda entry: entry[0])
    return Found(row, work, usual)


def _fresh(rng: np.random.Generator) -> int:
    return int(rng.integers(2, 1 << 63))


def _least_work(plan: Plan, row: F32, rng: np.random.Generator) -> int:
    return min(int(runner.row_work(plan, row[None], _fresh(rng))[0]) for _ in range(2))


def _beginnings(plan: Plan, plain: F32) -> list[F32]:
    """Plain, sorted either way, and the same with the policy's view too high or too low."""
    rows = [plain[0], np.sort(plain[1]), np.sort(plain[2])[::-1].copy()]
    if plan.policy is None:
        return rows
    view = plan.policy.view(0, plan.problem.width)
    for row in list(rows):
        for shift in (-10, 10):
            rows.append(row.copy())
            rows[-1][view] += np.float32(shift)
    return rows


# ---- changes, in place -----------------------------------------------------------------------------------

Change = Callable[[Plan, F32, np.random.Generator], None]


def _slice(row: F32, rng: np.random.Generator) -> slice:
    """Some blocks of the row, often all of it."""
    if rng.random() < 0.4:
        return slice(None)
    size = int(row.size * rng.random() ** 2) // guess.BLOCK * guess.BLOCK + guess.BLOCK
    begin = int(rng.integers(max(row.size - size, 1))) // guess.BLOCK * guess.BLOCK
    return slice(begin, begin + size)


def _sort(plan: Plan, row: F32, rng: np.random.Generator) -> None:
    part = row[_slice(row, rng)]
    part.sort()
    if rng.random() < 0.3:
        part[:] = part[::-1].copy()


def _shift(row: F32, positions: NDArray[np.int64], rng: np.random.Generator) -> None:
    chosen = positions[rng.random(positions.size) < rng.choice((0.1, 0.5, 0.9, 1.0))]
    row[chosen] += np.float32(rng.choice(SHIFTS))


def _shift_view(plan: Plan, row: F32, rng: np.random.Generator) -> None:
    if plan.policy is not None:
        _shift(row, plan.policy.view(0, row.size), rng)


def _shift_guess(plan: Plan, row: F32, rng: np.random.Generator) -> None:
    state = guess.state_of(KNOWN_SEED, 0, int(rng.integers(guess.MOST_GUESSES)))
    _shift(row, guess.positions(state, row.size), rng)


def _sort_view(plan: Plan, row: F32, rng: np.random.Generator) -> None:
    """A view that rises has each of its scores ranked."""
    if plan.policy is not None:
        view = plan.policy.view(0, row.size)
        row[view] = np.sort(row[view])


def _level(plan: Plan, row: F32, rng: np.random.Generator) -> None:
    """Make one value of a range of ranks about k."""
    k = plan.problem.k
    ranks = np.sort((k * 2.0 ** rng.uniform(-2, 4, 2)).astype(np.int64))
    low, high = (int(min(rank, row.size - 1)) for rank in ranks)
    ordered = np.partition(row, [row.size - 1 - high, row.size - 1 - low])
    floor, ceiling = ordered[row.size - 1 - high], ordered[row.size - 1 - low]
    row[(row >= floor) & (row <= ceiling)] = floor


def _move_best(plan: Plan, row: F32, rng: np.random.Generator) -> None:
    """Bring scores of a range of ranks about k to the end, or to the beginning."""
    count = min(int(plan.problem.k * 2.0 ** rng.uniform(-2, 3)), row.size)
    best = np.argpartition(row, row.size - count)[row.size - count :]
    rest = np.delete(row, best)
    moved = np.sort(row[best]) if rng.random() < 0.5 else row[best]
    row[:] = np.concatenate([moved, rest] if rng.random() < 0.3 else [rest, moved])


def _turn(plan: Plan, row: F32, rng: np.random.Generator) -> None:
    row[:] = np.roll(row, int(rng.integers(row.size // guess.BLOCK)) * guess.BLOCK)


def _renew(plan: Plan, row: F32, rng: np.random.Generator) -> None:
    part = row[_slice(row, rng)]
    rng.shuffle(part)


_CHANGES: tuple[Change, ...] = (
    _sort,
    _shift_view,
    _shift_guess,
    _sort_view,
    _level,
    _move_best,
    _turn,
    _renew,
)
