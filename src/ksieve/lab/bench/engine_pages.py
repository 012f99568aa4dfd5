"""Generated parts of the engines' pages: the operators that are replaced, and what runs of an engine showed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ksieve.adapters._operators import OPERATORS
from ksieve.lab.bench import pages, record

TITLES = {"vllm": "vLLM", "sglang": "SGLang", "flashinfer": "FlashInfer"}
"""Names of the pages in the guide, and of the engines."""

_METHODS = {"vllm._sparse_indexer_topk": "vllm.top_k_per_row_decode"}
"""Adapters of methods, and the public function that each calls."""


def operators(engine: str) -> str:
    """Table of an engine's own operators and the functions of ksieve that take their place."""
    own = [o for o in OPERATORS[engine] if engine == "flashinfer" or not o.owner.startswith("flashinfer")]
    rows = [(f"`{o.name}`", f"`{_METHODS.get(o.adapter, o.adapter)}`") for o in own]
    table = pages.table(("operator", "in its place, of `ksieve.adapters`"), rows)
    return table if engine == "flashinfer" else f"{table}\n\nAnd those of [FlashInfer](flashinfer.md)."


def seen(engine: str, results: Path) -> str:
    """What the recorded run of the engine's own loader showed, and what the switch gained."""
    parts = []
    found = {path: record.read_json(path) for path in sorted(results.glob("engine-loaders-*.json"))}
    if engine == "flashinfer" and found:
        names = [payload["settings"]["engine"] for payload in found.values()]
        runs = " and ".join(f"[{TITLES[name]}'s]({name}.md#seen-and-measured)" for name in names)
        parts.append(f"The runs of {runs} loaders replace and call FlashInfer's functions too.")
    parts += [_run(path, payload) for path, payload in found.items() if payload["settings"]["engine"] == engine]
    # Latencies before and after the switch, in one process, become a table here once a result file has them.
    parts.append(
        f"**What it gained** inside {TITLES[engine]} is not known: no result file has the latency of its operators "
        "before and after the switch. [The benchmarks](../reference/benchmarks.md) have ksieve's own."
    )
    return "\n\n".join(parts)


def loaded(link: str, payload: dict[str, Any]) -> str:
    """List item of a run, for the page of all result files."""
    name, checks = payload["settings"]["engine"], payload["results"]["checks"]
    good = sum(check["good"] for check in checks)
    return f"* {link}: {good} of {len(checks)} checks of [{TITLES[name]}](../guide/{name}.md#seen-and-measured)"


def _run(path: Path, payload: dict[str, Any]) -> str:
    result, file = payload["results"], f"benchmarks/results/{path.name}"
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    good, facts = sum(check["good"] for check in result["checks"]), payload["environment"]
    name = result["engine"]
    return "\n\n".join(
        [
            f"`scripts/engine_loaders.sh {name}` installs {TITLES[name]} and calls its own plugin loader: {good} of "
            f"{len(result['checks'])} checks passed with {versions} ({facts['date'][:10]}, Python {facts['python']}). "
            "The engine's compiled extensions were loaded; none of its kernels ran, and ksieve served on the CPU. "
            f"[{file}](../../{file}) has the run, which printed:",
            pages.fenced("text", printed(result).rstrip()),
        ]
    )


def printed(result: dict[str, Any]) -> str:
    """What a run prints of an engine: its checks, what a process of it logs, and its operators."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [f"{result['engine']}: {versions or 'not installed'}", f"  driver: {result['driver']}"]
    lines += _columns(
        [("ok" if each["good"] else "FAILED", each["check"], each["detail"]) for each in result["checks"]]
    )
    lines += ["", "  the log, loader first:"]
    for line in result["log"].get("on", []):
        folded = textwrap.wrap(line, 114, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        lines += [f"    {part}" for part in folded]
    rows = [("operator", "off", "on", "uninstalled", "served by", "torch.compile")]
    for each in result.get("operators", []):
        call = {True: "ksieve", False: "engine"}.get(each.get("served_by_ksieve"), "-")
        after = result["uninstalled"].get(each["operator"], "-")
        cells = (each.get("off") or "-", each.get("on") or "-", after, call, each.get("compiled", "-"))
        rows.append((each["operator"], *cells))
    return "\n".join([*lines, "", *_columns(rows), ""])


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
