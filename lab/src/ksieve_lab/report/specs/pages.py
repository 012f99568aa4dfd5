"""What committed pages show: a few sentences, and narrow tables, one for each question of a user."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ksieve_lab.bench import layer, logits, samplers
from ksieve_lab.report.specs import engines, gpu, others, study
from ksieve_lab.report.tables import Column, File, Section, Table, card, geometric_mean, judge, reached, render

Rows = Iterable[Mapping[str, Any]]

FEW_ROWS = {"decode": (1, 8, 64, 256), "short": (64, 1024, 8192)}
FEW_WIDTHS = {"decode": (32_768, 131_072, 524_288, 1 << 20), "short": (2049, 4096, 8192, 16_384, 65_536)}
WORST_SHOWN = 4
OPTIONS_SHOWN = (
    "windows", "k per row", "page table", "values", "smallest", "tie-break", "by index", "deterministic",
    "by value",
)  # fmt: skip


def source(files: Sequence[File], up: str = "../../") -> str:
    """Card and file of a table."""
    return f"{card(files[0])}, {files[0].link(up)}"


def sentence(prefill: File, decode: File, up: str = "../../") -> str:
    """Speed of the operator shapes and of decodes in a few sentences."""
    own, other = prefill.payload["results"]["of_floor"][gpu.OWN], geometric_mean(gpu.over_others(prefill))
    steps = decode.payload["results"]["of_floor"][gpu.OWN]
    return (
        f"With k = {prefill.payload['settings']['k']:,}, prefills ({_range(prefill, 'rows')} float32 rows of "
        f"{_range(prefill, 'width')} scores) run at {own['geometric_mean']:.2f} of the speed of only reading the "
        f"scores. Decodes ({_range(decode, 'rows')} rows) run at {steps['geometric_mean']:.2f}. In prefills the "
        f"fastest other library takes {other:.2f} times as long as ksieve. These are geometric means of "
        f"{own['shapes']} and {steps['shapes']} shapes; the least speeds are {own['least']:.2f} and "
        f"{steps['least']:.2f} ({source([prefill], up)}, {decode.link(up)})."
    )


def _range(file: File, of: str) -> str:
    found = [shape[of] for shape in gpu.shapes(file.payload)]
    return f"{min(found):,} to {max(found):,}"


def sentence_of_cpu(file: File, up: str = "../../") -> str:
    """Speed of the CPU in a sentence."""
    found = file.payload["results"]["compared"]
    least = {
        name: min(case["times_faster_than"][name] for case in found) for name in (others.TORCH, others.ARGPARTITION)
    }
    said = " and ".join(f"{value:.1f} times as fast as `{name}`" for name, value in least.items())
    threads = file.payload["settings"]["threads"]
    return f"On {threads} CPU threads ksieve is at least {said} ({len(found)} cases, {file.link(up)})."


def _fractions_note(files: Sequence[File]) -> str:
    own = files[0].payload["results"]["of_floor"][gpu.OWN]
    mean, least = own["geometric_mean"], own["least"]
    return (f"Geometric mean {mean:.3f} ({reached(mean, gpu.TARGET_MEAN)}), least {least:.3f} "
            f"({reached(least, gpu.TARGET_LEAST)}); {source(files)}.")  # fmt: skip


FRACTIONS = Table(
    lambda files: gpu.columns_of(files, lambda shape: f"{shape['selectors'][gpu.OWN]['of_floor']:.2f}"),
    gpu.rows_of, _fractions_note,
)  # fmt: skip


def _few(files: Sequence[File]) -> list[File]:
    """The first file with some of its shapes."""
    payload = files[0].payload
    rows, widths = FEW_ROWS[payload["bench"]], FEW_WIDTHS[payload["bench"]]
    kept = [s for s in gpu.shapes(payload) if s["rows"] in rows and s["width"] in widths]
    return [File(files[0].stem, {**payload, "results": {**payload["results"], "shapes": kept}})]


def _time(shape: Mapping[str, Any]) -> str:
    facts = shape["selectors"][gpu.OWN]
    return f"{facts['median_us']:.1f} ({facts['of_floor']:.2f})"


FEW = Table(
    lambda files: gpu.columns_of(_few(files), _time),
    lambda files: gpu.rows_of(_few(files)),
    lambda files: f"{source(files)}.",
)


def _kinds(files: Sequence[File]) -> Iterator[dict[str, Any]]:
    """A row for each kind of shapes and k, with a cell for each dtype."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    order = ["prefill", "decode", "short"]
    for name in ("operator", "decode", "short"):
        for file in (f for f in files if f.payload["bench"] == name and "factors" not in f.stem):
            settings, own = file.payload["settings"], file.payload["results"]["of_floor"][gpu.OWN]
            if f"gpu-{name}-" in file.stem or settings["dtype"] != "float32":
                others_ = geometric_mean(gpu.over_others(file))
                cell = f"{own['geometric_mean']:.2f}" + (f" ({others_:.2f})" if others_ == others_ else "")
                kind = {"operator": "prefill"}.get(name, name)
                row = found.setdefault((kind, settings["k"]), {"kind": f"{kind}, k = {settings['k']:,}"})
                row[settings["dtype"]] = cell
    yield from (found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), key[1])))


KINDS = Table(
    [Column("rows", "kind"), *(Column(dtype, f"{dtype}?") for dtype in ("float32", "bfloat16", "float16"))], _kinds
)


def _requests(files: Sequence[File]) -> Iterator[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in gpu.TRACES.rows(files):
        cell = f"{row['us']:.1f} ({row['facts']['of_floor']:.2f})"
        found.setdefault(row["request"], {"request": row["request"]})[row["selector"]] = cell
    yield from found.values()


REQUESTS = Table(
    lambda files: [Column(name, name) for name in dict.fromkeys(name for row in _requests(files) for name in row)],
    _requests, lambda files: f"Milliseconds, and the fraction of the plain reads; {source(files)}.",
)  # fmt: skip


def _decodes(files: Sequence[File]) -> str:
    found = [gpu.microseconds(s, "torch.topk") / gpu.microseconds(s, gpu.OWN) for s in gpu.shapes(files[0].payload)]
    return (f"In all {len(found)} shapes `torch.topk` takes {geometric_mean(found):.1f} times as long as ksieve in the "
            f"geometric mean, and {min(found):.1f} times at least.")  # fmt: skip


def _segments(files: Sequence[File]) -> str:
    found = [shape["selectors"]["segments"]["of_matrix"] for shape in files[0].payload["results"]["shapes"]]
    return (f"Segments of up to twice their mean length take {min(found):.2f} to {max(found):.2f} times as long as a "
            f"matrix of as many rows and scores ({len(found)} shapes, {source(files)}).")  # fmt: skip


def _general(files: Sequence[File]) -> str:
    found = files[0].payload["results"]["over_torch"]
    return (f"In {found['shapes']} cases from routers to vocabularies, `torch.topk` takes "
            f"{found['geometric_mean']:.1f} times as long as ksieve in the geometric mean. It takes "
            f"{found['least']:.1f} times as long at least ({source(files)}).")  # fmt: skip


OPTIONS = Table(
    [Column("option", "name"), Column("mean", "geometric_mean", "{:.2f}"), Column("most", "most", "{:.2f}")],
    lambda files: [{"name": name} | files[0].payload["results"]["of_plain"][name] for name in OPTIONS_SHOWN],
    lambda files: f"Time over the plain call's; {source(files)}.",
)  # fmt: skip


LAYER = Table(
    [Column("rows x scores", gpu.size),
     *(Column(name, f"selectors/{name}/median_us", "{:.2f}") for name in layer.VARIANTS)],
    lambda files: gpu.shapes(files[0].payload), lambda files: f"Microseconds of a layer; {source(files)}.",
)  # fmt: skip


def _layer(file: File) -> str:
    found = [shape["selectors"] for shape in gpu.shapes(file.payload)]
    plain = [by[layer.PLAIN]["median_us"] for by in found]
    alone, every = ([by[name]["added_us"] for by in found] for name in ("selection overlaps", "all overlap"))
    return (f"A decode layer of {min(plain):.1f} to {max(plain):.1f} us changes by {min(alone):+.1f} to "
            f"{max(alone):+.1f} us; if its producer and consumer overlap too, by {min(every):+.1f} to "
            f"{max(every):+.1f} ([table](../internals/experiments.md#a-decode-layer)).")  # fmt: skip


def _sampled(shape: Mapping[str, Any]) -> str:
    """The fastest sampler of others."""
    times = {name: gpu.microseconds(shape, name) for name in samplers.PEERS if name.endswith("sample")}
    return min((name for name, us in times.items() if us == us), key=times.__getitem__)


def _logits(files: Sequence[File]) -> Rows:
    for shape in gpu.shapes(files[0].payload):
        other = _sampled(shape)
        yield {**shape, "other": f"{gpu.microseconds(shape, other):.1f} ({other.removesuffix(' sample')})"}


LOGITS = Table(
    [Column("rows x logits", gpu.size), Column("dtype", "dtype"), Column("read", "floor_us", "{:.1f}"),
     *(Column(name, f"selectors/{name}/median_us?", "{:.1f}") for name in (*logits.OURS, "vllm statistics")),
     Column("other sample", "other")],
    _logits, lambda files: f"Microseconds, k = 50; {source(files)}.",
)  # fmt: skip


_ALONE = [f"{name}, {spread}" for spread in logits.SPREADS for name in (logits.ALONE, *samplers.WITHOUT_K)]
ALONE = Table(
    [Column("rows x logits", gpu.size), *(Column(name, f"selectors/{name}/median_us?", "{:.1f}") for name in _ALONE)],
    lambda files: (shape for shape in gpu.shapes(files[0].payload) if shape["dtype"] == "float32"),
    "Microseconds of samples without k, from float32 logits of three spreads:",
)  # fmt: skip


def _sampler(file: File) -> str:
    found = gpu.shapes(file.payload)
    of = [gpu.microseconds(shape, "sample") / gpu.microseconds(shape, _sampled(shape)) for shape in found]
    token = [shape["selectors"]["statistics, 1 token"]["of_plain"] for shape in found]
    most = max(found, key=lambda shape: int(shape["rows"] * shape["width"]))
    own, other = (most["selectors"][name].get("transient_mib", math.nan) for name in ("sample", "vllm sample"))
    return (f"On an {card(file).split()[1]}, a sample takes {min(of):.2f} to {max(of):.2f} of the time of the engines' "
            f"fastest sampler. Statistics with a token take {min(token):.1f} to {max(token):.1f} times as long as "
            f"`topk`. For {gpu.size(most)} logits a sample allocates {own:,.0f} MiB, "
            f"and vLLM's {other:,.0f}.")  # fmt: skip


def _blocks(files: Sequence[File]) -> Rows:
    return (row for row in others.BLOCKS.rows(files) if row["dtype"] == "float32")


BLOCKS = Table(
    [Column("model", "model"), Column("of the read", lambda row: others.span(row["read"])),
     Column("PyTorch around a selector", lambda row: others.span(row["around"]))],
    _blocks, lambda files: f"Float32, least and most of five shapes each; {source(files)}.",
)  # fmt: skip


def _ranks(files: Sequence[File]) -> Iterator[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in others.WORLDS.rows(files):
        name = f"{row['world']} {row['card'].split()[1]}"
        cell = f"{row['planned']:,.0f} ({row['faster']:.2f})"
        found.setdefault(name, {"GPUs": name})[row["dtype"]] = cell
    yield from found.values()


RANKS = Table(
    [Column("GPUs", "GPUs"), Column("float32", "float32"), Column("bfloat16", "bfloat16")], _ranks,
    lambda files: ", ".join(file.link("../../") for file in files) + ".",
)  # fmt: skip

CPU = Table(
    [
        *others.COMPARED, Column("`torch.topk`", f"times_faster_than/{others.TORCH}", "{:.1f}"),
        Column("`argpartition`", f"times_faster_than/{others.ARGPARTITION}", "{:.1f}"),
        Column("of max", "rate_of_max", "{:.2f}"),
    ],
    others.CPU.rows, lambda files: f"{files[0].payload['settings']['threads']} threads; {source(files)}.",
)  # fmt: skip


def _start(files: Sequence[File]) -> str:
    results = files[0].payload["results"]
    worst, start = max(case["times_plain"] for case in results["adversarial"]), results["start"]
    return (f"The slowest family of scores takes {worst:.2f} times as long as random rows. Import and first call take "
            f"{start['first_call_compiling_seconds']:.1f} s when kernels are compiled, and "
            f"{start['first_call_cached_seconds']:.2f} s when they are cached.")  # fmt: skip


def _worst(row: Mapping[str, Any]) -> Any:
    return row[min(row.keys() - {"name"})][gpu.OWN]


WORST = Table(
    [Column("scores", "name", "`{}`"), Column("of the read", lambda row: 1 / _worst(row)["ratio"], "{:.2f}"),
     Column("at", lambda row: gpu.size(_worst(row)))],
    lambda files: list(gpu.WORST.rows(files))[:WORST_SHOWN], lambda files: f"{source(files)}.",
)  # fmt: skip


def exact(files: Sequence[File]) -> str:
    """How many answers were judged, and by whom."""
    suites = [file.payload["results"] for file in files if file.payload["bench"] == "gpu-suite"]
    checked = [file.payload["results"]["verified"] for file in files if file.payload["results"].get("verified")]
    tests = [of for file in files if file.payload["bench"] == "frameworks" for of in file.payload["results"]["files"]]
    tools = [tool for file in files if file.payload["bench"] == "gpu-sanitizers"
             for tool in file.payload["results"].values()]  # fmt: skip
    rows = sum(suite["rows_verified"] for suite in suites) + sum(found["rows"] for found in checked)
    wrong = sum(suite["violations"] for suite in suites) + sum(found["failed"] for found in checked)
    return (
        f"The committed results judge {rows:,} rows on GPUs and CPUs; {wrong} were wrong. "
        f"{sum(of['passed'] for of in tests):,} tests of vLLM, SGLang, FlashInfer and PyTorch pass with ksieve in "
        f"place of their own operators, {sum(of['failed'] for of in tests)} fail. compute-sanitizer found "
        f"{sum(tool['issues'] for tool in tools)} issues in {sum(tool['launches'] for tool in tools):,} launches."
    )


def suites(files: Sequence[File]) -> str:
    """How many parts of the GPU suite ran on a card, at which commits."""
    found: dict[str, dict[str, int]] = {}
    for file in files:
        commits = found.setdefault(card(file), {})
        commit = file.payload["environment"]["commit"][:8]
        commits[commit] = commits.get(commit, 0) + 1
    said = (f"{name}: {', '.join(f'{n} at {commit}' for commit, n in its.items())}" for name, its in found.items())
    return f"Parts of the GPU suite (`gpu-suite-*.json`): {'; '.join(said)}."


def host(files: Sequence[File]) -> str:
    """Host time of a call."""
    its = next(file for file in files if "host_cost" in file.payload["results"])
    costs = its.payload["results"]["host_cost"]
    calls = {"with plan, workspace and out": "stream_unsampled", "without": "without plan, workspace and out",
             "`torch.topk`": "torch.topk"}  # fmt: skip
    said = ", ".join(f"{words} {costs[name]['median_us']:.1f} us" for words, name in calls.items())
    return f"Host time of one call: {said} ({source([its])})."


PARTS: Mapping[str, tuple[str, Sequence[Table | Any]]] = {
    "prefill": ("gpu-operator-k2048", [FRACTIONS]),
    "decode": ("gpu-decode-k2048", [FEW, _decodes]),
    "short": ("gpu-short-k2048", [FEW]),
    "kinds": ("gpu-", [KINDS]),
    "requests": ("gpu-trace-k2048", [REQUESTS]),
    "general": ("gpu-general", [_general]),
    "options": ("gpu-options-k2048", [OPTIONS]),
    "segments": ("gpu-segments", [_segments]),
    "blocks": ("blocks-cuda", [BLOCKS]),
    "ranks": ("ranks-cuda", [RANKS]),
    "worst": ("gpu-worst-k2048", [WORST]),
    "cpu": ("cpu-2-threads", [CPU, _start]),
    "host": ("gpu-suite", [host]),
    "exact": ("", [exact]),
}
"""Parts of the page of benchmarks: the beginning of the names of their files, and what is shown of these."""


def committed(files: Sequence[File], sections: Sequence[Section]) -> Iterator[tuple[str, str, str]]:
    """Parts of committed pages: path, name of the markers, and text."""

    def named(stem: str) -> list[File]:
        found = [file for file in files if file.stem.startswith(stem)]
        for file in found:
            for section in (section for section in sections if file.payload["bench"] in section.benches):
                judge(section, file)
        return found

    (operator,), (decode,), (cpu,) = named("gpu-operator-k2048"), named("gpu-decode-k2048"), named("cpu-2-threads")
    yield "README.md", "benchmarks", f"{sentence(operator, decode, '')} {sentence_of_cpu(cpu, '')}"
    yield "docs/index.md", "benchmarks", sentence(operator, decode, "../")
    for name, (stem, shown) in PARTS.items():
        texts = [render(each, its) if isinstance(each, Table) else each(its) for its in [named(stem)] for each in shown]
        yield "docs/reference/benchmarks.md", name, "\n\n".join(texts)
    answers = [study.answer(file) for file in files if file.payload["bench"] == "study"]
    answers += [study.calibrated(file) for file in files if file.payload["bench"] == "calibrate"]
    yield "docs/guide/study.md", "results", "\n\n".join(answers)
    for file in named("gpu-layer"):
        yield "docs/guide/options.md", "layer", _layer(file)
        yield "docs/internals/experiments.md", "layer", render(LAYER, [file])
    for file in named("gpu-logits"):
        yield "docs/internals/experiments.md", "logits", "\n\n".join((
            _sampler(file), render(LOGITS, [file]), render(ALONE, [file]),
        ))  # fmt: skip
    for engine in engines.TITLES:
        yield "docs/guide/engines.md", f"{engine}-operators", engines.operators(engine)
    yield "docs/guide/engines.md", "times", engines.gained(files)
    yield "docs/guide/engines.md", "first-calls", engines.first_seconds(files)
    yield "docs/reference/support.md", "engines", engines.tested(files)
    yield "docs/reference/support.md", "suite", suites([f for f in files if f.payload["bench"] == "gpu-suite"])
