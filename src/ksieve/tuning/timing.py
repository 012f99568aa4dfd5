"""Honest timing: CUDA-graph replays of all contenders in one process, in rotated rounds, on cold inputs.

A contender is one call per input set. Its graph holds a call for every set in turn, so that host and launch costs stay
outside the clock. No call finds its input in L2. Either the sets together exceed twice the L2, or a read of other
memory empties it before every replay. Rounds start with another contender each time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

COLD_FACTOR = 2.5
"""Bytes that lie between two uses of an input, in units of the L2 size."""

LEAST_SECONDS = 0.002
"""Time that the replays of a round fill about."""

MOST_SETS = 32
"""Input sets per graph: beyond it, launches are amortised well enough."""


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    `run`: ``run(i)`` enqueues the work on input set `i` on the current stream; it must be capturable. `check`:
    ``check(i)`` states whether the output of ``run(i)`` is correct; called once, on poisoned outputs. `poison`:
    ``poison(i)`` overwrites the output of set `i`. `rounds`: smaller number of rounds for a slow contender.
    """

    name: str
    run: Callable[[int], None]
    check: Callable[[int], bool] | None = None
    poison: Callable[[int], None] | None = None
    rounds: int | None = None


@dataclass
class Timing:
    """Microseconds per call of one contender, one entry per round; or why there are none."""

    name: str
    rounds: list[float] = field(default_factory=list)
    exact: bool | None = None
    error: str | None = None
    lost: bool = False
    """Its error took the GPU context with it."""

    @property
    def median(self) -> float:
        """Median over rounds; NaN without any."""
        return statistics.median(self.rounds) if self.rounds else math.nan

    def facts(self) -> dict[str, Any]:
        """For a result file: times and verdict, or the error."""
        if not self.rounds:
            return {"error": self.error, "exact": self.exact}
        least = min(self.rounds)
        return {
            "median_us": self.median, "min_us": least, "spread": max(self.rounds) / least - 1, "exact": self.exact
        }  # fmt: skip


def input_sets(bytes_per_set: int, l2_bytes: int, budget: int, read: int | None = None) -> int:
    """How many input sets a graph should rotate through: enough to leave L2 behind, within `budget` bytes.

    Of each, `read` bytes are read; all of them when omitted.
    """
    wanted = math.ceil(COLD_FACTOR * l2_bytes / max(bytes_per_set if read is None else read, 1))
    return max(1, min(wanted, MOST_SETS, budget // max(bytes_per_set, 1)))


def measure(
    contenders: Sequence[Contender],
    sets: int,
    read_bytes: int,
    *,
    rounds: int = 7,
    most_replays: int = 20,
) -> list[Timing]:
    """Time contenders against each other, in the order given; the current device is theirs.

    A contender that raises, or whose answer is wrong, is reported as such. The others are not affected unless the GPU
    context is lost: then none has a time, and `Timing.lost` marks the one whose call it was.

    `sets`: input sets, numbered from 0. `read_bytes`: bytes that one call reads, of the contender that reads least: if
    those of all sets fit L2, it is flushed. `rounds`: timed rounds after an untimed one. Replays per round fill about
    `LEAST_SECONDS`, `most_replays` at most.
    """
    import torch

    l2 = torch.cuda.get_device_properties().L2_cache_size
    warm = sets * read_bytes < COLD_FACTOR * l2
    flush = torch.empty(int(COLD_FACTOR * l2) // 4, dtype=torch.int32, device="cuda").random_() if warm else None
    timings = [Timing(c.name) for c in contenders]
    ready: dict[int, tuple[Any, int]] = {}  # graphs of the contenders that have not failed, and replays of each
    for number, contender in enumerate(contenders):
        try:
            graph = _capture(contender, sets)
            _judge(contender, timings[number], graph, sets)
            ready[number] = graph, _replays(graph, flush, most_replays)
        except Exception as error:
            if failed(timings, timings[number], error):
                return timings
    for turn in range(-1, rounds):
        for position in range(len(contenders)):
            which = (position + turn) % len(contenders)
            most = contenders[which].rounds
            if which not in ready or (most is not None and turn >= most):
                continue
            graph, replays = ready[which]
            try:
                seconds = _timed(graph, flush, replays)
            except Exception as error:
                if failed(timings, timings[which], error):
                    return timings
                del ready[which]
                continue
            if turn >= 0:
                timings[which].rounds.append(seconds / replays / sets * 1e6)
    return timings


def context_lost() -> bool:
    """Whether every further call of this process fails: after some CUDA errors the device has to be left."""
    import torch

    if not torch.cuda.is_available():
        return False
    for _ in range(2):  # the first may report an error that is over
        try:
            torch.cuda.synchronize()
        except Exception:
            continue
        return False
    return True


def failed(timings: Sequence[Timing], culprit: Timing, error: Exception) -> bool:
    """Record the error of a contender; True if the GPU context is lost, and with it the times of all.

    Every contender's work is waited for before the next one's begins, so that the error is its own.
    """
    culprit.error, culprit.lost = line(error), context_lost()
    for timing in timings if culprit.lost else [culprit]:
        timing.rounds.clear()
        timing.exact = False if timing.exact is False else None
        timing.error = timing.error or f"not measured: the GPU context was lost by {culprit.name}"
    return culprit.lost


def line(error: Exception) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _capture(contender: Contender, sets: int) -> Any:
    """Warm up on a stream of its own, then record one call per input set."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        contender.run(0)
        stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(sets):
            contender.run(i)
    return graph


def _judge(contender: Contender, timing: Timing, graph: Any, sets: int) -> None:
    """Replay once on poisoned outputs and look at every answer."""
    if contender.poison is not None:
        for i in range(sets):
            contender.poison(i)
    graph.replay()
    if contender.check is not None:
        timing.exact = all(contender.check(i) for i in range(sets))


def _replays(graph: Any, flush: Any, most: int) -> int:
    once = min(_timed(graph, flush, 1) for _ in range(2))
    return max(1, min(most, math.ceil(LEAST_SECONDS / max(once, 1e-7))))


def _timed(graph: Any, flush: Any, replays: int) -> float:
    """Seconds that `replays` replays take on the device, the flushes between them left out."""
    import torch

    pairs = []
    pieces = replays if flush is not None else 1
    for _ in range(pieces):
        if flush is not None:
            flush.amax()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(replays // pieces):
            graph.replay()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return float(sum(begin.elapsed_time(end) for begin, end in pairs)) / 1e3
