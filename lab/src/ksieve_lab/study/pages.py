"""The measured tables of docs/guide/study.md, written from result files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ksieve_lab.study import words

Payload = Mapping[str, Any]


def study_section(payload: Payload) -> str:
    """Markdown of a study's result file: what was studied, the verdict, the paper against what was found,
    and the policies.
    """
    results = payload["results"]
    captures: Sequence[Mapping[str, Any]] = results["captures"]
    names = [f"`{c['name']}`" for c in captures]
    about = _table(
        ("capture", "rows studied", "valid scores per row"),
        [
            (name, f"{c['studied']:,}", f"{c['lengths']['least']:,} to {c['lengths']['most']:,}")
            for name, c in zip(names, captures, strict=True)
        ],
    )
    tables = (words.verdict_table(results), words.comparison_table(results), words.policy_table(results))
    return "\n\n".join((about, f"**{words.verdict_sentence(results)}.**", *(_table(*table) for table in tables)))


def calibration_section(payload: Payload) -> str:
    """Markdown of a calibration's result file: the policy, and its predictions set against held-back rows."""
    results, settings = payload["results"], payload["settings"]
    chosen, ordinary = results["chosen"], results["default"]
    rescue = f", rescue {chosen['rescue_margin']:.2f} K" if chosen["rescue_margin"] is not None else ""
    beside = ""
    if ordinary:
        again = f"{_percent(ordinary['overflow'])} of rows scanned again for want of room"
        beside = f"; the planner's own {ordinary['policy']}: {ordinary['row_ns']:,.1f} ns, {again}"
    head = (
        f"`{' '.join(settings['captures'])}`, K = {settings['k']:,}, costs of {settings['cost']}: "
        f"**{chosen['policy']}**, margin {chosen['margin']:.2f} K{rescue}, "
        f"{chosen['row_ns']:,.1f} ns a row by the model{beside}."
    )
    rows = [
        (words, show(e["value"]), f"{show(e['next_low'])} to {show(e['next_high'])}", show(results["realised"][name]),
         "yes" if results["came_true"][name] else "**no**")
        for name, words, show in _QUANTITIES
        for e in (chosen[name],)
        if name != "p_band" or chosen["rescue_margin"] is not None
    ]  # fmt: skip
    columns = ("", f"predicted from {results['rows']} rows", f"expected of {results['held_back']} held-back rows",
               "realised", "as predicted")  # fmt: skip
    return f"{head}\n\n{_table(columns, rows)}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


_QUANTITIES = (
    ("p_band", "band scans", _percent),
    ("p_exact", "exact recovery", _percent),
    ("traffic", "row scans", "{:.4f}".format),
    ("admitted", "admitted / K", "{:.3f}".format),
)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
