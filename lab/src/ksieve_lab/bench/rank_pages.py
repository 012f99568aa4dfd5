"""The section of docs/reference/benchmarks.md on rows that lie on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ksieve_lab.bench import pages
from ksieve_lab.report import ranks

_COLUMNS = ("rows", "dtype", "layout", "local", "all-gather", "pairs", "planned", "modelled", "schedule")
_SELECTORS = ("pairs", "planned")
_ADDED = ("gathered", *_SELECTORS)

TARGETS = {4: 1.4, 8: 2.5}
"""Times as fast as a gather of pairs with so many GPUs, for 8,192 rows of 1,048,576 scores of float32."""

_TARGET_SHAPE = (8192, 1 << 20, "float32")


def section(files: Sequence[tuple[str, str, dict[str, Any]]], predictions: dict[str, Any] | None = None) -> str:
    """Tables of result files of `ksieve bench ranks`, each given as link, stem and payload; and of all GPUs' together.

    Raises
    ------
    ValueError
        An answer of a file is not exact.
    """
    listed = sorted(files, key=lambda file: (file[2]["settings"]["device"], file[2]["results"]["world"]))
    for link, _, payload in listed:
        found = payload["results"]["verified"] or {"exact": True, "same_on_every_rank": True}
        judged = [case["selectors"][name]["exact"] for case in payload["results"]["shapes"] for name in _SELECTORS]
        judged += [(payload["results"].get("replays") or {"exact": True})["exact"]]
        if not (found["exact"] and found["same_on_every_rank"] and all(judged)):
            raise ValueError(f"{link}: an answer is not exact")
    parts = []
    verified = []
    for link, _, payload in listed:
        found, again = payload["results"]["verified"], payload["results"].get("replays")
        if found is not None:
            wrong = found["failed"] + (again["failed"] if again else 0)
            card = ranks.card_of(payload) if payload["settings"]["device"] == "cuda" else "cpu"
            verified.append(
                [link, str(payload["results"]["world"]), card, f"{found['rows']:,}",
                 f"{again['replays']:,}" if again else "", str(wrong), f"`{found['digest'][:16]}`",
                 payload["environment"]["commit"][:7]]
            )  # fmt: skip
    if verified:
        parts.append(
            "Verified rows of many widths, k, dtypes, layouts and outputs, and replays of CUDA graphs with other "
            "scores and lengths each. Rows follow from the seed alone, so that equal digests are equal bytes:"
        )
        columns = ("file", "ranks", "device", "rows", "replays", "failed", "digest", "commit")
        parts.append(pages.table(columns, verified))
    parts += _worlds([(link, payload) for link, _, payload in listed], predictions)
    for link, stem, payload in listed:
        results = payload["results"]
        if not results["shapes"]:
            continue
        lines = []
        for case in results["shapes"]:
            own = case["selectors"]
            times = (f"{own[name]['added_us']:,.0f}" if name in own else "" for name in _ADDED)
            lines.append(
                [
                    f"{case['rows']:,} x {case['width']:,}", case["dtype"], case.get("layout", "contiguous"),
                    f"{own['local']['median_us']:,.0f}", *times,
                    f"{own['planned']['modelled_us']:,.0f}", f"`{own['planned']['schedule']}`",
                ]
            )  # fmt: skip
        parts.append(
            f"{results['world']} rank(s), k = {payload['settings']['k']:,} ({pages.machine(payload)}); {link}. "
            "Microseconds of the local selection, and what is added to it by a gather of pairs as engines write it, by "
            "the schedule of pairs, and by the planner's:"
        )
        parts += pages.images(payload, stem)
        parts.append(pages.table(_COLUMNS, lines))
    commands = dict.fromkeys(pages.command(payload) for *_, payload in listed)
    parts.append(pages.fenced("text", "\n".join(f"torchrun --nproc-per-node N -m {command}" for command in commands)))
    return "\n\n".join(parts)


def _worlds(listed: Sequence[tuple[str, dict[str, Any]]], predictions: dict[str, Any] | None) -> list[str]:
    """Figures over the number of GPUs, and a table of the shape that has targets."""
    payloads = [payload for _, payload in listed]
    found, expected = ranks.curves(payloads, predictions)
    if not found:
        return []
    by_world = {p["results"]["world"]: (link, p) for link, p in listed if ranks.names(p, "")}
    alone = [
        case["selectors"]["local"]["median_us"]
        for payload in payloads if payload["results"]["world"] == 1 and ranks.names(payload, "")
        for case in ranks.contiguous(payload) if (case["rows"], case["width"], case["dtype"]) == _TARGET_SHAPE
    ]  # fmt: skip
    lines = []
    for world, times in found.get(_TARGET_SHAPE, {}).items():
        link, payload = by_world[world]
        faster, foreseen = times["gathered"] / times["planned"], expected.get(_TARGET_SHAPE, {}).get(world)
        lines.append(
            [
                str(world), f"{times['gathered']:,.0f}", f"{times['planned']:,.0f}",
                *(f"{foreseen[name]:,.0f}" if foreseen else "" for name in ("gathered", "planned")), f"{faster:.2f}",
                pages.beside(faster, TARGETS[world]) if world in TARGETS else "",
                f"{alone[0] / world / times['planned']:.2f}" if alone else "", ranks.card_of(payload),
                payload["environment"]["commit"][:7], link,
            ]
        )  # fmt: skip
    text = "Whole calls over the number of GPUs, each measured at the commit and on the cards that the tables name"
    if expected and predictions:
        known = " and ".join(map(str, predictions["settings"]["measured"]))
        text += f"; what was predicted from measurements with {known} GPUs is hollow and dotted"
    images = [f"![{name.replace('-', ' ')}](../figures/{name}.svg)" for name in ranks.world_names(payloads)]
    columns = ("GPUs", "gather, us", "planned, us", "gather predicted", "planned predicted", "times as fast", "",
               "rate of each, of one GPU's", "card", "commit", "file")  # fmt: skip
    rows, width, dtype = _TARGET_SHAPE
    shape = f"{rows:,} rows of {width:,} {dtype} scores, whole calls in microseconds:"
    return [f"{text}:", *images, *([shape, pages.table(columns, lines)] if lines else [])]


def predicted(link: str, payload: dict[str, Any]) -> str:
    """Table of a result file of `ksieve bench ranks --predict`."""
    settings = payload["settings"]
    lines = [
        [
            str(case["world"]), f"{case['rows']:,} x {case['width']:,}", case["dtype"], f"{case['local_us']:,.0f}",
            *(f"{case['added_us'][name]:,.0f}" for name in ("gathered", "planned")),
            *(f"{case['rate_of_one'][name]:.2f}" for name in ("gathered", "planned")), f"`{case['schedule']}`",
        ]
        for case in payload["results"]["shapes"]
    ]  # fmt: skip
    text = (
        f"Predicted, k = {settings['k']:,}; {link}. Shards and gathers continue the lines through those of "
        f"{' and '.join(map(str, settings['measured']))} GPUs, schedules are modelled. Microseconds as above, and the "
        "rate of each GPU as a share of what one GPU does alone with whole rows:"
    )
    heads = ("GPUs", "rows", "dtype", "local", "all-gather", "planned", "rate, all-gather", "rate, planned", "schedule")
    return "\n\n".join((text, pages.table(heads, lines), pages.fenced("sh", pages.command(payload))))
