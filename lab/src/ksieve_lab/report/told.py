"""What the terminal shows of a result: its cases, the tables of its section, and notes on what has no time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ksieve_lab.report import specs
from ksieve_lab.report.specs.gpu import OWN, title
from ksieve_lab.report.tables import File, cells, find

Facts = Mapping[str, Any]

SHOWN = ("operator", "model", "family", "lengths", "layout", "k", "dtype", "call", "of_parts", "times_faster")
"""Facts of a case, or of ksieve there, that have a column where any case has them."""

READ = ("floor_kernel", "floor_terabytes_per_second")
"""The same where nothing is measured but plain reads."""

SHARES = ("of_before", "of_plain", "added_us", "of_floor")
"""Of a selector; the first that any has is in brackets."""


class Table(NamedTuple):
    """Columns, rows of one text per column, and a title."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


class Head(str):
    """A headline."""


class Note(str):
    """A line for stderr."""


Said = Table | str


def told(payload: Facts) -> Iterator[Said]:
    """Tables and lines about a result, which may lack answers; notes say why."""
    results, section = payload["results"], specs.section_of(payload["bench"])
    cases = cases_of(results)
    yield Head((section.head or title)(payload))
    yield from _cases([case for case in cases if "selectors" in case or "floor_us" in case])
    for table in section.tables:
        note, columns, rows = cells(table, [File(payload["bench"], payload)], missing="failed")
        if rows:
            yield Table(
                list(map(_plain, columns)), [[_plain(cell or "") for cell in row] for row in rows], _plain(note)
            )
    for found in (found for name in ("verified", "replays") if (found := results.get(name)) is not None):
        replays = f"{found['replays']:,} replays, " if "replays" in found else ""
        yield f"verified {replays}{found['rows']:,} rows: {found['failed']:,} failed"
        for fault in found.get("wrong", ()):
            yield f"{fault['kind']}, {fault['dtype']}, rows {fault['rows']}: {', '.join(fault['judge'])}"
    if "rounds" in payload["settings"]:
        yield f"medians of {payload['settings']['rounds']} rounds"
    yield from _notes(results, cases)


def verdicts(payload: Facts) -> Iterator[bool | None]:
    """Whether each answer of ksieve was exact; None for a missing one."""
    for path in specs.section_of(payload["bench"]).exact:
        yield from find(payload["results"], path)
    yield from (None for _ in payload["results"].get("lost", ()))


def cases_of(results: Facts) -> list[Facts]:
    """Every case of a result, skipped ones too."""
    traces = results.get("traces", {}).values()
    found = results.get("shapes") or results.get("cases") or [one for trace in traces for one in trace["invocations"]]
    return list(found)


def name_of(case: Facts) -> str:
    """Write rows and width of a case, of blocks rows and positions."""
    return f"{case['rows']} x {case.get('positions', case['width'])}"


def microseconds(facts: Facts, share: str = "") -> str:
    """Write a time and a share of it, or why there is none."""
    if "median_us" not in facts:
        return "-" if "unsupported" in facts else "failed"
    value = facts.get(share)
    beside = f" ({value:.2f})" if value is not None and math.isfinite(value) else ""
    return f"{facts['median_us']:.1f}{beside}" + (" INEXACT" if facts.get("exact") is False else "")


def _cases(measured: Sequence[Facts]) -> Iterator[Said]:
    """One row for each case: what it is, the plain read, and the time of each selector."""
    if not measured:
        return
    every = [facts for case in measured for facts in case.get("selectors", {}).values()]
    names = dict.fromkeys(name for case in measured for name in case.get("selectors", {}))
    share = next((share for share in SHARES if any(share in facts for facts in every)), "")
    columns = {key: [_fact(case, key) for case in measured] for key in (SHOWN if names else READ)}
    columns = {key.replace("_", " "): texts for key, texts in columns.items() if any(texts)}
    if any("floor_us" in case for case in measured):
        columns["floor"] = [f"{case['floor_us']:.1f}" for case in measured]
    for name in names:
        found = (case.get("selectors", {}).get(name) for case in measured)
        columns[name] = ["" if facts is None else microseconds(facts, share) for facts in found]
    rows = list(zip(map(name_of, measured), *columns.values(), strict=True))
    yield Table(["rows x width", *columns], rows)
    yield "microseconds" + (f"; in brackets {share.replace('_', ' ')}" if share else "")


def _fact(case: Facts, key: str) -> str:
    value = case.get(key, case.get("selectors", {}).get(OWN, {}).get(key, ""))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {ratio:.2f}" for name, ratio in value.items())
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _plain(text: str) -> str:
    """A text of a page without its marks and links."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("**", "").replace("`", "")


def _notes(results: Facts, cases: Sequence[Facts]) -> Iterator[Note]:
    """Why cases and selectors have no time, and what was not compared."""
    steps = results.get("steps", {})
    others = [
        *results.get("requests", ()), *results.get("activation", {}).get("cells", ()),
        *({"selectors": {OWN: call}, **call} for call in results.get("calls", ())),
        *({"request": name, "selectors": steps[name]["variants"] | steps[name]["peers"]}
          for name in (steps if isinstance(steps, Mapping) else ())),
    ]  # fmt: skip
    told: dict[str, list[str]] = {}
    for case in (*cases, *others):
        what = " ".join(filter(None, (case.get("operator"), case.get("request") or name_of(case))))
        if "skipped" in case:
            told.setdefault(f"skipped, {case['skipped']}", []).append(what)
        for name, facts in case.get("selectors", {}).items():
            wrong = "not exact" if facts.get("exact") is False else None
            if why := facts.get("error") or facts.get("unsupported") or wrong:
                told.setdefault(f"{name}: {why}", []).append(what)
    for why, where in told.items():
        some = ", ".join(dict.fromkeys(where[:4])) + (f" and {len(where) - 4} more" if len(where) > 4 else "")
        yield Note(f"{some} {why}")
    reasons: dict[str, dict[str, None]] = {}
    for skipped in (results.get("peers_skipped", {}), *(each.get("skipped_peers", {}) for each in others)):
        for name, reason in skipped.items():
            reasons.setdefault(reason, {})[name] = None
    yield from (Note(f"not compared: {', '.join(names)} ({reason})") for reason, names in reasons.items())
    for lost in results.get("lost", ()):
        by = OWN if lost["by"] == OWN else "the engine's own operator"
        yield Note(
            f"the GPU context was lost by {by} in {lost['call']} ({lost['error']}), and nothing was measured after it: "
            f"--only '!{lost['call']}' measures the others"
        )
