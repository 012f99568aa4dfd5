"""Text of a study's numbers, shared by terminal, report and documentation.

The paper's figures come from its section "Empirical Observations": three captures of Hy4-Preview indexer scores, K =
2048, 4,096 rows each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ksieve_lab.study.tally import rank_text
from ksieve_lab.study.verdict import NO, YES

PAPER_K = 2048
"""The k of the paper's captures: at another one its figures mean nothing."""

TIED, SHORT, BEYOND = "tied", "rows too short", "beyond the ranks resolved"
"""Why a figure is missing: rows are tied at rank k, have too few scores, or ranks past `tally.MOST`."""

Results = Mapping[str, Any]
Capture = Mapping[str, Any]


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


def compared(captures: Sequence[Capture]) -> Iterator[tuple[str, ...]]:
    """Figure, quantity, and its value in the paper, by theory, and in the captures."""
    first = captures[0]["tail"]
    gaps = [float(gap) for gap in first["gaps"]]
    for eps, quantile, paper in ((100, "median", 1.03), (100, "p95", 1.15), (500, "median", 1.18), (500, "p95", 2.02)):
        at = gaps.index(eps)
        name = "median" if quantile == "median" else "95th percentile"
        here = [rank_text(c["tail"][quantile][at]) if c["tail"]["rows"] else TIED for c in captures]
        predicted = rank_text(first["predicted"][quantile][at])
        yield "tail", f"C({eps}) / K, {name}", rank_text(paper), predicted, *here
    yield "tail", "rows tied at rank K", "", "", *(f"{c['tail']['tied']:,} of {c['studied']:,}" for c in captures)
    for text, least, most, worst in (
        ("median rank against request, views 1/16 to 1/64", 16, 64, "within 1.3 %"),
        ("median rank against request, view 1/256", 256, 256, "within 5.0 %"),
    ):
        yield "ranks", text, worst, "", *(_worst_median(c, least, most) for c in captures)
    for stride, span, error in ((64, "1.23 to 1.77", "0.32"), (128, "1.09 to 1.92", "0.50")):
        spans = [_of_ranks(c, stride, lambda e: f"{rank_text(e['p05'])} to {rank_text(e['p95'])}") for c in captures]
        yield "ranks", f"1/{stride} at 1.5 K: 5 to 95 % of ranks / K", span, "", *spans
        errors = [_of_ranks(c, stride, lambda e: rank_text(e["error_p95"])) for c in captures]
        yield "ranks", f"1/{stride} at 1.5 K: 95 % of errors within, / K", error, "", *errors
    expected = _entry(captures[0], 128)["exchangeable_below_k"]
    predicted = f"{100 * expected:.2f} %" if _finite(expected) else ""
    below = [_of_ranks(c, 128, lambda e: f"{100 * e['below_k']:.2f} %") for c in captures]
    yield "ranks", "1/128 at 1.5 K: phases below K", "under 0.9 %", predicted, *below
    ends = [f"{100 * c['deciles']['ends']['median']:.0f} %" if c["deciles"]["rows"] else TIED for c in captures]
    yield "deciles", "top K in the first and last tenth", "52 to 74 %", "20 %", *ends
    ratios = [_range_of_ratios(c) for c in captures]
    yield "rms", "RMS rank error against exchangeable, all views", "14 to 28 % lower", "0 %", *ratios


def _entry(capture: Capture, stride: int) -> Mapping[str, Any]:
    return next(r for r in capture["ranks"] if r["stride"] == stride and r["requested"] == 1.5)


def _of_ranks(capture: Capture, stride: int, text: Callable[[Mapping[str, Any]], str]) -> str:
    """Text of a view's ranks at 1.5 K, or why there are none."""
    if _all_tied(capture):
        return TIED
    entry = _entry(capture, stride)
    return text(entry) if entry["count"] else SHORT


def _worst_median(capture: Capture, least: int, most: int) -> str:
    """Largest relative deviation of a median rank from its request, over requests and strides."""
    if _all_tied(capture):
        return TIED
    entries = [r for r in capture["ranks"] if least <= r["stride"] <= most and r["count"]]
    if not entries:
        return SHORT
    if not all(_finite(r["median"]) for r in entries):
        return TIED if capture["tail"]["tied"] else BEYOND
    return f"within {100 * max(abs(r['median'] / r['requested'] - 1) for r in entries):.1f} %"


def _range_of_ratios(capture: Capture) -> str:
    """Least and largest of RMS over reference, over strides."""
    if _all_tied(capture):
        return TIED
    entries = [r for r in capture["ranks"] if r["requested"] == 1.5 and r["count"] and r["reference_rms"]]
    if not entries:
        return SHORT
    ratios = [100 * (r["rms"] / r["reference_rms"] - 1) for r in entries]
    low, high = min(ratios), max(ratios)
    if high < 0:
        return f"{-high:.0f} to {-low:.0f} % lower"
    if low > 0:
        return f"{low:,.0f} to {high:,.0f} % higher"
    return f"{low:+.0f} to {high:+.0f} %"


def _all_tied(capture: Capture) -> bool:
    """Whether every row studied is tied at rank k, so that no row has a distinct boundary."""
    return bool(capture["tail"]["tied"] == capture["studied"])


def _finite(value: float | None) -> bool:
    """Whether there is a number; result files store null for infinity and NaN."""
    return value is not None and math.isfinite(value)


def underfill(entry: Mapping[str, Any]) -> str:
    """Share of phases whose primary boundary admits fewer than k."""
    if entry["name"] == "direct":
        return ""
    if not entry["count"]:
        return SHORT
    return percent(entry["below_k"])


def candidates(capture: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Scores that a primary boundary admits, in units of k: median, and 5 to 95 %."""
    if entry["name"] == "direct":
        return ""
    if not entry["count"]:
        return SHORT
    if _all_tied(capture):
        return TIED
    median, low, high = (rank_text(entry[name]) for name in ("median", "p05", "p95"))
    return f"{median} ({low} to {high})"


def percent(share: float) -> str:
    """A rate, to two digits, or three from 10 % on."""
    if share == 0:
        return "none"
    if share >= 0.0995:
        return f"{100 * share:.3g} %"
    return f"{100 * share:.2g} %" if share >= 1e-6 else "under 0.0001 %"


def policy(capture: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """What a named policy would do: candidates, underfill and row scans."""
    if not entry["count"]:
        return f"{SHORT}, {entry['traffic']:.3f}"
    return f"{candidates(capture, entry)}, {percent(entry['below_k'])}, {entry['traffic']:.3f}"


def _joined(names: Any) -> str:
    """Different names, in order, as a list in a sentence."""
    found = list(dict.fromkeys(names))
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
