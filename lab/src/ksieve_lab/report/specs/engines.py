"""Engines: which operators are replaced, what a run of their own loaders showed, and times before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from ksieve.adapters._operators import OPERATORS
from ksieve_lab.report import tables
from ksieve_lab.report.specs.gpu import size
from ksieve_lab.report.tables import Column, File, Section, Table, entry, find, geometric_mean, judge, render

TITLES = {"vllm": "vLLM", "sglang": "SGLang", "flashinfer": "FlashInfer"}
"""Names of the pages in the guide, and of the engines."""

BEFORE, AFTER = "own", "ksieve"
STATES = ("empty cache", "after build", "bundle")

_METHODS = {"vllm._sparse_indexer_topk": "vllm.top_k_per_row_decode"}
"""Adapters of methods, and the public function that each calls."""


def _own(engine: str) -> list[Any]:
    return [o for o in OPERATORS[engine] if engine == "flashinfer" or not o.owner.startswith("flashinfer")]


def operators(engine: str) -> str:
    """Table of an engine's own operators by module; the function of ksieve is named where its name differs."""
    modules: dict[str, list[str]] = {}
    for o in _own(engine):
        ours = _METHODS.get(o.adapter, o.adapter).rpartition(".")[2]
        text = f"`{o.attribute}`" + (f" (`{ours}`)" if ours != o.attribute else "")
        modules.setdefault(o.name.removesuffix(f".{o.attribute}"), []).append(text)
    return render(Table([Column("module", lambda of: of[0], "`{}`"),
                         Column("operators", lambda of: ", ".join(of[1]))], lambda _: modules.items()), [])  # fmt: skip


def short(case: Mapping[str, Any]) -> str:
    """Name of an operator without its module, after its engine's."""
    return f"{case['engine']}.{case['operator'].rpartition('.')[2]}"


def _us(facts: Mapping[str, Any]) -> str:
    return f"{facts['median_us']:.1f}" if "median_us" in facts else "-"


def _cases(files: Sequence[File]) -> list[Mapping[str, Any]]:
    return [case for file in files for case in file.payload["results"].get("shapes", ()) if "engine" in case]


def _unmeasured(files: Sequence[File]) -> Iterable[tuple[str, str]]:
    for file in files:
        yield from ((f"`{name}`", why) for name, why in file.payload["results"].get("absent", {}).items())
    for case in _cases(files):
        own = case.get("selectors", {}).get(BEFORE, {})
        wrong = "its own answer is not exact" if own.get("exact") is False else None
        if why := case.get("skipped") or own.get("error") or wrong:
            yield f"`{short(case)}`, {size(case)}, {case['dtype']}", why


HOSTS = Table(
    [Column("operator", short, "`{}`"), Column("the engine's own", entry(BEFORE, _us)),
     Column("ksieve", entry(AFTER, _us))],
    lambda files: [h for file in files for h in file.payload["results"].get("host", ()) if "skipped" not in h],
    "Microseconds of the host in a call:",
)  # fmt: skip
ABSENT = Table([Column("without a time", itemgetter(0)), Column("why", itemgetter(1))], _unmeasured)


def gained(files: Sequence[File]) -> str:
    """One line for each operator of every engine, for the guide."""
    timed = [file for file in files if any("times_faster" in case for case in _cases([file]))]
    for file in timed:
        judge(MEASURED, file)
    return render(LINES, timed)


def _lines(files: Sequence[File]) -> Iterable[dict[str, Any]]:
    groups: dict[Any, list[float]] = {}
    for case in (case for case in _cases(files) if "times_faster" in case):
        groups.setdefault((*short(case).split("."), case["dtype"]), []).append(case["times_faster"])
    for (engine, name, dtype), ratios in groups.items():
        yield {"engine": TITLES.get(engine, engine), "name": name, "dtype": dtype, "mean": geometric_mean(ratios),
               "least": min(ratios)}  # fmt: skip


def _lines_note(files: Sequence[File]) -> str:
    cases = [case for case in _cases(files) if "times_faster" in case]
    found = [h for file in files for h in file.payload["results"].get("host", ())]
    us = {name: [h[name]["median_us"] for h in found if "median_us" in h.get(name, {})] for name in (BEFORE, AFTER)}
    spans = [f"{min(of):.1f} to {max(of):.1f} us" for of in us.values() if of]
    return (
        f"The engine's time divided by ksieve's, in CUDA graphs up to "
        f"{max(case['rows'] for case in cases):,} x {max(case['width'] for case in cases):,} "
        f"({tables.card(files[0])}; {', '.join(file.link('../../') for file in files)})."
    ) + (f" Host time of a call: {spans[0]}, ksieve's {spans[1]}." if len(spans) == 2 else "")


LINES = Table(
    [Column("engine", "engine"), Column("operator", "name", "`{}`"), Column("dtype", "dtype"),
     Column("mean", "mean", "{:.2f}"), Column("least", "least", "{:.2f}")],
    _lines, _lines_note,
)  # fmt: skip
"""Every operator and dtype in a line."""


def seconds(facts: Mapping[str, Any]) -> str:
    """Seconds of a first call, and the kernels that it compiled."""
    return f"{facts['seconds']:.3f} ({facts['compiled']})" if "seconds" in facts else "failed"


def built(said: Mapping[str, Any]) -> str:
    """What a build made."""
    what = f"`ksieve build --for {said['engine']}` up to {said['rows']:,} x {said['width']:,}"
    if "error" in said:
        return f"{what}: {said['error']}"
    return (f"{what}: {said['kernels']} kernels, {said['compiled']} of them compiled, in {said['seconds']:.0f} s on "
            f"{said['processors']} processors")  # fmt: skip


FIRST_CALLS = Table(
    [
        Column("call", "adapter", "`{}`"), Column("rows x width", size),
        *(Column(f"{state}, s", entry(state, seconds)) for state in STATES),
        Column("second call, us", lambda call: call["after build"].get("again_seconds", float("nan")) * 1e6, "{:.0f}"),
    ],
    lambda files: [call for file in files for calls in find(file, "results/first_calls?/calls") for call in calls],
    lambda files: "Seconds from the first call of a process until its answer is there, and in brackets the kernels "
    "that it compiled. The process has imported PyTorch and the adapter, its GPU has run something, and no other "
    "process measures. Into the cache and the bundle, "
    f"{'; '.join(map(built, files[0].payload['results']['first_calls']['builds']))}.",
)  # fmt: skip


MEASURED = Section(["engines"], [LINES, HOSTS, ABSENT, FIRST_CALLS], ["shapes?/*/selectors/ksieve/exact"])
SECTIONS = (MEASURED,)


HOW = {"frameworks": "own tests", "engines": "timed", "engine-loaders": "own plugin loader"}
"""What a bench does with an engine."""


def tested(files: Sequence[File]) -> str:
    """Versions of every engine by what was tested with them, and the card."""
    found: dict[str, dict[str, dict[str, int]]] = {engine: {} for engine in TITLES}
    cards = dict.fromkeys(HOW.values(), "without a GPU")
    for file in (file for file in files if file.payload["bench"] in HOW):
        results, how = file.payload["results"], HOW[file.payload["bench"]]
        if file.payload["environment"].get("gpu"):
            cards[how] = tables.card(file)
        own = file.payload["settings"].get("engine")  # a loader's file names packages besides its engine
        seen = [(name.removesuffix("-python"), version, 0) for name, version in results.get("versions", {}).items()]
        if how == HOW["frameworks"]:
            seen = [(of["framework"], of["version"], of["passed"]) for of in results["files"]]
        elif own:
            seen = [(own, results["versions"][own], sum(check["good"] for check in results["checks"]))]
        for engine, version, passed in seen:
            versions = found.get(engine, {}).setdefault(how, {})
            versions[version] = versions.get(version, 0) + passed
    rows = [
        {"engine": TITLES[engine]}
        | {how: ", ".join(f"{v} ({n:,} pass)" if n else v for v, n in of.items()) for how, of in its.items()}
        for engine, its in found.items()
    ]
    columns = [Column("engine", "engine"), *(Column(f"{how} ({cards[how]})", f"{how}?") for how in HOW.values())]
    return render(Table(columns, lambda _: rows), [])


def first_seconds(files: Sequence[File]) -> str:
    """How long first calls take, for the guide."""
    parts = []
    for file in (file for file in files if "first_calls" in file.payload["results"]):
        calls = file.payload["results"]["first_calls"]["calls"]
        spans = {state: [call[state]["seconds"] for call in calls if "seconds" in call[state]] for state in STATES}
        said = "; ".join(f"{state} {min(s):.2f} to {max(s):.2f} s" for state, s in spans.items() if s)
        parts.append(f"First calls of {len(calls)} operators in fresh processes: {said} "
                     f"({tables.card(file)}; {file.link('../../')}).")  # fmt: skip
    return "\n\n".join(parts)
