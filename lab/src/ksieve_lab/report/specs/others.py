"""Blocks, ranks and the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ksieve_lab.report.figures import Figure, Mark, size_text
from ksieve_lab.report.specs.gpu import shapes, size
from ksieve_lab.report.tables import Column, File, Section, Table, card, reached

Payload = Mapping[str, Any]

TARGETS = {4: 1.4, 8: 2.5}
"""Times as fast as a gather of pairs with so many GPUs, for `TARGET_SHAPE`."""

TARGET_SHAPE = (8192, 1 << 20, "float32")
TORCH, ARGPARTITION = "torch.topk(sorted=False)", "numpy.argpartition"


def block_figures(payload: Payload) -> list[Figure]:
    """A panel for each dtype, a line of marks for each case: times around a selector over the time of one call."""
    marks = [
        Mark(case["dtype"], name, f"{case['model']}, {case['rows']:,} x {case['positions']:,}", ratio)
        for case in shapes(payload) for name, ratio in case.get("times_faster", {}).items()
    ]  # fmt: skip
    return [Figure(kind="marks", marks=marks, heading="The same result around a selector, over one call", lying=True,
                   shared=True, value="its time over that of one call", log=list({mark.panel for mark in marks}),
                   rules={"one call": 1}, title=card(File("", payload)))]  # fmt: skip


def contiguous(payload: Payload) -> list[Mapping[str, Any]]:
    """Measured shapes in contiguous shards; files without layouts have no others."""
    return [case for case in shapes(payload) if case.get("layout", "contiguous") == "contiguous"]


def rank_figures(payload: Payload) -> list[Figure]:
    """On GPUs, a panel for each width and dtype: the shard alone, a gather of pairs, and the planner's schedule."""
    labels = {"local": "selection from the shard", "gathered": "gather of all pairs", "planned": "ksieve.distributed"}
    if payload["bench"] != "ranks" or payload["settings"]["device"] != "cuda":
        return []
    marks = [
        Mark(f"{size_text(case['width'])} scores, {case['dtype']}", label, case["rows"],
             case["selectors"][name]["median_us"])
        for name, label in labels.items() for case in sorted(contiguous(payload), key=lambda case: case["rows"])
    ]  # fmt: skip
    text = f"{payload['results']['world']} ranks, one {card(File('', payload))} each, k = {payload['settings']['k']:,}"
    return [Figure(kind="line", marks=marks, heading="Times over the rows", at="rows", value="microseconds",
                   scale="log2", log=list({mark.panel for mark in marks}), shared=True, title=text)]  # fmt: skip


def _block_rows(files: Sequence[File]) -> Iterable[dict[str, Any]]:
    """A row for each model and dtype: the ends of its cases."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for case in (case for file in files for case in shapes(file.payload)):
        groups.setdefault((case["model"], case["dtype"]), []).append(case)
    for (model, dtype), cases in groups.items():
        yield {
            "model": model, "dtype": dtype, "cases": len(cases),
            "read": [c["selectors"]["ksieve"]["of_floor"] for c in cases if "of_floor" in c["selectors"]["ksieve"]],
            "parts": [c["of_parts"] for c in cases if "of_parts" in c],
            "around": [ratio for c in cases for ratio in c.get("times_faster", {}).values()],
        }  # fmt: skip


def span(values: Sequence[float]) -> str | None:
    """Least and most."""
    return f"{min(values):.2f} to {max(values):.2f}" if values else None


BLOCKS = Table(
    [
        Column("model", "model"), Column("dtype", "dtype"), Column("cases", "cases"),
        Column("of the plain read", lambda row: span(row["read"])),
        Column("over selection and write", lambda row: span(row["parts"])),
        Column("around a selector / ksieve", lambda row: span(row["around"])),
    ],
    _block_rows,
    "Least and most of the cases of each model; the last column is the same result by PyTorch around a selector.",
)  # fmt: skip

VERIFIED = Table(
    [
        Column("file", lambda file: file.stem), Column("device", "settings/device"),
        Column("ranks", "results/world?"), Column("rows", "results/verified/rows", "{:,}"),
        Column("replays", "results/replays?/replays", "{:,}"), Column("failed", "results/verified/failed"),
        Column("digest", "results/verified/digest?", "`{:.16}`"),
        Column("by `ksieve.verify` too", "results/verified/by_verify?", "{:,}"),
    ],
    lambda files: [file for file in files if file.payload["results"].get("verified")],
    "Verified rows of many kinds, and replays of CUDA graphs. Rows follow from the seed alone: equal digests are equal "
    "bytes.",
)  # fmt: skip


def _world_rows(files: Sequence[File]) -> Iterable[dict[str, Any]]:
    """Whole calls on the target's shape, for each result of GPUs."""
    for file in (file for file in files if file.payload["settings"].get("device") == "cuda"):
        for case in contiguous(file.payload):
            key, world = (case["rows"], case["width"], case["dtype"]), file.payload["results"]["world"]
            if key[:2] == TARGET_SHAPE[:2]:
                local, gathered, planned = (case["selectors"][n]["median_us"] for n in ("local", "gathered", "planned"))
                target = reached(gathered / planned, TARGETS[world]) if world in TARGETS and key == TARGET_SHAPE else ""
                yield {"file": file.stem, "world": world, "dtype": key[2], "local": local, "gathered": gathered,
                       "planned": planned, "faster": gathered / planned, "target": target,
                       "schedule": case["selectors"]["planned"]["schedule"], "card": card(file)}  # fmt: skip


WORLDS = Table(
    [
        Column("GPUs", "world"), Column("dtype", "dtype"), Column("shard alone, us", "local", "{:,.0f}"),
        Column("gather, us", "gathered", "{:,.0f}"), Column("planned, us", "planned", "{:,.0f}"),
        Column("times as fast", "faster", "{:.2f}"), Column("", "target"), Column("schedule", "schedule", "`{}`"),
        Column("card", "card"), Column("file", "file"),
    ],
    _world_rows,
    f"Whole calls on {TARGET_SHAPE[0]:,} rows of {TARGET_SHAPE[1]:,} scores: a gather of pairs as engines write it, "
    "and the planner's schedule.",
)  # fmt: skip

_PREDICTED = (
    Column("GPUs", "world"), Column("dtype", "dtype"), Column("shard alone, us", "local_us", "{:,.0f}"),
    Column("gather adds, us", "added_us/gathered", "{:,.0f}"),
    Column("planned adds, us", "added_us/planned", "{:,.0f}"),
    Column("rate of each, of one GPU's", "rate_of_one/planned", "{:.2f}"),
)  # fmt: skip
PREDICTED = Table(
    [Column("rows x width", size), *_PREDICTED, Column("schedule", "schedule")],
    lambda files: [c for file in files for c in shapes(file.payload) if file.payload["bench"] == "predicted-ranks"],
)


def _versions(facts: Mapping[str, Any]) -> str:
    found = [f"{name} {facts['packages'][name]}" for name in ("numpy", "torch") if name in facts["packages"]]
    return ", ".join([*found, facts["date"][:10]])


COMPARED = (
    Column("rows x width, scores", lambda case: f"{size(case)}, {case['source'].replace('.safetensors', '')}"),
    Column("ksieve", lambda case: case["median_seconds"]["ksieve"] * 1e3, "{:.2f} ms"),
)
CPU = Table(
    [
        *COMPARED,
        *(Column(f"faster than `{name}`", f"times_faster_than/{name}?", "{:.1f}x") for name in (TORCH, ARGPARTITION)),
        Column("of max rate", "rate_of_max", "{:.2f}"),
    ],
    lambda files: [case for file in files for case in file.payload["results"]["compared"]],
    lambda files: f"Top {files[0].payload['settings']['k']:,} on {files[0].payload['settings']['threads']} threads, "
    f"{card(files[0])} ({_versions(files[0].payload['environment'])}): medians of "
    f"{files[0].payload['settings']['rounds']} rounds in one process on the same rows, every answer verified. "
    f"`{ARGPARTITION}` uses one thread. \"Of max rate\" is the rate of reading scores over that of "
    "`numpy.max(axis=1)`, in one thread too.",
)  # fmt: skip

CPU_SHORT = Table(
    [
        Column("rows x width, k", lambda case: f"{size(case)}, {case['k']:,}"), Column("dtype", "dtype"),
        Column("ksieve", lambda case: case["median_seconds"]["ksieve"] * 1e3, "{:.2f} ms"),
        Column(f"faster than `{TORCH}`", lambda case: case["times_faster_than"].get(TORCH), "{:.1f}x"),
    ],
    lambda files: [case for file in files for case in file.payload["results"].get("short", ())],
)  # fmt: skip


_COSTS = [
    Column("ksieve", lambda case: case["median_seconds"] * 1e3, "{:.2f} ms"),
    Column("of plain", "times_plain", "{:.2f}x"),
]
CPU_OPTIONS = Table(
    [Column("rows x width, k", lambda case: f"{size(case)}, {case['k']:,}"), Column("threads", "threads"),
     Column("option", "option"), *_COSTS],
    lambda files: [case for file in files for case in file.payload["results"].get("options", ())],
)  # fmt: skip
CPU_FAMILIES = Table(
    [Column("rows x width", size), Column("family", "family"), *_COSTS, Column("model scans", "scans_mean", "{:.1f}"),
     Column("routes", lambda case: "; ".join(f"{count} {route}" for route, count in case["routes"].items()))],
    lambda files: [
        {"family": f"found by a search for top {case['k']:,}" if part == "aimed" else "", "rows": 1} | case
        for file in files for part in ("adversarial", "aimed") for case in file.payload["results"].get(part, ())
    ],
)  # fmt: skip


def _cpu_facts(files: Sequence[File]) -> Iterable[tuple[str, str]]:
    for results in (file.payload["results"] for file in files):
        for kind, what in (
            ("adversarial", "slowest adversarial family"),
            ("aimed", "slowest row aimed at the backend"),
        ):
            if results.get(kind):
                worst = max(results[kind], key=lambda case: case["times_plain"])
                yield f"{what}, over plain random rows", f"{worst['times_plain']:.2f}"
        if results.get("aimed"):
            work = max(case["times_random"] for case in results["aimed"])
            yield "most scores stored and compared, over a random row (the contract allows 6)", f"{work:.2f}"
        if "start" in results:
            yield "import", f"{results['start']['import_seconds']:.2f} s"
            yield "import and first call, kernels compiled", f"{results['start']['first_call_compiling_seconds']:.1f} s"
            yield "import and first call, kernels cached", f"{results['start']['first_call_cached_seconds']:.2f} s"
            yield "memory of a thread", f"{results['memory']['scratch_bytes_per_thread'] / 1024:.0f} KiB"


CPU_FACTS = Table([Column("on the CPU", lambda fact: fact[0]), Column("", lambda fact: fact[1])], _cpu_facts)

SECTIONS = (
    Section(["blocks"], [BLOCKS, VERIFIED],
            ["shapes/*/selectors/ksieve/exact", "shapes/*/selectors/around ksieve/exact",
             "shapes/*/selectors/around torch/exact", "verified?/exact"], block_figures),
    Section(["ranks", "predicted-ranks"], [WORLDS, PREDICTED, VERIFIED],
            ["shapes/*/selectors?/gathered?/exact", "shapes/*/selectors?/pairs/exact",
             "shapes/*/selectors?/planned/exact", "verified?/exact", "verified?/same_on_every_rank", "replays?/exact"],
            rank_figures),
    Section(["cpu"], [CPU, CPU_SHORT, CPU_OPTIONS, CPU_FAMILIES, CPU_FACTS],
            ["compared/*/exact/ksieve", "short?/*/exact/ksieve", "options?/*/exact", "adversarial?/*/exact?",
             "aimed?/*/exact?"]),
)  # fmt: skip
