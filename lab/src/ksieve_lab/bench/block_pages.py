"""The section of docs/reference/benchmarks.md on blocks, pools and forced entries."""

from __future__ import annotations

from typing import Any

from ksieve_lab.bench import pages
from ksieve_lab.bench.blocks import AROUND, BARE, OWN, WRITE, name_of

LARGE = 1024
"""Rows from which a block selection is held to a fraction of the plain read."""

TARGET_READ, TARGET_LEVEL, TARGET_POOLS = 0.8, 1.10, 1.15
TARGET_GLUE, TARGET_FEW = 1.0, 2.0
"""Times of the same result around a selector over ours: of all cases, and of 1 to 64 rows."""


def section(link: str, stem: str, payload: dict[str, Any]) -> str:
    """Table of a result file, and which targets it meets.

    Raises
    ------
    ValueError
        An answer is not exact, or was not measured.
    """
    parts = []
    if (judged := payload["results"].get("verified")) is not None:
        parts = _verified(link, payload, judged)
    if payload["results"]["shapes"]:
        parts += _measured(link, stem, payload)
    return "\n\n".join(parts)


def _verified(link: str, payload: dict[str, Any], judged: dict[str, Any]) -> list[str]:
    if not judged["exact"]:
        raise ValueError(f"{link}: an answer is not exact")
    line = [
        link, payload["settings"]["device"], f"{judged['rows']:,}", str(judged["failed"]), str(len(judged["kinds"])),
        str(len(judged["families"])), ", ".join(judged["dtypes"]), f"{judged['by_verify']:,}",
        payload["environment"]["commit"][:7],
    ]  # fmt: skip
    heads = (
        "file", "device", "rows", "failed", "kinds of calls", "families", "dtypes", "by `ksieve.verify` too", "commit"
    )  # fmt: skip
    return [
        f"Verified rows of every model's options and of others, {pages.machine(payload)}. Each row is judged where it "
        "is selected from, by PyTorch operations that sort it whole:",
        pages.fenced("text", pages.command(payload)),
        pages.table(heads, [line]),
    ]


def _measured(link: str, stem: str, payload: dict[str, Any]) -> list[str]:
    found = [case for case in payload["results"]["shapes"] if "skipped" not in case]
    for case in found:
        if case["selectors"][OWN].get("exact") is not True:
            raise ValueError(f"{link}: {name_of(case)}: no exact answer was measured")
    settings = payload["settings"]
    columns = (
        "model, rows x positions", "dtype", "plain read, us", "ksieve, us", "of the plain read", "selection, us",
        "write, us", "over both", *(f"{name} / ksieve" for name in AROUND),
    )  # fmt: skip
    rows = [
        [
            name_of(case), case["dtype"], f"{case['floor_us']:.1f}", f"{case['selectors'][OWN]['median_us']:.1f}",
            f"{case['selectors'][OWN]['of_floor']:.2f}", *(_us(case, name) for name in (BARE, WRITE)),
            f"{case['of_parts']:.2f}" if "of_parts" in case else "",
            *(f"{case['times_faster'][name]:.2f}" if name in case["times_faster"] else "" for name in AROUND),
        ]
        for case in found
    ]  # fmt: skip
    return [
        f"Ragged lengths, medians of {settings['rounds']} rounds, {pages.machine(payload)}; {link}. Every answer "
        "was judged, all rows on their device and the first ones by `ksieve.verify`:",
        pages.fenced("text", pages.command(payload)),
        "\n".join(f"* {line}" for line in _targets(found)) if settings["device"] == "cuda" else "",
        *pages.images(payload, stem),
        pages.table(columns, rows),
    ]


def _us(case: dict[str, Any], name: str) -> str:
    facts = case["selectors"].get(name, {})
    return f"{facts['median_us']:.1f}" if "median_us" in facts else ""


def _targets(found: list[dict[str, Any]]) -> list[str]:
    """The least or most of each target's cases; nothing of a target without cases."""
    few, many = ([case for case in found if (case["rows"] >= LARGE) == large] for large in (False, True))
    lines = []

    def tell(what: str, values: list[float], target: float, *, most: bool = False) -> None:
        if values:
            value = (max if most else min)(values)
            lines.append(
                f"{what}: {'at most' if most else 'at least'} {value:.2f} ({pages.beside(value, target, most=most)})"
            )

    reads = [c["selectors"][OWN]["of_floor"] for c in many if c["model"].startswith("blocks")]
    tell("Block selection, of the plain read", reads, TARGET_READ)
    for model, target in (("DeepSeek-V4.1", TARGET_LEVEL), ("GLM-5.3, Qwen3.8", TARGET_POOLS)):
        parts = [c["of_parts"] for c in many if c["model"] == model and "of_parts" in c]
        tell(f"{model}, over its selection plus the write", parts, target, most=True)
    for what, cases, target in (("1,024 rows and more", many, TARGET_GLUE), ("1 to 64 rows", few, TARGET_FEW)):
        ratios = [ratio for c in cases for ratio in c["times_faster"].values()]
        tell(f"The same result around a selector, {what}, over ours", ratios, target)
    return lines
