"""What the paper found printed beside what was found here: one table, for terminal, report and result file.

The paper's figures are those of its section "Empirical Observations": three captures of Hy4-Preview indexer scores,
K = 2048, 4,096 rows each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ksieve.study.tally import rank_text

Results = dict[str, Any]
Capture = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity: what it is, in which figure, what the paper printed, what theory says, what each capture shows."""

    figure: str
    quantity: str
    paper: str
    predicted: str
    here: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """Return the line as JSON-able data."""
        return asdict(self)


_PAPER_TAIL = ((100, "median", "1.03"), (100, "p95", "1.15"), (500, "median", "1.18"), (500, "p95", "2.02"))


_SHORT = "rows too short"


def compare(results: Results) -> list[Line]:
    """Put a study's results beside the paper's."""
    captures: Sequence[Capture] = results["captures"]
    lines: list[Line] = []
    gaps = [float(g) for g in captures[0]["tail"]["gaps"]]
    for eps, quantile, paper in _PAPER_TAIL:
        at = gaps.index(eps)
        name = "median" if quantile == "median" else "95th percentile"
        predicted = captures[0]["tail"]["predicted"][quantile][at]
        here = (f"{c['tail'][quantile][at]:.2f}" if c["tail"]["rows"] else "all tied" for c in captures)
        lines.append(Line("tail", f"C({eps}) / K, {name}", paper, f"{predicted:.2f}", tuple(here)))
    tied = tuple(f"{c['tail']['tied']} of {c['studied']}" for c in captures)
    lines.append(Line("tail", "rows tied at rank K", "left out", "", tied))
    for text, least, most, paper in (
        ("median rank against request, views 1/16 to 1/64", 16, 64, "within 1.3 %"),
        ("median rank against request, view 1/256", 256, 256, "within 5 %"),
    ):
        here = (f"within {100 * _worst_median(c, least, most):.1f} %" for c in captures)
        lines.append(Line("ranks", text, paper, "", tuple(here)))
    for stride, paper, paper95 in ((64, "1.23 to 1.77", "0.32"), (128, "1.09 to 1.92", "0.50")):
        entries = [_rank(c, stride) for c in captures]
        span = tuple(f"{rank_text(e['p05'])} to {rank_text(e['p95'])}" if e["count"] else _SHORT for e in entries)
        lines.append(Line("ranks", f"1/{stride} at 1.5 K: 5 to 95 % of ranks / K", paper, "", span))
        errors = tuple(rank_text(e["error_p95"]) if e["count"] else _SHORT for e in entries)
        lines.append(Line("ranks", f"1/{stride} at 1.5 K: 95 % of errors within, / K", paper95, "", errors))
    sparse = [_rank(c, 128) for c in captures]
    below = tuple(f"{100 * e['below_k']:.2f} %" if e["count"] else _SHORT for e in sparse)
    expected = sparse[0]["exchangeable_below_k"]
    predicted = "" if expected is None or expected != expected else f"{100 * expected:.2f} %"
    lines.append(Line("ranks", "1/128 at 1.5 K: phases below K", "under 0.9 %, whole bins", predicted, below))
    ends = tuple(
        f"{100 * c['deciles']['ends']['median']:.0f} %" if c["deciles"]["rows"] else "all tied" for c in captures
    )
    lines.append(Line("deciles", "top K in the first and last tenth", "52 to 74 %", "20 % if uniform", ends))
    lines.append(
        Line("rms", "RMS rank error against exchangeable, all views", "14 to 28 % lower", "0 %",
             tuple(_range_of_ratios(c) for c in captures))
    )  # fmt: skip
    identity = tuple(f"{c['regions']['violations']} of {c['regions']['checked']:,}" for c in captures)
    lines.append(Line("regions", "end regions whose phase counts differ by more than one", "", "0", identity))
    return lines


def _rank(capture: Capture, stride: int, request: float = 1.5) -> dict[str, Any]:
    return next(r for r in capture["ranks"] if r["stride"] == stride and r["requested"] == request)


def _worst_median(capture: Capture, least: int, most: int) -> float:
    medians: list[dict[str, Any]] = [r for r in capture["ranks"] if least <= r["stride"] <= most and r["count"]]
    return max((abs(_finite(r["median"]) / r["requested"] - 1) for r in medians), default=float("nan"))


def _range_of_ratios(capture: Capture) -> str:
    entries = [r for r in capture["ranks"] if r["requested"] == 1.5 and r["count"]]
    if not entries:
        return _SHORT
    ratios = [100 * (r["rms"] / r["reference_rms"] - 1) for r in entries]
    low, high = min(ratios), max(ratios)
    if high < 0:
        return f"{-high:.0f} to {-low:.0f} % lower"
    if low > 0:
        return f"{low:.0f} to {high:.0f} % higher"
    return f"{low:+.0f} to {high:+.0f} %"


def _finite(value: float | None) -> float:
    return float("inf") if value is None else float(value)
