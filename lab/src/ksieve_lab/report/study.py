"""The figures of a study, drawn from its result file alone; `FIGURES` lists them in reading order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ksieve_lab.report import figures
from ksieve_lab.report.figures import CARD, INK, MUTED, PALETTE
from ksieve_lab.study.compare import PAPER_K
from ksieve_lab.study.tally import GLYPH_BINS_PER_K, MOST

Results = dict[str, Any]
COLOURS = list(PALETTE.values())


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure: file stem, heading, and drawing function."""

    stem: str
    heading: str
    draw: Callable[[Results], Any]


def draw_tail(results: Results) -> Any:
    """Observation 1: retained tail against boundary error."""
    with figures.canvas(size=(6.8, 4.2)) as (figure, axes):
        gaps = np.asarray(results["captures"][0]["tail"]["gaps"])
        ceiling = 12.0
        axes.axhline(1, color=MUTED, linewidth=0.8)
        for i, capture in enumerate(results["captures"]):
            tail = capture["tail"]
            if not tail["rows"]:
                continue
            look = figures.series(i, marker=False)
            axes.fill_between(gaps, tail["p05"], tail["p95"], color=look["color"], alpha=0.16, linewidth=0)
            axes.plot(gaps, tail["p95"], **look | {"linewidth": 0.9, "linestyle": "-"})
            axes.plot(gaps, tail["median"], **look, label=f"{capture['name']}: median, 5 to 95 % of rows")
        predicted = results["captures"][0]["tail"]["predicted"]
        axes.plot(
            gaps,
            predicted["median"],
            color=INK,
            linestyle=(0, (1, 1.4)),
            linewidth=1.3,
            label="predicted: median and 95th percentile",
        )
        axes.plot(gaps, predicted["p95"], color=INK, linestyle=(0, (1, 1.4)), linewidth=1.3)
        axes.plot(
            gaps,
            predicted["mean"],
            color=INK,
            linestyle=(0, (6, 2)),
            linewidth=1.1,
            label=r"predicted: mean, $K + \epsilon$",
        )
        if results["k"] == PAPER_K:
            paper = {100: (1.03, 1.15), 500: (1.18, 2.02)}
            axes.plot(
                [g for g in paper for _ in (0, 1)],
                [v for pair in paper.values() for v in pair],
                linestyle="",
                marker="x",
                color=INK,
                markersize=6,
                markeredgewidth=1.6,
                label="the paper's captures: median, 95th percentile",
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(0.94, ceiling)
        axes.set_yticks([1, 1.5, 2, 3, 4, 6, 8, 12], ["1", "1.5", "2", "3", "4", "6", "8", "12"])
        axes.set_yticks([], minor=True)
        axes.set_xlabel(r"boundary error $\epsilon$, in adjacent score gaps")
        axes.set_ylabel("scores retained, in units of K")
        _legend(axes, "upper left")
    return figure  # fmt: skip


def draw_ranks(results: Results) -> Any:
    """Observation 2: requested against realised rank, and the distributions behind the medians."""
    ranks = results["pooled"]
    strides = sorted({r["stride"] for r in ranks})
    with figures.canvas(1, 2, size=(10, 4.3), width_ratios=(1.25, 1)) as (figure, (left, right)):
        requests = sorted({r["requested"] for r in ranks})
        ends = [requests[0] - 0.12, requests[-1] + 0.12]
        left.plot(ends, ends, color=MUTED, linewidth=1, zorder=1, label="as requested")
        for i, stride in enumerate(strides):
            entries = [r for r in ranks if r["stride"] == stride and r["count"]]
            look = figures.series(i)
            at = np.array([r["requested"] for r in entries]) + (i - (len(strides) - 1) / 2) * 0.034
            low, middle, high = (np.array([_or_nan(r[name]) for r in entries]) for name in ("p05", "median", "p95"))
            left.errorbar(
                at,
                middle,
                [middle - low, high - middle],
                color=look["color"],
                marker=look["marker"],
                markersize=5,
                markeredgecolor=CARD,
                markeredgewidth=0.6,
                linestyle="",
                elinewidth=1.3,
                capsize=2.5,
                label=f"view 1/{stride}",
            )
        left.set_xticks(requests)
        left.set_xlabel("requested complete-row rank, in units of K")
        left.set_ylabel("realised rank, in units of K")
        left.set_title("Median and 5 to 95 %, every phase")
        _legend(left, "upper left")
        glyphs = [r for r in ranks if r.get("glyph") and r["count"]]
        for i, entry in enumerate(glyphs):
            _glyph(right, i, entry, COLOURS[i % len(COLOURS)], vertical=True)
            reference = _or_nan(entry["reference_rms"])
            right.plot(
                [i + 0.36] * 2,
                [entry["requested"] - reference, entry["requested"] + reference],
                color=INK,
                linewidth=1,
                marker="_",
                markersize=6,
                label="exchangeable: request ± RMS" if not i else None,
            )
        if glyphs:
            right.axhline(glyphs[0]["requested"], color=MUTED, linewidth=1)
        right.axhline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
        right.text(-0.42, 1.0, "K: underfill below", fontsize=8, color=INK, va="bottom")
        right.set_xticks(range(len(glyphs)), [f"1/{g['stride']}" for g in glyphs])
        right.set_xlim(-0.6, len(glyphs) - 0.4)
        right.set_ylim(0, 3.4)
        right.grid(axis="x", visible=False)
        right.set_xlabel("view")
        right.set_title(f"Distributions at {glyphs[0]['requested'] if glyphs else 1.5:g} K")
        _legend(right, "upper left")
    return figure  # fmt: skip


def draw_deciles(results: Results) -> Any:
    """Share of the exact top K in each tenth of the row's positions."""
    with figures.canvas(size=(6.8, 3.8)) as (figure, axes):
        tenths = np.arange(1, 11)
        axes.axhline(10, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
        for i, capture in enumerate(results["captures"]):
            deciles = capture["deciles"]
            if not deciles["rows"]:
                continue
            look = figures.series(i)
            low, high = (100 * np.asarray(deciles[name]) for name in ("p05", "p95"))
            axes.fill_between(tenths, low, high, color=look["color"], alpha=0.16, linewidth=0)
            ends = 100 * deciles["ends"]["median"]
            axes.plot(
                tenths,
                100 * np.asarray(deciles["mean"]),
                **look,
                label=f"{capture['name']}: {ends:.0f} % in the first and last tenth",
            )
        axes.text(10.1, 10, "uniform", fontsize=8, color=MUTED, va="bottom", ha="right")
        axes.set_xticks(tenths)
        axes.set_ylim(0, axes.get_ylim()[1] * (1 + 0.07 * len(results["captures"])))
        axes.set_xlabel("tenth of the row's positions")
        axes.set_ylabel("share of the top K, %")
        _legend(axes, "upper center")
    return figure  # fmt: skip


def draw_rms(results: Results) -> Any:
    """RMS rank error against the exact finite-population reference."""
    with figures.canvas(1, 2, size=(10, 3.9)) as (figure, (left, right)):
        strides: list[int] = []
        for i, capture in enumerate(results["captures"]):
            entries = [r for r in capture["ranks"] if r["requested"] == 1.5 and r["count"]]
            if not entries:
                continue
            strides = [r["stride"] for r in entries]
            at = np.arange(len(strides))
            measured, reference = (np.array([r[name] for r in entries]) for name in ("rms", "reference_rms"))
            look = figures.series(i)
            left.plot(at, measured, **look, label=f"{capture['name']}, measured")
            left.plot(
                at,
                reference,
                color=look["color"],
                linewidth=1,
                linestyle=(0, (1, 1.4)),
                label=None if i else "dotted: exchangeable",
            )
            width = 0.8 / len(results["captures"])
            right.bar(
                at + (i - (len(results["captures"]) - 1) / 2) * width,
                100 * (measured / reference - 1),
                width * 0.9,
                color=look["color"],
                label=capture["name"],
            )
        if results["k"] == PAPER_K:
            right.axhspan(-28, -14, color=MUTED, alpha=0.22, linewidth=0, label="the paper's captures")
        right.axhline(0, color=INK, linewidth=0.9)
        for axes in (left, right):
            axes.set_xticks(range(len(strides)), [f"1/{s}" for s in strides])
            axes.set_xlabel("view")
        left.set_ylim(bottom=0)
        left.set_ylabel("RMS rank error, in units of K")
        left.set_title("Requested rank 1.5 K")
        _legend(left, "best")
        right.grid(axis="x", visible=False)
        right.set_ylabel("RMS against exchangeable, %")
        right.set_title("Below 0: positions help the view")
        low, high = right.get_ylim()
        right.set_ylim(min(low, -30), high + 0.28 * (high - min(low, -30)))
        _legend(right, "upper left", ncols=2)
    return figure  # fmt: skip


def draw_regions(results: Results) -> Any:
    """How evenly the boundary region falls on the phases, and how contiguous it is."""
    with figures.canvas(1, 2, size=(10, 3.9)) as (figure, (left, right)):
        names: list[str] = []
        captures = results["captures"]
        for i, capture in enumerate(captures):
            entries = capture["regions"]["dispersion"]
            if not capture["regions"]["rows"]:
                continue
            names = [f"1/{e['stride']}" + ("" if e["group"] == 1 else "\nlines") for e in entries]
            look = figures.series(i)
            at = np.arange(len(entries)) + (i - (len(captures) - 1) / 2) * 0.16
            low, middle, high = (np.array([e[name] for e in entries]) for name in ("p05", "median", "p95"))
            left.errorbar(
                at,
                middle,
                [middle - low, high - middle],
                color=look["color"],
                marker=look["marker"],
                linestyle="",
                capsize=2.5,
                elinewidth=1.3,
                markeredgecolor=CARD,
                label=capture["name"],
            )
            runs = capture["regions"]["runs"]
            share, expected = (100 * np.asarray(runs[name], dtype=float) for name in ("share", "exchangeable"))
            right.plot(runs["at_least"], np.where(share > 0, share, np.nan), **look, label=capture["name"])
            right.plot(
                runs["at_least"],
                np.where(expected > 1e-9, expected, np.nan),
                color=look["color"],
                linewidth=1,
                linestyle=(0, (1, 1.4)),
                label=None if i else "dotted: exchangeable",
            )
        left.axhline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), label="exchangeable")
        left.set_xticks(range(len(names)), names)
        left.set_yscale("log", base=2)
        ticks = [2.0**e for e in range(-4, 7) if 0.9 * left.get_ylim()[0] <= 2.0**e <= 1.1 * left.get_ylim()[1]]
        left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        left.set_yticks([], minor=True)
        left.grid(axis="x", visible=False)
        left.set_ylabel("variance of phase counts / exchangeable")
        left.set_title("Top 1.5 K scores per phase: under 1 is more even")
        _legend(left, "upper left")
        right.set_yscale("log")
        right.set_ylim(1e-3, 200)
        if captures:
            figures.log2_axis(
                right.xaxis, captures[0]["regions"]["runs"]["at_least"], "length of a contiguous run, at least"
            )
        right.set_yticks([0.001, 0.01, 0.1, 1, 10, 100], ["0.001", "0.01", "0.1", "1", "10", "100"])
        right.set_yticks([], minor=True)
        right.set_ylabel("share of the top 1.5 K in such runs, %")
        right.set_title("How contiguous the boundary region is")
        _legend(right, "best")
    return figure  # fmt: skip


def draw_policies(results: Results) -> Any:
    """Our own views and policies beside the paper's."""
    captures = results["captures"]
    policies = [p["name"] for p in captures[0]["policies"]]
    groups = [(g["stride"], g["group"]) for g in captures[0]["groups"]]
    lines = len(policies) + len(groups)
    height = 1.5 + 0.2 * lines * max(len(captures), 2)
    entries = (e for c in captures for kind in ("groups", "policies") for e in c[kind] if e["count"])
    farthest = max((_cut(e["p95"], float(MOST)) for e in entries), default=0.0)
    reach = min(max(1.1 * farthest, 2.5), float(MOST))
    edge = reach + 0.15 * (reach - 0.4)
    with figures.canvas(1, 2, size=(10.5, height), sharex=True, width_ratios=(1, 1)) as (figure, (left, right)):
        for axes, labels, kind in (
            (left, [_group_name(s, g) for s, g in groups], "groups"),
            (right, policies, "policies"),
        ):
            step = 0.8 / len(captures)
            for j in range(len(labels)):
                for i, capture in enumerate(captures):
                    entry = capture[kind][j]
                    if not entry["count"]:
                        continue
                    y = j + (i - (len(captures) - 1) / 2) * step
                    _glyph(axes, y, entry, COLOURS[i % len(COLOURS)], vertical=False, half=0.46 * step, most=reach)
                    axes.text(
                        edge,
                        y,
                        _percent(entry["below_k"]),
                        fontsize=7.5,
                        color=INK,
                        va="center",
                        ha="right",
                    )
            axes.axvline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
            axes.set_yticks(range(len(labels)), labels)
            axes.set_ylim(len(labels) - 0.45, -0.95)
            axes.text(edge, -0.62, "underfill", fontsize=7.5, color=MUTED, va="center", ha="right")
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
            axes.set_xlim(0.4, edge)
            axes.set_xticks(np.arange(0.5 if reach < 4 else 1, reach + 1e-9, 0.5 if reach < 4 else 1))
            axes.set_xlabel("scores admitted, in units of K")
        left.set_title("Views: requested rank 1.5 K")
        right.set_title("Policies: primary boundary")
        for i, capture in enumerate(captures):
            right.plot([], [], color=COLOURS[i % len(COLOURS)], linewidth=6, alpha=0.5, label=capture["name"])
        if len(captures) > 1:
            figure.legend(loc="outside lower center", ncols=len(captures))
    return figure


FIGURES = (
    Drawing("tail", "Observation 1: a large boundary error leaves a compact tail", draw_tail),
    Drawing("ranks", "Observation 2: a regular view finds global ranks", draw_ranks),
    Drawing("deciles", "Where in the row the top K lies", draw_deciles),
    Drawing("rms", "Rank error against exchangeable positions", draw_rms),
    Drawing("regions", "Contiguous regions and phases", draw_regions),
    Drawing("policies", "Lines, quads and peaks beside regular views", draw_policies),
)


def _glyph(
    axes: Any,
    at: float,
    entry: dict[str, Any],
    colour: str,
    *,
    vertical: bool,
    half: float = 0.3,
    most: float = float(MOST),
) -> None:
    """Draw a distribution: density, 5 to 95 % spine, quartile bar and median."""
    counts = np.asarray(entry["glyph"], dtype=float)[: MOST * GLYPH_BINS_PER_K]  # without what was not resolved
    kernel = np.array([1, 4, 6, 4, 1]) / 16
    density = np.convolve(np.concatenate([[0, 0], counts, [0, 0]]), kernel, mode="same")
    ranks = (np.arange(density.size) - 2 + 0.5) / GLYPH_BINS_PER_K
    width = half * density / max(density.max(), 1.0)
    seen = (width > half * 0.01) & (ranks < most)
    ranks, width = ranks[seen], width[seen]
    spine = (_cut(entry["p05"], most), _cut(entry["p95"], most))
    capped = [i for i in (0, 1) if spine[i] < most]  # a spine that is cut off has no cap: it goes on
    quartiles = (_cut(entry["p25"], most), _cut(entry["p75"], most))
    median = _or_nan(entry["median"])
    dot = {"color": CARD, "markersize": 3.6, "markeredgecolor": INK, "markeredgewidth": 1.1, "zorder": 5}
    if vertical:
        axes.fill_betweenx(ranks, at - width, at + width, color=colour, alpha=0.45, linewidth=0)
        axes.plot([at, at], spine, color=INK, linewidth=1, marker="_", markersize=6, markevery=capped)
        axes.plot([at, at], quartiles, color=INK, linewidth=3.2, solid_capstyle="butt")
        axes.plot([at], [median], marker="o", **dot)
    else:
        axes.fill_between(ranks, at - width, at + width, color=colour, alpha=0.45, linewidth=0)
        axes.plot(spine, [at, at], color=INK, linewidth=1, marker="|", markersize=4, markevery=capped)
        axes.plot(quartiles, [at, at], color=INK, linewidth=2.6, solid_capstyle="butt")
        axes.plot([median], [at], marker="o", **dot)


def _group_name(stride: int, group: int) -> str:
    return f"1/{stride}, " + {1: "single", 4: "quads", 32: "lines"}.get(group, f"groups of {group}")


def _percent(share: float) -> str:
    if share == 0:
        return "none"
    return f"{100 * share:.2g} %" if share >= 1e-4 else f"{100 * share:.1g} %"


def _or_nan(value: float | None) -> float:
    """A number that can be drawn: NaN if it is missing or beyond the resolved ranks."""
    return float("nan") if value is None or not np.isfinite(value) else value


def _cut(rank: float | None, most: float) -> float:
    """End of a range of ranks in a picture that ends at `most`; None and infinity are beyond it."""
    return most if rank is None else min(rank, most)


def _legend(axes: Any, place: str, **settings: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc=place, **settings)
