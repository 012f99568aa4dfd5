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


def _cases(files: Sequence[File], engine: str = "") -> list[Mapping[str, Any]]:
    found = [case for file in files for case in file.payload["results"].get("shapes", ()) if "engine" in case]
    return [case for case in found if engine in ("", case["engine"])]


def _gain_columns(files: Sequence[File]) -> list[Column]:
    grid = dict.fromkeys((case["rows"], case["width"]) for case in _cases(files) if "skipped" not in case)
    cells = [Column(f"{at[0]:,} x {at[1]:,}", entry(at)) for at in grid]
    return [Column("operator", "operator", "`{}`"), Column("dtype", "dtype"), Column("k", "k", "{:,}"), *cells]


def _gain_rows(files: Sequence[File]) -> Iterable[dict[Any, Any]]:
    lines: dict[Any, dict[Any, Any]] = {}
    for case in (case for case in _cases(files) if "skipped" not in case):
        text = " / ".join(_us(case["selectors"][name]) for name in (BEFORE, AFTER))
        text += f" ({case['times_faster']:.2f})" if "times_faster" in case else ""
        facts = {"operator": short(case), "dtype": case["dtype"], "k": case["k"]}
        lines.setdefault(tuple(facts.values()), facts)[case["rows"], case["width"]] = text
    return lines.values()


def _gain_note(files: Sequence[File]) -> str:
    payload = files[0].payload
    ratios = [case["times_faster"] for case in _cases(files) if "times_faster" in case]
    told = (
        f" The engines' operators take {geometric_mean(ratios):.2f} times as long in the geometric mean of "
        f"{len(ratios)} cases, at least {min(ratios):.2f} times; ksieve is slower in {sum(r < 1 for r in ratios)}."
    ) if ratios else ""  # fmt: skip
    return (
        f"The same calls before and after `install()` in one process, as CUDA graphs in turns, medians of "
        f"{payload['settings']['rounds']} rounds, every answer verified ({_versions(payload)}).{told}\n\n"
        "Microseconds, the engine's own / ksieve's, and how many times as long the first takes:"
    )


def _unmeasured(files: Sequence[File]) -> Iterable[tuple[str, str]]:
    for file in files:
        yield from ((f"`{name}`", why) for name, why in file.payload["results"].get("absent", {}).items())
    for case in _cases(files):
        own = case.get("selectors", {}).get(BEFORE, {})
        wrong = "its own answer is not exact" if own.get("exact") is False else None
        if why := case.get("skipped") or own.get("error") or wrong:
            yield f"`{short(case)}`, {size(case)}, {case['dtype']}", why


GAINS = Table(_gain_columns, _gain_rows, _gain_note)
HOSTS = Table(
    [Column("operator", short, "`{}`"), Column("the engine's own", entry(BEFORE, _us)),
     Column("ksieve", entry(AFTER, _us))],
    lambda files: [h for file in files for h in file.payload["results"].get("host", ()) if "skipped" not in h],
    "Microseconds of the host in a call:",
)  # fmt: skip
ABSENT = Table([Column("without a time", itemgetter(0)), Column("why", itemgetter(1))], _unmeasured)


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
    "The file has the log and every operator:",
)  # fmt: skip


def gained(engine: str, files: Sequence[File]) -> str:
    """One line for each operator of an engine, for its page of the guide."""
    parts = []
    for file in files:
        if file.payload["bench"] == "engine-loaders" and file.payload["settings"]["engine"] == engine:
            checks = file.payload["results"]["checks"]
            version = _versions(file.payload).partition(",")[0]
            good = sum(check["good"] for check in checks)
            parts.append(f"{good} of {len(checks)} checks of the engine's plugin loader pass, without a GPU "
                         f"({version}; {file.link('../../')}).")  # fmt: skip
    for file in (file for file in files if any("times_faster" in case for case in _cases([file], engine))):
        judge(MEASURED, file)
        parts.append(render(lines(engine), [file]))
    return "\n\n".join(parts)


def lines(engine: str = "") -> Table:
    """Every operator and dtype of an engine, or of all, in a line."""

    def rows(files: Sequence[File]) -> Iterable[dict[str, Any]]:
        groups: dict[Any, list[float]] = {}
        for case in (case for case in _cases(files, engine) if "times_faster" in case):
            groups.setdefault((short(case), case["dtype"]), []).append(case["times_faster"])
        for (name, dtype), ratios in groups.items():
            yield {"name": name.removeprefix(f"{engine}."), "dtype": dtype, "mean": geometric_mean(ratios),
                   "least": min(ratios)}  # fmt: skip

    def note(files: Sequence[File]) -> str:
        cases = [case for case in _cases(files, engine) if "times_faster" in case]
        found = [h for h in files[0].payload["results"].get("host", ()) if engine in ("", h["engine"])]
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
    "that it compiled. The process has imported PyTorch and the adapter, its GPU has run something, and no other "
    "process measures. Into the cache and the bundle, "
    f"{'; '.join(map(built, files[0].payload['results']['first_calls']['builds']))}.",
)  # fmt: skip


MEASURED = Section(
    "The engines' operators, before and after", ["engines"], [GAINS, HOSTS, ABSENT, FIRST_CALLS],
    ["shapes?/*/selectors/ksieve/exact"], page="engines", told=[lines(), HOSTS, ABSENT, FIRST_CALLS],
)  # fmt: skip
SECTIONS = (MEASURED, Section("The engines' own plugin loaders", ["engine-loaders"], [CHECKS], page="engines"))


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
