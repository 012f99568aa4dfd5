"""A study: its figures in reading order, and its tables and those of a calibration for the guide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ksieve_lab.report.figures import Figure, Mark
from ksieve_lab.report.tables import Column, File, Table, markdown, render
from ksieve_lab.study import words
from ksieve_lab.study.tally import MOST

Results = Mapping[str, Any]


def _tail(results: Results) -> Figure:
    """Observation 1: retained tail against boundary error."""
    captures = results["captures"]
    marks = [
        Mark("", c["name"], gap, *_ends({name: c["tail"][name][i] for name in ("median", "p05", "p95")}))
        for c in captures if c["tail"]["rows"] for i, gap in enumerate(c["tail"]["gaps"])
    ]  # fmt: skip
    names = {f"predicted, {name}": name for name in ("median", "p95", "mean")}
    tail = captures[0]["tail"]
    marks += [Mark("", label, *point) for label, name in names.items()
              for point in zip(tail["gaps"], tail["predicted"][name], strict=True)]  # fmt: skip
    if results["k"] == words.PAPER_K:
        marks += [
            Mark("", f"the paper's captures, {name}", *point)
            for name, points in _PAPER_TAIL.items()
            for point in points
        ]
    marks = [mark for mark in marks if mark.value < MOST]  # ranks beyond are not resolved
    return Figure(kind="band", marks=marks, at="boundary error, in adjacent score gaps", scale="log", log=[""],
                  value="scores retained, in units of K", references=list(names))  # fmt: skip


_PAPER_TAIL = {"median": [(100, 1.03), (500, 1.18)], "p95": [(100, 1.15), (500, 2.02)]}


def _ranks(results: Results) -> Figure:
    """Observation 2: requested against realised rank, every phase."""
    found = sorted((r for r in results["pooled"] if r["count"]), key=lambda r: r["requested"])
    marks = [Mark("", f"view 1/{r['stride']}", f"{r['requested']:g}", *_ends(r)) for r in found]
    marks += [Mark("", "as requested", f"{r['requested']:g}", r["requested"]) for r in found]
    return Figure(kind="marks", marks=marks, at="requested complete-row rank, in units of K",
                  value="realised rank, in units of K: median, 5 to 95 %", references=["as requested"],
                  rules={"K: underfill below": 1})  # fmt: skip


def _deciles(results: Results) -> Figure:
    """Share of the exact top K in each tenth of the row's positions."""
    marks = [Mark("", f"{c['name']}: {100 * c['deciles']['ends']['median']:.0f} % at the ends", tenth + 1,
                  *(100 * c["deciles"][name][tenth] for name in ("mean", "p05", "p95")))
             for c in results["captures"] if c["deciles"]["rows"] for tenth in range(10)]  # fmt: skip
    return Figure(kind="band", marks=marks, at="tenth of the row's positions", value="share of the top K, %",
                  rules={"uniform": 10})  # fmt: skip


def _rms(results: Results) -> Figure:
    """RMS rank error against the exact finite-population reference."""
    marks = []
    for capture in results["captures"]:
        for r in (r for r in capture["ranks"] if r["requested"] == 1.5 and r["count"]):
            view, reference = f"1/{r['stride']}", _or_nan(r["reference_rms"])
            marks.append(Mark("", capture["name"], view, _or_nan(r["rms"]) / reference))
    paper = {"the paper's captures, from": 0.72, "to": 0.86} if results["k"] == words.PAPER_K else {}
    return Figure(kind="bar", marks=marks, at="view, requested rank 1.5 K", rules={"exchangeable": 1} | paper,
                  value="RMS rank error / that of exchangeable positions")  # fmt: skip


def _regions(results: Results) -> Figure:
    """How evenly the boundary region falls on the phases."""
    marks = [Mark("", c["name"], f"1/{e['stride']}{'' if e['group'] == 1 else ' lines'}",
                  e["median"], e["p05"], e["p95"])
             for c in results["captures"] if c["regions"]["rows"] for e in c["regions"]["dispersion"]]  # fmt: skip
    return Figure(kind="marks", marks=marks, at="view", log=[""],
                  value="variance of phase counts / exchangeable: median, 5 to 95 %",
                  rules={"exchangeable": 1})  # fmt: skip


def _runs(results: Results) -> Figure:
    """How contiguous the boundary region is."""
    marks, expected = [], []
    for name, runs in ((c["name"], c["regions"]["runs"]) for c in results["captures"] if c["regions"]["rows"]):
        expected.append(f"{name}, exchangeable")
        for label, shares in ((name, runs["share"]), (expected[-1], runs["exchangeable"])):
            marks += [Mark("", label, at, 100 * share) for at, share in zip(runs["at_least"], shares, strict=True)
                      if share > 1e-6]  # fmt: skip
    return Figure(kind="line", marks=marks, at="length of a contiguous run, at least", scale="log2", log=[""],
                  value="share of the top 1.5 K in such runs, %", references=expected)  # fmt: skip


def _policies(results: Results) -> Figure:
    """Our own views and policies beside the paper's, and the share of phases that underfill."""
    kinds = {
        "groups": "Views, 1.5 K requested; right: underfill",
        "policies": "Policies, primary boundary; right: underfill",
    }
    marks = [
        Mark(panel, capture["name"], e["name"] if "name" in e else _group_name(e["stride"], e["group"]), *_ends(e),
             text=words.percent(e["below_k"]))
        for kind, panel in kinds.items() for capture in results["captures"] for e in capture[kind] if e["count"]
    ]  # fmt: skip
    return Figure(kind="marks", marks=marks, value="scores admitted, in units of K: median, 5 to 95 %", lying=True,
                  rules={"K": 1})  # fmt: skip


def _ends(entry: Mapping[str, Any]) -> tuple[float, float, float]:
    """Median, and 5 to 95 %, cut where ranks are not resolved: None and infinity lie beyond."""
    median, low, high = (min(MOST, MOST if entry[name] is None else entry[name]) for name in ("median", "p05", "p95"))
    return median, low, high


def _group_name(stride: int, group: int) -> str:
    return f"1/{stride}, " + {1: "single", 4: "quads", 32: "lines"}.get(group, f"groups of {group}")


def _or_nan(value: float | None) -> float:
    """A number that can be drawn: NaN if it is missing or beyond the resolved ranks."""
    return float("nan") if value is None or not math.isfinite(value) else value


FIGURES: dict[str, tuple[str, Callable[[Results], Figure]]] = {
    "tail": ("Observation 1: a large boundary error leaves a compact tail", _tail),
    "ranks": ("Observation 2: a regular view finds global ranks", _ranks),
    "deciles": ("Where in the row the top K lies", _deciles),
    "rms": ("Rank error against exchangeable positions", _rms),
    "regions": ("Contiguous regions and phases", _regions),
    "runs": ("Contiguous runs of the boundary region", _runs),
    "policies": ("Lines, quads and peaks beside regular views", _policies),
}
"""By the end of the name: heading, and what specifies the figure from the results of a study."""


def study_section(file: File) -> str:
    """What was studied, the verdict, the paper against what was found, and the policies."""
    results = file.payload["results"]
    about = Table(
        [Column("capture", "name", "`{}`"), Column("rows studied", "studied", "{:,}"),
         Column("valid scores per row", lambda c: f"{c['lengths']['least']:,} to {c['lengths']['most']:,}")],
        lambda _: results["captures"],
    )  # fmt: skip
    tables = (words.verdict_table(results), words.comparison_table(results), words.policy_table(results))
    parts = [render(about, [file]), f"**{words.verdict_sentence(results)}.**", *(markdown(*table) for table in tables)]
    return "\n\n".join([*parts, file.link()])


def answer(file: File) -> str:
    """The verdict on every capture, for the guide."""
    results = file.payload["results"]
    said = f"**{words.verdict_sentence(results)}** ({file.link('../../')})."
    return f"{said}\n\n{markdown(*words.verdict_table(results))}"


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


_QUANTITIES: dict[str, tuple[str, Callable[[float], str]]] = {
    "p_band": ("band scans", _share),
    "p_exact": ("exact recovery", _share),
    "traffic": ("row scans", "{:.4f}".format),
    "admitted": ("admitted / K", "{:.3f}".format),
}


def calibration_section(file: File) -> str:
    """The policy of a calibration, and its predictions set against held-back rows."""
    results, chosen = file.payload["results"], file.payload["results"]["chosen"]
    table = Table(
        [
            Column("", lambda name: _QUANTITIES[name][0]),
            Column(f"predicted from {results['rows']} rows", lambda name: _QUANTITIES[name][1](chosen[name]["value"])),
            Column(f"expected of {results['held_back']} held-back rows", lambda name: " to ".join(
                _QUANTITIES[name][1](chosen[name][end]) for end in ("next_low", "next_high"))),
            Column("realised", lambda name: _QUANTITIES[name][1](results["realised"][name])),
            Column("as predicted", lambda name: "yes" if results["came_true"][name] else "**no**"),
        ],
        lambda _: [name for name in _QUANTITIES if name != "p_band" or chosen["rescue_margin"] is not None],
        _chosen(file),
    )  # fmt: skip
    return f"{render(table, [file])}\n\n{file.link()}"


def _chosen(file: File) -> str:
    results, settings = file.payload["results"], file.payload["settings"]
    chosen, ordinary = results["chosen"], results["default"]
    rescue = f", rescue {chosen['rescue_margin']:.2f} K" if chosen["rescue_margin"] is not None else ""
    other = f"; the planner's own {ordinary['policy']}: {ordinary['row_ns']:,.1f} ns" if ordinary else ""
    return (f"`{' '.join(settings['captures'])}`, K = {settings['k']:,}, costs of {settings['cost']}: "
            f"**{chosen['policy']}**, margin {chosen['margin']:.2f} K{rescue}, {chosen['row_ns']:,.1f} ns a row by the "
            f"model{other}.")  # fmt: skip


def calibrated(file: File) -> str:
    """The policy of a calibration, and whether its predictions held, for the guide."""
    held = file.payload["results"]["came_true"].values()
    return (f"{_chosen(file)} {sum(held)} of {len(held)} quantities were as predicted on held-back rows "
            f"({file.link('../../')}).")  # fmt: skip
