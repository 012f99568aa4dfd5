"""Shapes (rows, width) of score matrices that benches measure, by name."""

from __future__ import annotations

OPERATOR = tuple((m, n) for n in (131_072, 262_144, 524_288, 1_048_576) for m in (512, 1024, 2048, 4096, 8192))
DECODE = tuple(
    (m, n)
    for n in (8192, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
    for m in (1, 2, 4, 8, 16, 32, 64, 128, 256)
)
SHORT = tuple(
    (m, n)
    for n in (
        2049, 4096, 8192, 16_384, 16_900, 17_408, 20_480, 24_576,
        25_600, 32_768, 33_000, 40_960, 45_056, 49_152, 65_536,
    )
    for m in (64, 256, 1024, 2048, 4096, 8192)
)  # fmt: skip
BETWEEN = tuple(
    (m, n)
    for n in (16_384, 20_000, 32_768, 50_000, 65_536, 100_000, 131_072, 200_000, 262_144, 400_000, 524_288, 1_048_576)
    for m in (1, 2, 3, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64)
) + tuple(
    (m, n)
    for n in (3072, 4096, 8192, 10_000, 12_288, 16_384, 20_480, 24_576, 30_000, 32_768, 40_960, 50_000, 65_536, 131_072)
    for m in (66, 100, 132, 200, 264, 400, 528, 1000, 2112, 4096)
)
MANY_SHORT = (
    (65_536, 64, 6), (65_536, 128, 8), (65_536, 256, 8), (8192, 128, 16), (4096, 256, 8), (8192, 1024, 16),
    (100_000, 1000, 10), (4096, 4096, 2048), (10_000, 10_000, 256),
)  # fmt: skip
"""Rows, width and k of many short rows, as of routers, retrieval and samplers."""
GENERAL = (
    *MANY_SHORT, (1_000_000, 64, 4), (16_384, 8192, 128), (64, 128_256, 50), (16, 1_000_000, 100),
    (32, 1_048_576, 65_536), (1, 100_000_000, 1000), (1, 1_000_000_000, 100),
)  # fmt: skip
"""Rows, width and k outside the indexer: many short rows, sampling from a vocabulary, few huge rows."""
QUICK = ((512, 131_072), (2048, 262_144), (64, 262_144), (1024, 16_384), (4, 65_536))
SHAPES: dict[str, tuple[tuple[tuple[int, int], ...], str]] = {
    "operator": (OPERATOR, "causal"),
    "decode": (DECODE, "ragged"),
    "short": (SHORT, "ragged"),
    "between": (BETWEEN, "ragged"),
    "quick": (QUICK, "causal"),
}
"""Named shape lists, each with the lengths it is measured with: the paper's operator matrix, decode batches, rows
from just above the usual k to 64K, and rows and widths at and between those that ``ksieve tune`` measures."""
