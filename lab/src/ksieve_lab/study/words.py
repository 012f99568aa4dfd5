"""Text of a study's numbers, shared by terminal, report and documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ksieve_lab.study.compare import BEYOND, PAPER_K, Line, Value, all_tied, compare
from ksieve_lab.study.tally import MOST, rank_text
from ksieve_lab.study.verdict import NO, YES

Results = Mapping[str, Any]
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Column names, and rows of cells; empty cells have no value."""


def verdict_sentence(results: Results) -> str:
    """The answer, a colon, and a sentence about the plans that would run."""
    answer = results["verdict"]["answer"]
    captures: Sequence[Mapping[str, Any]] = results["captures"]
    names = _joined(c["plan"]["name"] for c in captures)
    which = "these scores" if len(captures) == 1 else f"all {len(captures)} captures"
    if answer == YES:
        if names == "direct":
            return f"{YES}: rows are read once, and nothing is sampled"
        return f"{YES}: sampling with {names} holds on {which}"
    failing = _joined(c["plan"]["name"] for c in captures if not c["plan"]["holds"])
    why = (
        "the plan samples nothing and scans rows twice"
        if failing == "direct"
        else f"the plan's {failing} does not hold"
    )
    if answer == NO:
        return f"{NO}: {why}, and no named policy holds on {which}"
    return f"{answer}: {why}"


def verdict_table(results: Results) -> Table:
    """Effect of the plan of each capture on its rows."""
    columns = ("capture", "verdict", "plan", "underfill", "candidates / K", "row scans", "tied rows")
    rows: list[tuple[str, ...]] = []
    for c in results["captures"]:
        plan = c["plan"]
        rows.append((
            c["name"], c["verdict"]["answer"], f"{plan['name']} on {plan['device']}", underfill(plan),
            "" if plan["name"] == "direct" else candidates(c, plan), f"{plan['traffic']:.3f}",
            f"{c['tail']['tied']:,} of {c['studied']:,}",
        ))  # fmt: skip
    return columns, rows


def policy_table(results: Results) -> Table:
    """Every named policy on every capture."""
    captures = results["captures"]
    columns = ("policy", *(f"{c['name']}: median / K (5 to 95 %), underfill, row scans" for c in captures))
    rows = [
        (entry["name"], *(_policy(c, c["policies"][i]) for c in captures))
        for i, entry in enumerate(captures[0]["policies"])
    ]
    return columns, rows


def comparison_table(results: Results, figure: str | None = None) -> Table:
    """The quantities of one figure or of all, with the paper's column at the paper's own k."""
    lines = [line for line in compare(dict(results)) if figure in (None, line.figure)]
    paper = results["k"] == PAPER_K
    columns = (
        "",
        *(["the paper found"] if paper else []),
        "theory predicts",
        *(c["name"] for c in results["captures"]),
    )
    rows = [
        (line.quantity, *([_value(line, line.paper)] if paper else []), _value(line, line.predicted), *_here(line))
        for line in lines
    ]
    return columns, rows


def underfill(entry: Mapping[str, Any]) -> str:
    """Share of phases whose primary boundary admits fewer than k."""
    if entry["name"] == "direct":
        return ""
    if not entry["count"]:
        return "rows too short"
    return percent(entry["below_k"])


def candidates(capture: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Scores that a primary boundary admits, in units of k: median, and 5 to 95 %."""
    if not entry["count"]:
        return "rows too short"
    if all_tied(dict(capture)):
        return "tied"
    median, low, high = (rank_text(entry[name]) for name in ("median", "p05", "p95"))
    return f"{median} ({low} to {high})"


def percent(share: float) -> str:
    """A rate, to two digits, or three from 10 % on."""
    if share == 0:
        return "none"
    if share >= 0.0995:
        return f"{100 * share:.3g} %"
    return f"{100 * share:.2g} %" if share >= 1e-6 else "under 0.0001 %"


def _policy(capture: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    if not entry["count"]:
        return f"rows too short, {entry['traffic']:.3f}"
    return f"{candidates(capture, entry)}, {percent(entry['below_k'])}, {entry['traffic']:.3f}"


def _here(line: Line) -> list[str]:
    return [
        _value(line, value) if why is None else f"over {MOST}" if why == BEYOND and line.kind == "rank" else why
        for value, why in zip(line.here, line.why, strict=True)
    ]


def _value(line: Line, value: Value) -> str:
    """Write a value of a line; empty where there is none."""
    if value is None:
        return ""
    digits = line.digits
    if isinstance(value, tuple):
        low, high = value
        if line.kind == "count":
            return f"{low:,.0f} of {high:,.0f}"
        if line.kind == "rank":
            return f"{rank_text(low)} to {rank_text(high)}"
        assert low is not None
        assert high is not None
        if line.kind == "change":
            return _change(low, high)
        return f"{100 * low:.{digits}f} to {100 * high:.{digits}f} %" if low else f"under {100 * high:g} %"
    if line.kind == "count":
        return f"{value:,.0f}"
    if line.kind == "rank":
        return rank_text(value)
    return f"{'within ' if line.kind == 'within' else ''}{100 * value:.{digits}f} %"


def _change(low: float, high: float) -> str:
    low, high = 100 * low, 100 * high
    if high < 0:
        return f"{-high:.0f} to {-low:.0f} % lower"
    if low > 0:
        return f"{low:,.0f} to {high:,.0f} % higher"
    return f"{low:+.0f} to {high:+.0f} %"


def _joined(names: Any) -> str:
    """Different names, in order, as a list in a sentence."""
    found = list(dict.fromkeys(names))
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
