"""Result files of ablations, chains and replays as Markdown: the generated part of docs/guide/evidence.md.

Every number is read from a payload, and the paper's is printed with it; an inexact answer raises an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ksieve_lab.bench import pages
from ksieve_lab.bench.ablation import inexact, steps
from ksieve_lab.bench.pages import InexactError, fenced, machine, table
from ksieve_lab.report import benches

Payload = Mapping[str, Any]

BENCHES = ("ablation", "chain", "replay")
"""Values of a payload's ``bench`` that this page shows."""


def section(files: Sequence[tuple[str, str, Payload]]) -> str:
    """Write the page's generated part.

    Parameters
    ----------
    files : sequence of (link, stem, payload)
        Result files: Markdown link, name without suffix, contents.
    """
    writers = {"ablation": _ablation, "chain": _chain, "replay": _replay}
    parts = []
    for bench in BENCHES:
        for link, stem, payload in files:
            if payload["bench"] == bench:
                parts += [f"### {stem}", f"{machine(payload)}; {link}:", fenced("text", pages.command(payload))]
                parts += writers[bench](payload)
                parts += [
                    f"![{name.replace('-', ' ')}](../figures/{name}.svg)" for name in benches.names(payload, stem)
                ]
    return "\n\n".join(parts)


def _ablation(payload: Payload) -> list[str]:
    wrong = inexact(dict(payload))
    if wrong:
        raise InexactError(f"no exact answer was measured: {', '.join(wrong)}")
    paper, found, parts = payload["results"]["paper"], payload["results"].get("steps", {}), []
    for part in ("margin", "stride"):
        if part in paper:
            parts += [f"**{part.capitalize()}**. Paper: {paper[part]['says']} ({paper[part]['section']}).",
                      _sweep(found, part, paper[part])]  # fmt: skip
    if "rescue" in paper:
        parts += [f"**Rescue**. Paper: {paper['rescue']['says']} ({paper['rescue']['section']}).",
                  _rescue(found, paper["rescue"])]  # fmt: skip
    if "proposal" in paper:
        parts += [f"**Exact against sampled proposal**. Paper: {paper['proposal']['says']} "
                  f"({paper['proposal']['section']}).", *_proposal(found, paper["proposal"])]  # fmt: skip
    if "activation" in payload["results"]:
        parts += [f"**Activation**. Paper: {paper['activation']['says']} ({paper['activation']['section']}).",
                  _activation(payload["results"]["activation"]["widths"], paper["activation"])]  # fmt: skip
    return parts


def _sweep(found: Mapping[str, Any], part: str, paper: Mapping[str, Any]) -> str:
    columns = ["margin" if part == "margin" else "stride", "paper: recovered"]
    for request in found:
        columns += [f"{request}: ms", "of floor", "recovered", "by lines: ms", "recovered"]
    rows = []
    for value in steps.MARGINS if part == "margin" else steps.STRIDES:
        line = [f"{value:g}", _percent_words(paper["recovery_percent"].get(_key(paper["recovery_percent"], value)))]
        for step in found.values():
            for number, make in enumerate((steps.paper_policy, steps.lines_policy)):
                policy = make(steps.STRIDE, value) if part == "margin" else make(int(value), steps.MARGIN)
                facts = step["variants"].get(policy.name)
                cells = ["", "", ""] if facts is None else [
                    f"{facts['step_ms']:.2f}", f"{facts['of_floor']:.2f}", f"{facts['recovery_percent']:.3g}%"
                ]  # fmt: skip
                line += cells if number == 0 else [cells[0], cells[2]]
        rows.append(line)
    return table(columns, rows)


def _key(paper: Mapping[Any, Any], value: float) -> Any:
    """Key of a value, which JSON may have made text of."""
    return next((key for key in paper if float(key) == value), None)


def _percent_words(value: Any) -> str:
    return "" if value is None else f"{value}%"


def _rescue(found: Mapping[str, Any], paper: Mapping[str, Any]) -> str:
    rows = []
    for request, step in found.items():
        on, wave = step["variants"][steps.RESCUED], step.get("wave") or {}
        ours = (on["primary_missed_percent"], on["recovery_percent"], wave.get("rescue_us"), wave.get("recovery_us"))
        rows.append([request, *_rescue_cells(*ours)])
        if request in paper:
            names = ("primary_percent", "residual_percent", "rescue_us", "recovery_us")
            rows.append([f"{request}, paper on an H20", *_rescue_cells(*(paper[request][name] for name in names))])
    return table(("request", "missed", "left after rescue", "rescue adds", "exact recovery adds"), rows)


def _rescue_cells(missed: float, left: float, rescue: float | None, recovery: float | None) -> list[str]:
    us = ["" if value is None else f"{value:.1f} us" for value in (rescue, recovery)]
    return [f"{missed:.3g}%", f"{left:.3g}%", *us]


def _proposal(found: Mapping[str, Any], paper: Mapping[str, Any]) -> list[str]:
    names = {
        "exact proposal": steps.DIRECT,
        "sampled, s = 128": steps.paper_policy(steps.STRIDE, steps.MARGIN).name,
        "ksieve's choice": steps.PLANNED,
    }
    rows = []
    for request, step in found.items():
        rows.append([request, *(f"{step['variants'][name]['step_ms']:.2f} ms" for name in names.values())])
        if request in paper:
            p = paper[request]
            rows.append([f"{request}, paper on an H20", f"{p['exact_step_ms']} ms", f"{p['sampled_step_ms']} ms", ""])
    parts = [table(("whole step", *names), rows)]
    lines = []
    for request, step in found.items():
        for how in ("alone", "together"):
            for name, split in step.get("phases", {}).get(how, {}).items():
                cells = (f"{us:.2f}" for us in split["row_us"].values())
                lines.append([f"{request}, {how}: {name}", *cells, f"{split['total_us']:.2f}"])
        if request in paper and "alone" in step.get("phases", {}):
            p = paper[request]
            for name, key in (("exact proposal", "exact_proposal_us"), ("sampled, s = 128", "sampled_proposal_us")):
                lines.append([f"{request}, alone: {name}, paper on an H20", f"{p[key]:g}", "", "", "", ""])
    if lines:
        parts.append(table(("microseconds of a row", "proposal", "scan", "verdict", "refinement", "all"), lines))
    return parts


def _activation(widths: Sequence[Mapping[str, Any]], paper: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(name for row in widths for name in row if name != "width"))
    rows = []
    for row in widths:
        cells = [f"{row[n]['median']:.2f} ({row[n]['won']} of {row[n]['cells']})" if n in row else "" for n in names]
        rows.append([f"{row['width']:,}", *cells])
    published = "; ".join(f"{name}: {text}" for name, text in paper["wins"].items())
    medians = ", ".join(f"{name} {value}" for name, value in paper["median_speedup_at_64K"].items())
    return "\n\n".join([
        "Times as fast as exact proposal: median over row counts and scores (cells won).",
        table(("width", *names), rows), f"Paper: {published}; median at 64K: {medians}.",
    ])  # fmt: skip


def _chain(payload: Payload) -> list[str]:
    rows, skipped = [], []
    for request in payload["results"]["requests"]:
        name = request["request"]
        if "skipped" in request:
            skipped.append(f"{name}: {request['skipped']}")
            continue
        if request["selectors"]["ksieve"].get("exact") is not True:
            raise InexactError(f"chain {name}: no exact answer was measured")
        for selector, facts in request["selectors"].items():
            if facts.get("exact") is not True or "chain_ms" not in facts:
                skipped.append(f"{name}: {selector} failed or was not exact")
                continue
            of_floor = f"{facts['of_floor']:.2f}" if facts["select_ms"] > 0 else ""
            rows.append([name, selector, f"{facts['chain_ms']:.2f}", f"{facts['select_ms']:.2f}",
                         f"{facts['select_share']:.1%}", of_floor])  # fmt: skip
        published = payload["results"]["paper"].get(name.upper())
        for selector, select in (published or {}).get("select_ms", {}).items():
            whole = published["chain_ms"][selector]
            rows.append([name, f"{selector}, paper on an H20 with DeepGEMM", f"{whole:.2f}", f"{select:.2f}",
                         f"{select / whole:.1%}", ""])  # fmt: skip
    columns = ("request", "selector", "chain, ms", "selection, ms", "share", "of floor")
    remark = "; ".join(f"{r['request']}: scores {r['scores']['ms']:.1f} ms, {r['scores']['teraflops']:.0f} TFLOP/s, "
                       f"one plain read of them {r['floor_ms']:.2f} ms"
                       for r in payload["results"]["requests"] if "scores" in r)  # fmt: skip
    return [table(columns, rows), *(text for text in (remark, "; ".join(skipped)) if text)]


def _replay(payload: Payload) -> list[str]:
    results = payload["results"]
    if results["total"]["exact"] is not True:
        raise InexactError(f"replay {payload['settings']['trace']}: no exact answer was measured")
    rows = [_sums(f"step {s['step']}", s) for s in results["steps"][:12]]
    rows = rows if len(results["steps"]) <= 12 else []
    rows += [_sums(name, facts) for name, facts in results["phases"].items() if len(results["phases"]) > 1]
    return [table(("", "calls", "rows", "latency, ms", "plain read, ms", "of floor"),
                  [*rows, _sums("all", results["total"])])]  # fmt: skip


def _sums(name: str, facts: Mapping[str, Any]) -> list[str]:
    times = (facts["us"] / 1e3, facts["floor_us"] / 1e3)
    return [name, f"{facts['calls']:,}", f"{facts['rows']:,}", *(f"{t:.2f}" for t in times), f"{facts['of_floor']:.2f}"]
