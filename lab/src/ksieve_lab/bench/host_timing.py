"""Timing on the CPU, by its own clock; otherwise as `ksieve.tuning.timing`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ksieve.tuning.timing import Contender, Timing, line


def measure_host(
    contenders: Sequence[Contender], sets: int, read_bytes: int, *, rounds: int = 7, every_round: bool = False
) -> list[Timing]:
    """Time contenders on the CPU, otherwise as `timing.measure` does: arguments and result are as there.

    No cache is emptied: `read_bytes` is not used. With `every_round` the answers of all rounds are judged, outside the
    clock, otherwise the untimed one's.
    """
    timings = [Timing(c.name) for c in contenders]
    for turn in range(-1, rounds):
        for position in range(len(contenders)):
            which = (position + turn) % len(contenders)
            contender, timing, poison = contenders[which], timings[which], contenders[which].poison
            if timing.error is not None:
                continue
            judged = contender.check if turn < 0 or every_round else None
            try:
                if judged and poison:
                    for i in range(sets):
                        poison(i)
                begin = time.perf_counter()
                for i in range(sets):
                    contender.run(i)
                seconds = time.perf_counter() - begin
                if judged:
                    timing.exact = timing.exact is not False and all(judged(i) for i in range(sets))
            except Exception as error:
                timing.error = line(error)
                timing.rounds.clear()
                continue
            if turn >= 0:
                timing.rounds.append(seconds / sets * 1e6)
    return timings
