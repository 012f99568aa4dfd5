"""Engines: which operators are replaced, what a run of their own loaders showed, and times before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ksieve.adapters._operators import OPERATORS
from ksieve_lab.report import tables
from ksieve_lab.report.specs.gpu import size
from ksieve_lab.report.tables import Column, File, Section, Table, entry, find, geometric_mean, judge, machine, render

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
    """Name of an operator without its module."""
    return str(case["operator"].rpartition(".")[2])


def _us(facts: Mapping[str, Any]) -> str:
    return f"{facts['median_us']:.1f}" if "median_us" in facts else "-"


def _gains(engine: str = "") -> tuple[Table, ...]:
    """Tables of the operators of an engine, or of all, before and after the switch."""

    def cases(files: Sequence[File]) -> list[Mapping[str, Any]]:
        found = [case for file in files for case in file.payload["results"].get("shapes", ())]
        return [case for case in found if engine in ("", case["engine"])]

    def columns(files: Sequence[File]) -> list[Column]:
        grid = dict.fromkeys((case["rows"], case["width"]) for case in cases(files) if "skipped" not in case)
        cells = [Column(f"{at[0]:,} x {at[1]:,}", entry(at)) for at in grid]
        return [Column("operator", "operator", "`{}`"), Column("dtype", "dtype"), Column("k", "k", "{:,}"), *cells]

    def rows(files: Sequence[File]) -> Iterable[dict[Any, Any]]:
        lines: dict[Any, dict[Any, Any]] = {}
        for case in (case for case in cases(files) if "skipped" not in case):
            text = " / ".join(_us(case["selectors"][name]) for name in (BEFORE, AFTER))
            text += f" ({case['times_faster']:.2f})" if "times_faster" in case else ""
            facts = {"operator": short(case), "dtype": case["dtype"], "k": case["k"]}
            lines.setdefault(tuple(facts.values()), facts)[case["rows"], case["width"]] = text
        return lines.values()

    def note(files: Sequence[File]) -> str:
        payload = files[0].payload
        ratios = [case["times_faster"] for case in cases(files) if "times_faster" in case]
        told = (
            f" The engine's operator takes {geometric_mean(ratios):.2f} times as long in the geometric mean of "
            f"{len(ratios)} cases, at least {min(ratios):.2f} times; ksieve is slower in {sum(r < 1 for r in ratios)}."
        ) if ratios else ""  # fmt: skip
        return (
            f"**What it gained**: the same calls before and after `install()` in one process, as CUDA graphs in turns, "
            f"medians of {payload['settings']['rounds']} rounds, every answer verified "
            f"({_versions(payload)}; {machine(files[0])}; {files[0].link()}).{told}\n\n"
            "Microseconds, the engine's own / ksieve's, and how many times as long the first takes:"
        )

    def hosts(files: Sequence[File]) -> list[Mapping[str, Any]]:
        found = [host for file in files for host in file.payload["results"].get("host", ())]
        return [host for host in found if engine in ("", host["engine"]) and "skipped" not in host]

    def unmeasured(files: Sequence[File]) -> Iterable[tuple[str, str]]:
        for name, why in (pair for file in files for pair in file.payload["results"].get("absent", {}).items()):
            if not engine or name in {o.name for o in _own(engine)}:
                yield f"`{name}`", why
        for case in cases(files):
            own = case.get("selectors", {}).get(BEFORE, {})
            wrong = "its own answer is not exact" if own.get("exact") is False else None
            if why := case.get("skipped") or own.get("error") or wrong:
                yield f"`{short(case)}`, {size(case)}, {case['dtype']}", why

    host = [Column("operator", short, "`{}`"), *(Column(head, entry(name, _us))
            for head, name in (("the engine's own", BEFORE), ("ksieve", AFTER)))]  # fmt: skip
    absent = [Column("without a time", lambda pair: pair[0]), Column("why", lambda pair: pair[1])]
    return (
        Table(columns, rows, note),
        Table(host, hosts, "Microseconds of the host in a call:"),
        Table(absent, unmeasured),
    )


def _versions(payload: Mapping[str, Any]) -> str:
    chosen = (f"{name}={value}" for name, value in payload["settings"].get("variables", {}).items())
    return ", ".join([*(f"{name} {version}" for name, version in payload["results"]["versions"].items()), *chosen])


CHECKS = Table(
    [Column("check", "check"), Column("", lambda check: "passed" if check["good"] else "**failed**"),
     Column("detail", "detail")],
    lambda files: [check for file in files for check in file.payload["results"]["checks"]],
    lambda files: f"`scripts/engine_loaders.py {files[0].payload['settings']['engine']}` installs the engine and calls "
    f"its own plugin loader, here with {_versions(files[0].payload)} "
    f"({files[0].payload['environment']['date'][:10]}, Python {files[0].payload['environment']['python']}). The "
    "engine's compiled extensions were loaded; none of its kernels ran, and ksieve served on the CPU. "
    f"{files[0].link()} has the log and every operator:",
)  # fmt: skip


def seen(engine: str, files: Sequence[File]) -> str:
    """What the recorded run of the engine's own loader showed, and what the switch gained."""
    loaders = [f for f in files if f.payload["bench"] == "engine-loaders"]
    parts = [render(CHECKS, [f]) for f in loaders if f.payload["settings"]["engine"] == engine]
    if engine == "flashinfer":
        names = [f.payload["settings"]["engine"] for f in loaders]
        runs = " and ".join(f"{TITLES[name]}'s" for name in names)
        parts.append(f"The runs of {runs} loaders replace and call FlashInfer's functions too.")
    for file in files:
        if any(case["engine"] == engine for case in file.payload["results"].get("shapes", ()) if "engine" in case):
            judge(MEASURED, file)
            parts += [render(table, [file]) for table in _gains(engine)]
    return "\n\n".join(filter(None, parts))


def every(files: Sequence[File]) -> str:
    """Every operator of every engine, and the first calls, for the page of benchmarks."""
    found = {title: seen(engine, files) for engine, title in TITLES.items()} | {"First calls": first_calls(files)}
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in found.items() if text)


def gained(engine: str, files: Sequence[File]) -> str:
    """One line for each operator of an engine, for its page of the guide."""
    parts = []
    for file in (f for f in files if f.payload["bench"] == "engine-loaders"):
        if file.payload["settings"]["engine"] == engine:
            checks = file.payload["results"]["checks"]
            version = _versions(file.payload).partition(",")[0]
            good = sum(check["good"] for check in checks)
            parts.append(f"{good} of {len(checks)} checks of the engine's plugin loader pass, without a GPU "
                         f"({version}; {file.link('../../')}).")  # fmt: skip
    for file in files:
        its = [case for case in file.payload["results"].get("shapes", ()) if case.get("engine") == engine]
        timed = [case for case in its if "times_faster" in case]
        if timed:
            judge(MEASURED, file)
            parts.append(render(_lines(timed), [file]))
    return "\n\n".join(parts)


def _lines(cases: Sequence[Mapping[str, Any]]) -> Table:
    """Every operator and dtype of an engine in a line."""

    def rows(_: Sequence[File]) -> Iterable[dict[str, Any]]:
        groups: dict[Any, list[float]] = {}
        for case in cases:
            groups.setdefault((short(case), case["dtype"]), []).append(case["times_faster"])
        for (name, dtype), ratios in groups.items():
            yield {"name": name, "dtype": dtype, "mean": geometric_mean(ratios), "least": min(ratios)}

    def note(files: Sequence[File]) -> str:
        found = [h for h in files[0].payload["results"].get("host", ()) if h["engine"] == cases[0]["engine"]]
        us = {name: [h[name]["median_us"] for h in found if "median_us" in h.get(name, {})] for name in (BEFORE, AFTER)}
        spans = [f"{min(of):.1f} to {max(of):.1f} us" for of in us.values() if of]
        return (
            f"The engine's time divided by ksieve's, in CUDA graphs up to "
            f"{max(case['rows'] for case in cases):,} x {max(case['width'] for case in cases):,} "
            f"({tables.card(files[0])}; {files[0].link('../../')})."
        ) + (f" Host time of a call: {spans[0]}, ksieve's {spans[1]}." if len(spans) == 2 else "")

    return Table(
        [Column("operator", "name", "`{}`"), Column("dtype", "dtype"), Column("geometric mean", "mean", "{:.2f}"),
         Column("least", "least", "{:.2f}")],
        rows, note,
    )  # fmt: skip


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
    f"that it compiled ({machine(files[0])}; {files[0].link()}). "
    f"The process has imported PyTorch and the adapter, "
    "its GPU has run something, and no other process measures. Into the cache and the bundle, "
    f"{'; '.join(map(built, files[0].payload['results']['first_calls']['builds']))}.",
)  # fmt: skip


def _summary(files: Sequence[File]) -> Iterable[dict[str, Any]]:
    for file in files:
        for engine in TITLES:
            found = [c for c in file.payload["results"].get("shapes", ()) if c["engine"] == engine]
            ratios = [case["times_faster"] for case in found if "times_faster" in case]
            if ratios:
                yield {"engine": TITLES[engine], "file": file.stem, "cases": len(ratios), "least": min(ratios),
                       "mean": geometric_mean(ratios), "slower": sum(r < 1 for r in ratios)}  # fmt: skip


SUMMARY = Table(
    [
        Column("engine", "engine"), Column("file", "file"), Column("cases", "cases"),
        Column("its time / ksieve's, mean", "mean", "{:.2f}"), Column("least", "least", "{:.2f}"),
        Column("ksieve slower in", "slower"),
    ],
    _summary,
)  # fmt: skip

LOADERS = Table(
    [
        Column("engine", lambda file: TITLES[file.payload["settings"]["engine"]]),
        Column("file", lambda file: file.stem),
        Column("checks", lambda file: len(file.payload["results"]["checks"])),
        Column("passed", lambda file: sum(check["good"] for check in file.payload["results"]["checks"])),
    ],
)  # fmt: skip

MEASURED = Section(
    "The engines' operators, before and after", ["engines"], [SUMMARY], ["shapes?/*/selectors/ksieve/exact"],
    told=[SUMMARY, *_gains()[1:], FIRST_CALLS],
)  # fmt: skip
SECTIONS = (MEASURED, Section("The engines' own plugin loaders", ["engine-loaders"], [LOADERS]))


def first_calls(files: Sequence[File]) -> str:
    """Tables of first calls in fresh processes, of every file that has some."""
    return "\n\n".join(render(FIRST_CALLS, [f]) for f in files if "first_calls" in f.payload["results"])


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
