"""Thresholds of the CUDA planner: switch widths and split limits, each with its source.

A source is the decision record (``docs/decisions/``) with a number's measurement, or "not measured" and what was
reasoned instead. What ``ksieve tune`` measures is no threshold, but data of a device (`ksieve.planning.shapes`).
"""

from __future__ import annotations

NOT_MEASURED = "not measured: "
"""Beginning of the source of a launch shape that was reasoned."""

SHORTEST_SAMPLED = 4096
"""Narrower rows, in scores, are never sampled: their view would be too small. Decision 2."""

SAMPLED_RATIO = 2
"""Rows of fewer than this many times k scores are not sampled. Decision 2."""

CROWDED_RATIO = 4
"""The same from `CROWDED` rows on: sampling saves latency, then no more. Decision 2."""

CROWDED = 2048
"""Rows from which `CROWDED_RATIO` holds. Decision 2."""

LINES_RANK = 1024
"""Smallest k that a row's width is divided by where a ratio of `ksieve.planning.shapes.Stride` is compared.
Decision 3."""

TIED_RESIDENT = 1 << 17
"""Bytes of a row beyond which it is streamed if ties have a preference, however few rows there are. Decision 45."""

TIED_BYTES = 1 << 16
"""Fewest bytes of such a row that is streamed where the rows do not fit on chip all at once. Decision 45."""

VALUED_BYTES = 1 << 17
"""Fewest bytes of a row that is streamed where values are asked for and rows do not fit on chip. Decision 45."""

SEGMENT = 2048
"""Fewest scores worth a CTA of their own in the split family. Decision 9."""

SPLITS = (64, 32, 16, 8, 4, 2)
"""CTAs per row that are tried, largest first. Decision 9."""

WIDEST_USUAL = 1_048_576
"""Wider rows, in scores, are shared by as many CTAs as run at once, in place of one of `SPLITS`. Decision 25."""

MOST_SPLITS = 256
"""CTAs that share a row, at most. Decision 25."""

MOST_SLICES = 1 << 29
"""Bytes of the workspace for more CTAs a row than `SPLITS` has, or the rows' own bytes if these are more.
Not measured: a small part of the memory of every device."""

MOST_STATISTICS = 16_384
"""Samples of a row that are ranked, beyond which its view is made sparser while that costs few candidates.
Decision 25."""

BINNED_ROWS = 16_384
"""Rows from which short ones are binned to separate launches. Decision 10."""

WIDEST_BINNED = 65_536
"""Of matrices no wider than this, in scores: wider ones hardly have such rows. Decision 10."""

BIN_WIDTH = 8192
"""Scores by which rows of one of these launches are longer than those before. Decision 10."""

MOST_BINS = 4
"""Launches for short rows; there is one more for all longer rows. Decision 10."""

SEGMENT_CTAS = 5
"""CTAs of a multiprocessor whose warps keep segments: more take as long, and ptxas would spill. Decision 52."""

LISTED_WIDTH = 16_384
"""Scores of a segment too long for a warp, up to which a CTA of the second launch keeps it on chip. Decision 52."""

CLUSTER = 8
"""CTAs of a cluster that does not hold its row. Not measured: the largest size that every device with clusters can
launch."""

SHORTEST_CLUSTERED = 12_288
"""Wider rows, in scores, are shared by a cluster while they are few. Decision 6."""

RESIDENT_RANK = 1024
"""Slots beyond which wide rows are resident however many they are: streamed, fewer slots have fewer candidates.
Decision 5."""

WARP_ROWS = 4
"""Rows for each multiprocessor from which a warp each keeps narrow ones: fewer do not fill the device with warps.
Decision 24."""

WARP_WIDTH = 1024
"""Widest of these rows, in scores; with twice as many a multiprocessor has registers for 16 warps alone.
Decision 24."""

WHOLE_QUARTERS = 3
"""If k is this many quarters of the width or more, most short rows are selected whole. Decision 8."""

WHOLE_WAVES = 8
"""Rows for each CTA that fits, up to which each has its own then: they end as soon as begun. Decision 8."""

TAIL_SIGMAS = 28
"""Standard deviations above the mean of the admitted tail that storage is given for. Decision 12."""

SORTED_PERIODS = 2
"""Periods of a view by which a sorted row's boundary can lie lower than its rank says. Decision 12."""

COLUMN_SIGMAS = 6
"""Standard deviations above its mean share of the tail that a thread's column is given for. Decision 12."""

BLOCKS_SHARED = 1 << 15
"""Fewest bytes of a row of blocks that are worth a CTA of their own in a cluster. Not measured: a multiprocessor reads
them in about the time that a cluster takes to exchange counts."""

STUDIED_SLICES = 1 << 25
"""Most bytes of the workspace that rows of blocks are pooled to where statistics are made. Not measured: statistics are
for study, and may take longer."""

EXACT_CAPACITY = 4096
"""Fewest candidates stored by families that do not sample. Not measured: 32 KiB, which every device has."""
