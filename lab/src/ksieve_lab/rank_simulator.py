"""All ranks in one process: the protocol over W shards, up to 1,024 of them, with its messages counted."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ksieve.core.arrays import as_numpy, inspect
from ksieve.core.errors import ArgumentError, kind_of, shown
from ksieve.core.keys import half_key, order_key, widen
from ksieve.core.options import PLAIN, Options, check_choice
from ksieve.core.problem import check_k, check_scores, check_size
from ksieve.core.ranking import ranked
from ksieve.core.windows import windows
from ksieve.distributed.layouts import Contiguous, Layout, Widths, check_layout, check_widths
from ksieve.distributed.plans import check_rows_of_requests
from ksieve.distributed.protocol import NOTHING, AllGather, agree, everywhere
from ksieve.distributed.schedules import (
    LINKS,
    Message,
    Output,
    Schedule,
    Shape,
    check_schedule,
    choose,
)

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Simulated:
    """Result of `simulate`.

    Attributes
    ----------
    owned : list of list of ndarray of int64
        ``owned[rank][row]``: the global positions that a rank holds of a row's selection, ascending.
    everywhere : ndarray of int64, shape (rows, k), or None
        With output "global": the positions of all ranks, ascending, then -1. Every rank has received the same ones.
    messages : tuple of Message
    schedule : Schedule
    """

    owned: list[list[I64]]
    everywhere: I64 | None
    messages: tuple[Message, ...]
    schedule: Schedule


def simulate(
    scores: Any,
    lengths: Any = None,
    k: int = 1,
    *,
    world: int,
    layout: Layout = Contiguous(),  # noqa: B008
    widths: Sequence[int] | None = None,
    schedule: Schedule | None = None,
    output: Output = "owned",
    options: Options = PLAIN,
    starts: Any = None,
    ks: Any = None,
) -> Simulated:
    """Select the k best of every row as `world` ranks would.

    Parameters
    ----------
    scores : ndarray, shape (rows, width)
        Whole rows, which the layout divides: float32, float16, or bfloat16, also as uint16 bits.
    lengths : array_like of int, shape (rows // next_n,), optional
    k : int
        Slots per row, 1 to 2**20.
    world : int
        Number of ranks.
    layout : Contiguous or Interleaved
    widths : sequence of int, optional
        Widths of contiguous shards, which together hold the row. Default: widths that differ by at most one score.
    schedule : Pairs, Samples or Digits, optional
        Default: the one of the least modelled time on NVLink.
    output : {"owned", "global"}
    options : Options
        `windows`, `next_n`, `tie_break`, `largest` and `nan` are used.
    starts, ks : array_like of int, shape (rows,), optional

    Returns
    -------
    Simulated

    Raises
    ------
    ArgumentError
        An argument cannot be used.
    """
    matrix = _matrix(scores)
    rows, width = matrix.shape
    k, world = check_k(k), check_size(world, "world", 1)
    shares = _widths(widths, check_layout(layout), width, world)
    if schedule is not None:
        check_schedule(schedule, k)
    check_choice(output, "output", get_args(Output))
    check_rows_of_requests(options.next_n, rows)
    lengths = _integers(lengths, "lengths", rows // options.next_n)
    starts, ks = _integers(starts, "starts", rows), _integers(ks, "ks", rows)
    whole = matrix.itemsize == 4
    shape = Shape(
        rows, k, world, max(layout.extent(shares), 1), 32 if whole else 16, isinstance(layout, Contiguous),
        options.tie_break == "high",
    )  # fmt: skip
    wanted = np.full(rows, k, np.int64) if ks is None else np.clip(ks, 0, k)
    begin, length = windows(options, rows, width, lengths=lengths, starts=starts)
    numbers = widen(ranked(matrix, options.ranking))
    keys = (half_key if matrix.dtype == np.float16 else order_key)(numbers).astype(np.int64)
    if matrix.dtype == np.uint16:
        keys >>= 16  # what a bfloat16 lacks of a float32
    plan = schedule or choose(shape, LINKS["nvlink"], output)
    ranks = [
        _rank(plan, shape, layout, shares, rank, keys, begin, begin + length, wanted, output) for rank in range(world)
    ]
    sent: list[Message] = []
    ended = run_together(ranks, sent)
    owned = [[np.sort(positions[r, :n]) for r, n in enumerate(counts)] for positions, counts, _ in ended]
    found = ended[0][2]
    if found is not None:
        if any((other[2] != found).any() for other in ended[1:]):
            raise AssertionError("ranks hold different answers")
        found = np.where(found < 0, NOTHING, found.astype(np.int64))
        found.sort(axis=1)
        found = np.where(found == NOTHING, -1, found)
    return Simulated(owned, found, tuple(sent), plan)


def _matrix(scores: Any) -> NDArray[Any]:
    """Check scores, and return them as a matrix of NumPy with contiguous rows."""
    info = inspect(scores, "scores")
    if info.device.kind != "cpu":
        raise ArgumentError("scores", f"device {info.device}", "scores on the CPU")
    matrix: NDArray[Any] = np.asarray(as_numpy(scores), order="C")
    check_scores(inspect(matrix, "scores"))
    return matrix


def _widths(widths: Any, layout: Layout, width: int, world: int) -> Widths:
    """Widths of all shards, which hold each position of a row once."""
    if widths is None:
        return layout.widths(width, world)
    shares = check_widths(widths, layout)
    if len(shares) != world or not sum(shares) == layout.extent(shares) == width:
        takes = f"those of {world} shards that hold the {width} positions of a row, such as layout.widths(...)"
        raise ArgumentError("widths", shown(widths), takes)
    return shares


def _integers(value: Any, name: str, count: int) -> I64 | None:
    """Check array_like integers, and return them as int64, the largest unsigned ones clamped."""
    if value is None:
        return None
    takes = f"integers of shape {(count,)}"
    try:
        found = np.asarray(value)
    except Exception:  # a ragged list, or any error of a foreign class
        raise ArgumentError(name, kind_of(value), takes) from None
    if found.shape != (count,) or (count and found.dtype.kind not in "iu"):
        raise ArgumentError(name, f"{found.dtype} of shape {found.shape}", takes)
    if found.dtype == np.uint64:
        found = np.minimum(found, np.uint64(np.iinfo(np.int64).max))
    return found.astype(np.int64)


def _rank(
    schedule: Schedule,
    shape: Shape,
    layout: Layout,
    widths: Widths,
    rank: int,
    keys: I64,
    begin: I64,
    end: I64,
    ks: I64,
    output: Output,
) -> Generator[Any, Any, tuple[I64, I64, I64 | None]]:
    """One rank: its best by sorting, then the protocol."""
    import torch

    places = layout.positions(np.arange(widths[rank]), rank, widths)
    low, high = (layout.below(bound, rank, widths)[:, None] for bound in (begin, end))
    local = np.arange(widths[rank])
    order = shape.extent - 1 - places if shape.high_first else places
    composites = np.where((local >= low) & (local < high), keys[:, places] << shape.position_bits | order, NOTHING)
    best = np.full((shape.rows, shape.k), NOTHING)
    kept = np.sort(composites, axis=1)[:, : shape.k]
    best[:, : kept.shape[1]] = kept
    place = best & ((1 << shape.position_bits) - 1)
    positions = shape.extent - 1 - place if shape.high_first else place
    wanted = torch.from_numpy(ks)
    agreed = yield from agree(schedule, shape, rank, torch.from_numpy(best), wanted)
    found = None
    if output == "global":
        found = (yield from everywhere(shape, rank, torch.from_numpy(positions), agreed, wanted)).numpy()
    return positions, agreed.count.numpy(), found


def run_together(
    ranks: Sequence[Generator[Any, Any, Any]],
    sent: list[Message] | None = None,
) -> list[Any]:
    """Run the generators of all ranks, one collective after another, and return what each returns.

    `sent` receives a `Message` for every collective. Raises `RuntimeError` if ranks ask for different collectives: on a
    process group they would wait for each other.
    """
    import torch

    ended: list[Any] = [None] * len(ranks)
    answers: list[Any] = [None] * len(ranks)
    while True:
        asked: list[Any] = []
        for rank, steps in enumerate(ranks):
            try:
                asked.append(steps.send(answers[rank]))
            except StopIteration as stop:
                ended[rank] = stop.value
        if not asked:
            return ended
        kinds = {(type(ask), ask.array.shape, ask.array.dtype) for ask in asked}
        if len(asked) < len(ranks) or len(kinds) > 1:
            raise RuntimeError(f"ranks differ: {len(asked)} of {len(ranks)} ask for {sorted(map(str, kinds))}")
        arrays = [ask.array for ask in asked]
        gathers = isinstance(asked[0], AllGather)
        stacked = torch.stack(arrays)
        answers = [stacked if gathers else stacked.sum(0, dtype=stacked.dtype)] * len(ranks)
        if sent is not None:
            sent.append(Message("all-gather" if gathers else "all-reduce", arrays[0].nbytes))
