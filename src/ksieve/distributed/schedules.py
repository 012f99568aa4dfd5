"""Schedules as data: the messages of each, what they take by a measured latency and bandwidth, and the choice.

A schedule sends the same messages for every input. `Link` holds the numbers of a network, with their source; a plan
chooses the schedule that takes the least modelled time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ksieve.core.errors import ArgumentError, shown
from ksieve.core.options import check_choice
from ksieve.core.problem import check_k, check_size

Kind = Literal["all-gather", "all-reduce"]
Output = Literal["owned", "global"]

_COMPOSITE, _COUNT = 8, 4
"""Bytes of a composite, and of a count or position."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Facts on which the messages depend; the same on every rank.

    Attributes
    ----------
    rows, k : int
    world : int
        Number of ranks.
    extent : int
        One more than the last global position.
    key_bits : int
        Bits of the ordered key of a score: 32 or 16.
    contiguous : bool
        Whether all positions of a rank lie before the next rank's.
    high_first : bool
        Whether the tie-break prefers the highest positions.

    Raises
    ------
    ArgumentError
        A number is out of range.
    """

    rows: int
    k: int
    world: int
    extent: int
    key_bits: int = 32
    contiguous: bool = True
    high_first: bool = False

    def __post_init__(self) -> None:
        for name, least in (("rows", 0), ("world", 1), ("extent", 1)):
            object.__setattr__(self, name, check_size(getattr(self, name), name, least))
        object.__setattr__(self, "k", check_k(self.k))
        if self.key_bits not in (16, 32):
            raise ArgumentError("key_bits", shown(self.key_bits), "16 or 32")

    @property
    def position_bits(self) -> int:
        """Bits of a global position in a composite."""
        return max(self.extent - 1, 1).bit_length()

    @property
    def composite_bits(self) -> int:
        """Bits of a composite."""
        return self.key_bits + self.position_bits


@dataclass(frozen=True, slots=True)
class Message:
    """One collective: its kind, and the bytes that each rank contributes to it for all rows."""

    kind: Kind
    size: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """Every rank sends its k best."""

    def messages(self, shape: Shape) -> tuple[Message, ...]:
        """Messages, in order."""
        return (Message("all-gather", shape.rows * shape.k * _COMPOSITE),)

    def handled(self, shape: Shape) -> int:
        """Bytes that each rank sorts or counts besides."""
        return shape.rows * shape.world * shape.k * _COMPOSITE


@dataclass(frozen=True, slots=True)
class Samples:
    """Two collectives: every `step`-th of the k best, then what lies between two of these samples."""

    step: int

    def slots(self, shape: Shape) -> int:
        """Slots of the second collective: enough for every input.

        Between the two chosen samples lie at most world + 1 others. Each adds at most `step` candidates, and each rank
        may have ``step - 1`` more.
        """
        return (shape.world + 1) * self.step + shape.world * (self.step - 1)

    def messages(self, shape: Shape) -> tuple[Message, ...]:
        """Messages, in order."""
        samples = shape.rows * (shape.k // self.step) * _COMPOSITE
        return Message("all-gather", samples), Message("all-reduce", shape.rows * (1 + self.slots(shape)) * _COMPOSITE)

    def handled(self, shape: Shape) -> int:
        """Bytes that each rank sorts or counts besides."""
        samples = shape.world * (shape.k // self.step)
        return shape.rows * (2 * samples + self.slots(shape)) * _COMPOSITE


@dataclass(frozen=True, slots=True)
class Digits:
    """Added histograms of digits of at most `bits` bits, whose size does not depend on the number of ranks."""

    bits: int

    def divides(self, shape: Shape) -> bool:
        """Whether the scores equal to the k-th are divided by their count on each rank, and not by their positions."""
        return shape.contiguous

    def rounds(self, shape: Shape) -> tuple[int, ...]:
        """Bits of each digit, most significant first: they differ by at most one."""
        total = shape.key_bits if self.divides(shape) else shape.composite_bits
        count = -(-total // self.bits)
        return tuple(total // count + (i < total % count) for i in range(count))

    def messages(self, shape: Shape) -> tuple[Message, ...]:
        """Messages, in order."""
        histograms = [Message("all-reduce", shape.rows * (1 << bits) * _COUNT) for bits in self.rounds(shape)]
        return (*histograms, *[Message("all-gather", shape.rows * _COUNT)] * self.divides(shape))

    def handled(self, shape: Shape) -> int:
        """Bytes that each rank sorts or counts besides."""
        return shape.rows * sum(shape.k * _COMPOSITE + (2 * _COUNT << bits) for bits in self.rounds(shape))


Schedule = Pairs | Samples | Digits

_MOST_BITS = 20
"""Most bits of a digit: a histogram has a counter for each of its values."""


def check_schedule(schedule: object, k: int) -> Schedule:
    """Check that an argument is a schedule for rows of k slots."""
    if not isinstance(schedule, Schedule):
        raise ArgumentError("schedule", shown(schedule), "Pairs(), Samples(step) or Digits(bits)")
    size = getattr(schedule, "step", getattr(schedule, "bits", 1))
    most = _MOST_BITS if isinstance(schedule, Digits) else k
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= most:
        raise ArgumentError("schedule", shown(schedule), f"a number from 1 to {most} in {type(schedule).__name__}")
    return schedule


def messages(schedule: Schedule, shape: Shape, output: Output) -> tuple[Message, ...]:
    """Messages of a call, with those that bring a "global" output to every rank."""
    own = schedule.messages(shape)
    if output == "owned" or isinstance(schedule, Pairs):
        return own
    counts = Message("all-gather", shape.rows * _COUNT)
    return (*own, counts, Message("all-reduce", shape.rows * shape.k * _COUNT))


@dataclass(frozen=True, slots=True)
class Link:
    """Cost of collectives between two ranks, from which the cost for more ranks is modelled.

    Attributes
    ----------
    latency_us : float
        Time of a collective of a few bytes. It grows with the binary logarithm of the number of ranks.
    bandwidth_gbs : float
        GB/s of a large collective: an all-gather moves ``world - 1`` messages to each rank, an all-reduce
        ``2 (world - 1) / world`` of one.
    handling_gbs : float
        GB/s at which a rank sorts and counts what it received.
    source : str
    fixed_us, slot_ns : float
        What every schedule takes in addition: once, and for each slot of the answer, in nanoseconds. They decide
        nothing.
    """

    latency_us: float
    bandwidth_gbs: float
    handling_gbs: float
    source: str
    fixed_us: float = 0.0
    slot_ns: float = 0.0

    def message_us(self, message: Message, world: int) -> float:
        """Modelled time of one collective."""
        if world == 1:
            return 0.0
        hops = (world - 1).bit_length()
        factor = world - 1 if message.kind == "all-gather" else 2 * (world - 1) / world
        return self.latency_us * hops + factor * message.size / (self.bandwidth_gbs * 1e3)

    def total_us(self, schedule: Schedule, shape: Shape, output: Output = "owned") -> float:
        """Modelled time of a call, without the local selection."""
        sent = sum(self.message_us(message, shape.world) for message in messages(schedule, shape, output))
        beside = self.fixed_us + self.slot_ns * 1e-3 * shape.rows * shape.k
        return sent + schedule.handled(shape) / (self.handling_gbs * 1e3) + beside


LINKS = {
    "nvlink": Link(
        6.4,
        250,
        750,
        "two H100 over NVLink, NCCL in a graph: counts of 64 rows 6.4 us, pairs of 8,192 rows 550 us; "
        "fixed_us and slot_ns: benchmarks/results/ranks-cuda-2.json and -4.json",
        fixed_us=25,
        slot_ns=0.043,
    ),
    "network": Link(
        20,
        45,
        750,
        "an assumption, not measured: one 400 Gb/s adapter for each GPU; fixed_us and slot_ns as over NVLink",
        fixed_us=25,
        slot_ns=0.043,
    ),
    "gloo": Link(1600, 0.8, 2.0, "two processes over gloo, which share two cores: 16 counts 1.6 ms, 8 MiB 11.6 ms"),
}
"""Known links by name."""


def check_link(link: object) -> Link:
    """Return a `Link` by its name, or one that was given."""
    if isinstance(link, Link):
        return link
    if not isinstance(link, str) or link not in LINKS:
        raise ArgumentError("link", shown(link), f"one of {', '.join(map(repr, LINKS))}, or a Link")
    return LINKS[link]


def candidates(shape: Shape) -> tuple[Schedule, ...]:
    """Schedules that a plan chooses from; one rank has nothing to agree on, and a single collective."""
    if shape.world == 1:
        return (Pairs(),)
    steps = (1 << n for n in range(1, shape.k.bit_length()))
    return (Pairs(), *(Samples(step) for step in steps if step <= shape.k), *(Digits(bits) for bits in (8, 11)))


def choose(shape: Shape, link: Link | str, output: Output = "owned") -> Schedule:
    """Choose the schedule of the least modelled time, as a plan does.

    Parameters
    ----------
    shape : Shape
        Rows, k, number of ranks, and further facts on which the messages depend.
    link : Link or str
        Latency and bandwidth: "nvlink", "network" or "gloo", or a `Link`.
    output : {"owned", "global"}
        What the calls return: the positions that a rank holds, or all of them, which takes further messages.

    Returns
    -------
    Schedule
        `Pairs`, `Samples` or `Digits`; the first of those that take the same time.

    Raises
    ------
    ArgumentError
        An argument cannot be used.

    Examples
    --------
    >>> from ksieve.distributed import Shape, choose
    >>> choose(Shape(rows=512, k=2048, world=8, extent=1 << 20), "nvlink")
    Samples(step=32)
    """
    if not isinstance(shape, Shape):
        raise ArgumentError("shape", shown(shape), "a ksieve.distributed.Shape")
    network = check_link(link)
    check_choice(output, "output", get_args(Output))
    return min(candidates(shape), key=lambda schedule: network.total_us(schedule, shape, output))
