"""Benches of shapes on a GPU: operator, decode, short, general, options, traces, and the worst case."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ksieve_lab.bench import logits
from ksieve_lab.report.figures import Figure, Mark, size_text
from ksieve_lab.report.tables import Column, File, Section, Table, card, entry, geometric_mean, reached

Payload = Mapping[str, Any]
Shape = Mapping[str, Any]

OWN, PLAIN, FLOOR = "ksieve", "plain", "plain read"

TARGET_MEAN, TARGET_LEAST = 0.92, 0.82
"""Of the operator shapes, as fractions of the plain-read speed: the geometric mean, and each shape."""

TARGET_TRACE, WORST_TARGET = 0.90, 2.5

MOST_CURVES = 5
"""Curves of a panel: the plain read, ksieve and the fastest others; files have all selectors."""

MOST_PANELS = 8
"""Panels of a figure of many widths: the narrowest, the widest, and widths between them."""

DECODE_ROWS = (1, 8, 64, 256)
"""Batches that get a panel of decode curves."""


def shapes(payload: Payload) -> list[Shape]:
    """Shapes that were measured."""
    return [shape for shape in payload["results"]["shapes"] if "skipped" not in shape]


def microseconds(shape: Shape, name: str) -> float:
    """Median of an exact selector, or of the floor; NaN where there is none."""
    if name == FLOOR:
        return float(shape["floor_us"])
    facts = shape.get("selectors", {}).get(name, {})
    return float(facts["median_us"]) if facts.get("exact") is True and "median_us" in facts else math.nan


def over_others(file: File) -> list[float]:
    """For each shape, the time of the fastest exact selector of another library over ksieve's."""
    found = []
    for shape in shapes(file.payload):
        names = [n for n, facts in shape["selectors"].items() if n == "torch.topk" or facts.get("peer")]
        ratios = [microseconds(shape, n) / microseconds(shape, OWN) for n in names]
        found += [min(known)] if (known := [r for r in ratios if math.isfinite(r)]) else []
    return found


def size(shape: Shape) -> str:
    """Write a shape."""
    return f"{shape['rows']:,} x {shape['width']:,}"


def scores(payload: Payload) -> str:
    """Describe the scores of a result."""
    name = payload["settings"].get("scores", "endpoint")
    return {"endpoint": "endpoint-structured"}.get(name, "real factors" if name.startswith("factors") else name)


def title(payload: Payload) -> str:
    """Card, k, dtype, scores and lengths of a result, as far as it has them."""
    settings = payload["settings"]
    kind = "adversarial" if payload["bench"] == "worst" else scores(payload)
    parts = [card(File("", payload)) or "GPU", f"k = {settings['k']:,}" if "k" in settings else "",
             settings.get("dtype")]  # fmt: skip
    if lengths := settings.get("lengths"):
        parts += [f"{kind} scores"] * ("k" in settings)
        parts.append(f"lengths of {int(lengths):,}" if lengths.isdecimal() else f"{lengths} lengths")
    return ", ".join(filter(None, parts))


def _least(file: File) -> Shape:
    return min(shapes(file.payload), key=lambda shape: shape["selectors"][OWN]["of_floor"])


SUMMARY = (
    Column("file", lambda file: file.stem),
    Column("k", "settings/k", "{:,}"),
    Column("dtype", "settings/dtype"),
    Column("scores", lambda file: scores(file.payload)),
    Column("shapes", "results/of_floor/ksieve/shapes"),
    Column("of the plain read, mean", "results/of_floor/ksieve/geometric_mean", "{:.3f}"),
    Column("least", "results/of_floor/ksieve/least", "{:.3f}"),
    Column("at", lambda file: size(_least(file))),
    Column("fastest other / ksieve, mean", lambda file: geometric_mean(over_others(file)), "{:.2f}"),
    Column("least", lambda file: min(over_others(file), default=None), "{:.2f}"),
    Column("ksieve slower at", lambda file: sum(r < 1 for r in over_others(file)) if over_others(file) else None),
)  # fmt: skip


def columns_of(files: Sequence[File], cell: Callable[[Shape], str]) -> list[Column]:
    """Columns of a table of the first file with a cell for each shape: widths downwards, rows across."""
    across = sorted({shape["rows"] for shape in shapes(files[0].payload)})
    return [Column("width \\ rows", "width", "{:,}"), *(Column(f"{m:,}", entry(m, cell)) for m in across)]


def rows_of(files: Sequence[File]) -> list[dict[Any, Any]]:
    """Rows of such a table."""
    lines: dict[int, dict[Any, Any]] = {}
    for shape in shapes(files[0].payload):
        lines.setdefault(shape["width"], {"width": shape["width"]})[shape["rows"]] = shape
    return [lines[width] for width in sorted(lines)]


def _selectors(found: Sequence[Shape]) -> list[str]:
    """The floor, our own, then the fastest on average: `MOST_CURVES` at most."""
    others = dict.fromkeys(n for shape in found for n in shape.get("selectors", {}) if n != OWN)
    ratios = {n: [r for s in found if math.isfinite(r := microseconds(s, n) / s["floor_us"])] for n in others}
    # A selector that answers few of the shapes comes after others that answer most.
    order = {n: (2 * len(r) < len(found), geometric_mean(r)) for n, r in ratios.items() if r}
    return [FLOOR, OWN, *sorted(order, key=lambda n: order[n])][:MOST_CURVES]


def shape_figures(payload: Payload) -> list[Figure]:
    """Heat map of the fractions, and curves over the rows, or, for few rows, over the width."""
    found = sorted(shapes(payload), key=lambda shape: (shape["width"], shape["rows"]))
    if not found:
        return []
    rows, widths = (sorted({shape[name] for shape in found}) for name in ("rows", "width"))
    few = rows[0] < 16 and rows[-1] <= 512
    if few:
        by, over, panels = "rows", "width", [m for m in DECODE_ROWS if m in rows] or rows[:4]
    else:
        by, over, last = "width", "rows", len(widths) - 1
        panels = (
            widths if last < MOST_PANELS else [widths[round(i * last / (MOST_PANELS - 1))] for i in range(MOST_PANELS)]
        )
    curves = [
        Mark(f"{by}: {size_text(value)}", name, shape[over], microseconds(shape, name))
        for value in panels for name in _selectors(found) for shape in found if shape[by] == value
    ]  # fmt: skip
    known = {(shape["rows"], shape["width"]): shape["floor_us"] / microseconds(shape, OWN) for shape in found}
    # Every cell, so that rows and widths come in their order.
    cells = [Mark("ksieve, fraction of the plain read", size_text(n), f"{m:,}", known.get((m, n), math.nan))
             for n in widths for m in rows]  # fmt: skip
    return [
        Figure(kind="heat", marks=cells, name="-of-floor",
               heading="Fraction of the plain read", at="rows", value="row width, scores", title=title(payload)),
        Figure(kind="line", marks=curves, name="-decode" if few else "-latency", heading="Times of all selectors",
               at="row width, scores" if few else "rows", value="microseconds", scale="log2",
               log=list(dict.fromkeys(mark.panel for mark in curves)), shared=True, references=[FLOOR],
               title=title(payload)),
    ]  # fmt: skip


def option_figures(payload: Payload) -> list[Figure]:
    """Bars: every option's time over the plain call's, a panel for each shape, in one order, dearest on top."""
    found = [shape for shape in shapes(payload) if math.isfinite(microseconds(shape, PLAIN))]
    ratios = {f"{s['rows']} x {size_text(s['width'])}: plain {microseconds(s, PLAIN):.3g} us": {
        n: r for n in s["selectors"] if n != PLAIN and math.isfinite(r := microseconds(s, n) / microseconds(s, PLAIN))
    } for s in found}  # fmt: skip
    names = dict.fromkeys(name for known in ratios.values() for name in known)
    order = sorted(names, key=lambda n: -geometric_mean([known[n] for known in ratios.values() if n in known]))
    marks = [Mark(panel, "option", name, known.get(name, math.nan), text=f"{known[name]:.2f}" if name in known else "")
             for panel, known in ratios.items() for name in order]  # fmt: skip
    return [Figure(kind="bar", marks=marks, heading="Times of options over the plain call's", lying=True, shared=True,
                   value="time over the plain call's", rules={"plain": 1}, title=title(payload))]  # fmt: skip


def worst_figures(payload: Payload) -> list[Figure]:
    """Times over the plain read for each family, the worst shape of each."""
    found = {family: by for family, by in payload["results"]["worst"].items() if OWN in by}
    marks = [Mark("", name, family.replace("_", " "), facts["ratio"], text=f"{facts['ratio']:.2f}")
             for family, by in sorted(found.items(), key=lambda item: -item[1][OWN]["ratio"])
             for name, facts in by.items()]  # fmt: skip
    return [Figure(kind="bar", marks=marks, heading="The worst case of each family", lying=True,
                   value="time over a plain read of the same rows; the worst shape of each family",
                   rules={FLOOR: 1, f"the target, {WORST_TARGET}": WORST_TARGET}, title=title(payload))]  # fmt: skip


def trace_figures(payload: Payload) -> list[Figure]:
    """Fraction of the plain read along each trace, one point per invocation."""
    marks = [
        Mark(f"{name}: {len(found['invocations'])} calls, plain reads {found['floor_us'] / 1e3:.1f} ms", selector,
             i + 1, call["floor_us"] / microseconds(call, selector))
        for name, found in payload["results"]["traces"].items() if "floor_us" in found
        for selector in found["selectors"] for i, call in enumerate(found["invocations"])
    ]  # fmt: skip
    return [Figure(kind="line", marks=marks, heading="Fraction of the plain read along each trace", at="call, in order",
                   value="fraction of the plain read", shared=True, title=title(payload))]  # fmt: skip


def _trace_rows(files: Sequence[File]) -> Iterable[dict[str, Any]]:
    for file in files:
        for name, found in file.payload["results"]["traces"].items():
            for selector, facts in found.get("selectors", {}).items():
                yield {"request": name, "calls": len(found["invocations"]), "floor": found["floor_us"] / 1e3,
                       "selector": selector, "us": facts.get("total_us", math.nan) / 1e3, "facts": facts}  # fmt: skip


ANCHORS = Path("benchmarks/anchors-h200.json")
"""Published times of other selectors, relative to the repository's root: shown next to measured ones, never mixed."""


def published(payload: Payload, path: Path | None = None) -> dict[str, dict[str, float]]:
    """Published microseconds by library of each measured ``MxN``, of the same card, k, dtype and lengths."""
    path, settings = path or ANCHORS, payload["settings"]
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    if known is None or known["device"] not in card(File("", payload)) or settings.get("dtype") != "float32":
        return {}
    listed = known["times"].get(settings.get("lengths"), {}).get(str(settings.get("k")), {})
    measured = [f"{shape['rows']}x{shape['width']}" for shape in payload["results"]["shapes"]]
    return {shape: listed[shape] for shape in measured if shape in listed}


PUBLISHED = Table(
    lambda files: [
        Column("rows x width", "name"),
        *(Column(name, f"{name}?", "{:.1f}") for name in dict.fromkeys(
            name for by in published(files[0].payload).values() for name in by)),
    ],
    lambda files: [{"name": shape} | by for shape, by in published(files[0].payload).items()],
    "Microseconds published, not measured here",
)  # fmt: skip


def _by_key(files: Sequence[File], path: str) -> list[dict[str, Any]]:
    """A row for each name of a mapping of the results, with each file's entry under the file's stem."""
    found = {file.stem: file.payload["results"][path] for file in files}
    names = dict.fromkeys(name for by in found.values() for name in by)
    return [{"name": name} | {stem: by[name] for stem, by in found.items() if name in by} for name in names]


OPTIONS = Table(
    lambda files: [
        Column("option", "name"),
        *(Column(f"{file.payload['settings']['dtype']}: mean (most)", entry(
            file.stem, lambda of: f"{of['geometric_mean']:.2f} ({of['most']:.2f})")) for file in files),
    ],
    lambda files: [row for row in _by_key(files, "of_plain") if row["name"] != PLAIN],
    lambda files: f"Times over the plain call's, in {', '.join(file.stem for file in files)}.",
)  # fmt: skip

TRACES = Table(
    [
        Column("request", "request"), Column("calls", "calls"), Column("plain reads, ms", "floor", "{:.2f}"),
        Column("selector", "selector"), Column("sum, ms", "us", "{:.2f}"),
        Column("of the plain reads", "facts/of_floor?", "{:.3f}"),
        Column("", lambda row: reached(row["facts"]["of_floor"], TARGET_TRACE) if row["selector"] == OWN else None),
    ],
    _trace_rows,
)  # fmt: skip

WORST = Table(
    [
        Column("scores", "name", "`{}`"),
        Column("times over the plain read", lambda row: row[min(row.keys() - {"name"})][OWN]["ratio"], "{:.2f}"),
        Column("at", lambda row: size(row[min(row.keys() - {"name"})][OWN])),
    ],
    lambda files: sorted(
        (row for row in _by_key(files[:1], "worst") if OWN in row[files[0].stem]),
        key=lambda row: -row[files[0].stem][OWN]["ratio"],
    ),
    f"The worst shape of each family; the target is {WORST_TARGET}.",
)  # fmt: skip

OVER_TORCH = Table(
    [
        Column("cases", "results/over_torch?/shapes"),
        Column("torch.topk's time over ours, mean", "results/over_torch?/geometric_mean", "{:.2f}"),
        Column("least", "results/over_torch?/least", "{:.2f}"),
        Column("ksieve slower in", lambda file: len(file.payload["results"]["slower"])),
    ],
)  # fmt: skip

BEFORE = Table(
    [
        Column("against", lambda file: file.payload["settings"].get("against", "nothing: first result of this card")),
        Column("calls", "results/of_before?/calls"),
        Column("time over before, mean", "results/of_before?/geometric_mean", "{:.3f}"),
        Column("most", "results/of_before?/most", "{:.2f}"),
        Column("plain reads over before", "results/of_before?/reads", "{:.3f}"),
        Column("slower", lambda file: len(file.payload["results"]["regressed"])),
    ],
)  # fmt: skip

_EXACT = ("shapes/*/selectors/ksieve/exact",)
SECTIONS = (
    Section(["operator", "decode", "short", "gpu", "sixteen-bit"], [Table(SUMMARY), PUBLISHED], _EXACT, shape_figures),
    Section(["general"], [OVER_TORCH], _EXACT),
    Section(["regress"], [BEFORE], _EXACT),
    Section(["options"], [OPTIONS], ["shapes/*/selectors/*/exact"], option_figures),
    Section(["segments", "layer"], exact=["shapes/*/selectors/*/exact"]),
    Section(["logits"], exact=[f"shapes/*/selectors/{name}/exact" for name in logits.OURS]),
    Section(["trace"], [TRACES], ["traces/*/selectors/ksieve/exact"], trace_figures),
    Section(["worst"], [WORST], ["cases/*/selectors/ksieve/exact"], worst_figures),
)
