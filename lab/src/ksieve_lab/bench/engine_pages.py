"""Generated parts of the engines' pages: the operators that are replaced, and what runs of an engine showed."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ksieve.adapters._operators import OPERATORS
from ksieve.planning.tune import record
from ksieve_lab.bench import pages
from ksieve_lab.bench.engines import AFTER, BEFORE
from ksieve_lab.bench.first_calls import BUILT, BUNDLE, EMPTY

TITLES = {"vllm": "vLLM", "sglang": "SGLang", "flashinfer": "FlashInfer"}
"""Names of the pages in the guide, and of the engines."""

MEASURED = "gpu-engines*.json"
"""Result files of `ksieve bench engines`."""

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
    measured = [(path, record.read_json(path)) for path in sorted(results.glob(MEASURED))]
    gains = [gain for path, payload in measured if (gain := gained(engine, path, payload))]
    parts += gains or [
        f"**What it gained** inside {TITLES[engine]} is not known: no result file has the latency of its operators "
        "before and after the switch. [The benchmarks](../reference/benchmarks.md) have ksieve's own."
    ]
    return "\n\n".join(parts)


def gained(engine: str, path: Path, payload: dict[str, Any]) -> str:
    """Tables of an engine's operators before and after the switch; empty without any.

    Raises
    ------
    InexactError
        An answer of ksieve is not exact, or was not measured.
    """
    cases = [case for case in payload["results"].get("shapes", ()) if case["engine"] == engine]
    found = [case for case in cases if "skipped" not in case]
    if not found:
        return ""
    for case in found:
        if case["selectors"][AFTER].get("exact") is not True:
            where = f"{case['operator']}, {case['rows']} x {case['width']:,}"
            raise pages.InexactError(f"{path.name}: {where}: no exact answer was measured")
    settings, file = payload["settings"], f"benchmarks/results/{path.name}"
    ratios = [(case["times_faster"], case) for case in found if "times_faster" in case]
    versions = ", ".join(f"{name} {version}" for name, version in payload["results"]["versions"].items())
    chosen = "".join(f", {name}={value}" for name, value in settings["variables"].items())
    told = (
        f"**What it gained**: the same calls before and after `install()` in one process, as CUDA graphs in turns, "
        f"medians of {settings['rounds']} rounds, every answer verified ({versions}{chosen}; {pages.machine(payload)}; "
        f"[{file}](../../{file}))."
    )
    if ratios:
        least, at = min(ratios, key=lambda ratio: ratio[0])
        mean = math.exp(math.fsum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
        slower = sum(ratio < 1 for ratio, _ in ratios)
        told += (
            f" The engine's operator takes {mean:.2f} times as long in the geometric mean of {len(ratios)} cases, at "
            f"least {least:.2f} times (`{_short(at)}`, {at['rows']} x {at['width']:,}, {at['dtype']}); ksieve is "
            f"slower in {slower}."
        )
    shapes = list(dict.fromkeys((case["rows"], case["width"]) for case in found))
    calls = list(dict.fromkeys((case["operator"], case["dtype"], case["k"]) for case in found))
    by_call = {(case["operator"], case["dtype"], case["k"], case["rows"], case["width"]): case for case in found}
    rows = [
        (f"`{name.rpartition('.')[2]}`", dtype, f"{k:,}", *(_both(by_call.get((name, dtype, k, *at))) for at in shapes))
        for name, dtype, k in calls
    ]
    columns = ("operator", "dtype", "k", *(f"{m:,} x {n:,}" for m, n in shapes))
    hosts = [
        (f"`{_short(host)}`", *(_microseconds(host.get(name, {})) for name in (BEFORE, AFTER)))
        for host in payload["results"]["host"]
        if host["engine"] == engine and "skipped" not in host
    ]
    return "\n\n".join(
        [
            told,
            "Microseconds, the engine's own / ksieve's, and how many times as long the first takes:",
            pages.table(columns, rows),
            "Microseconds of the host in a call:",
            pages.table(("operator", "the engine's own", "ksieve"), hosts),
            *_unmeasured(engine, payload["results"], cases),
        ]
    )


def _unmeasured(engine: str, results: dict[str, Any], cases: Sequence[dict[str, Any]]) -> list[str]:
    """Why operators, and single cases, have no times."""
    known = {o.name for o in OPERATORS[engine] if engine == "flashinfer" or not o.owner.startswith("flashinfer")}
    reasons = {f"`{name}`": why for name, why in results["absent"].items() if name in known}
    for case in cases:
        own = case.get("selectors", {}).get(BEFORE, {})
        wrong = "its own answer is not exact" if own.get("exact") is False else None
        if why := case.get("skipped") or own.get("error") or wrong:
            reasons.setdefault(f"`{_short(case)}`, {case['rows']} x {case['width']:,}, {case['dtype']}", why)
    return ["Without a time:", "\n".join(f"* {what}: {why}" for what, why in reasons.items())] if reasons else []


def _both(case: dict[str, Any] | None) -> str:
    if case is None:
        return ""
    own, ours = (_microseconds(case["selectors"][name]) for name in (BEFORE, AFTER))
    return f"{own} / {ours}" + (f" ({case['times_faster']:.2f})" if "times_faster" in case else "")


def _microseconds(facts: dict[str, Any]) -> str:
    return f"{facts['median_us']:.1f}" if "median_us" in facts else "-"


def _short(case: dict[str, Any]) -> str:
    return str(case["operator"].rpartition(".")[2])


def measured(path: Path, link: str, payload: dict[str, Any]) -> str:
    """List item of operators before and after, for the page of all result files."""
    engines = [name for name in TITLES if gained(name, path, payload)]
    parts = [f"[{TITLES[name]}](../guide/{name}.md#seen-and-measured)" for name in engines]
    if "first_calls" in payload["results"]:
        parts.append("[first calls](../guide/integrations.md#the-first-call)")
    return f"* {link}: {', '.join(parts)}; {pages.machine(payload)}; `{pages.command(payload)}`"


def first_calls(results: Path) -> str:
    """Tables of first calls in fresh processes, of every result file that has some."""
    parts = []
    for path in sorted(results.glob(MEASURED)):
        payload = record.read_json(path)
        found = payload["results"].get("first_calls")
        if found is None:
            continue
        file = f"benchmarks/results/{path.name}"
        rows = [
            (
                f"`{call['adapter']}`", f"{call['rows']:,} x {call['width']:,}",
                *(first(call[state]) for state in (EMPTY, BUILT, BUNDLE)),
                f"{call[BUILT]['again_seconds'] * 1e6:.0f}" if "again_seconds" in call[BUILT] else "-",
            )
            for call in found["calls"]
        ]  # fmt: skip
        builds = "; ".join(map(built, found["builds"]))
        columns = ("call", "rows x width", *(f"{name}, s" for name in (EMPTY, BUILT, BUNDLE)), "second call, us")
        parts += [
            f"From the first call of a process until its answer is there, in seconds, and in brackets the kernels that "
            f"it compiled ({pages.machine(payload)}; [{file}](../../{file}), by `{pages.command(payload)}`). The "
            f"process has imported PyTorch and the adapter, its GPU has run something, and no other process measures. "
            f"Into the cache and the bundle, {builds}.",
            pages.table(columns, rows),
        ]
    return "\n\n".join(parts)


def built(said: dict[str, Any]) -> str:
    """What a build made."""
    what = f"`ksieve build --for {said['engine']}` up to {said['rows']:,} x {said['width']:,}"
    if "error" in said:
        return f"{what}: {said['error']}"
    return (
        f"{what}: {said['kernels']} kernels, {said['compiled']} of them compiled, in {said['seconds']:.0f} s on "
        f"{said['processors']} processors"
    )


def first(facts: dict[str, Any]) -> str:
    """Seconds of a first call, and the kernels that it compiled."""
    return f"{facts['seconds']:.3f} ({facts['compiled']})" if "seconds" in facts else "failed"


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
            f"`scripts/engine_loaders.py {name}` installs {TITLES[name]} and calls its own plugin loader: {good} of "
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
