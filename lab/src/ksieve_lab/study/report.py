"""The report of a study: one HTML file that needs nothing else, with figures that follow the reader's theme."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ksieve.core.installation import install_command
from ksieve_lab.report import figures
from ksieve_lab.report.specs.study import ABOUT, EVERY_POLICY, FIGURES, VERDICT, comparison
from ksieve_lab.report.tables import File, Table, cells, machine
from ksieve_lab.study import words
from ksieve_lab.study.verdict import HOLDS

EXPLANATIONS = {
    "tail": (
        "The exact boundary lies between ranks K and K+1. Lower it by ε times that adjacent gap, and C(ε) scores lie "
        "at or above it. A flat curve means that a boundary may be wrong by hundreds of gaps before there is much "
        "more to resolve. Rows tied at rank K have no gap and are left out.",
        "Prediction: where the score density is locally flat, neighbouring gaps are independent exponentials, so "
        "C - K has mean ε (the paper's relation) and is geometric over rows: its median is K + 0.69 ε.",
    ),
    "ranks": (
        "A view reads one score in s, starting at each of s phases. Its q-th largest score, q = ⌈requested / s⌉, is "
        "looked up in the complete row. A calibrated view gives the requested rank: on the diagonal.",
        "Ranges hold 5 to 95 % of all rows and phases. What lies under K underfills, and costs another scan; what lies "
        "far above costs candidates.",
    ),
    "deciles": (
        "Position-exchangeable rows put 10 % of their top K in every tenth. Attention sinks raise the first tenth, "
        "recency the last; the paper's captures hold 52 to 74 % there.",
    ),
    "rms": (
        "If positions were exchangeable, a phase would be a uniform sample, and its rank error would follow a "
        "finite-population order statistic: √(Var + bias²) with "
        "Var = q (n - q + 1)(L + 1)(L - n) / ((n + 1)² (n + 2)), evaluated for every row length and phase size. Below "
        "that line, the row's own structure helps a regular view; above it, something in the row beats in time with "
        "the stride, or scores clump.",
    ),
    "regions": (
        "Any m adjacent positions hold ⌊m/s⌋ or ⌈m/s⌉ of each phase: contiguous regions cannot favour one. The figure "
        "shows what that leaves of the scatter of the top 1.5 K over phases, in units of an exchangeable row's; "
        "above 1, phases see unequal shares. Lines of 32 adjacent scores see a clump wholly or not at all.",
    ),
    "runs": ("How long the contiguous runs of the boundary region really are.",),
    "policies": (
        "Left: views of equal size that read single scores, quads, groups of 8 or whole lines. Right: the primary "
        "boundary of every policy that ksieve has by name, over all phases (of a jittered one, all turns of its hash); "
        "coarse boundaries include their whole float16 bin. Underfill is the share of rows and phases that admit fewer "
        "than K.",
    ),
}
"""What each figure shows, in the words of the report."""

HOLDING = (
    "Sampling holds where a row is scanned at most "
    f"{1 + HOLDS:g} times on average, besides the view: rescue bands, exact recovery and rescans for want of candidate "
    "storage counted. Underfill is the share of rows and phases whose boundary admits fewer than K; candidates are the "
    "scores it admits: median, and 5 to 95 %. Row scans are expected scores read over a row's length, the view "
    "included. Rows shorter than 4 K are not studied."
)
"""What the verdict means."""

POLICIES = (
    "What would happen with each policy that ksieve has by name, in a plan for the same device: candidates, underfill "
    "and row scans. Any of them is exact; ksieve calibrate weighs them by a device's costs."
)

NO_FIGURES = f"without figures: matplotlib is not installed ({install_command('plot', 'ksieve-lab')})"
"""Said where a study is written without its figures."""

_PAPER = (
    " The paper's figures come from its own captures (Hy4-Preview, K = 2048); they are printed for comparison, not as "
    "a target."
)

_PAGE_CSS = """
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; background: var(--k-card); color: var(--k-ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.6rem 0 .5rem; }
.verdict { font-size: 1.15rem; }
pre { overflow-x: auto; font-size: .9rem; border: 1px solid var(--k-grid); padding: .5rem .8rem; }
nav h2 { margin-top: 1.6rem; } nav ol { margin: 0; padding-left: 1.4rem; } a { color: inherit; }
p { margin: .5rem 0; max-width: 46rem; } .quiet { color: var(--k-muted); font-size: .9rem; }
figure { margin: 1rem 0; overflow-x: auto; } img { width: 100%; min-width: 34rem; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; margin: .8rem 0; }
th, td { text-align: right; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--k-grid); vertical-align: top; }
td { white-space: nowrap; } th { font-weight: 600; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 7rem; }
@media print { body { max-width: none; } h2, figure { break-inside: avoid; } }
"""


def report(payload: Mapping[str, Any], drawn: Mapping[str, bytes]) -> str:
    """Return the report as HTML, from the payload of a study or of its result file.

    `drawn`: figures as SVG files, by the stems of `FIGURES`. Of a missing one the report has the numbers
    alone.
    """
    results = payload["results"]
    files = [File("study", payload)]
    sections = {name: rows for name in FIGURES if (rows := _table(comparison(name), files)) or name in drawn}
    answer, _, sentence = words.verdict_sentence(results).partition(": ")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>ksieve study</title>",
        f"<style>{figures.PAGE_CSS}{_PAGE_CSS}</style></head><body>",
        "<h1>Does sampling hold on these scores?</h1>",
        f'<p class="verdict"><strong>{escape(answer)}</strong>: {escape(sentence)}.</p>',
        _table(VERDICT, files),
        f"<p>{escape(HOLDING)}</p>",
        f"<pre>{escape(payload['environment']['command'])}</pre>",
        f'<p class="quiet">{escape(machine(files[0]))}; ranked on {escape(payload["settings"]["device"])}</p>',
        _contents(sections),
        '<h2 id="captures">Captures</h2>',
        _table(ABOUT, files),
        f"<p>K = {results['k']:,}. Ranks are exact: every valid score of a studied row was compared."
        f"{_PAPER if results['k'] == words.PAPER_K else ''}</p>",
        '<h2 id="every-policy">Every named policy</h2>',
        f"<p>{escape(POLICIES)}</p>",
        _table(EVERY_POLICY, files),
    ]
    if not drawn:
        parts.append(f'<p class="quiet">{escape(NO_FIGURES)}</p>')
    for name, rows in sections.items():
        heading = FIGURES[name][0]
        parts.append(f'<h2 id="figure-{name}">{escape(heading)}</h2>')
        if name in drawn:
            parts += [f"<p>{escape(text)}</p>" for text in EXPLANATIONS[name]]
            data = b64encode(drawn[name]).decode()
            parts.append(f'<figure><img alt="{escape(heading)}" src="data:image/svg+xml;base64,{data}"></figure>')
        parts.append(rows)
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _contents(shown: Iterable[str]) -> str:
    """Links to the sections, in their order."""
    sections = [("captures", "Captures"), ("every-policy", "Every named policy")]
    sections += [(f"figure-{name}", FIGURES[name][0]) for name in shown]
    items = "".join(f'<li><a href="#{name}">{escape(heading)}</a></li>' for name, heading in sections)
    return f"<nav><h2>Contents</h2><ol>{items}</ol></nav>"


def _table(table: Table, files: Sequence[File]) -> str:
    """A table; empty where it has no row."""

    def line(texts: Sequence[str | None], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(text or '')}</{tag}>" for text in texts) + "</tr>"

    _, head, rows = cells(table, files)
    body = "".join(line(row, "td") for row in rows)
    whole = f'<div class="scroll"><table><thead>{line(head, "th")}</thead><tbody>{body}</tbody></table></div>'
    return whole if rows else ""
