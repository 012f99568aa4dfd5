"""What a bench says about its results: a headline, tables, lines, and notes for stderr."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ksieve_lab.bench import anchors
from ksieve_lab.bench.runner import Facts
from ksieve_lab.bench.scores import lengths_text

OWN = "ksieve"


class Table(NamedTuple):
    """Columns, rows of one text per column, and a title."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str | None = None


class Head(str):
    """A headline."""


class Note(str):
    """A line for stderr."""


Said = Table | str
Tell = Callable[[Facts], Iterator[Said]]


def cases_of(results: Mapping[str, Any]) -> list[Facts]:
    """Every case of a result, skipped ones too."""
    traces = results.get("traces", {}).values()
    found = results.get("shapes") or results.get("cases") or [one for trace in traces for one in trace["invocations"]]
    return list(found)


def answers(*names: str) -> Callable[[Facts], Iterator[bool | None]]:
    """Verdicts on the selectors of these names, or on all: of every case, and of what was verified besides."""

    def verdicts(payload: Facts) -> Iterator[bool | None]:
        results = payload["results"]
        for case in cases_of(results):
            if "skipped" not in case:
                yield from (case["selectors"][name].get("exact") for name in names or case["selectors"])
        for besides in (results.get("verified"), results.get("replays")):
            if besides is not None:
                yield besides["exact"] and besides.get("same_on_every_rank", True)
        yield from (None for _ in results.get("lost", ()))

    return verdicts


def name_of(case: Facts) -> str:
    """Write rows and width of a case, of blocks rows and positions."""
    return f"{case['rows']} x {case.get('positions', case['width'])}"


def microseconds(facts: Facts, share: str = "") -> str:
    """Write a time and a share of it, or why there is none."""
    if "median_us" not in facts:
        return "-" if "unsupported" in facts else "failed"
    value = facts.get(share)
    beside = f" ({value:.2f})" if value is not None and math.isfinite(value) else ""
    return f"{facts['median_us']:.1f}{beside}" + (" INEXACT" if facts.get("exact") is False else "")


def headline(payload: Facts) -> Head:
    """Device, dtype, k and lengths of a measurement."""
    facts, settings = payload["environment"], payload["settings"]
    device = ((facts.get("gpu") or {}).get("devices") or [{}])[0].get("name") or settings.get("device", "GPU")
    parts = [device, settings.get("dtype"), f"top {settings['k']:,}" if "k" in settings else ""]
    return Head(", ".join(filter(None, [*parts, lengths_text(settings["lengths"]) if "lengths" in settings else ""])))


def cases(*shown: str, share: str = "", lines: Tell = lambda payload: iter(())) -> Tell:
    """Make a teller of cases: one row each, with these facts of it, and `share` of each selector in brackets."""

    def tell(payload: Facts) -> Iterator[Said]:
        found = cases_of(payload["results"])
        measured = [case for case in found if "skipped" not in case]
        names = list(dict.fromkeys(name for case in measured for name in case["selectors"]))
        floors = ["floor"] * any("floor_us" in case for case in measured)
        rows = []
        for case in measured:
            times = (microseconds(case["selectors"][n], share) if n in case["selectors"] else "" for n in names)
            floor = [f"{case['floor_us']:.1f}"] if floors else []
            rows.append([name_of(case), *(_fact(case, key) for key in shown), *floor, *times])
        yield headline(payload)
        if rows:
            yield Table(["rows x width", *(key.replace("_", " ") for key in shown), *floors, *names], rows)
            brackets = f"; in brackets {share.replace('_', ' ')}" if share else ""
            yield f"microseconds, medians of {payload['settings']['rounds']} rounds{brackets}"
        yield from lines(payload)
        yield from remarks(found)
        yield from skipped(payload["results"])

    return tell


def _fact(case: Facts, key: str) -> str:
    value = case.get(key, case["selectors"].get(OWN, {}).get(key, ""))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {ratio:.2f}" for name, ratio in value.items())
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def remarks(found: Sequence[Facts]) -> Iterator[Note]:
    """Why cases and selectors have no time."""
    told: dict[str, list[str]] = {}
    for case in found:
        what = " ".join(filter(None, (case.get("operator"), name_of(case))))
        if "skipped" in case:
            told.setdefault(f"skipped, {case['skipped']}", []).append(what)
        for name, facts in case.get("selectors", {}).items():
            if why := facts.get("error") or facts.get("unsupported"):
                told.setdefault(f"{name}: {why}", []).append(what)
    for why, where in told.items():
        some = ", ".join(dict.fromkeys(where[:4])) + (f" and {len(where) - 4} more" if len(where) > 4 else "")
        yield Note(f"{some} {why}")


def skipped(results: Mapping[str, Any]) -> Iterator[Note]:
    """Which libraries were left out, and why."""
    reasons: dict[str, list[str]] = {}
    for name, reason in results.get("peers_skipped", {}).items():
        reasons.setdefault(reason, []).append(name)
    yield from (Note(f"not compared: {', '.join(names)} ({reason})") for reason, names in reasons.items())


# ---- benches of shapes ------------------------------------------------------------------------------------


def shares(payload: Facts) -> Iterator[Said]:
    """Means over shapes, and published times of the same shapes, apart from those measured."""
    results = payload["results"]
    for name, mean in results["of_floor"].items():
        yield (
            f"{name}: geometric mean {mean['geometric_mean']:.3f} of the floor, least {mean['least']:.3f}, "
            f"{mean['shapes']} shapes"
        )
    if beside := results["over_best_peer"]:
        yield (
            f"ksieve over the fastest exact peer: geometric mean {beside['geometric_mean']:.2f}x, least "
            f"{beside['least']:.2f}x, {beside['shapes']} shapes"
        )
    found = anchors.published(anchors.load(), payload)
    if not found:
        return
    names = list(dict.fromkeys(name for times in found.values() for name in times))
    own = {f"{s['rows']}x{s['width']}": s.get("selectors", {}).get(OWN, {}) for s in results["shapes"]}
    rows = [
        [shape.replace("x", " x "), microseconds(own[shape]), *(f"{times[n]:.1f}" if n in times else "" for n in names)]
        for shape, times in found.items()
    ]
    yield Table(["rows x width", "ksieve, here", *names], rows, f"Microseconds {anchors.LABEL}")


def general(payload: Facts) -> Iterator[Said]:
    """The mean over the cases of ``torch.topk``."""
    results = payload["results"]
    if over := results["over_torch"]:
        yield (
            f"torch.topk over ksieve: geometric mean {over['geometric_mean']:.2f}x, least {over['least']:.2f}x, "
            f"{over['shapes']} cases; ksieve is slower in {len(results['slower'])}"
        )


def worst(payload: Facts) -> Iterator[Said]:
    """The worst family of every selector."""
    largest: dict[str, tuple[float, str]] = {}
    for family, by_name in payload["results"]["worst"].items():
        for name, found in by_name.items():
            largest[name] = max(largest.get(name, (0.0, "")), (found["ratio"], family))
    for name, (ratio, family) in largest.items():
        yield f"worst of {name}: {family}, {ratio:.2f} times the floor"


def options(payload: Facts) -> Iterator[Said]:
    """The mean of every option's times over those of the plain call, which is what the brackets have too."""
    rows = [
        [name, f"{mean['geometric_mean']:.3f}", f"{mean['most']:.3f}"]
        for name, mean in payload["results"]["of_plain"].items()
    ]
    yield Table(["option", "over the plain call: 1 costs nothing", "most"], rows)


def traces(payload: Facts) -> Iterator[Said]:
    """Sums over the invocations of every request."""
    yield headline(payload)
    rows = []
    for name, found in payload["results"]["traces"].items():
        line = [name, str(len(found["invocations"]))]
        if "skipped" in found:
            rows.append([*line, "", "", f"{found['skipped']} invocations do not fit", ""])
            continue
        line.append(f"{found['floor_us'] / 1e3:.2f}")
        for selector, facts in found["selectors"].items():
            without = f"{facts['inexact']} inexact" if facts.get("inexact") else f"{facts.get('failed')} failed"
            known = "total_us" in facts
            sums = [f"{facts['total_us'] / 1e3:.2f}", f"{facts['of_floor']:.3f}"] if known else [without, ""]
            rows.append([*line, selector, *sums])
            line = ["", "", ""]
    yield Table(["request", "invocations", "floor, ms", "selector", "sum, ms", "of floor"], rows)
    yield f"milliseconds over all invocations, each the median of {payload['settings']['rounds']} rounds"
    yield from remarks(cases_of(payload["results"]))
    yield from skipped(payload["results"])


# ---- other benches ----------------------------------------------------------------------------------------


def verified(payload: Facts) -> Iterator[Said]:
    """What was verified without times: rows of blocks, or rows and replays of ranks."""
    found, again = payload["results"]["verified"], payload["results"].get("replays")
    if found is None:
        return
    yield f"verified {found['rows']:,} rows: {found['failed']:,} failed"
    if "digest" in found:
        same = "the same" if found["same_on_every_rank"] else "NOT the same"
        yield f"digest {found['digest'][:16]}, {same} on every rank"
    if "by_verify" in found:
        yield (
            f"{len(found['kinds'])} kinds of calls and {len(found['families'])} families, {found['by_verify']:,} rows "
            "by ksieve.verify too"
        )
    for fault in found.get("wrong", ()):
        yield f"{fault['kind']}, {fault['dtype']}, rows {fault['rows']}: {', '.join(fault['judge'])}"
    if again is not None:
        yield f"verified {again['replays']:,} replays, {again['rows']:,} rows: {again['failed']} failed"
    yield from seconds(payload)


def seconds(payload: Facts) -> Iterator[Said]:
    """How long each phase took."""
    if found := payload["results"].get("seconds"):
        yield Note("seconds: " + ", ".join(f"{phase} {spent:.1f}" for phase, spent in found.items()))


def hosts(payload: Facts) -> Iterator[Said]:
    """Host costs of the engines' operators, what was lost, and what is not there."""
    from ksieve_lab.bench.engines import AFTER, BEFORE

    def cost(host: Facts, name: str) -> str:
        facts = host.get(name, {})
        return f"{facts['median_us']:.1f}" if "median_us" in facts else facts.get("error") or host.get("skipped", "")

    results = payload["results"]
    rows = [
        [host["operator"].rpartition(".")[2], host["engine"], cost(host, BEFORE), cost(host, AFTER)]
        for host in results["host"]
    ]
    yield Table(["microseconds of the host", "engine", BEFORE, AFTER], rows)
    for lost in results["lost"]:
        side = {BEFORE: "the engine's own operator", AFTER: "ksieve"}[lost["by"]]
        yield Note(
            f"the GPU context was lost by {side} in {lost['call']} ({lost['error']}), and nothing was measured after "
            f"it: --only '!{lost['call']}' measures the others"
        )
    yield from (Note(f"not measured: {name} ({why})") for name, why in results["absent"].items())


def first_calls(payload: Facts) -> Iterator[Said]:
    """First calls by the state of the cache, and the builds in between."""
    from ksieve_lab.bench.first_calls import BUILT, BUNDLE, EMPTY

    def first(call: Facts) -> str:
        return f"{call['seconds']:.3f} ({call['compiled']})" if "seconds" in call else "failed"

    found, states = payload["results"]["first_calls"], (EMPTY, BUILT, BUNDLE)
    rows = [[call["adapter"], name_of(call), *(first(call[state]) for state in states)] for call in found["calls"]]
    yield Table(["first call", "rows x width", *states], rows)
    yield "seconds until the answer is there, and kernels compiled"
    for build in found["builds"]:
        how = build.get("error") or f"{build['kernels']} kernels in {build['seconds']:.0f} s"
        yield Note(f"ksieve build --for {build['engine']} up to {name_of(build)}: {how}")


def predicted(payload: Facts) -> Iterator[Said]:
    """Predicted times of more GPUs."""
    rows = [
        [str(case["world"]), name_of(case), case["dtype"], f"{case['local_us']:.0f}",
         *(f"{case['added_us'][name]:.0f}" for name in ("gathered", "planned")), case["schedule"]]
        for case in payload["results"]["shapes"]
    ]  # fmt: skip
    yield Table(["GPUs", "rows", "dtype", "shard", "gather adds", "planned adds", "schedule"], rows)


def chain(payload: Facts) -> Iterator[Said]:
    """Every request's chains, with the selection's share, and the paper's."""
    for request in payload["results"]["requests"]:
        yield f"{request['request']}: {len(request['calls'])} calls of the last step, {request['width']:,} wide"
        if "skipped" in request:
            yield f"  skipped: {request['skipped']}"
            continue
        scores, read = request["scores"], request["floor_ms"]
        yield f"  scores {scores['ms']:.1f} ms ({scores['teraflops']:.0f} TFLOP/s), plain read {read:.2f} ms"
        rows = []
        for name, facts in request["selectors"].items():
            if "chain_ms" not in facts:
                rows.append((name, "failed", facts.get("error") or "", "", "", ""))
                continue
            rows.append((
                name, f"{facts['chain_ms']:.2f}", f"{facts['select_ms']:.2f}", f"{facts['select_share']:.1%}",
                "" if facts["of_floor"] is None else f"{facts['of_floor']:.2f}",
                {True: "yes", False: "NO", None: ""}[facts["exact"]],
            ))  # fmt: skip
        yield Table(("selector", "chain ms", "selection ms", "share", "of floor", "exact"), rows)
        if paper := payload["results"]["paper"].get(request["request"].upper()):
            select = ", ".join(f"{name} {ms} ms" for name, ms in paper["select_ms"].items())
            yield Note(f"the paper, on an H20 with DeepGEMM: selection {select}")
        yield from skipped({"peers_skipped": request["skipped_peers"]})


def ablation(payload: Facts) -> Iterator[Said]:
    """Every part of the ablation, and the paper's results."""
    from ksieve_lab.bench.ablation import inexact

    results = payload["results"]
    for name, step in results.get("steps", {}).items():
        yield Head(f"{name}: last step, {len(step['calls'])} calls, plain read {step['floor_ms']:.2f} ms")
        yield from _step(name, step, results["paper"])
    widths = results.get("activation", {}).get("widths", [])
    names = list(dict.fromkeys(name for row in widths for name in row if name != "width"))
    if widths:
        rows = []
        for row in widths:
            gains = (f"{row[n]['median']:.2f} ({row[n]['won']}/{row[n]['cells']})" if n in row else "" for n in names)
            rows.append((f"{row['width']:,}", *gains))
        yield Table(("width", *names), rows, "times as fast as exact proposal: median (cells won)")
    for part, found in results["paper"].items():
        yield Note(f"paper, {part}: {found['says']}")
        for key in ("recovery_percent", "speedup", "245K", "430K", "wins", "median_speedup_at_64K"):
            if key in found:
                listed = ", ".join(f"{name}: {value}" for name, value in found[key].items())
                yield Note(f"  {key}: {listed}".replace("_", " "))
    yield from (Note(f"failed or not exact: {name}") for name in inexact(payload))


def _step(name: str, step: Facts, paper: Facts) -> Iterator[Said]:
    rows = []
    for variant, facts in {**step["variants"], **step["peers"]}.items():
        if facts["step_ms"] is None:
            rows.append((variant, "failed", "", "", "", facts["error"] or "not exact"))
            continue
        rates = ("" if facts[k] is None else f"{facts[k]:.3g}%" for k in ("primary_missed_percent", "recovery_percent"))
        admitted = facts["admitted_mean"]
        rows.append((
            variant, f"{facts['step_ms']:.2f}", f"{facts['of_floor']:.2f}", *rates,
            "" if admitted is None else f"{admitted:,.0f}",
        ))  # fmt: skip
    yield Table(("variant", "ms", "of floor", "missed", "recovered", "admitted"), rows)
    wave = step.get("wave")
    if wave and "rescue_us" in wave:
        published = paper.get("rescue", {}).get(name.upper())
        beside = f" (paper, H20: {published['rescue_us']} and {published['recovery_us']})" if published else ""
        yield (
            f"recovery path of {wave['rows']} missed rows: rescue {wave['rescue_us']:.1f} us, exact recovery "
            f"{wave['recovery_us']:.1f} us{beside}"
        )
    phases = step.get("phases", {})
    if "error" in phases:
        yield Note(phases["error"])
    for how in ("alone", "together"):
        lines = [
            (variant, *(f"{us:.2f}" for us in split["row_us"].values()), f"{split['total_us']:.2f}")
            for variant, split in phases.get(how, {}).items()
        ]
        if lines:
            yield Table((f"us of a row, {how}", *next(iter(phases[how].values()))["row_us"], "all"), lines)
