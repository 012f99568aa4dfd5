"""The protocol of owned positions on a GPU: one kernel between two collectives (`ksieve.backends.cuda.ranks`).

The same messages and answers as `ksieve.distributed.protocol` with its operations, in three launches instead of some
sixty. A rank's k best need not be in order: the first kernel sorts them.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

from ksieve import dispatch
from ksieve.backends.cuda import arrays, ranks
from ksieve.core.problem import Device, Problem
from ksieve.distributed.layouts import Interleaved
from ksieve.distributed.plans import ShardPlan, check_plan
from ksieve.distributed.protocol import AllGather, AllReduce
from ksieve.distributed.schedules import Pairs, Samples


def covers(plan: ShardPlan) -> bool:
    """Whether the kernels run a plan; the same on every rank."""
    schedule, shape = plan.schedule, plan.shape
    if plan.device != "cuda" or plan.output != "owned":
        return False
    if isinstance(schedule, Pairs):
        return shape.k <= ranks.MOST_SLOTS
    return isinstance(schedule, Samples) and max(shape.k, schedule.slots(shape)) <= ranks.MOST_SLOTS


def select(plan: ShardPlan, ids: Any, values: Any, ks: Any, of_shard: bool, tag: int) -> Generator[Any, Any, Any]:
    """Run the plan's schedule.

    `ids`, `values` (Tensors of int32 and of scores, shape (rows, k)): positions in this rank's shard in any order, -1
    in unused slots; their scores. `ks` (Tensor of int64, shape (rows,), or None): the k of each row; None: the plan's.
    `of_shard`: whether positions of the shard are returned, and not of the whole row. `tag`: goes after what is
    gathered. Where the ranks' tags differ, positions are -1, counts 0 and the plan's flag 1.

    Yields collectives, receives their results, and returns positions, int32 of shape (rows, k), and counts.
    """
    torch: Any = sys.modules["torch"]
    shape, schedule, device = plan.shape, plan.schedule, values.device
    rows, k = shape.rows, shape.k

    def new(dtype: Any, *size: int) -> Any:
        return torch.empty(size, dtype=dtype, device=device)

    sampled = isinstance(schedule, Samples)
    step = schedule.step if isinstance(schedule, Samples) else 1
    room = _room(plan)
    samples = k // step if sampled else 0
    stripe = plan.layout.size if isinstance(plan.layout, Interleaved) else 0
    sent = new(torch.int64, rows * (samples if sampled else k) + ranks.TAG_WORDS)
    best = new(torch.int64, rows, k) if sampled else sent
    merged, below = new(torch.int64, rows, (1 + room) * sampled), new(torch.int32, rows)
    indices, counts = new(torch.int32, rows, k), new(torch.int32, rows)
    flags = ranks.HIGH_FIRST * shape.high_first + ranks.OF_SHARD * of_shard + ranks.GATHERED * (not sampled)
    numbers = (
        rows, k, step, samples, room, shape.world, plan.rank, shape.position_bits, shape.extent,
        0 if stripe else sum(plan.widths[: plan.rank]), stripe, flags,
    )  # fmt: skip

    sent_tag, flag = sent[-1:], plan.flag(device)
    index, stream = arrays.place_of(device)

    def launch(stem: str, gathered: Any = None) -> None:
        passed = (ids, values, best, sent, gathered, merged, below, ks, indices, counts, sent_tag, flag)
        addresses = (0 if array is None else array.data_ptr() for array in passed)
        ranks.launch(
            f"distributed/{stem}", (*addresses, tag, len(sent), *numbers),
            slots=max(k, room), dtype=plan.dtype, ranking=plan.options.ranking, index=index, stream=stream,
        )  # fmt: skip

    launch("best")
    gathered = yield AllGather(sent)
    if sampled:
        launch("between", gathered)
        merged = yield AllReduce(merged)
    launch("select", gathered)
    return indices, counts


def prepare(plan: ShardPlan) -> ShardPlan:
    """Compile and load the CUDA kernels of a plan's calls, so that none waits for a compiler.

    Those between its collectives and those of this rank's own selection, with and without windows, on PyTorch's current
    device. Sends nothing, and has no effect on the CPU.

    Returns the plan itself. Raises `ArgumentError` if it is no plan of `ksieve.distributed.plan`. Raises `BackendError`
    if the kernels cannot be compiled or loaded here.
    """
    if check_plan(plan).device != "cuda":
        return plan
    torch: Any = sys.modules["torch"]
    index = torch.cuda.current_device() if torch.cuda.is_available() else 0
    shape, ranking = plan.shape, plan.options.ranking
    for options in ranks.selections("any" if covers(plan) else "value"):
        if plan.width and options.ranking == ranking:
            asked = Problem(shape.rows, plan.width, plan.width, shape.k, plan.dtype, Device("cuda", index), options)
            dispatch.choose(asked).prepare()
    if covers(plan):
        stems, slots = launches(plan)
        for stem in stems:
            ranks.load(stem, rows=shape.rows, slots=slots, dtype=plan.dtype, ranking=ranking, index=index)
    return plan


def launches(plan: ShardPlan) -> tuple[tuple[str, ...], int]:
    """Return the kernels of a plan that `covers` admits, in the order of a call, and for how many slots they are."""
    stems = ranks.STEMS if isinstance(plan.schedule, Samples) else (ranks.STEMS[0], ranks.STEMS[-1])
    return stems, max(plan.shape.k, _room(plan))


def _room(plan: ShardPlan) -> int:
    """Slots of the second collective."""
    return plan.schedule.slots(plan.shape) if isinstance(plan.schedule, Samples) else 0
