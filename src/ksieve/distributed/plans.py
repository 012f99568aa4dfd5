"""Plans over ranks: what all ranks agree on, once, so that no call has to.

Making a plan is one small all-gather, in which every rank states its arguments and the width of its shard. A rank that
has other arguments, or none that can be used, is an error on every rank, and no rank is left waiting.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ksieve import dispatch
from ksieve.core import problem
from ksieve.core.errors import ArgumentError, BackendError, KsieveError, kind_of, shown
from ksieve.core.options import Nan, Options, TieBreak, check_choice, dtype_text
from ksieve.core.problem import SCORE_DTYPES
from ksieve.distributed.layouts import Contiguous, Layout, Widths, check_layout, extent_of
from ksieve.distributed.schedules import (
    LINKS,
    Link,
    Message,
    Output,
    Schedule,
    Shape,
    check_link,
    check_output,
    check_schedule,
    choose,
    messages,
)

IndexBase = Literal["row", "shard"]

_SCHEDULES = get_args(Schedule)


@dataclass(frozen=True)
class ShardPlan:
    """What the calls of one rank have in common with those of the others. Made by `ksieve.distributed.plan`.

    Attributes
    ----------
    rank : int
        Of this process in the group.
    widths : tuple of int
        Scores in a row of every rank's shard.
    layout : Contiguous or Interleaved
    shape : Shape
        Rows, k, number of ranks, and further facts on which the messages depend.
    dtype, device : str
    options : Options
        `tie_break` ("low" or "high"), `largest` and `nan`.
    output : {"owned", "global"}
    index_base : {"row", "shard"}
    schedule : Schedule
        Chosen by `link`, or forced.
    link : Link
    group : process group of torch.distributed, or None
    """

    rank: int
    widths: Widths
    layout: Layout
    shape: Shape
    dtype: str
    device: str
    options: Options
    output: Output
    index_base: IndexBase
    schedule: Schedule
    link: Link
    group: Any = field(default=None, repr=False, compare=False)

    @property
    def width(self) -> int:
        """Scores in a row of this rank's shard."""
        return self.widths[self.rank]

    @property
    def messages(self) -> tuple[Message, ...]:
        """Collectives of every call, in order, with the bytes that a rank contributes."""
        return messages(self.schedule, self.shape, self.output)

    @property
    def modelled_us(self) -> float:
        """Modelled time of what a call adds to the local selection."""
        return self.link.total_us(self.schedule, self.shape, self.output)

    def __str__(self) -> str:
        kinds = ", ".join(f"{message.kind} of {message.size:,} bytes" for message in self.messages)
        return (
            f"rank {self.rank} of {self.shape.world}: {self.shape.rows} rows of {self.width:,} of "
            f"{self.shape.extent:,} {self.dtype} scores, k={self.shape.k}\n"
            f"  layout     {self.layout}\n"
            f"  output     {self.output}, positions of the {self.index_base}\n"
            f"  options    {self.options}\n"
            f"  schedule   {self.schedule}: {kinds}\n"
            f"  modelled   {self.modelled_us:.1f} us ({self.link.source})"
        )


def plan(
    *,
    rows: int,
    width: int,
    k: int,
    dtype: Any = "float32",
    device: Any = "cpu",
    group: Any = None,
    layout: Layout = Contiguous(),  # noqa: B008
    output: Output = "owned",
    index_base: IndexBase = "row",
    tie_break: TieBreak = "low",
    largest: bool = True,
    nan: Nan = "last",
    link: Link | str | None = None,
    schedule: Schedule | None = None,
) -> ShardPlan:
    """Agree with all ranks of a process group on the calls to come. Every rank must call it.

    Parameters
    ----------
    rows : int
        Rows of the shard: the same on every rank.
    width : int
        Scores in a row of this rank's shard; 0 and other widths than those of the other ranks are possible.
    k : int
        Slots per row, 1 to 2**20.
    dtype : str or dtype
        "float32", "float16" or "bfloat16".
    device : str or torch.device
        Of the shard. Its backend of the process group is used: NCCL for CUDA, gloo for the CPU.
    group : process group of torch.distributed, optional
        Default: the default group.
    layout : Contiguous or Interleaved
    output : {"owned", "global"}
        What `topk` returns: the positions that this rank holds, or all of them.
    index_base : {"row", "shard"}
        Whether positions count in the whole row, or in this rank's shard (output "owned" alone).
    tie_break : {"low", "high"}
        Which of the scores equal to the k-th are selected: those at the lowest or the highest global positions.
    largest, nan
        As in `ksieve.topk`.
    link : Link or str, optional
        Latency and bandwidth that the schedule is chosen by: "nvlink", "network" or "gloo". Default: by the device.
    schedule : Pairs, Samples or Digits, optional
        Force a schedule.

    Returns
    -------
    ShardPlan

    Raises
    ------
    ArgumentError
        An argument cannot be used, or differs between ranks: then on every rank, with the argument and the ranks.
    BackendError
        There is no PyTorch, no process group or no such device, or the arguments of another rank cannot be used.

    Notes
    -----
    One all-gather of 96 bytes, whose result is read on the host: not while a CUDA graph is captured.
    """
    dist = distributed()
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ArgumentError("group", "a process group without this rank", "a group that this process belongs to")
    stated: dict[str, int] = dict.fromkeys(_STATED, 0)
    failure: KsieveError | None = None
    name, kind = "", "cpu"
    try:
        kind = _kind_of_present(problem.parse_device(device))
        name = str(dtype_text(dtype))
        if name not in SCORE_DTYPES:
            raise ArgumentError("dtype", shown(name), f"one of {list(SCORE_DTYPES)}")
        rows, width, _ = problem.check_shape(rows, width)
        options = Options(tie_break=tie_break, largest=largest, nan=nan)
        if tie_break == "any":
            raise ArgumentError("tie_break", "'any'", "'low' or 'high'")
        check_output(output)
        check_choice(index_base, "index_base", get_args(IndexBase))
        if output == "global" and index_base == "shard":
            raise ArgumentError("index_base", "'shard'", "'row' with output 'global'")
        slots = problem.check_k(k)
        network = check_link(("nvlink" if kind == "cuda" else "gloo") if link is None else link)
        stated |= {
            "rows": rows,
            "k": slots,
            "dtype": SCORE_DTYPES.index(name),
            "layout": 0 if isinstance(check_layout(layout), Contiguous) else layout.size,  # type: ignore[union-attr]
            "output": get_args(Output).index(output),
            "tie_break": int(tie_break == "high"),
            "largest": int(largest),
            "nan": int(options.nan == "highest"),
            "schedule": 0 if schedule is None else _number_of(check_schedule(schedule, slots)),
            "link": _checksum(network),
            "width": width,
        }
    except KsieveError as error:
        failure = error
        stated["fails"] = 1
    every = _exchange(dist, group, world, kind, stated)
    if failure is not None:
        raise failure
    _compare(every)
    widths = tuple(row["width"] for row in every)
    extent = extent_of(widths, layout, "width")
    shape = Shape(
        rows,
        int(k),
        world,
        max(extent, 1),
        32 if name == "float32" else 16,
        isinstance(layout, Contiguous),
        tie_break == "high",
    )
    chosen = schedule or choose(shape, network, output)
    return ShardPlan(
        rank, widths, layout, shape, name, kind, options, output, index_base, chosen, network, group,
    )  # fmt: skip


_STATED = (
    "fails", "rows", "k", "dtype", "layout", "output", "tie_break", "largest", "nan", "schedule", "link", "width",
)  # fmt: skip
"""Numbers that every rank states, in this order."""

_WORDS: dict[str, Callable[[int], str]] = {
    "dtype": lambda n: SCORE_DTYPES[n],
    "layout": lambda n: f"Interleaved({n})" if n else "Contiguous()",
    "output": lambda n: get_args(Output)[n],
    "tie_break": lambda n: ("low", "high")[n],
    "largest": lambda n: str(bool(n)),
    "nan": lambda n: ("last", "highest")[n],
    "schedule": lambda n: _schedule_of(n),
    "link": lambda n: next((name for name, link in LINKS.items() if _checksum(link) == n), "another Link"),
}
"""How a stated number is written in a message."""


def refuse(group: Any, kind: str) -> None:
    """Take part in the exchange of a plan as a rank whose arguments cannot be used."""
    dist = distributed()
    stated = dict.fromkeys(_STATED, 0) | {"fails": 1}
    _exchange(dist, group, dist.get_world_size(group), kind, stated)


def check_rows_of_requests(next_n: Any, rows: int) -> None:
    """Check the number of consecutive rows that belong to a request."""
    if isinstance(next_n, bool) or not isinstance(next_n, int) or next_n < 1 or rows % next_n:
        raise ArgumentError("next_n", shown(next_n), f"a divisor of the {rows} rows")


def distributed() -> Any:
    """Import ``torch.distributed``, with a process group.

    Raises
    ------
    BackendError
    """
    try:
        import torch.distributed as dist
    except ImportError:
        raise BackendError("ksieve.distributed runs on PyTorch: pip install 'ksieve[torch]'") from None
    if not dist.is_available() or not dist.is_initialized():
        raise BackendError("there is no process group: torch.distributed.init_process_group(...) first")
    return dist


def check_plan(plan: object) -> ShardPlan:
    """Check that an argument is a plan over ranks."""
    if not isinstance(plan, ShardPlan):
        raise ArgumentError("plan", kind_of(plan), "a plan from ksieve.distributed.plan")
    return plan


def _kind_of_present(device: problem.Device) -> str:
    """Kind of a device on which PyTorch has tensors here: asked before one is made, which would fail in its own words.

    Raises
    ------
    BackendError
    """
    import torch

    if device.kind == "cuda":
        dispatch.device_info(device)
        if not torch.cuda.is_available():
            raise BackendError(f"PyTorch {torch.__version__} has no CUDA here: install a build of it with CUDA")
    return device.kind


def _number_of(schedule: Schedule) -> int:
    """A forced schedule as one positive number."""
    size: int = getattr(schedule, "step", getattr(schedule, "bits", 1))
    return _SCHEDULES.index(type(schedule)) + 4 * size + 1


def _schedule_of(number: int) -> str:
    """The forced schedule of a number, in words."""
    if not number:
        return "None"
    size, kind = divmod(number - 1, 4)
    return f"{_SCHEDULES[kind].__name__}({size if kind else ''})"


def _checksum(link: Link) -> int:
    return zlib.crc32(repr(link).encode())


def _exchange(dist: Any, group: Any, world: int, kind: str, stated: dict[str, int]) -> list[dict[str, int]]:
    """What every rank states, in the order of the ranks."""
    import torch

    kind = "cuda" if dist.get_backend(group) == "nccl" else kind
    mine = torch.tensor(list(stated.values()), dtype=torch.int64, device=kind)
    every = gather(dist, mine, world, group)
    return [dict(zip(_STATED, row, strict=True)) for row in every.tolist()]


def gather(dist: Any, array: Any, world: int, group: Any) -> Any:
    """Arrays of all ranks, stacked in the order of the ranks; `array` is contiguous."""
    every = array.new_empty((world, *array.shape))
    if array.numel():  # otherwise there is nothing to send, on any rank
        # The second name is that of PyTorch before 2.12.
        collective = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        collective(every.view(-1), array.view(-1), group=group)
    return every


def _compare(every: list[dict[str, int]]) -> None:
    """Raise the same error on every rank if arguments differ, or if those of a rank cannot be used."""
    failed = [str(rank) for rank, row in enumerate(every) if row["fails"]]
    if failed:
        raise BackendError(f"no plan: the arguments of rank {', '.join(failed)} cannot be used, and its error says why")
    for name in _STATED:
        values = [row[name] for row in every]
        if name == "width" or len(set(values)) == 1:
            continue
        word = _WORDS.get(name, str)
        other = next(rank for rank, value in enumerate(values) if value != values[0])
        got = f"{word(values[0])} on rank 0 and {word(values[other])} on rank {other}"
        raise ArgumentError(name, got, "the same on every rank")
