"""Ablations, chains and replays: the paper's numbers next to ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from ksieve_lab.report.figures import Figure, Mark, size_text
from ksieve_lab.report.tables import Column, File, Section, Table, entry, find

Payload = Mapping[str, Any]

PLANNED, DIRECT, RESCUED = "ksieve", "exact proposal", "with rescue"
PAPERS = "paper s=128 rho=1.5"
"""The paper's policy, among the variants."""

LEAST = 1e-4
"""Per cent, less than one row in a million: a logarithmic axis has no zero."""

_VARIANT = re.compile(r"(paper|lines) s=(\d+) rho=([\d.]+)")
_VIEWS = {"paper": "paper's view", "lines": "whole lines"}


def _sweep(step: Mapping[str, Any], part: str) -> dict[str, dict[float, Mapping[str, Any]]]:
    """Variants of a swept part: by view, then by margin or stride."""
    found: dict[str, dict[float, Mapping[str, Any]]] = {view: {} for view in _VIEWS}
    for name, facts in step["variants"].items():
        if match := _VARIANT.fullmatch(name):
            view, stride, margin = match[1], float(match[2]), float(match[3])
            if part == "margin" and stride == 128:
                found[view][margin] = facts
            elif part == "stride" and margin == 1.5:
                found[view][stride] = facts
    return {view: dict(sorted(by.items())) for view, by in found.items()}


def _steps(files: Sequence[File]) -> Mapping[str, Any]:
    return next(find(files[0], "results/steps?"), {})


def _said(part: str, title: str) -> Any:
    text = "**{}**. Paper: {says} ({section})."
    return lambda files: text.format(title, **files[0].payload["results"]["paper"][part])


def _cell(by: Mapping[float, Mapping[str, Any]], name: str) -> Callable[[float], Any]:
    return lambda value: by.get(value, {}).get(name)


def _sweep_table(part: str) -> Table:
    """Latency and rows sent to exact recovery, over the margin or the stride."""

    def columns(files: Sequence[File]) -> list[Column]:
        paper = files[0].payload["results"]["paper"].get(part, {}).get("recovery_percent", {})
        said = {float(value): f"{text}%" for value, text in paper.items()}
        head = [Column(part, lambda v: v, "{:g}"), Column("paper: recovered", said.get)]
        for request, step in _steps(files).items():
            for view, cells in (("paper", ("step_ms", "of_floor", "recovery_percent")),
                                ("lines", ("step_ms", "recovery_percent"))):  # fmt: skip
                by = _sweep(step, part)[view]
                names = {"step_ms": f"{request}: ms" if view == "paper" else "by lines: ms", "of_floor": "of floor",
                         "recovery_percent": "recovered"}  # fmt: skip
                forms = {"step_ms": "{:.2f}", "of_floor": "{:.2f}", "recovery_percent": "{:.3g}%"}
                head += [Column(names[c], _cell(by, c), forms[c]) for c in cells]
        return head

    def rows(files: Sequence[File]) -> Iterable[float]:
        if part not in files[0].payload["results"]["paper"]:
            return []
        return sorted({value for step in _steps(files).values() for value in _sweep(step, part)["paper"]})

    return Table(columns, rows, _said(part, part.capitalize()))


def _rescue_rows(files: Sequence[File]) -> Iterable[dict[str, Any]]:
    """What was measured, and under it what the paper has; times of the wave where it has rows."""
    paper = files[0].payload["results"]["paper"].get("rescue", {})
    for request, step in _steps(files).items() if paper else ():
        on, wave = step["variants"][RESCUED], step.get("wave") or {}
        yield {"request": request, "missed": on["primary_missed_percent"], "left": on["recovery_percent"],
               "rescue": wave.get("rescue_us"), "recovery": wave.get("recovery_us")}  # fmt: skip
        if request in paper:
            p = paper[request]
            yield {"request": f"{request}, paper on an H20", "missed": p["primary_percent"],
                   "left": p["residual_percent"], "rescue": p["rescue_us"], "recovery": p["recovery_us"]}  # fmt: skip


def _proposal_rows(files: Sequence[File]) -> Iterable[tuple[str, Any, Any, Any]]:
    paper = files[0].payload["results"]["paper"].get("proposal", {})
    for request, step in _steps(files).items() if paper else ():
        yield request, *(step["variants"][name]["step_ms"] for name in (DIRECT, PAPERS, PLANNED))
        if request in paper:
            steps = (paper[request][name] for name in ("exact_step_ms", "sampled_step_ms"))
            yield f"{request}, paper on an H20", *steps, None


def _phases(step: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    found = step.get("phases", {})
    return [(how, name, split) for how in ("alone", "together") for name, split in found.get(how, {}).items()]


def _phase_rows(files: Sequence[File]) -> Iterable[dict[str, Any]]:
    paper = files[0].payload["results"]["paper"].get("proposal", {})
    for request, step in _steps(files).items():
        found = _phases(step)
        for how, name, split in found:
            cells = {phase: f"{us:.2f}" for phase, us in split["row_us"].items()}
            yield {"name": f"{request}, {how}: {name}", **cells, "all": f"{split['total_us']:.2f}"}
        for name, key in (("exact proposal", "exact_proposal_us"), ("sampled, s = 128", "sampled_proposal_us")):
            if found and request in paper:
                yield {"name": f"{request}, alone: {name}, paper on an H20", "proposal": paper[request][key]}


def _gain_columns(files: Sequence[File]) -> list[Column]:
    names = dict.fromkeys(name for row in _widths(files) for name in row if name != "width")
    cells = (Column(n, entry(n, lambda of: f"{of['median']:.2f} ({of['won']} of {of['cells']})")) for n in names)
    return [Column("width", "width", "{:,}"), *cells]


def _widths(files: Sequence[File]) -> Sequence[Mapping[str, Any]]:
    return next(find(files[0], "results/activation?/widths"), ())


def _gain_note(files: Sequence[File]) -> str:
    paper = files[0].payload["results"]["paper"]["activation"]
    wins = "; ".join(f"{name}: {text}" for name, text in paper["wins"].items())
    medians = ", ".join(f"{name} {value}" for name, value in paper["median_speedup_at_64K"].items())
    return (f"**Activation**. Paper: {paper['says']} ({paper['section']}): {wins}; median at 64K: {medians}.\n\n"
            "Times as fast as exact proposal: median over row counts and scores (cells won).")  # fmt: skip


_TALLIED = {"ms": ("step_ms", "{:.2f}"), "of floor": ("of_floor", "{:.2f}"),
            "missed": ("primary_missed_percent", "{:.3g}%"), "recovered": ("recovery_percent", "{:.3g}%"),
            "admitted": ("admitted_mean", "{:,.0f}")}  # fmt: skip
VARIANTS = Table(
    [Column("request", "request"), Column("variant", "name"), *(Column(name, *of) for name, of in _TALLIED.items())],
    lambda files: [
        {"request": request, "name": name, **facts} for request, step in _steps(files).items()
        for name, facts in (step["variants"] | step["peers"]).items()
    ],
)  # fmt: skip
_STEPS = ("exact proposal", "sampled, s = 128", "ksieve's choice")
ABLATION = (
    _sweep_table("margin"),
    _sweep_table("stride"),
    Table(
        [Column("request", "request"), Column("missed", "missed", "{:.3g}%"),
         Column("left after rescue", "left", "{:.3g}%"), Column("rescue adds", "rescue", "{:.1f} us"),
         Column("exact recovery adds", "recovery", "{:.1f} us")],
        _rescue_rows, _said("rescue", "Rescue"),
    ),
    Table(
        [Column(name, itemgetter(i), "{}" if i == 0 else "{:.1f} ms")
         for i, name in enumerate(("whole step", *_STEPS))],
        _proposal_rows, _said("proposal", "Exact against sampled proposal"),
    ),
    Table(
        [Column("microseconds of a row", "name"),
         *(Column(name, f"{name}?") for name in ("proposal", "scan", "verdict", "refinement", "all"))],
        _phase_rows,
    ),
    Table(_gain_columns, _widths, _gain_note),
)  # fmt: skip


def ablation_figures(payload: Payload) -> list[Figure]:
    """A figure for each part that was measured, with the paper's numbers."""
    paper, files, found = payload["results"]["paper"], [File("", payload)], []
    for part, at in (
        ("margin", "requested rank, in units of K (stride 128)"),
        ("stride", "one score in so many is sampled"),
    ):
        if part in paper:
            found.append(Figure(
                kind="line", marks=_sweep_marks(payload, part), name=f"-{part}", heading=f"Ablation of the {part}",
                at=at, scale="log2" if part == "stride" else "linear", log=[_UNDERFILL],
            ))  # fmt: skip
    if "rescue" in paper:
        panels = {"missed": ("rows, %", "missed by the primary boundary"), "left": ("rows, %", "left after rescue"),
                  "recovery": ("microseconds added to a row", "exact recovery"),
                  "rescue": ("microseconds added to a row", "rescue")}  # fmt: skip
        marks = [Mark(*names, row["request"].replace(" on an H20", ""), row[key], text=f"{row[key]:.3g}")
                 for key, names in panels.items() for row in _rescue_rows(files) if row[key] is not None]  # fmt: skip
        found.append(Figure(kind="bar", marks=marks, name="-rescue", heading="Ablation of the rescue"))
    if "proposal" in paper:
        marks = [Mark("microseconds of a row, one CTA", phase, f"{request}, {how}: {name}", us)
                 for request, step in _steps(files).items() for how, name, split in _phases(step)
                 for phase, us in split["row_us"].items()]  # fmt: skip
        marks += [Mark("milliseconds of the terminal step", "whole step", f"{request}: {name}", ms, text=f"{ms:.1f}")
                  for request, *steps in _proposal_rows(files) if request in _steps(files)
                  for name, ms in zip(_STEPS, steps, strict=True)]  # fmt: skip
        found.append(
            Figure(kind="stack", marks=marks, name="-proposal", heading="Exact against sampled proposal", lying=True)
        )
    if "activation" in paper:
        marks = [Mark("", name, size_text(row["width"]), gain["median"], gain["least"], gain["most"])
                 for row in _widths(files) for name, gain in row.items() if name != "width"]  # fmt: skip
        found.append(Figure(kind="line", marks=marks, name="-activation", heading="From which width on sampling pays",
                            at="row width", value="times as fast as exact proposal: median, least, most",
                            rules={"exact proposal": 1}))  # fmt: skip
    return found


_UNDERFILL = "Underfill: rows to exact recovery, %"


def _sweep_marks(payload: Payload, part: str) -> list[Mark]:
    """Latency, and rows sent to exact recovery, over the margin or the stride; the paper's range of the latter."""
    marks = []
    for request, step in payload["results"]["steps"].items():
        for view, by in _sweep(step, part).items():
            done = {v: f for v, f in by.items() if f.get("step_ms") and f.get("recovery_percent") is not None}
            for value, facts in done.items():
                name = f"{request}, {_VIEWS[view]}"
                marks.append(Mark("Latency: ms of the terminal step", name, value, facts["step_ms"]))
                marks.append(Mark(_UNDERFILL, name, value, max(facts["recovery_percent"], LEAST)))
    for value, (low, high) in payload["results"]["paper"][part]["recovery_range"].items():
        marks.append(Mark(_UNDERFILL, "paper, H20", float(value), (low * high) ** 0.5, low, high))
    return marks


def _chain_rows(files: Sequence[File]) -> Iterable[tuple[Any, ...]]:
    results = files[0].payload["results"]
    for request in results["requests"]:
        name = request["request"]
        for selector, facts in request.get("selectors", {}).items():
            if facts.get("exact") is True and "chain_ms" in facts:
                of_floor = facts["of_floor"] if facts["select_ms"] > 0 else None
                yield name, selector, facts["chain_ms"], facts["select_ms"], facts["select_share"], of_floor
            else:
                yield name, f"{selector}: failed or not exact", None, None, None, None
        published = results["paper"].get(name.upper(), {"select_ms": {}})
        for selector, select in published["select_ms"].items():
            whole = published["chain_ms"][selector]
            yield name, f"{selector}, paper on an H20 with DeepGEMM", whole, select, select / whole, None


_CHAIN_FORMS = {"request": "{}", "selector": "{}", "chain, ms": "{:.2f}", "selection, ms": "{:.2f}", "share": "{:.1%}",
                "of floor": "{:.2f}"}  # fmt: skip
CHAIN = (
    Table([Column(name, itemgetter(i), form) for i, (name, form) in enumerate(_CHAIN_FORMS.items())],
          _chain_rows),
    Table(
        [Column("request", "request"), Column("scores, ms", "scores/ms", "{:.1f}"),
         Column("TFLOP/s", "scores/teraflops", "{:.0f}"), Column("one plain read, ms", "floor_ms", "{:.2f}")],
        lambda files: [r for r in files[0].payload["results"]["requests"] if "scores" in r],
    ),
)  # fmt: skip


def chain_figures(payload: Payload) -> list[Figure]:
    """Milliseconds of whole chains, and of what selection adds."""
    bars = {f"{r['request']}  {n}": s for r in payload["results"]["requests"] for n, s in r.get("selectors", {}).items()
            if "chain_ms" in s}  # fmt: skip
    left, right = "score and select, ms of the terminal step", "selection, ms added"
    marks = [Mark(left, "score production", name, s["chain_ms"] - s["select_ms"]) for name, s in bars.items()]
    marks += [Mark(left, "selection", name, s["select_ms"]) for name, s in bars.items()]
    marks += [Mark(right, "selection", name, s["select_ms"], text=f"{s['select_ms']:.1f}, {s['select_share']:.1%}")
              for name, s in bars.items()]  # fmt: skip
    return [Figure(kind="stack", marks=marks, heading="Score and select in one CUDA graph", lying=True)]


def _replay_rows(files: Sequence[File]) -> Iterable[Mapping[str, Any]]:
    results = files[0].payload["results"]
    if len(results["steps"]) <= 12:
        yield from ({"name": f"step {step['step']}", **step} for step in results["steps"])
    if len(results["phases"]) > 1:
        yield from ({"name": name, **phase} for name, phase in results["phases"].items())
    yield {"name": "all", **results["total"]}


def _milliseconds(name: str, path: str) -> Column:
    def value(row: Any) -> str | None:
        us = next(find(row, path))
        return None if us is None else f"{us / 1e3:,.3f}"

    return Column(f"{name}, ms", value)


_TIMES = (
    _milliseconds("latency", "us"), _milliseconds("plain read", "floor_us"), Column("of floor", "of_floor?", "{:.2f}"),
    Column("exact", lambda row: "yes" if row["exact"] is True else "NO"),
)  # fmt: skip
REPLAY = Table(
    lambda files: [
        Column("", "name"), Column("calls", "calls", "{:,}"), Column("rows", "rows", "{:,}"), *_TIMES,
        *(_milliseconds(name, f"peers/{name}") for name in files[0].payload["results"]["total"]["peers"]),
    ],
    _replay_rows,
)  # fmt: skip

MOST_CALLS = 40
"""Calls that the terminal lists one by one."""

CALLS = Table(
    [Column("call", "name"), *(Column(name, name, "{:,}") for name in ("step", "rows", "width")), *_TIMES],
    lambda files: [
        {"name": f"{i} {call['phase']}", **call} for i, call in enumerate(files[0].payload["results"]["calls"])
        if files[0].payload["results"]["total"]["calls"] <= MOST_CALLS
    ],
)  # fmt: skip


def _replayed(payload: Payload) -> str:
    total, settings = payload["results"]["total"], payload["settings"]
    text = f"{settings['trace']}: {total['calls']} calls, top {settings['k']:,}"
    if total["us"]:
        text += f", {total['us'] / 1e3:,.2f} ms in all, {total['of_floor']:.2f} of the plain read"
    return text


def _replay_head(payload: Payload) -> str:
    settings, exact = payload["settings"], payload["results"]["total"]["exact"]
    return f"{'' if exact else 'NOT '}exact: {_replayed(payload)}; {settings['scores']} scores on {settings['backend']}"


def replay_figures(payload: Payload) -> list[Figure]:
    """Each call's latency and its share of the plain read, in order."""
    marks = []
    for i, call in enumerate(payload["results"]["calls"]):
        marks.append(Mark("microseconds", "one plain read", i, call["floor_us"]))
        if call["us"]:
            marks.append(Mark("microseconds", call["phase"], i, call["us"]))
            marks.append(Mark("of the plain read", call["phase"], i, call["of_floor"]))
    return [Figure(kind="line", marks=marks, heading="Calls of a replay", at="call, in order",
                   references=["one plain read"], title=_replayed(payload))]  # fmt: skip


SECTIONS = (
    Section(["ablation"], [VARIANTS, *ABLATION], ["steps?/*/variants/*/exact", "steps?/*/wave?/exact?",
            "activation?/cells/*/selectors/*/exact"], ablation_figures),
    Section(["chain"], CHAIN, ["requests/*/selectors/ksieve/exact"], chain_figures),
    Section(["replay"], [CALLS, REPLAY], ["total/exact"], replay_figures, _replay_head),
)  # fmt: skip
