"""Thresholds of the CUDA planner: switch widths and split limits, each with its source.

A source is the decision record (``docs/decisions/``) or the committed result file (``benchmarks/results/``) that gives
a number and its measurement, relative to the repository root, or ``"not measured: "`` and what was reasoned instead.
What ``ksieve tune`` measures is no threshold, but data of a device (`ksieve.planning.shapes`).
"""

from __future__ import annotations

from typing import Self

NOT_MEASURED = "not measured: "


class Threshold(int):
    """An integer with its meaning and source.

    `meaning`: the decision that depends on it, and its unit. `source`: decision record or result file with its
    measurement.
    """

    meaning: str
    source: str

    def __new__(cls, value: int, meaning: str = "", source: str = "") -> Self:
        """Make an int with these attributes."""
        made = super().__new__(cls, value)
        made.meaning, made.source = meaning, source
        return made


_SAMPLE = "docs/decisions/0002-one-read-with-a-sample.md"
_VIEWS = "docs/decisions/0003-lines-and-quads.md"
_RESIDENT = "docs/decisions/0005-resident-rows.md"
_CLUSTERS = "docs/decisions/0006-clusters.md"
_REGISTER_ROWS = "docs/decisions/0008-rows-in-registers.md"
_LENGTH_BINS = "docs/decisions/0010-length-bins.md"
_STORAGE = "docs/decisions/0012-candidate-storage.md"
_SPLIT_ROWS = "docs/decisions/0009-split-rows.md"
_NARROW_ROWS = "docs/decisions/0024-narrow-rows.md"
_HUGE_ROWS = "docs/decisions/0025-huge-rows.md"
_TIES = "docs/decisions/0045-ties-and-values-are-streamed.md"

SHORTEST_SAMPLED = Threshold(
    4096, "narrower rows, in scores, are never sampled: their view would be too small", _SAMPLE
)
LINES_RANK = Threshold(
    1024,
    "smallest k that a row's width is divided by where a ratio of `ksieve.planning.shapes.Stride` is compared",
    _VIEWS,
)
SAMPLED_RATIO = Threshold(2, "rows of fewer than this many times k scores are not sampled", _SAMPLE)
CROWDED_RATIO = Threshold(
    4,
    "the same from `CROWDED` rows on: sampling saves latency, then no more",
    _SAMPLE,
)
CROWDED = Threshold(2048, "rows from which `CROWDED_RATIO` holds", _SAMPLE)
TIED_RESIDENT = Threshold(
    1 << 17, "bytes of a row beyond which it is streamed if ties have a preference, however few rows there are", _TIES
)
TIED_BYTES = Threshold(
    1 << 16, "fewest bytes of such a row that is streamed where the rows do not fit on chip all at once", _TIES
)
VALUED_BYTES = Threshold(
    1 << 17, "fewest bytes of a row that is streamed where values are asked for and rows do not fit on chip", _TIES
)
SEGMENT = Threshold(2048, "fewest scores worth a CTA of their own in the split family", _SPLIT_ROWS)
SPLITS = (64, 32, 16, 8, 4, 2)
"""CTAs per row that are tried, largest first; docs/decisions/0009-split-rows.md."""
WIDEST_USUAL = Threshold(
    1_048_576,
    "wider rows, in scores, are shared by as many CTAs as run at once, in place of one of `SPLITS`",
    _HUGE_ROWS,
)
MOST_SPLITS = Threshold(256, "CTAs that share a row, at most", _HUGE_ROWS)
MOST_SLICES = Threshold(
    1 << 29,
    "bytes of the workspace that more CTAs a row than `SPLITS` has may take, or those of the rows if these are more",
    NOT_MEASURED + "a small part of the memory of every device",
)
MOST_STATISTICS = Threshold(
    16_384,
    "samples of a row that are ranked, beyond which its view is made sparser while that costs few candidates",
    _HUGE_ROWS,
)

BINNED_ROWS = Threshold(16_384, "rows from which short ones are binned to separate launches", _LENGTH_BINS)
WIDEST_BINNED = Threshold(
    65_536, "of matrices no wider than this, in scores: wider ones hardly have such rows", _LENGTH_BINS
)
BIN_WIDTH = Threshold(8192, "scores by which rows of one of these launches are longer than those before", _LENGTH_BINS)
MOST_BINS = Threshold(4, "of which there are so many, and one more for all longer rows", _LENGTH_BINS)
CLUSTER = Threshold(
    8,
    "CTAs of a cluster that does not hold its row",
    NOT_MEASURED + "the largest size that every device with clusters can launch",
)
SHORTEST_CLUSTERED = Threshold(12_288, "wider rows, in scores, are shared by a cluster while they are few", _CLUSTERS)
RESIDENT_RANK = Threshold(
    1024,
    "slots beyond which wide rows are resident however many they are: streamed, fewer slots have fewer candidates",
    _RESIDENT,
)
WARP_ROWS = Threshold(
    4,
    "rows for each multiprocessor from which a warp each keeps narrow ones: fewer do not fill the device with warps",
    _NARROW_ROWS,
)
WARP_WIDTH = Threshold(
    1024,
    "widest of these rows, in scores; with twice as many a multiprocessor has registers for 16 warps alone",
    _NARROW_ROWS,
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
BLOCKS_SHARED = Threshold(
    1 << 15,
    "fewest bytes of a row of blocks that are worth a CTA of their own in a cluster",
    NOT_MEASURED + "a multiprocessor reads them in about the time that a cluster takes to exchange counts",
)
STUDIED_SLICES = Threshold(
    1 << 25,
    "most bytes of the workspace that rows of blocks are pooled to where statistics are made",
    NOT_MEASURED + "statistics are for study, and may take longer",
)
EXACT_CAPACITY = Threshold(
    4096, "fewest candidates stored by families that do not sample", NOT_MEASURED + "32 KiB, which every device has"
)


def thresholds() -> dict[str, Threshold]:
    """Every threshold by name."""
    return {name: value for name, value in globals().items() if isinstance(value, Threshold)}
