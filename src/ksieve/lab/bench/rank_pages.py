"""The section of docs/reference/benchmarks.md on rows that lie on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ksieve.lab.bench import pages

_SELECTORS = ("pairs", "planned")
_ADDED = ("gathered", *_SELECTORS)


def section(files: Sequence[tuple[str, str, dict[str, Any]]]) -> str:
    """Tables of result files of `ksieve bench ranks`, each given as link, stem and payload.

    Raises
    ------
    ValueError
        An answer of a file is not exact.
    """
    listed = sorted(files, key=lambda file: (file[2]["settings"]["device"], file[2]["results"]["world"]))
    for link, _, payload in listed:
        found = payload["results"]["verified"] or {"exact": True, "same_on_every_rank": True}
        judged = [case["selectors"][name]["exact"] for case in payload["results"]["shapes"] for name in _SELECTORS]
        if not (found["exact"] and found["same_on_every_rank"] and all(judged)):
            raise ValueError(f"{link}: an answer is not exact")
    parts = []
    verified = [
        [
            link, str(payload["results"]["world"]), payload["settings"]["device"], f"{found['rows']:,}",
            str(found["failed"]), f"`{found['digest'][:16]}`", payload["environment"]["commit"][:7],
        ]
        for link, _, payload in listed
        if (found := payload["results"]["verified"]) is not None
    ]  # fmt: skip
    if verified:
        parts.append(
            "Verified rows of many widths, k, dtypes, layouts and outputs. Rows follow from the seed alone, so that "
            "equal digests are equal bytes:"
        )
        parts.append(pages.table(("file", "ranks", "device", "rows", "failed", "digest", "commit"), verified))
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
                    f"{case['rows']:,} x {case['width']:,}", case["dtype"], f"{own['local']['median_us']:,.0f}", *times,
                    f"{own['planned']['modelled_us']:,.0f}", f"`{own['planned']['schedule']}`",
                ]
            )  # fmt: skip
        parts.append(
            f"{results['world']} rank(s), k = {payload['settings']['k']:,} ({pages.machine(payload)}); {link}. "
            "Microseconds of the local selection, and what is added to it by a gather of pairs as engines write it, by "
            "the schedule of pairs, and by the planner's:"
        )
        parts += pages.images(payload, stem)
        parts.append(
            pages.table(("rows", "dtype", "local", "all-gather", "pairs", "planned", "modelled", "schedule"), lines)
        )
    commands = dict.fromkeys(pages.command(payload) for *_, payload in listed)
    parts.append(pages.fenced("text", "\n".join(f"torchrun --nproc-per-node N -m {command}" for command in commands)))
    return "\n\n".join(parts)


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
