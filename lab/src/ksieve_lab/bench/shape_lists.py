"""Shapes of score matrices that benches measure, by name, and what the option ``--shapes`` of a bench may say.

An item of ``--shapes`` may have a word after a colon, as in ``decode:full``; what it means is the reader's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ksieve.cli.options import parse_count, parse_shape
from ksieve.core.errors import ArgumentError
from ksieve_lab.bench.scores import check_lengths
from ksieve_lab.traces.serving import PAPER_REQUESTS

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
WORST = ((512, 131_072), (1024, 262_144), (512, 1_048_576), (4096, 65_536), (4096, 49_152), (4096, 16_384))
"""Enough rows to fill a device, over the widths at which the planner changes its mind."""
SERVED = ((1, 262_144), (16, 131_072), (64, 65_536), (512, 131_072), (4096, 16_384), (1024, 262_144))
"""Few long rows, whose calls are latency, and enough rows to fill a device, whose calls are bandwidth."""
SHAPES: dict[str, tuple[tuple[tuple[int, int], ...], str]] = {
    "operator": (OPERATOR, "causal"),
    "decode": (DECODE, "ragged"),
    "short": (SHORT, "ragged"),
    "between": (BETWEEN, "ragged"),
    "worst": (WORST, "causal"),
    "served": (SERVED, "causal"),
}
"""Named shape lists, each with its lengths: the paper's operator matrix, decode batches, rows from just above the usual
k to 64K, and a few. One list has rows and widths at and between what ``ksieve tune`` measures."""


@dataclass(frozen=True)
class Listed:
    """What a text of ``--shapes`` asks for: shapes, prompts or numbers, as the reader makes them.

    `how`: the word after the colon, the same for all. `name`: of the list, for the name of a result file.
    """

    items: Sequence[Any]
    how: str = ""
    name: str = "shapes"


Reader = Callable[[str], Listed]


def words(text: str, separator: str = ",") -> list[str]:
    """Split a list."""
    return [part.strip() for part in text.split(separator) if part.strip()]


def _items(text: str, usual: str) -> tuple[list[str], str]:
    """Items, and the one word that follows colons."""
    pairs = [(item, how) for item, _, how in (part.partition(":") for part in words(text))]
    found = {how for _, how in pairs}
    if not pairs or len(found) > 1:
        raise ArgumentError("shapes", repr(text), "at least one item, all with the same word after a colon, or none")
    return [item for item, _ in pairs], found.pop() or usual


def matrices(text: str) -> Listed:
    """Read named lists, and rows x width, with lengths after a colon."""
    items, how = _items(text, "")
    listed: list[tuple[int, int]] = []
    usual = "causal"
    for item in items:
        if item in SHAPES:
            some, usual = SHAPES[item]
            listed += some
            continue
        takes = f"{', '.join(SHAPES)}, or rows x width such as 512x131072 or 512x128k, with lengths as in decode:full"
        listed.append(parse_shape("shapes", item, takes))
    try:
        check_lengths(how or usual)
    except ArgumentError as error:
        raise ArgumentError("shapes", error.got, f"after a colon {error.takes}") from None
    return Listed(listed, how or usual, items[0] if len(items) == 1 and items[0] in SHAPES else "shapes")


def matrices_and_k(text: str) -> Listed:
    """Read "general", and rows x width:k."""
    listed: list[tuple[int, int, int]] = []
    for part in words(text):
        item, _, k = part.partition(":")
        if part == "general":
            listed += GENERAL
        else:
            takes = "general, or rows x width and k, such as 65536x128:8"
            listed.append((*parse_shape("shapes", item, takes), *numbers(k or "none", takes).items))
    return Listed(listed)


def plain(text: str) -> Listed:
    """Read rows x width; an empty text is an empty list."""
    return Listed([parse_shape("shapes", item) for item in words(text)])


def sharded(text: str) -> Listed:
    """Read rows x width of whole rows, in contiguous shards, or in interleaved ones with that word after a colon."""
    listed = []
    for part in words(text):
        item, _, how = part.partition(":")
        if how not in ("", "interleaved"):
            raise ArgumentError("shapes", repr(part), "rows x width, such as 64x131072 or 64x131072:interleaved")
        listed.append((*parse_shape("shapes", item), "interleaved 64" if how else "contiguous"))
    return Listed(listed)


def prompt_of(request: str | int) -> int:
    """Prompt tokens of a request: a name of the paper's, or a number; `ArgumentError` if it is neither."""
    text = str(request).strip()
    if text.upper() in PAPER_REQUESTS:
        return PAPER_REQUESTS[text.upper()]
    takes = f"{', '.join(PAPER_REQUESTS)} or a number of prompt tokens"
    return int(numbers(text, takes).items[0])


def requests(text: str) -> Listed:
    """Read requests, as names and prompt tokens."""
    items, how = _items(text, "")
    return Listed([(item, prompt_of(item)) for item in items], how)


def numbers(text: str, takes: str = "numbers of at least 1, separated by commas") -> Listed:
    """Read counts, such as 8 or 1M."""
    try:
        listed = [parse_count(part, minimum=1) for part in words(text)]
    except ValueError:
        listed = []
    if not listed:
        raise ArgumentError("shapes", repr(text), takes)
    return Listed(listed)
