"""Plans over ranks: what all ranks agree on, once, so that no call has to.

Making a plan is one small message, in which every rank states its arguments and the width of its shard. A rank that
has other arguments, or none that can be used, is an error on every rank, and no rank is left waiting.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from ksieve import dispatch
from ksieve.core import problem
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, BackendError, kind_of, shown
from ksieve.core.options import Nan, Options, TieBreak, check_choice, dtype_text
from ksieve.distributed import schedules
from ksieve.distributed.agreement import Channel, short, stated, tag_of
from ksieve.distributed.layouts import Contiguous, Layout, Widths, check_layout, extent_of
from ksieve.distributed.schedules import Link, Message, Output, Schedule, Shape

IndexBase = Literal["row", "shard"]


@dataclass(frozen=True)
class ShardPlan:
    """What the calls of all ranks have in common. Made by `ksieve.distributed.plan`.

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
    channel : Channel or None
        The process group.
    stated : dict
        What all ranks have stated in the making of the plan.
    flags : dict
        For each CUDA device that calls ran on, int32 of one element: 1 from the first call on that ranks disagreed in.
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
    channel: Channel | None = field(default=None, repr=False, compare=False)
    stated: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    flags: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def tag(self) -> int:
        """Digest of what was stated."""
        return tag_of(*self.stated.values())

    @property
    def waits(self) -> bool:
        """Whether the host compares tags in every call, and not the device."""
        return self.channel is None or self.channel.waits(self.device)

    @property
    def disagreed(self) -> bool:
        """Whether ranks have disagreed in a call over NCCL, which fills its answer with -1. Waits for the devices."""
        return any(bool(flag) for flag in self.flags.values())

    def flag(self, device: Any) -> Any:
        """Return what a call on a device sets to 1 where ranks disagree."""
        if device not in self.flags:
            self.flags[device] = sys.modules["torch"].zeros(1, dtype=sys.modules["torch"].int32, device=device)
        return self.flags[device]

    @property
    def width(self) -> int:
        """Scores in a row of this rank's shard."""
        return self.widths[self.rank]

    @property
    def messages(self) -> tuple[Message, ...]:
        """Collectives of every call, in order, with the bytes that a rank contributes besides the tag."""
        return schedules.messages(self.schedule, self.shape, self.output)

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
        Scores in a row of this rank's shard. It may be 0, and may differ from other ranks' widths.
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
        There is no PyTorch, no process group or no such device; or another rank has failed, with its error.

    Notes
    -----
    One message of 16 bytes, which the host reads: not while a CUDA graph is captured.
    """
    given = dict(locals())
    channel = Channel(given.pop("group"))
    try:
        asked = checked(**given)
    except Exception as error:
        channel.fail(error)
        raise
    return make(channel, asked, {"plan": "being made", **stated(asked)})


def checked(
    *, rows: Any, width: Any, k: Any, dtype: Any, device: Any, layout: Any, output: Any, index_base: Any,
    tie_break: Any, largest: Any, nan: Any, link: Any, schedule: Any,
) -> dict[str, Any]:  # fmt: skip
    """Check the arguments of `plan` but the group, and return them in one form for each meaning."""
    kind = _kind_of_present(problem.parse_device(device))
    name = str(dtype_text(dtype))
    check_choice(name, "dtype", SCORE_DTYPES)
    rows, width, _ = problem.check_shape(rows, width)
    options = Options(tie_break=tie_break, largest=largest, nan=nan)
    if tie_break == "any":
        raise ArgumentError("tie_break", "'any'", "'low' or 'high'")
    check_choice(output, "output", get_args(Output))
    check_choice(index_base, "index_base", get_args(IndexBase))
    if output == "global" and index_base == "shard":
        raise ArgumentError("index_base", "'shard'", "'row' with output 'global'")
    slots = problem.check_k(k)
    network = schedules.check_link(("nvlink" if kind == "cuda" else "gloo") if link is None else link)
    return {
        "rows": rows, "width": width, "k": slots, "dtype": name, "device": kind, "layout": check_layout(layout),
        "output": output, "index_base": index_base, "tie_break": tie_break, "largest": largest, "nan": options.nan,
        "link": network, "schedule": None if schedule is None else schedules.check_schedule(schedule, slots),
    }  # fmt: skip


def make(channel: Channel, asked: dict[str, Any], statement: dict[str, str]) -> ShardPlan:
    """Make a plan of what `checked` returned, by an exchange in which all ranks make the same statement."""
    rows, k, layout, name, kind = (asked[of] for of in ("rows", "k", "layout", "dtype", "device"))
    widths, _ = channel.meet(tag_of(*statement.values()), lambda: statement, asked["width"])
    extent = extent_of(widths, layout, "width")
    options = Options(**{of: asked[of] for of in ("tie_break", "largest", "nan")})
    shape = Shape(
        rows, k, channel.world, max(extent, 1), 8 * SCORE_DTYPES[name].size, isinstance(layout, Contiguous),
        options.tie_break == "high",
    )  # fmt: skip
    chosen = asked["schedule"] or schedules.choose(shape, asked["link"], asked["output"])
    made = ShardPlan(
        channel.rank, widths, layout, shape, name, kind, options, asked["output"], asked["index_base"], chosen,
        asked["link"], channel, statement | {"width": short(str(widths))},
    )  # fmt: skip
    if kind == "cuda":
        torch = sys.modules["torch"]
        made.flag(torch.device("cuda", torch.cuda.current_device()))
    return made


def check_rows_of_requests(next_n: Any, rows: int) -> None:
    """Check the number of consecutive rows that belong to a request."""
    if isinstance(next_n, bool) or not isinstance(next_n, int) or next_n < 1 or rows % next_n:
        raise ArgumentError("next_n", shown(next_n), f"a divisor of the {rows} rows")


def check_plan(plan: object) -> ShardPlan:
    """Check that an argument is a plan over ranks."""
    if not isinstance(plan, ShardPlan):
        raise ArgumentError("plan", kind_of(plan), "a plan from ksieve.distributed.plan")
    return plan


def _kind_of_present(device: problem.Device) -> str:
    """Kind of a device on which PyTorch has tensors here; `BackendError`, before one is made, where it has none."""
    import torch

    if device.kind == "cuda":
        dispatch.device_info(device)
        if not torch.cuda.is_available():
            raise BackendError(f"PyTorch {torch.__version__} has no CUDA here: install a build of it with CUDA")
    return device.kind
