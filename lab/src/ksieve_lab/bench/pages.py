"""Result files of GPU benches as Markdown: the tables and figures of docs/reference/benchmarks.md.

Every number comes out of a payload; an answer that was not exact stops the page. Figures are referred to by the names
that `benches.names` gives; who writes the page draws them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ksieve_lab.bench import anchors
from ksieve_lab.bench.scores import lengths_text
from ksieve_lab.report import benches

TARGET_MEAN = 0.92
TARGET_LEAST = 0.82
"""Targets of the operator shapes, as fractions of the plain-read speed: for the geometric mean, and for each shape."""

TARGET_TRACE = 0.90
TARGET_WORST = 2.5
TARGET_SHORT = 0.75
SHORT_BYTES = 256 << 20
SHORT_WIDTH = 16_384
"""Short rows are to reach `TARGET_SHORT` of the plain read from this width up, in matrices beyond `SHORT_BYTES`."""

Payload = Mapping[str, Any]


class InexactError(SystemExit):
    """A result without an exact answer of ours reached a page."""


def table(columns: Sequence[str], rows: Sequence[Sequence[str | None]]) -> str:
    """Write a Markdown table."""
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join((cell or '').replace('|', '&#124;') for cell in line)} |" for line in lines)


def fenced(language: str, text: str) -> str:
    """Write a code block."""
    return f"```{language}\n{text}\n```"


def command(payload: Payload) -> str:
    """Command line that writes a result file again, into the folder where it lies."""
    words = shlex.split(payload["environment"]["command"])[1:]
    if "--out" in words:
        words[words.index("--out") + 1] = "benchmarks/results"
    if "--peers" in words:  # names have spaces, which older files do not quote
        begin = words.index("--peers") + 1
        end = next((i for i in range(begin, len(words)) if words[i].startswith("--")), len(words))
        words[begin:end] = [" ".join(words[begin:end])]
    return shlex.join(["ksieve", *words])


def machine(payload: Payload) -> str:
    """Describe the machine of a result."""
    facts = payload["environment"]
    gpu, packages = (facts.get("gpu") or {}).get("devices", [{}])[0], facts.get("packages", {})
    parts = [
        gpu.get("name") or (facts.get("cpu") or {}).get("model"),
        f"driver {gpu['driver_version']}" if "driver_version" in gpu else None,
        f"NVRTC {packages['nvidia-cuda-nvrtc']}" if gpu and "nvidia-cuda-nvrtc" in packages else None,
        f"torch {packages['torch']}" if "torch" in packages else None,
        facts.get("date", "")[:10],
        f"commit {facts['commit'][:7]}" if facts.get("commit") else None,
    ]
    return ", ".join(part for part in parts if part)


def shapes(payload: Payload) -> list[dict[str, Any]]:
    """Shapes that were measured, each with an exact answer of ksieve; anything else must not reach a page."""
    found: list[dict[str, Any]] = payload["results"]["shapes"]
    for shape in found:
        if shape.get("selectors", {}).get("ksieve", {}).get("exact") is not True:
            raise InexactError(f"{shape['rows']} x {shape['width']}: no exact answer was measured")
    return found


def matrix(payload: Payload, cell: Callable[[dict[str, Any]], str]) -> str:
    """One cell per shape: widths downwards, rows across."""
    by_shape = {(s["rows"], s["width"]): s for s in shapes(payload)}
    rows, widths = (sorted({shape[i] for shape in by_shape}) for i in (0, 1))
    lines = [(f"{n:,}", *(cell(by_shape[m, n]) if (m, n) in by_shape else "" for m in rows)) for n in widths]
    return table(("width \\ rows", *(f"{m:,}" for m in rows)), lines)


def of_floor(shape: Mapping[str, Any]) -> str:
    """Fraction of the plain read."""
    return f"{shape['selectors']['ksieve']['of_floor']:.3f}"


def own_time(shape: Mapping[str, Any]) -> str:
    """Microseconds of the planner's choice."""
    return f"{shape['selectors']['ksieve']['median_us']:.1f}"


def beside(value: float, target: float, *, most: bool = False) -> str:
    """Text of a target and whether a value reaches it; with `most` the target is an upper bound."""
    return f"target {target}: {'met' if (value <= target if most else value >= target) else 'missed'}"


def source(payload: Payload) -> str:
    """Describe the scores of a result."""
    name = payload["settings"].get("scores", "endpoint")
    return {"endpoint": "endpoint-structured", "normal": "normal"}.get(name, f"real factors ({name.partition(':')[2]})")


def images(payload: Payload, stem: str) -> list[str]:
    """Figures of a result, relative to a folder of docs/, and which selectors their curves leave out."""
    names = benches.names(payload, stem)
    shown = [f"![{name.replace('-', ' ')}](../figures/{name}.svg)" for name in names]
    absent = benches.left_out(payload) if any(name.endswith(benches.CURVES) for name in names) else []
    return [*shown, f"Not drawn, slower on average, and in the table: {', '.join(absent)}."] if absent else shown


def operator_targets(payloads: Sequence[Payload]) -> str:
    """Which operator results meet the targets."""
    rows = []
    for payload in payloads:
        slow = [s for s in shapes(payload) if s["selectors"]["ksieve"]["of_floor"] < TARGET_LEAST]
        own = payload["results"]["of_floor"]["ksieve"]
        met = own["geometric_mean"] >= TARGET_MEAN and own["least"] >= TARGET_LEAST
        rows.append(
            (
                f"{payload['settings']['k']:,}",
                source(payload),
                f"{own['geometric_mean']:.3f}",
                f"{own['least']:.3f}",
                "yes" if met else "no",
                ", ".join(f"{s['rows']} x {s['width']:,} ({of_floor(s)})" for s in slow) or "none",
            )
        )
    columns = ("k", "scores", "geometric mean", "least", "both targets met", f"shapes under {TARGET_LEAST}")
    text = (
        f"The targets are a geometric mean of {TARGET_MEAN} of the plain read over the 20 shapes, and no shape under "
        f"{TARGET_LEAST}."
    )
    return f"{text}\n\n{table(columns, rows)}"


def operator(link: str, stem: str, payload: Payload, published: Payload | None) -> str:
    """One operator result: figures, the table, and published times of the same shapes."""
    found = shapes(payload)
    peers = _peers(found)
    forced = [n for n in found[0]["selectors"] if n != "ksieve" and n not in peers]
    rows = []
    for shape in found:
        own = shape["selectors"]["ksieve"]
        rows.append(
            (
                f"{shape['rows']} x {shape['width']:,}",
                f"{shape['floor_us']:.1f} ({shape['floor_terabytes_per_second']:.2f})",
                own_time(shape),
                of_floor(shape),
                own["policy"],
                *(f"{shape['selectors'][name]['of_floor']:.3f}" for name in forced),
                *([_fastest_other(shape, peers)] if peers else []),
            )
        )
    columns = (
        "rows x width",
        "plain read, us (TB/s)",
        "ksieve, us",
        "of the plain read",
        "policy",
        *(f"forced {name}" for name in forced),
        *(["fastest other / ksieve"] if peers else []),
    )
    parts = [
        f"### k = {payload['settings']['k']:,}, {source(payload)} scores",
        *_told(link, payload),
        *images(payload, stem),
        table(columns, rows),
        *_others(payload),
        *_published(payload, published),
    ]
    return "\n\n".join(parts)


def decode(link: str, stem: str, payload: Payload, published: Payload | None) -> str:
    """One decode result."""
    found = shapes(payload)
    single = [s["selectors"]["ksieve"]["median_us"] for s in found if s["rows"] == 1]
    read = [s["floor_us"] for s in found if s["rows"] == 1]
    parts = [
        f"### k = {payload['settings']['k']:,}, {source(payload)} scores",
        *_told(link, payload),
        f"One row takes {min(single):.1f} to {max(single):.1f} us over all widths, and its plain read "
        f"{min(read):.1f} to {max(read):.1f} us: at few rows nearly all of the time is not reading.",
        *images(payload, stem),
        "Microseconds:",
        matrix(payload, own_time),
        "Fraction of the plain read:",
        matrix(payload, of_floor),
        *_others(payload, each=True),
        *_published(payload, published),
    ]
    return "\n\n".join(parts)


def short(link: str, stem: str, payload: Payload) -> str:
    """One result of short rows."""
    large = [
        s for s in shapes(payload) if s["width"] >= SHORT_WIDTH and 4 * s["rows"] * s["width"] > SHORT_BYTES
    ]  # fmt: skip
    least = min((s["selectors"]["ksieve"]["of_floor"] for s in large), default=math.nan)
    told = (
        f"From {SHORT_WIDTH:,} scores up, in matrices beyond 256 MiB, the least fraction is {least:.3f} "
        f"({beside(least, TARGET_SHORT)})."
    )
    parts = [
        f"### k = {payload['settings']['k']:,}, {source(payload)} scores",
        *_told(link, payload),
        *([told] if large else []),
        *images(payload, stem),
        "Microseconds:",
        matrix(payload, own_time),
        "Fraction of the plain read:",
        matrix(payload, of_floor),
        *_others(payload, each=True),
    ]
    return "\n\n".join(parts)


def trace(link: str, stem: str, payload: Payload) -> str:
    """One result of framework traces."""
    rows = []
    for name, found in payload["results"]["traces"].items():
        if found["selectors"].get("ksieve", {}).get("exact") is not True:
            raise InexactError(f"trace {name}: no exact answer was measured")
        for selector, facts in found["selectors"].items():
            known, calls = "total_us" in facts, len(found["invocations"])
            missing = "" if known else "not exact" if facts["inexact"] else f"no time of {facts['failed']} of {calls}"
            rows.append(
                (
                    name,
                    f"{calls}",
                    f"{found['floor_us'] / 1e3:.2f}",
                    selector,
                    f"{facts['total_us'] / 1e3:.2f}" if known else missing,
                    f"{facts['of_floor']:.3f}" if known else "",
                    beside(facts["of_floor"], TARGET_TRACE) if selector == "ksieve" else "",
                )
            )
    columns = ("request", "invocations", "plain reads, ms", "selector", "sum, ms", "of the plain reads", "")
    parts = [
        f"### k = {payload['settings']['k']:,}, {source(payload)} scores",
        *_told(link, payload),
        *images(payload, stem),
        table(columns, rows),
    ]
    return "\n\n".join(parts)


def general(link: str, stem: str, payload: Payload) -> str:
    """One result of shapes from outside the indexer."""
    found = payload["results"]
    over, slower = found["over_torch"], found["slower"]
    told = (
        f"`torch.topk(sorted=False)` takes {over['geometric_mean']:.2f} times as long in the geometric mean, "
        f"{over['least']:.2f} times at least; ksieve is slower in {len(slower)} of {over['shapes']} cases."
    )
    rows = [
        (
            f"{case['rows']:,} x {case['width']:,}, {case['k']:,}",
            case["dtype"],
            f"{case['floor_us']:.1f}",
            *(f"{case['selectors'][name]['median_us']:.1f}" for name in ("ksieve", "torch.topk")),
            f"{case['times_faster']:.2f}",
        )
        for case in shapes(payload)
    ]
    columns = ("rows x width, k", "dtype", "plain read, us", "ksieve, us", "torch.topk, us", "its time over ours")
    return "\n\n".join([f"### {source(payload)} scores", *_told(link, payload), told, table(columns, rows)])


def worst(link: str, stem: str, payload: Payload, published: Payload | None) -> str:
    """One worst-case result: times over the floor per family and shape."""
    cases = {(c["family"], c["rows"], c["width"]): c for c in payload["results"]["cases"] if "skipped" not in c}
    for (family, rows, width), case in cases.items():
        if case["selectors"]["ksieve"].get("exact") is not True:
            raise InexactError(f"{family} at {rows} x {width}: no exact answer was measured")
    grid = list(dict.fromkeys((rows, width) for _, rows, width in cases))
    families = list(dict.fromkeys(family for family, _, _ in cases))

    def ratio(family: str, rows: int, width: int) -> str:
        case = cases.get((family, rows, width))
        return f"{1 / case['selectors']['ksieve']['of_floor']:.2f}" if case else ""

    lines = [(f"`{family}`", *(ratio(family, *shape) for shape in grid)) for family in families]
    largest = max(payload["results"]["worst"].items(), key=lambda item: item[1]["ksieve"]["ratio"])
    told = (
        f"Times over the plain read of the same rows. The worst is `{largest[0]}` at "
        f"{largest[1]['ksieve']['rows']} x {largest[1]['ksieve']['width']:,}: {largest[1]['ksieve']['ratio']:.2f} "
        f"({beside(largest[1]['ksieve']['ratio'], TARGET_WORST, most=True)})."
    )
    parts = [
        f"### k = {payload['settings']['k']:,}",
        *_told(link, payload),
        told,
        *images(payload, stem),
        table(("scores", *(f"{m} x {n:,}" for m, n in grid)), lines),
        *_published_worst(cases, published),
    ]
    return "\n\n".join(parts)


def other(link: str, payload: Payload) -> str:
    """One line for a result that other pages explain."""
    return f"* {link}: {payload['bench']}, {machine(payload)}; `{command(payload)}`"


def _told(link: str, payload: Payload) -> list[str]:
    settings = payload["settings"]
    lengths = f", {lengths_text(settings['lengths'])}" if "lengths" in settings else ""
    dtype = f"{settings.get('dtype', 'float32')}{lengths}" if "cases" not in settings else "whole rows of each dtype"
    text = f"{dtype}, medians of {settings['rounds']} rounds, {machine(payload)}; "
    return [f"{text}{link}:", fenced("text", command(payload))]


def _peers(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Selectors of other libraries; older files know one such."""
    names = [n for n in found[0]["selectors"] if n != "ksieve"]
    return [n for n in names if n == "torch.topk" or any(s["selectors"].get(n, {}).get("peer") for s in found)]


def _times_faster(shape: Mapping[str, Any], name: str) -> float | None:
    """Another selector's time over ksieve's; None without an exact answer."""
    other = shape["selectors"].get(name, {})
    if "median_us" not in other or other.get("exact") is not True:
        return None
    return float(other["median_us"] / shape["selectors"]["ksieve"]["median_us"])


def _ratios(shape: Mapping[str, Any], peers: Sequence[str]) -> dict[str, float]:
    found = ((name, _times_faster(shape, name)) for name in peers)
    return {name: ratio for name, ratio in found if ratio is not None}


def _fastest_other(shape: Mapping[str, Any], peers: Sequence[str]) -> str:
    """Of the exact ones, how many times ksieve's time the fastest takes, and which it is."""
    ratios = _ratios(shape, peers)
    name = min(ratios, key=ratios.__getitem__, default=None)
    return f"{ratios[name]:.2f} {name}" if name else ""


def _others(payload: Payload, *, each: bool = False) -> list[str]:
    """Other libraries' selectors over all shapes; with `each`, which is the fastest of every shape."""
    found = shapes(payload)
    peers = _peers(found)
    rows = []
    for name in peers:
        ratios = {i: ratio for i, shape in enumerate(found) if (ratio := _times_faster(shape, name)) is not None}
        if not ratios:
            continue
        least = min(ratios, key=ratios.__getitem__)
        wrong = sum(s["selectors"].get(name, {}).get("exact") is False for s in found)
        where = f"{found[least]['rows']} x {found[least]['width']:,}"
        slower = sum(ratio < 1 for ratio in ratios.values())
        rows.append(
            (f"`{name}`", f"{len(ratios)}", f"{wrong}", f"{_mean([*ratios.values()]):.2f}",
             f"{ratios[least]:.2f} at {where}", f"{slower}")
        )  # fmt: skip
    if not rows or (peers == ["torch.topk"] and not each):
        return []
    best = [min(exact.values()) for shape in found if (exact := _ratios(shape, peers))]
    versions = payload["environment"].get("packages", {})
    known = [f"{name} {versions[name]}" for name in ("flashinfer-python", "sglang", "vllm") if name in versions]
    text = (
        f"Other libraries' selectors in the same process on the same tensors{': ' * bool(known)}{', '.join(known)}. "
        f"The fastest exact one of each shape takes {_mean(best):.2f} times as long as ksieve (geometric mean of "
        f"{len(best)} shapes), at least {min(best):.2f} times, and is faster at {sum(ratio < 1 for ratio in best)}."
    )
    columns = ("selector", "exact shapes", "inexact", "its time / ksieve's, geometric mean", "least", "faster at")
    cells = ["The fastest of each shape:", matrix(payload, lambda s: _fastest_other(s, peers))] if each else []
    return [text, table(columns, rows), *cells]


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def _published(payload: Payload, published: Payload | None) -> list[str]:
    """Published times of a result's shapes, next to its own and apart from them."""
    found = anchors.published(published, payload)
    if not found:
        return []
    own = {f"{s['rows']}x{s['width']}": s["selectors"]["ksieve"]["median_us"] for s in shapes(payload)}
    names = [n for n in dict.fromkeys(n for times in found.values() for n in times) if n != "plain read"]
    rows, ratios = [], []
    for shape, times in found.items():
        best = min((n for n in names if n in times), key=lambda n: times[n], default=None)
        if best is None:
            continue
        ratios.append(times[best] / own[shape])
        cells = (f"{times[n]:.1f}" if n in times else "" for n in names)
        rows.append((shape.replace("x", " x "), f"{own[shape]:.1f}", *cells, f"{ratios[-1]:.2f}"))
    slower = sum(ratio < 1 for ratio in ratios)
    text = (
        f"Microseconds {anchors.LABEL}, beside those measured here: over the best published time, ksieve is "
        f"{_mean(ratios):.2f} times as fast (geometric mean of {len(ratios)} shapes) and slower at {slower} of them. "
        "Another process on another machine of the same model measured them, so that a few per cent mean nothing."
    )
    return [text, table(("rows x width", "ksieve, here", *names, "best published / ksieve"), rows)]


def _published_worst(cases: Mapping[tuple[str, int, int], Any], published: Payload | None) -> list[str]:
    rows = []
    names: dict[str, None] = {}
    listed = (published or {}).get("worst", {})
    for shape, families in listed.items():
        m, n = map(int, shape.split("x"))
        for family, times in families.items():
            if family == "floor" or (family, m, n) not in cases:
                continue
            names |= dict.fromkeys(times)
            rows.append((family, f"{m} x {n:,}", cases[family, m, n], times))
    if not rows:
        return []
    lines = [
        (f"`{family}`", shape, own_time(case), *(f"{times[name]:.0f}" if name in times else "" for name in names))
        for family, shape, case, times in rows
    ]
    return [
        f"Microseconds {anchors.LABEL}, on one H200:",
        table(("scores", "rows x width", "ksieve, here", *names), lines),
    ]
