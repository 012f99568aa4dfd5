"""What the CUDA planner decides with, as data: switch widths, split thresholds and launch shapes, each with its source.

A source is the decision record (``docs/decisions/``) or the committed result file (``benchmarks/results/``) that gives
a number and its measurement, relative to the repository root, or ``"not measured: "`` and what was reasoned instead.
``ksieve bench planner`` times every alternative to the planner's choices over a grid; a test holds the choices to its
result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

NOT_MEASURED = "not measured: "


class Threshold(int):
    """An integer that decisions compare with.

    Attributes
    ----------
    meaning : str
        What is decided by it, and its unit.
    source : str
        Where the number comes from.
    """

    meaning: str
    source: str

    def __new__(cls, value: int, meaning: str = "", source: str = "") -> Self:
        """Make a threshold: an int that knows where it comes from."""
        made = super().__new__(cls, value)
        made.meaning, made.source = meaning, source
        return made


STAGES = 6
"""Loads of 16 bytes that a thread keeps in flight, unless it holds a row or is told otherwise."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Launch shape of one kernel family; `ctas_per_sm` also fixes the register budget at compile time.

    Attributes
    ----------
    threads, ctas_per_sm : int
    stages : int
        Loads of 16 bytes that each thread keeps in flight.
    held : int
        Longest row, in scores, that the family keeps on chip and reads once; 0 for families that do not.
    holders : int
        CTAs that keep such a row together.
    beside : int
        Loads of a thread, of such a row, that its stages have no room for.
    registers : bool
        Whether the scores of such a row stay in registers: of a plain call, or one whose slots have no order.
    plain : bool
        Whether the shape is for calls without options alone: ptxas would spill what those need.
    widest : int
        Widest rows, in scores, that the shape is for; 0 for any.
    fewest_rows, most_rows : int
        How many rows the shape is for; 0 for any.
    source : str
        Where the shape comes from.
    """

    threads: int
    ctas_per_sm: int
    stages: int = STAGES
    held: int = 0
    holders: int = 1
    beside: int = 0
    registers: bool = False
    plain: bool = False
    widest: int = 0
    fewest_rows: int = 0
    most_rows: int = 0
    source: str = NOT_MEASURED + "given by a caller"


_SAMPLE = "docs/decisions/0002-one-read-with-a-sample.md"
_VIEWS = "docs/decisions/0003-lines-and-quads.md"
_RESIDENT = "docs/decisions/0005-resident-rows.md"
_CLUSTERS = "docs/decisions/0006-clusters.md"
_GRID = "docs/decisions/0007-grid.md"
_REGISTER_ROWS = "docs/decisions/0008-rows-in-registers.md"
_SPLIT = "docs/decisions/0009-split-rows.md"
_LENGTH_BINS = "docs/decisions/0010-length-bins.md"
_STREAM = "docs/decisions/0011-streaming-shapes.md"
_STORAGE = "docs/decisions/0012-candidate-storage.md"
_RESIDENT_SHAPES = "docs/decisions/0013-resident-shapes.md"
_GRID_OF_PLANS = "benchmarks/results/gpu-planner-k2048.json"

SHORTEST_SAMPLED = Threshold(
    4096, "narrower rows, in scores, are never sampled: their view would be too small", _SAMPLE
)
LINES_RANK = Threshold(
    1024,
    "rows of at least 64 times this many scores, and 64 times k, are sampled by one line in 64",
    _VIEWS,
)
DENSE_LINES = Threshold(
    32,
    "shorter rows of at least this many times as many by one in 16; still shorter ones in quads",
    _VIEWS,
)
SPARSE_LINES = Threshold(
    786_432,
    "from this width, in scores, one line in 128 is sampled in place of one in 64: between 524,288, where what more is "
    "admitted costs what a sparser view saves, and 1,048,576",
    _VIEWS,
)
SPARSE_ROWS = Threshold(
    132,
    "rows up to which it holds: of more, less is gained than scores with more clumps may lose",
    _VIEWS,
)
SAMPLED_RATIO = Threshold(2, "rows of fewer than this many times k scores are not sampled", _GRID_OF_PLANS)
CROWDED_RATIO = Threshold(
    4,
    "the same from `CROWDED` rows on: sampling saves latency, then no more",
    _GRID_OF_PLANS,
)
CROWDED = Threshold(2048, "rows from which `CROWDED_RATIO` holds", _GRID_OF_PLANS)
SPLIT_IN_TWO = Threshold(
    1_048_576,
    "from this width, in scores, two CTAs per row pay: 64 rows of 524,288 lose 2 %, of 262,144 5 %",
    _GRID_OF_PLANS,
)
SPLIT_IN_FOUR = Threshold(
    262_144,
    "from this width, in scores, four CTAs per row pay; narrower rows need `FEWEST_SPLITS`",
    _GRID_OF_PLANS,
)
FEWEST_SPLITS = Threshold(
    8,
    "CTAs per row that pay at any width: merging costs what a shorter scan saves",
    _GRID_OF_PLANS,
)
SEGMENT = Threshold(2048, "fewest scores worth a CTA of their own in the split family", _GRID_OF_PLANS)
SPLITS = (64, 32, 16, 8, 4, 2)
"""CTAs per row that are tried, largest first; docs/decisions/0009-split-rows.md."""

MANY_SHORT = Threshold(512, "rows from which `GEOMETRY_SHORT` holds", _STREAM)
BANDED_ROWS = Threshold(16_384, "rows from which short ones are dealt to launches of their own", _LENGTH_BINS)
WIDEST_BANDED = Threshold(
    65_536, "of matrices no wider than this, in scores: wider ones hardly have such rows", _LENGTH_BINS
)
BAND = Threshold(8192, "scores by which rows of one of these launches are longer than those before", _LENGTH_BINS)
MOST_BANDS = Threshold(4, "of which there are so many, and one more for all longer rows", _LENGTH_BINS)
CLUSTER = Threshold(
    8,
    "CTAs of a cluster that does not hold its row",
    NOT_MEASURED + "the largest size that every device with clusters can launch",
)
WIDE_CLUSTERS = Threshold(
    132,
    "multiprocessors from which a device surely has sixteen side by side, as clusters of more than 8 CTAs may take",
    _CLUSTERS,
)
SHORTEST_CLUSTERED = Threshold(12_288, "wider rows, in scores, are shared by a cluster while they are few", _CLUSTERS)
HELD_RANK = Threshold(
    1024,
    "slots beyond which wide rows are held however many they are: streamed, fewer slots have fewer candidates",
    _RESIDENT,
)
WHOLE_QUARTERS = Threshold(
    3,
    "quarters of the width, of which k is that much or more where most short rows are selected whole",
    _REGISTER_ROWS,
)
WHOLE_WAVES = Threshold(
    8, "rows for each CTA that fits, up to which each has its own then: they end as soon as begun", _REGISTER_ROWS
)
TAIL_SIGMAS = Threshold(
    28, "standard deviations above the mean of the admitted tail that storage is given for", _STORAGE
)
SORTED_PERIODS = Threshold(
    2, "periods of a view by which a sorted row's boundary can lie lower than its rank says", _STORAGE
)
COLUMN_SIGMAS = Threshold(
    6, "standard deviations above its mean share of the tail that a thread's column is given for", _STORAGE
)
EXACT_CAPACITY = Threshold(
    4096, "fewest candidates stored by families that do not sample", NOT_MEASURED + "32 KiB, which every device has"
)

_REGISTERS = NOT_MEASURED + "what ptxas needs registers for without spilling"
_SHARED = NOT_MEASURED + "what fits about 100 KiB of shared memory without spilling registers"

GEOMETRY: dict[str, Geometry] = {
    "persistent_sampled": Geometry(512, 2, source=_STREAM),
    "persistent_exact": Geometry(256, 3, source=_REGISTERS),
    "split_sampled": Geometry(1024, 1, stages=8, source=_SPLIT),
    "row_exact": Geometry(512, 1, held=16_384, source=_REGISTERS),
    "cluster_exact": Geometry(512, 1, source=_REGISTERS),
    "cooperative_exact": Geometry(512, 1, source=_REGISTERS),
}
"""Kernel families and their launch shapes, from Hopper on."""

GEOMETRY_BEFORE_HOPPER: dict[str, Geometry] = {
    "persistent_sampled": Geometry(256, 2, source=_REGISTERS),
    "persistent_exact": Geometry(256, 3, source=_REGISTERS),
    "split_sampled": Geometry(512, 1, source=_REGISTERS),
    "row_exact": Geometry(512, 1, held=16_384, source=_REGISTERS),
}
"""The same before Hopper, where ptxas needs more registers."""

GEOMETRY_SMALL: dict[str, Geometry] = {
    "persistent_sampled": Geometry(256, 2, source=_SHARED),
    "persistent_exact": Geometry(256, 2, source=_SHARED),
    "split_sampled": Geometry(512, 1, source=_SHARED),
    "row_exact": Geometry(512, 1, held=16_384, source=_SHARED),
    "cluster_exact": Geometry(256, 1, source=_SHARED),
}
"""The same for GPUs with about 100 KiB of shared memory per multiprocessor (sm_86, sm_89, sm_120)."""

GEOMETRY_ROOMY: dict[str, Geometry] = {
    "persistent_sampled": Geometry(256, 2, source=_REGISTERS),
    "split_sampled": Geometry(256, 2, source=_REGISTERS),
    "row_exact": Geometry(512, 1, held=16_384, source=_REGISTERS),
}
"""The same for specialisations that need more registers, on any device."""

GEOMETRY_SHORT: dict[str, Geometry] = {
    "persistent_sampled": Geometry(256, 4, stages=4, widest=65_536, source=_STREAM),
}
"""The same from `MANY_SHORT` short rows on, from Hopper on: more and smaller CTAs, with fewer warps for fixed work."""

GEOMETRY_ALONE: dict[str, Geometry] = {
    "persistent_sampled": Geometry(1024, 1, stages=8, source=_STREAM),
}
"""The same for as many rows as there are multiprocessors, or fewer, from Hopper on: a CTA has one to itself."""

GEOMETRY_HELD: dict[str, tuple[Geometry, ...]] = {
    "row_exact": (
        Geometry(256, 4, held=3072, registers=True, source=_REGISTER_ROWS),
        Geometry(256, 4, held=4096, registers=True, most_rows=2112, source=_REGISTER_ROWS),
        Geometry(256, 4, held=4096, source=_RESIDENT_SHAPES),
        Geometry(512, 2, held=8192, registers=True, most_rows=264, source=_REGISTER_ROWS),
        Geometry(256, 4, held=8192, source=_RESIDENT_SHAPES),
        Geometry(512, 1, held=12_288, registers=True, most_rows=132, source=_REGISTER_ROWS),
        Geometry(512, 2, held=12_288, most_rows=1056, source=_RESIDENT_SHAPES),
        Geometry(256, 3, held=12_288, source=_RESIDENT_SHAPES),
        Geometry(512, 1, held=16_384, registers=True, most_rows=132, source=_REGISTER_ROWS),
        Geometry(512, 2, held=16_384, most_rows=1056, source=_RESIDENT_SHAPES),
        Geometry(256, 3, held=16_384, source=_RESIDENT_SHAPES),
        Geometry(256, 3, held=17_408, beside=1, fewest_rows=1057, source=_RESIDENT_SHAPES),
        Geometry(256, 3, held=18_432, beside=2, fewest_rows=1057, source=_RESIDENT_SHAPES),
        Geometry(512, 2, held=20_480, source=_RESIDENT_SHAPES),
        Geometry(512, 2, held=24_576, source=_RESIDENT_SHAPES),
        Geometry(512, 2, held=26_624, beside=1, fewest_rows=133, source=_RESIDENT_SHAPES),
        Geometry(512, 2, held=28_672, beside=2, fewest_rows=133, source=_RESIDENT_SHAPES),
        Geometry(512, 1, held=32_768, most_rows=132, source=_RESIDENT_SHAPES),
        Geometry(512, 2, held=32_768, beside=4, source=_RESIDENT_SHAPES),
        Geometry(512, 2, held=34_816, beside=5, plain=True, fewest_rows=133, source=_RESIDENT_SHAPES),
        Geometry(512, 2, held=36_864, beside=6, plain=True, fewest_rows=133, source=_RESIDENT_SHAPES),
        Geometry(512, 2, held=40_960, beside=8, plain=True, fewest_rows=133, source=_RESIDENT_SHAPES),
        Geometry(512, 1, held=40_960, beside=4, most_rows=511, source=_RESIDENT_SHAPES),
        Geometry(512, 2, held=45_056, beside=10, plain=True, fewest_rows=133, source=_RESIDENT_SHAPES),
        Geometry(512, 1, held=49_152, beside=4, most_rows=511, source=_RESIDENT_SHAPES),
        Geometry(512, 1, held=57_344, beside=4, most_rows=511, source=_RESIDENT_SHAPES),
        Geometry(512, 1, held=65_536, beside=8, most_rows=511, source=_RESIDENT_SHAPES),
    ),
    "cluster_exact": (
        Geometry(256, 2, held=16_384, holders=8, most_rows=12, source=_CLUSTERS),
        Geometry(256, 2, held=16_384, holders=4, most_rows=32, source=_CLUSTERS),
        Geometry(256, 2, held=32_768, holders=8, most_rows=8, source=_CLUSTERS),
        Geometry(256, 2, held=32_768, holders=4, most_rows=48, source=_CLUSTERS),
        Geometry(256, 2, held=65_536, holders=16, most_rows=4, source=_CLUSTERS),
        Geometry(256, 2, held=65_536, holders=8, most_rows=12, source=_CLUSTERS),
        Geometry(512, 2, held=65_536, holders=4, most_rows=24, source=_CLUSTERS),
        Geometry(256, 3, held=65_536, holders=4, most_rows=48, source=_CLUSTERS),
        Geometry(256, 2, held=131_072, holders=16, most_rows=4, source=_CLUSTERS),
        Geometry(512, 2, held=131_072, holders=8, most_rows=12, source=_CLUSTERS),
        Geometry(256, 3, held=131_072, holders=8, most_rows=28, source=_CLUSTERS),
        Geometry(512, 1, held=131_072, holders=2, beside=8, most_rows=64, source=_CLUSTERS),
        Geometry(512, 2, held=262_144, holders=16, most_rows=4, source=_CLUSTERS),
        Geometry(256, 3, held=262_144, holders=16, most_rows=10, source=_CLUSTERS),
        Geometry(512, 1, held=262_144, holders=4, beside=8, most_rows=30, source=_CLUSTERS),
        Geometry(512, 1, held=524_288, holders=16, most_rows=6, source=_CLUSTERS),
        Geometry(512, 1, held=524_288, holders=8, beside=8, most_rows=15, source=_CLUSTERS),
        Geometry(512, 1, held=1_048_576, holders=16, beside=8, most_rows=7, source=_CLUSTERS),
    ),
    "cooperative_exact": (
        Geometry(512, 1, held=262_144, holders=4, beside=8, fewest_rows=31, most_rows=33, source=_GRID),
        Geometry(512, 1, held=524_288, holders=8, beside=8, fewest_rows=16, most_rows=16, source=_GRID),
        Geometry(512, 1, held=1_048_576, holders=64, most_rows=2, source=_GRID),
        Geometry(512, 1, held=1_048_576, holders=16, beside=8, fewest_rows=8, most_rows=8, source=_GRID),
    ),
}
"""The same for rows that stay on chip, on Hopper, narrow ones first, and of one width the first that suits: 12 to 128
scores a thread. More clusters than the last of a width is for would not run at once; more rows than the last of
`row_exact` is for are held if their slots are many (`HELD_RANK`). CTAs that are no cluster share a row where that is
faster: all of them must be resident at once."""

GEOMETRIES = (GEOMETRY, GEOMETRY_BEFORE_HOPPER, GEOMETRY_SMALL, GEOMETRY_ROOMY, GEOMETRY_SHORT, GEOMETRY_ALONE)


def thresholds() -> dict[str, Threshold]:
    """Every threshold by name."""
    return {name: value for name, value in globals().items() if isinstance(value, Threshold)}
