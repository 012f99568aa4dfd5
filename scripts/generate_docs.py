"""Write every measured number of the documentation from result files, its figures, and the command reference.

``--check`` writes nothing and exits 1 naming what is out of date. The parts lie between marker comments, so that the
prose around them stays hand-written.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ksieve.core import atomic
from ksieve_lab.bench import anchors, block_pages, engine_pages, pages, rank_pages
from ksieve_lab.report import benches, steps
from ksieve_lab.report import ranks as rank_figures

ROOT = Path(__file__).parent.parent


def between_markers(text: str, name: str, body: str) -> str:
    """Replace what stands between ``<!-- name:begin -->`` and ``<!-- name:end -->``."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    head, found_begin, rest = text.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not (found_begin and found_end):
        raise SystemExit(f"markers {begin} and {end} are missing")
    return f"{head}{begin}\n{body.strip()}\n{end}{tail}" if body.strip() else f"{head}{begin}\n{end}{tail}"


def wrapped(body: str) -> str:
    """Fold prose and list items of more than 120 columns; tables, headings and code stay as they are."""
    lines: list[str] = []
    code = False
    for line in body.split("\n"):
        code ^= line.startswith("```")
        if code or len(line) <= 120 or line.startswith(("|", "#", "![", "<")):
            lines.append(line)
        else:
            indent = "  " if line.startswith("* ") else ""
            lines += textwrap.wrap(line, 120, subsequent_indent=indent, **_WHOLE_WORDS)
    return "\n".join(lines)


_WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}


def commands(group: Any, path: tuple[str, ...] = ("ksieve",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Walk the command tree: every command and group with its full name, in the order of ``--help``."""
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def cli_reference() -> str:
    """Markdown reference of every command, argument and option; `docs/conf.py` writes it when the site is built."""
    from ksieve_lab.cli.app import tree

    return "\n\n".join(_describe(path, command) for path, command in commands(tree()))


def _describe(path: tuple[str, ...], command: Any) -> str:
    inner = getattr(command, "commands", {})
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    its = (p.metavar if p.required else f"[{p.metavar}]" for p in arguments)
    usage = [*path, "[OPTIONS]", *its, *(["COMMAND ..."] if inner else [])]
    parts = [f"{'#' * (len(path) + 1)} `{' '.join(path)}`", _help(command), pages.fenced("text", " ".join(usage))]
    if inner:
        parts.append("\n".join(f"* `{name}`: {_first_paragraph(child)}" for name, child in inner.items()))
    if arguments:
        parts.append(pages.table(("argument", "meaning"), [(f"`{p.metavar}`", p.help) for p in arguments]))
    if options:
        parts.append(pages.table(("option", "meaning", "default"), [(_flags(p), p.help, _default(p)) for p in options]))
    examples = [line[2:] for line in (command.epilog or "").splitlines() if line.startswith("$ ")]
    parts.append(pages.fenced("bash", "\n".join(examples)) if examples else command.epilog or "")
    return "\n\n".join(part for part in parts if part)


def _first_paragraph(command: Any) -> str:
    return _help(command).split("\n\n")[0]


def _help(command: Any) -> str:
    """Help text as it reads in a terminal, where a bracket is escaped from markup."""
    return str(command.help or "").replace("\\[", "[")


def _flags(option: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    return f"{flags} {option.metavar or ''}".strip()


def _default(option: Any) -> str:
    if option.required:
        return "required"
    # A default of "absent" differs between versions of typer; only one that a user would type is printed.
    return f"`{option.default}`" if isinstance(option.default, (str, int)) and option.default is not False else ""


def benchmark_section(results: Path) -> str:
    """README section: every CPU result file of a folder, and the operator shapes on a GPU; empty without any."""
    parts = _cpu_parts(results)
    operator = results / "gpu-operator-k2048.json"
    if operator.exists():
        parts.append(_gpu_summary(_link(operator), _payload(operator)))
    return "\n\n".join(["## Measured", *parts]) if parts else ""


def benchmark_page(results: Path) -> str:
    """Tables of docs/reference/benchmarks.md: every result file of a folder with the command that reproduces it."""
    published = anchors.load(ROOT / anchors.FILE)
    left = {path: _payload(path) for path in sorted(results.glob("*.json"))}

    def take(pattern: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Link, stem and payload of the files of a kind: endpoint-structured scores first, large k first."""
        found = [path for path in left if path.match(pattern)]
        found.sort(key=lambda p: (left[p]["settings"].get("scores", "endpoint"), -left[p]["settings"].get("k", 0)))
        return [(_link(path, "../../"), path.stem, left.pop(path)) for path in found]

    parts: list[str] = []
    if operator := take("gpu-operator*-k*.json"):
        parts += ["## Operator shapes on a GPU", pages.operator_targets([payload for *_, payload in operator])]
        parts += [pages.operator(*file, published) for file in operator]
    if trace := take("gpu-trace*-k*.json"):
        parts += ["## Framework traces on a GPU", *(pages.trace(*file) for file in trace)]
    if decode := take("gpu-decode*-k*.json"):
        parts += ["## Decode shapes on a GPU", *(pages.decode(*file, published) for file in decode)]
    if short := take("gpu-short*-k*.json"):
        parts += ["## Short rows on a GPU", *(pages.short(*file) for file in short)]
    if others := take("gpu-general*.json"):
        parts += ["## Shapes from outside the indexer on a GPU", *(pages.general(*file) for file in others)]
    if blocks := take("blocks-*.json"):
        parts += ["## Blocks, pools and forced entries", *(block_pages.section(*file) for file in blocks)]
    if worst := take("gpu-worst*-k*.json"):
        parts += ["## The worst case on a GPU", *(pages.worst(*file, published) for file in worst)]
    cpu = [path for path in left if path.match("cpu-*.json")]
    if cpu:
        parts += ["## CPU", *(_cpu_results(_link(path, "../../"), left.pop(path)) for path in cpu)]
    if ranks := take("ranks-*.json"):
        predicted = take("predicted-ranks.json")
        of = predicted[0][-1] if predicted else None
        parts += ["## Rows on several ranks", rank_pages.section(ranks, of)]
        parts += [rank_pages.predicted(link, of) for link, _, of in predicted]
    if frameworks := take("gpu-frameworks*.json"):
        parts += ["## The frameworks' own tests", *(_framework_results(link, of) for link, _, of in frameworks)]
    sanitizers = results / "gpu-sanitizers.json"
    if measured := [path for path in left if path.match(engine_pages.MEASURED)]:
        lines = [engine_pages.measured(path, _link(path, "../../"), left.pop(path)) for path in measured]
        parts += ["## The engines' operators, before and after", "\n".join(lines)]
    if loaders := take("engine-loaders-*.json"):
        lines = [engine_pages.loaded(link, payload) for link, _, payload in loaders]
        parts += ["## The engines' own plugin loaders", "\n".join(lines)]
    if suites := [path for path in left if path.match("gpu-suite*.json")]:
        parts += ["## The GPU suite", *(_suite_results(_link(path, "../../"), left.pop(path)) for path in suites)]
    if sanitizers in left:
        parts += ["## Sanitizers", _sanitizer_results(_link(sanitizers, "../../"), left.pop(sanitizers))]
    if left:
        lines = [pages.other(_link(path, "../../"), payload) for path, payload in left.items()]
        parts += ["## Other result files", "\n".join(lines)]
    return "\n\n".join(parts)


def evidence_page(results: Path) -> str:
    """Generated part of docs/guide/evidence.md: every ablation, chain and replay of a folder."""
    from ksieve_lab.bench import evidence

    found = [(path, _payload(path)) for path in sorted(results.glob("*.json"))]
    chosen = [(path, payload) for path, payload in found if payload["bench"] in evidence.BENCHES]
    return evidence.section([(_link(path, "../../"), path.stem, payload) for path, payload in chosen])


def study_page(results: Path) -> str:
    """Generated part of docs/guide/study.md: every study and calibration of a folder."""
    from ksieve_lab.study import pages as study

    sections = {"study": study.study_section, "calibrate": study.calibration_section}
    found = [(path, _payload(path)) for path in sorted(results.glob("*.json"))]
    parts = []
    for bench, section in sections.items():
        parts += [f"{section(p)}\n\n{_link(path, '../../')}" for path, p in found if p["bench"] == bench]
    return "\n\n".join(parts)


def draw_figures(results: Path, folder: Path, *, check: bool) -> list[str]:
    """Draw the figures of the page that are missing, or older than their result files; return their names."""
    stale = []
    for path in sorted(path for kind in ("blocks", "gpu", "ranks") for path in results.glob(f"{kind}-*.json")):
        names = benches.names(_payload(path), path.stem)
        stale += _redraw([path], names, folder, lambda at, p=path: benches.draw(_payload(p), at, p.stem), check)
    measured = sorted(results.glob("ranks-cuda-*.json"))
    predicted = [path for path in [results / "predicted-ranks.json"] if path.exists()]
    payloads, expected = [_payload(path) for path in measured], _payload(predicted[0]) if predicted else None
    names = rank_figures.world_names(payloads)
    draw = functools.partial(rank_figures.draw_worlds, payloads, expected)
    return stale + _redraw([*measured, *predicted], names, folder, draw, check)


def draw_guide(folder: Path, *, check: bool) -> list[str]:
    """Draw the pictures of the guide that are missing, or older than the module that draws them; return their names."""
    return _redraw([Path(steps.__file__)], [steps.NAME], folder, lambda at: steps.draw(at / steps.NAME), check)


def _redraw(sources: list[Path], names: list[str], folder: Path, draw: Callable[[Path], Any], check: bool) -> list[str]:
    """Draw what files are the source of, unless it is fresh; return the names of the stale figures.

    A figure ends with the hash of the files it was drawn from: how it looks may change with the plotting library.
    """
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    mark = f"<!-- drawn from {', '.join(source.name for source in sources)}, SHA-256 {digest} -->\n"
    old = [n for n in names if not (at := folder / f"{n}.svg").exists() or not at.read_text("utf-8").endswith(mark)]
    if old and not check:
        with tempfile.TemporaryDirectory() as drawn:
            draw(Path(drawn))
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                text = (Path(drawn) / f"{name}.svg").read_text(encoding="utf-8")
                atomic.write_text(folder / f"{name}.svg", text + mark)
    return old


def _payload(path: Path) -> dict[str, Any]:
    from ksieve.planning.tune.record import read_json

    payload: dict[str, Any] = read_json(path)
    return payload


def _link(path: Path, up: str = "") -> str:
    name = path.relative_to(ROOT).as_posix()
    return f"[{name}]({up}{name})"


def _cpu_parts(results: Path, up: str = "") -> list[str]:
    return [_cpu_results(_link(path, up), _payload(path), brief=True) for path in sorted(results.glob("cpu-*.json"))]


def _gpu_summary(link: str, payload: dict[str, Any]) -> str:
    table = pages.matrix(payload, pages.of_floor)
    own, settings = payload["results"]["of_floor"]["ksieve"], payload["settings"]
    return "\n\n".join(
        [
            "### On a GPU",
            f"Top {settings['k']:,} of {settings['dtype']} rows with {settings['lengths']} lengths "
            f"({pages.machine(payload)}): speed as a fraction of the plain read, the fastest of several kernels "
            f"that read the same valid scores and do nothing else. The geometric mean is {own['geometric_mean']:.3f} "
            f"({pages.beside(own['geometric_mean'], pages.TARGET_MEAN)}), the least {own['least']:.3f} "
            f"({pages.beside(own['least'], pages.TARGET_LEAST)}). Every answer was verified. The numbers are those "
            f"of {link}; [the benchmarks](docs/reference/benchmarks.md) have times, other k, decode shapes, and what "
            "is missing.",
            table,
            "To measure again, and to run the GPU suite, with a Python that has torch and the `cuda` extra:",
            pages.fenced("text", f"{pages.command(payload)}\nmake test-gpu PYTHON=python3"),
        ]
    )


def _suite_results(link: str, payload: dict[str, Any]) -> str:
    found, tests = payload["results"], payload["results"]["tests"]
    costs = ", ".join(f"{name} {cost['median_us']:.1f} us" for name, cost in found.get("host_cost", {}).items())
    part = payload["settings"].get("part")
    unfinished = [] if found.get("finished", True) else ["The run was cut off before its last test."]
    return "\n\n".join(
        [
            f"{pages.machine(payload)}; {link}:",
            pages.fenced("text", f"OUT=benchmarks/results scripts/gpu_session.sh suite{f'-{part}' if part else ''}"),
            *unfinished,
            f"{found['rows_verified']:,} rows of {found['cases']:,} cases judged on the device with "
            f"{found['violations']} violations; the statistics of {found['rows_with_statistics_equal_to_the_model']:,} "
            f"rows equal to the model's in every column; {tests['passed']} tests passed, "
            f"{tests.get('skipped', 0)} skipped, {tests.get('failed', 0)} failed.",
            *([f"Host time of one call (median): {costs}."] if costs else []),
        ]
    )


def _framework_results(link: str, payload: dict[str, Any]) -> str:
    """Table of what became of the frameworks' tests, and how to run them again."""
    counts = ("passed", "failed", "skipped", "not_applicable")
    rows = [
        (file["framework"], file["version"], f"`{file['file']}`", *(f"{file[name]:,}" for name in counts))
        for file in payload["results"]["files"]
        if any(file[name] for name in counts[:3])  # -k may leave none of a file
    ]
    columns = ("framework", "version", "file", "passed", "failed", "skipped", "not applicable")
    return "\n\n".join(
        [
            f"Run against the adapters; {link} names every test that was skipped or not run, and why:",
            pages.fenced("text", "scripts/framework_tests.sh fetch\nscripts/framework_tests.sh run"),
            pages.table(columns, rows),
            f"{pages.machine(payload)}.",
        ]
    )


def _sanitizer_results(link: str, payload: dict[str, Any]) -> str:
    tools = [(name, f"{tool['launches']}", f"{tool['issues']}") for name, tool in payload["results"].items()]
    return "\n\n".join(
        [
            f"{pages.machine(payload)}; {link}:",
            pages.fenced("text", "make sanitize PYTHON=python3  # writes out/gpu-sanitizers.json"),
            pages.table(("compute-sanitizer tool", "launches, each repeated", "issues"), tools),
        ]
    )


def _cpu_results(link: str, payload: dict[str, Any], *, brief: bool = False) -> str:
    from ksieve_lab.bench.contenders import ARGPARTITION, TORCH

    facts, settings, results = payload["environment"], payload["settings"], payload["results"]
    versions = ", ".join(f"{p} {facts['packages'][p]}" for p in ("numpy", "torch") if p in facts["packages"])
    parts = [
        f"Top {settings['k']:,} on {settings['threads']} threads, {facts['cpu']['model']} ({versions}, "
        f"{facts['date'][:10]}): medians of {settings['rounds']} rounds in one process on the same rows, every answer "
        f"verified. `make bench-cpu` wrote {link}."
    ]
    rows: list[tuple[str, ...]] = []
    for case in results["compared"]:
        faster = case["times_faster_than"]
        rows.append(
            (
                f"{case['rows']} x {case['width']:,}, {case['source']}",
                f"{case['median_seconds']['ksieve'] * 1e3:.2f} ms",
                *(f"{faster[other]:.1f}x" if other in faster else "not installed" for other in (TORCH, ARGPARTITION)),
                f"{case['rate_of_max']:.2f}",
            )
        )
    columns = (
        "rows x width, scores",
        "ksieve",
        f"faster than `{TORCH}`",
        f"faster than `{ARGPARTITION}`",
        "of max rate",
    )
    parts.append(pages.table(columns, rows))
    threads, torch_threads = settings["threads"], facts.get("torch_threads")
    users = f"ksieve and torch use {threads} threads"
    if torch_threads != threads:
        users = f"ksieve uses {threads} threads" + (f", torch {torch_threads}" if torch_threads else "")
    parts.append(
        f"{users}, `{ARGPARTITION}` and `numpy.max` one. "
        '"Of max rate" is the rate of reading scores relative to `numpy.max(axis=1)` over the same rows.'
    )
    if brief:
        return "\n\n".join(parts)
    if short := results.get("short"):
        shapes: dict[str, list[str]] = {}
        for case in short:
            cell = f"{case['median_seconds']['ksieve'] * 1e3:.2f} ms, {case['times_faster_than'][TORCH]:.1f}x"
            shapes.setdefault(f"{case['rows']:,} x {case['width']:,}, {case['k']:,}", []).append(cell)
        least = min(short, key=lambda case: case["times_faster_than"][TORCH])
        parts.append(
            f"Many short rows: time, and how many times faster than `{TORCH}`, at least "
            f"{least['times_faster_than'][TORCH]:.1f} times."
        )
        dtypes = dict.fromkeys(case["dtype"] for case in short)
        parts.append(pages.table(("rows x width, k", *dtypes), [(name, *cells) for name, cells in shapes.items()]))
    if results["adversarial"]:
        worst = max(results["adversarial"], key=lambda case: case["times_plain"])
        families = {case["family"] for case in results["adversarial"]}
        parts.append(
            f"Of {len(families)} adversarial families, the slowest beside plain random rows of its shape is "
            f"`{worst['family']}` at {worst['rows']} x {worst['width']:,}: {worst['times_plain']:.2f} times as long."
        )
    if results.get("aimed"):
        work = max(case["times_random"] for case in results["aimed"])
        longest = max(results["aimed"], key=lambda case: case["times_plain"])
        parts.append(
            "Of the rows that a search constructs against the CPU backend, the most expensive one stores and compares "
            f"{work:.2f} times as many scores as a random row (the contract allows 6), and the slowest "
            f"takes {longest['times_plain']:.2f} times as long ({longest['width']:,} scores, k = {longest['k']:,})."
        )
    if "start" in results:
        start, scratch = results["start"], results["memory"]["scratch_bytes_per_thread"]
        parts.append(
            f"Import takes {start['import_seconds']:.2f} s. Import and first call together take "
            f"{start['first_call_compiling_seconds']:.1f} s when the kernels have to be compiled and "
            f"{start['first_call_cached_seconds']:.2f} s once they are in the disk cache. A thread holds "
            f"{scratch / 1024:.0f} KiB beside the output."
        )
    return "\n\n".join(parts)


def main(arguments: list[str]) -> int:
    """Rewrite, or with ``--check`` compare, every generated part."""
    stale = []
    check = "--check" in arguments
    results, figures = ROOT / "benchmarks" / "results", ROOT / "docs" / "figures"
    for figure in (*draw_figures(results, figures, check=check), *draw_guide(figures, check=check)):
        stale.append(f"docs/figures/{figure}.svg")
    for page, name, body in (
        ("README.md", "benchmarks", benchmark_section(results)),
        ("docs/reference/benchmarks.md", "benchmarks", benchmark_page(results)),
        ("docs/guide/evidence.md", "results", evidence_page(results)),
        ("docs/guide/study.md", "results", study_page(results)),
        *((f"docs/guide/{name}.md", "operators", engine_pages.operators(name)) for name in engine_pages.TITLES),
        *((f"docs/guide/{name}.md", "seen", engine_pages.seen(name, results)) for name in engine_pages.TITLES),
        ("docs/guide/integrations.md", "first-calls", engine_pages.first_calls(results)),
    ):
        path = ROOT / page
        old = path.read_text(encoding="utf-8")
        new = between_markers(old, name, wrapped(body))
        if new != old:
            stale += [page] if page not in stale else []
            if not check:
                atomic.write_text(path, new)
    for page in stale:
        print(f"{page} {'is out of date: run `make docs`' if check else 'rewritten'}")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
