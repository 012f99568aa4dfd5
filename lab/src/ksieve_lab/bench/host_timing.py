"""Timing on the CPU, by its own clock; otherwise as `ksieve.planning.tune.timing`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ksieve.planning.tune.timing import Contender, Timing, line


def measure_host(contenders: Sequence[Contender], sets: int, read_bytes: int, *, rounds: int = 7) -> list[Timing]:
    """Time contenders on the CPU, otherwise as `timing.measure` does: arguments and result are as there.

    No cache is emptied: `read_bytes` is not used.
    """
    timings = [Timing(c.name) for c in contenders]
    for contender, timing in zip(contenders, timings, strict=True):
        try:
            for i in range(sets):
                if contender.poison is not None:
                    contender.poison(i)
                contender.run(i)
            if contender.check is not None:
                timing.exact = all(contender.check(i) for i in range(sets))
        except Exception as error:
            timing.error = line(error)
    for turn in range(-1, rounds):
        for position in range(len(contenders)):
            which = (position + turn) % len(contenders)
            if timings[which].error is not None:
                continue
            begin = time.perf_counter()
            for i in range(sets):
                contenders[which].run(i)
            if turn >= 0:
                timings[which].rounds.append((time.perf_counter() - begin) / sets * 1e6)
    return timings
