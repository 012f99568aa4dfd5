"""Comparison of the paper's results with measured ones, as numbers; `ksieve_lab.study.words` formats them.

The paper's figures are those of its section "Empirical Observations": three captures of Hy4-Preview indexer scores,
K = 2048, 4,096 rows each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Results = dict[str, Any]
Capture = dict[str, Any]

PAPER_K = 2048
"""The k of the paper's captures: at another one its figures mean nothing."""

TIED, SHORT, BEYOND = "tied", "rows too short", "beyond the ranks resolved"
"""Why a figure is missing: rows are tied at rank k, have too few scores, or ranks past `tally.MOST`."""

Kind = Literal["rank", "within", "share", "count", "change"]

Value = float | tuple[float | None, float | None] | None
"""A number, a range whose ends may be beyond the ranks resolved, or (n, of) of a count; None where there is none."""


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity.

    Attributes
    ----------
    figure : str
        Stem of the figure that shows it.
    quantity : str
    kind : {"rank", "within", "share", "count", "change"}
        Ranks and scores in units of k; largest relative deviation; share of 1; n of how many; relative change.
    paper, predicted : Value
        The paper's published value, for its own k only, and the value by theory.
    here : tuple of Value
        Of each capture.
    why : tuple of str or None
        Why a capture has no value.
    digits : int
        Decimals that the quantity is written with.
    """

    figure: str
    quantity: str
    kind: Kind
    paper: Value
    predicted: Value
    here: tuple[Value, ...]
    why: tuple[str | None, ...]
    digits: int = 2

    def plain(self) -> dict[str, Any]:
        """Return the line as JSON-able data."""
        return asdict(self)


_PAPER_TAIL = ((100, "median", 1.03), (100, "p95", 1.15), (500, "median", 1.18), (500, "p95", 2.02))


def compare(results: Results) -> list[Line]:
    """Set a study's results against the paper's, which are left out at another k than its own."""
    captures: Sequence[Capture] = results["captures"]
    paper_too = results["k"] == PAPER_K
    lines: list[Line] = []

    def add(
        figure: str,
        quantity: str,
        kind: Kind,
        paper: Value,
        predicted: Value,
        here: Sequence[Value | str],
        digits: int = 2,
    ) -> None:
        values = tuple(None if isinstance(v, str) else v for v in here)
        why = tuple(v if isinstance(v, str) else None for v in here)
        lines.append(Line(figure, quantity, kind, paper if paper_too else None, predicted, values, why, digits))

    gaps = [float(g) for g in captures[0]["tail"]["gaps"]]
    for eps, quantile, paper in _PAPER_TAIL:
        at = gaps.index(eps)
        name = "median" if quantile == "median" else "95th percentile"
        predicted = float(captures[0]["tail"]["predicted"][quantile][at])
        here = [float(c["tail"][quantile][at]) if c["tail"]["rows"] else TIED for c in captures]
        add("tail", f"C({eps}) / K, {name}", "rank", paper, predicted, here)
    add("tail", "rows tied at rank K", "count", None, None, [(c["tail"]["tied"], c["studied"]) for c in captures])
    for text, least, most, paper in (
        ("median rank against request, views 1/16 to 1/64", 16, 64, 0.013),
        ("median rank against request, view 1/256", 256, 256, 0.05),
    ):
        add("ranks", text, "within", paper, None, [_worst_median(c, least, most) for c in captures], 1)
    for stride, span, error in ((64, (1.23, 1.77), 0.32), (128, (1.09, 1.92), 0.50)):
        found = [_rank(c, stride) for c in captures]
        spans = [e if isinstance(e, str) else (_resolved(e["p05"]), _resolved(e["p95"])) for e in found]
        add("ranks", f"1/{stride} at 1.5 K: 5 to 95 % of ranks / K", "rank", span, None, spans)
        errors = [e if isinstance(e, str) else _resolved(e["error_p95"]) or BEYOND for e in found]
        add("ranks", f"1/{stride} at 1.5 K: 95 % of errors within, / K", "rank", error, None, errors)
    sparse = [_rank(c, 128) for c in captures]
    below = [e if isinstance(e, str) else float(e["below_k"]) for e in sparse]
    expected = _resolved(_entry(captures[0], 128)["exchangeable_below_k"])
    add("ranks", "1/128 at 1.5 K: phases below K", "share", (0.0, 0.009), expected, below)
    ends = [float(c["deciles"]["ends"]["median"]) if c["deciles"]["rows"] else TIED for c in captures]
    add("deciles", "top K in the first and last tenth", "share", (0.52, 0.74), 0.2, ends, 0)
    add("rms", "RMS rank error against exchangeable, all views", "change", (-0.28, -0.14), 0.0,
        [_range_of_ratios(c) for c in captures], 0)  # fmt: skip
    add("regions", "end regions whose phase counts differ by more than one", "count", None, 0.0,
        [(c["regions"]["violations"], c["regions"]["checked"]) for c in captures], 0)  # fmt: skip
    return lines


def all_tied(capture: Capture) -> bool:
    """Whether every row studied is tied at rank k, so that no row has a distinct boundary."""
    return bool(capture["tail"]["tied"] == capture["studied"])


def _entry(capture: Capture, stride: int, request: float = 1.5) -> dict[str, Any]:
    return next(r for r in capture["ranks"] if r["stride"] == stride and r["requested"] == request)


def _rank(capture: Capture, stride: int) -> dict[str, Any] | str:
    if all_tied(capture):
        return TIED
    entry = _entry(capture, stride)
    return entry if entry["count"] else SHORT


def _worst_median(capture: Capture, least: int, most: int) -> float | str:
    """Largest relative deviation of a median rank from its request, over requests and strides."""
    if all_tied(capture):
        return TIED
    entries: list[dict[str, Any]] = [r for r in capture["ranks"] if least <= r["stride"] <= most and r["count"]]
    if not entries:
        return SHORT
    medians = [_resolved(r["median"]) for r in entries]
    if any(median is None for median in medians):
        return TIED if capture["tail"]["tied"] else BEYOND
    return max(abs(m / float(r["requested"]) - 1) for m, r in zip(medians, entries, strict=True) if m is not None)


def _range_of_ratios(capture: Capture) -> tuple[float, float] | str:
    """Least and largest of RMS over reference, less 1, over strides."""
    if all_tied(capture):
        return TIED
    entries = [r for r in capture["ranks"] if r["requested"] == 1.5 and r["count"] and r["reference_rms"]]
    if not entries:
        return SHORT
    ratios = [float(r["rms"] / r["reference_rms"] - 1) for r in entries]
    return min(ratios), max(ratios)


def _resolved(value: float | None) -> float | None:
    """A finite number, or None for a missing, infinite or NaN one; result files store null for these."""
    return None if value is None or not abs(value) < float("inf") else float(value)
