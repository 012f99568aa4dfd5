"""A study: its figures in reading order, its tables, and a calibration's tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from ksieve_lab.report.figures import Figure, Mark
from ksieve_lab.report.tables import Column, File, Section, Table, find, render
from ksieve_lab.study import words
from ksieve_lab.study.tally import MOST, rank_text

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
    """Our own views and policies next to the paper's, and the share of phases that underfill."""
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


def _captures(files: Sequence[File]) -> Sequence[Any]:
    return list(find(files[0], "results/captures/*"))


def _by_capture(files: Sequence[File], begin: int, suffix: str = "") -> list[Column]:
    """Columns of the captures, whose texts follow the first `begin` of a row."""
    return [Column(c["name"] + suffix, itemgetter(begin + i)) for i, c in enumerate(_captures(files))]


def comparison(figure: str | None = None) -> Table:
    """The quantities of one figure or of all, with the paper's column at the paper's own k."""

    def columns(files: Sequence[File]) -> list[Column]:
        paper = [Column("the paper found", itemgetter(2))] * (files[0].payload["results"]["k"] == words.PAPER_K)
        return [Column("", itemgetter(1)), *paper, Column("theory predicts", itemgetter(3)), *_by_capture(files, 4)]

    return Table(columns, lambda files: [row for row in words.compared(_captures(files)) if figure in (None, row[0])])


ABOUT = Table(
    [
        Column("capture", lambda c: f"{c['name']}: {c['title']}" if c["title"] else c["name"]),
        Column("rows studied", lambda c: f"{c['studied']:,} of {c['rows']:,}"),
        Column("valid scores per row", lambda c: f"{c['lengths']['least']:,} to {c['lengths']['most']:,}"),
        Column("dtype", "dtype"),
    ],
    _captures,
)
_PLANNED = [
    Column("capture", "name"),
    Column("underfill", lambda c: words.underfill(c["plan"])),
    Column("candidates / K", lambda c: words.candidates(c, c["plan"])),
    Column("row scans", "plan/traffic", "{:.3f}"),
]
VERDICT = Table(
    [
        *_PLANNED, Column("verdict", "verdict/answer"),
        Column("plan", lambda c: f"{c['plan']['name']} on {c['plan']['device']}"),
        Column("tied rows", lambda c: f"{c['tail']['tied']:,} of {c['studied']:,}"),
    ],
    _captures,
)  # fmt: skip
EVERY_POLICY = Table(
    lambda files: [
        Column("policy", itemgetter(0)),
        *_by_capture(files, 1, ": median / K (5 to 95 %), underfill, row scans"),
    ],
    lambda files: [
        (entry["name"], *(words.policy(c, c["policies"][i]) for c in _captures(files)))
        for i, entry in enumerate(_captures(files)[0]["policies"])
    ],
)


def answer(file: File) -> str:
    """The verdict on every capture, for the guide."""
    said = f"**{words.verdict_sentence(file.payload['results'])}** ({file.link('../../')})."
    return f"{said}\n\n{render(Table(_PLANNED, _captures), [file])}"


_QUANTITIES: dict[str, tuple[str, Callable[[float], str]]] = {
    "p_band": ("rows that scan the rescue band", words.percent),
    "p_exact": ("rows that end in exact recovery", words.percent),
    "traffic": ("row scans", "{:.4f}".format),
    "admitted": ("scores admitted / K", lambda value: f"{value:.3f}" if value < MOST else f"over {MOST}"),
}


def _quantity_columns(files: Sequence[File]) -> list[Column]:
    results = files[0].payload["results"]

    def texts(name: str, *keys: str) -> list[str]:
        return [_QUANTITIES[name][1](results["chosen"][name][key]) for key in keys]

    return [
        Column("", lambda name: _QUANTITIES[name][0]),
        Column(f"predicted from {results['rows']:,} rows (95 %)",
               lambda name: "{} ({} to {})".format(*texts(name, "value", "low", "high"))),
        Column(f"expected of {results['held_back']:,} held-back rows",
               lambda name: " to ".join(texts(name, "next_low", "next_high"))),
        Column("realised", lambda name: _QUANTITIES[name][1](results["realised"][name])),
        Column("as predicted", lambda name: "yes" if results["came_true"][name] else "**NO**"),
    ]  # fmt: skip


def _quantities(files: Sequence[File]) -> list[str]:
    rescued = files[0].payload["results"]["chosen"]["rescue_margin"] is not None
    return [name for name in _QUANTITIES if name != "p_band" or rescued]


def _ranking(files: Sequence[File]) -> list[Mapping[str, Any]]:
    results = files[0].payload["results"]
    own = [results["default"] | {"note": " (the planner's own choice)"}] if results["default"] else []
    return [*results["ranking"], *own]


def _chosen(files: Sequence[File]) -> str:
    results, settings = files[0].payload["results"], files[0].payload["settings"]
    chosen, ordinary = results["chosen"], results["default"]
    rescue = f", rescue {chosen['rescue_margin']:.2f} K" if chosen["rescue_margin"] is not None else ""
    other = f"; the planner's own {ordinary['policy']}: {ordinary['row_ns']:,.1f} ns" if ordinary else ""
    return (f"`{' '.join(settings['captures'])}`, K = {settings['k']:,}, costs of {settings['cost']}: "
            f"**{chosen['policy']}**, margin {chosen['margin']:.2f} K{rescue}, {chosen['row_ns']:,.1f} ns a row by the "
            f"model{other}.")  # fmt: skip


CALIBRATION = Table(_quantity_columns, _quantities, _chosen)
RANKING = Table(
    [
        Column("view", lambda p: p["policy"] + p.get("note", "")), Column("margin", "margin", "{:.2f}"),
        Column("rescue", "rescue_margin?", "{:.2f}"),
        Column("band scans", lambda p: words.percent(p["p_band"]["value"])),
        Column("exact recovery", lambda p: words.percent(p["p_exact"]["value"])),
        Column("admitted / K", lambda p: rank_text(p["admitted"]["value"])),
        Column("overflow", lambda p: words.percent(p["overflow"])), Column("cost of a row", "row_ns", "{:,.1f} ns"),
    ],
    _ranking,
    "The best of every view, by the cost model",
)  # fmt: skip


def calibrated(file: File) -> str:
    """The policy of a calibration, and whether its predictions held, for the guide."""
    held = file.payload["results"]["came_true"].values()
    return (f"{_chosen([file])} {sum(held)} of {len(held)} quantities were as predicted on held-back rows "
            f"({file.link('../../')}).")  # fmt: skip


def _came_true(payload: Mapping[str, Any]) -> str:
    failed = [_QUANTITIES[name][0] for name, true in payload["results"]["came_true"].items() if not true]
    return f"NOT as predicted on rows held back: {', '.join(failed)}" if failed else "as predicted on rows held back"


SECTIONS = (
    Section(["study"], [VERDICT, ABOUT, comparison(), EVERY_POLICY],
            head=lambda payload: words.verdict_sentence(payload["results"])),
    Section(["calibrate"], [CALIBRATION, RANKING], head=_came_true),
)  # fmt: skip
