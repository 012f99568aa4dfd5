"""Write the generated parts of the documentation: the reference in docs/cli.md, and every measured number.

``--check`` writes nothing and exits 1 naming what is out of date. The parts lie between marker comments, so that the
prose around them stays hand-written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parent.parent


def between_markers(text: str, name: str, body: str) -> str:
    """Replace what stands between ``<!-- name:begin -->`` and ``<!-- name:end -->``."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    head, found_begin, rest = text.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not (found_begin and found_end):
        raise SystemExit(f"markers {begin} and {end} are missing")
    return f"{head}{begin}\n{body.strip()}\n{end}{tail}" if body.strip() else f"{head}{begin}\n{end}{tail}"


def commands(group: Any, path: tuple[str, ...] = ("ksieve",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Walk the command tree: every command and group with its full name, in the order of ``--help``."""
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def cli_reference() -> str:
    """Markdown reference of every command, argument and option."""
    from ksieve.cli import app

    return "\n\n".join(_describe(path, command) for path, command in commands(typer.main.get_command(app)))


def _describe(path: tuple[str, ...], command: Any) -> str:
    inner = getattr(command, "commands", {})
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    usage = [*path, "[OPTIONS]", *(p.metavar for p in arguments), *(["COMMAND ..."] if inner else [])]
    parts = [f"{'#' * (len(path) + 1)} `{' '.join(path)}`", _help(command), _fenced("text", " ".join(usage))]
    if inner:
        parts.append("\n".join(f"* `{name}`: {_first_paragraph(child)}" for name, child in inner.items()))
    if arguments:
        parts.append(_table(("argument", "meaning"), [(f"`{p.metavar}`", p.help) for p in arguments]))
    if options:
        parts.append(_table(("option", "meaning", "default"), [(_flags(p), p.help, _default(p)) for p in options]))
    examples = [line[2:] for line in (command.epilog or "").splitlines() if line.startswith("$ ")]
    parts.append(_fenced("bash", "\n".join(examples)) if examples else command.epilog or "")
    return "\n\n".join(part for part in parts if part)


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _first_paragraph(command: Any) -> str:
    return _help(command).split("\n\n")[0]


def _help(command: Any) -> str:
    """Help text as it reads in a terminal, where a bracket is escaped from markup."""
    return str(command.help or "").replace("\\[", "[")


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str | None, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join((cell or '').replace('|', '&#124;') for cell in line)} |" for line in lines)


def _flags(option: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    return f"{flags} {option.metavar or ''}".strip()


def _default(option: Any) -> str:
    if option.required:
        return "required"
    # A default of "absent" differs between versions of typer; only one that a user would type is printed.
    return f"`{option.default}`" if isinstance(option.default, (str, int)) and option.default is not False else ""


TARGET_MEAN = 0.92
TARGET_LEAST = 0.82
"""What the operator shapes are to reach of the plain read: their geometric mean, and each of them."""


def benchmark_section(results: Path) -> str:
    """README section: every CPU result file of a folder, and the operator shapes on a GPU; empty without any."""
    parts = _cpu_parts(results)
    operator = results / "gpu-operator-k2048.json"
    if operator.exists():
        parts.append(_gpu_summary(_link(operator), _payload(operator)))
    return "\n\n".join(["## Measured", *parts]) if parts else ""


def benchmark_page(results: Path) -> str:
    """Tables of docs/benchmarks.md: every result file of a folder with the command that reproduces it."""
    parts = []
    operator = sorted(results.glob("gpu-operator-k*.json"), key=lambda p: -_payload(p)["settings"]["k"])
    if operator:
        parts += ["## Operator shapes on a GPU", _targets([_payload(path) for path in operator])]
        parts += [_operator_results(_link(path, "../"), _payload(path)) for path in operator]
    decode = sorted(results.glob("gpu-decode-k*.json"))
    if decode:
        parts += ["## Decode shapes on a GPU", *(_decode_results(_link(p, "../"), _payload(p)) for p in decode)]
    cpu = _cpu_parts(results, "../")
    if cpu:
        parts += ["## CPU", *cpu]
    suite = results / "gpu-suite.json"
    if suite.exists():
        parts += ["## The GPU suite", _suite_results(_link(suite, "../"), _payload(suite))]
    sanitizers = results / "gpu-sanitizers.json"
    if sanitizers.exists():
        parts += ["## Sanitizers", _sanitizer_results(_link(sanitizers, "../"), _payload(sanitizers))]
    return "\n\n".join(parts)


def _payload(path: Path) -> dict[str, Any]:
    from ksieve.bench.record import read_json

    payload: dict[str, Any] = read_json(path)
    return payload


def _link(path: Path, up: str = "") -> str:
    name = path.relative_to(ROOT).as_posix()
    return f"[{name}]({up}{name})"


def _cpu_parts(results: Path, up: str = "") -> list[str]:
    return [_cpu_results(_link(path, up), _payload(path)) for path in sorted(results.glob("cpu-*.json"))]


def _command(payload: dict[str, Any]) -> str:
    """Command line that writes a result file again, into the folder where it lies."""
    words = payload["environment"]["command"].split()[1:]
    if "--out" in words:
        words[words.index("--out") + 1] = "benchmarks/results"
    return " ".join(["ksieve", *words])


def _machine(payload: dict[str, Any]) -> str:
    facts = payload["environment"]
    gpu, packages = facts["gpu"]["devices"][0], facts["packages"]
    return (
        f"{gpu['name']}, driver {gpu['driver_version']}, NVRTC {packages['nvidia-cuda-nvrtc']}, torch "
        f"{packages['torch']}, {facts['date'][:10]}, commit {facts['commit'][:7]}"
    )


def _shapes(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Shapes that were measured, each with an exact answer of ksieve; anything else must not reach a page."""
    shapes: list[dict[str, Any]] = payload["results"]["shapes"]
    for shape in shapes:
        if shape["selectors"]["ksieve"]["exact"] is not True:
            raise SystemExit(f"{shape['rows']} x {shape['width']}: no exact answer was measured")
    return shapes


def _matrix(payload: dict[str, Any], cell: Callable[[dict[str, Any]], str]) -> str:
    """One cell per shape: widths downwards, rows across."""
    by_shape = {(s["rows"], s["width"]): s for s in _shapes(payload)}
    rows, widths = (sorted({shape[i] for shape in by_shape}) for i in (0, 1))
    lines = [(f"{n:,}", *(cell(by_shape[m, n]) if (m, n) in by_shape else "" for m in rows)) for n in widths]
    return _table(("width \\ rows", *(f"{m:,}" for m in rows)), lines)


def _of_floor(shape: dict[str, Any]) -> str:
    return f"{shape['selectors']['ksieve']['of_floor']:.3f}"


def _gpu_summary(link: str, payload: dict[str, Any]) -> str:
    table = _matrix(payload, _of_floor)
    own, settings = payload["results"]["of_floor"]["ksieve"], payload["settings"]
    return "\n\n".join(
        [
            "### On a GPU",
            f"Top {settings['k']:,} of {settings['dtype']} rows with {settings['lengths']} lengths "
            f"({_machine(payload)}): speed as a fraction of the plain read, the fastest of several kernels that read "
            f"the same valid scores and do nothing else. The geometric mean is {own['geometric_mean']:.3f} "
            f"({_beside(own['geometric_mean'], TARGET_MEAN)}), the least {own['least']:.3f} "
            f"({_beside(own['least'], TARGET_LEAST)}). Every answer was verified. The numbers are those "
            f"of {link}; [docs/benchmarks.md](docs/benchmarks.md) has times, other k, decode shapes, and what is "
            "missing.",
            table,
            "To measure again, and to run the GPU suite, with a Python that has torch and the `cuda` extra:",
            _fenced("text", f"{_command(payload)}\nmake test-gpu PYTHON=python3"),
        ]
    )


def _beside(value: float, target: float) -> str:
    return f"target {target}: {'met' if value >= target else 'missed'}"


def _met(own: dict[str, Any]) -> bool:
    return bool(own["geometric_mean"] >= TARGET_MEAN and own["least"] >= TARGET_LEAST)


def _targets(payloads: Sequence[dict[str, Any]]) -> str:
    rows = []
    for payload in payloads:
        slow = [s for s in _shapes(payload) if s["selectors"]["ksieve"]["of_floor"] < TARGET_LEAST]
        own = payload["results"]["of_floor"]["ksieve"]
        rows.append(
            (
                f"{payload['settings']['k']:,}",
                f"{own['geometric_mean']:.3f}",
                f"{own['least']:.3f}",
                "yes" if _met(own) else "no",
                ", ".join(f"{s['rows']} x {s['width']:,} ({_of_floor(s)})" for s in slow) or "none",
            )
        )
    columns = ("k", "geometric mean", "least", "both targets met", f"shapes under {TARGET_LEAST}")
    text = (
        f"The targets are a geometric mean of {TARGET_MEAN} of the plain read over the 20 shapes, and no shape under "
        f"{TARGET_LEAST}."
    )
    return f"{text}\n\n{_table(columns, rows)}"


def _operator_results(link: str, payload: dict[str, Any]) -> str:
    settings = payload["settings"]
    names = [n for n in _shapes(payload)[0]["selectors"] if n not in ("ksieve", "torch.topk")]
    torch = "torch.topk" in _shapes(payload)[0]["selectors"]
    rows = []
    for shape in _shapes(payload):
        own, other = shape["selectors"]["ksieve"], shape["selectors"].get("torch.topk")
        rows.append(
            (
                f"{shape['rows']} x {shape['width']:,}",
                f"{shape['floor_us']:.1f} ({shape['floor_terabytes_per_second']:.2f})",
                f"{own['median_us']:.1f}",
                f"{own['of_floor']:.3f}",
                own["policy"],
                *(f"{shape['selectors'][name]['of_floor']:.3f}" for name in names),
                *([f"{other['median_us'] / own['median_us']:.1f}x"] if torch and other else []),
            )
        )
    columns = (
        "rows x width",
        "plain read, us (TB/s)",
        "ksieve, us",
        "of the plain read",
        "policy",
        *(f"forced {name}" for name in names),
        *(["faster than torch.topk"] if torch else []),
    )
    parts = [
        f"### k = {settings['k']:,}",
        f"{settings['dtype']}, {settings['lengths']} lengths, medians of {settings['rounds']} rounds, "
        f"{_machine(payload)}; {link}:",
        _fenced("text", _command(payload)),
        _table(columns, rows),
    ]
    return "\n\n".join(parts)


def _decode_results(link: str, payload: dict[str, Any]) -> str:
    settings = payload["settings"]
    single = [s["selectors"]["ksieve"]["median_us"] for s in _shapes(payload) if s["rows"] == 1]
    read = [s["floor_us"] for s in _shapes(payload) if s["rows"] == 1]

    def times_faster(shape: dict[str, Any]) -> str:
        other = shape["selectors"].get("torch.topk")
        return f"{other['median_us'] / shape['selectors']['ksieve']['median_us']:.1f}x" if other else ""

    parts = [
        f"k = {settings['k']:,}, {settings['dtype']}, {settings['lengths']} lengths, medians of {settings['rounds']} "
        f"rounds, {_machine(payload)}; {link}:",
        _fenced("text", _command(payload)),
        f"One row takes {min(single):.1f} to {max(single):.1f} us over all widths, and its plain read "
        f"{min(read):.1f} to {max(read):.1f} us: at few rows nearly all of the time is not reading. Microseconds:",
        _matrix(payload, lambda shape: f"{shape['selectors']['ksieve']['median_us']:.1f}"),
        "Fraction of the plain read:",
        _matrix(payload, _of_floor),
        "Times faster than `torch.topk`:",
        _matrix(payload, times_faster),
    ]
    return "\n\n".join(parts)


def _suite_results(link: str, payload: dict[str, Any]) -> str:
    found, tests = payload["results"], payload["results"]["tests"]
    costs = ", ".join(f"{name} {cost['median_us']:.1f} us" for name, cost in found["host_cost"].items())
    return "\n\n".join(
        [
            f"{_machine(payload)}; {link}:",
            _fenced("text", "KSIEVE_RESULTS_DIR=benchmarks/results make test-gpu PYTHON=python3"),
            f"{found['rows_verified']:,} rows of {found['cases']:,} cases judged on the device with "
            f"{found['violations']} violations; the statistics of {found['rows_with_statistics_equal_to_the_model']:,} "
            f"rows equal to the model's in every column; {tests['passed']} tests passed, {tests['skipped']} skipped; "
            f"{found['kernels_compiled']} kernels compiled in {found['compile_seconds']:.0f} s.",
            f"Host time of one call (median): {costs}.",
        ]
    )


def _sanitizer_results(link: str, payload: dict[str, Any]) -> str:
    tools = [(name, f"{tool['launches']}", f"{tool['issues']}") for name, tool in payload["results"].items()]
    return "\n\n".join(
        [
            f"{_machine(payload)}; {link}:",
            _fenced("text", "make sanitize PYTHON=python3  # writes out/gpu-sanitizers.json"),
            _table(("compute-sanitizer tool", "launches, each repeated", "issues"), tools),
        ]
    )


def _cpu_results(link: str, payload: dict[str, Any]) -> str:
    from ksieve.bench.cpu import ARGPARTITION, TORCH

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
    parts.append(_table(columns, rows))
    parts.append('"Of max rate" is the rate of reading scores relative to `numpy.max(axis=1)` over the same rows.')
    if results["adversarial"]:
        worst = max(results["adversarial"], key=lambda case: case["times_plain"])
        families = {case["family"] for case in results["adversarial"]}
        parts.append(
            f"Of {len(families)} adversarial families, the slowest beside plain random rows of its shape is "
            f"`{worst['family']}` at {worst['rows']} x {worst['width']:,}: {worst['times_plain']:.2f} times as long."
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
    for page, name, body in (
        ("docs/cli.md", "reference", cli_reference()),
        ("README.md", "benchmarks", benchmark_section(ROOT / "benchmarks" / "results")),
        ("docs/benchmarks.md", "benchmarks", benchmark_page(ROOT / "benchmarks" / "results")),
    ):
        path = ROOT / page
        old = path.read_text(encoding="utf-8")
        new = between_markers(old, name, body)
        if new != old:
            stale.append(page)
            if "--check" not in arguments:
                path.write_text(new, encoding="utf-8")
    for page in stale:
        print(f"{page} {'is out of date: run `make docs`' if '--check' in arguments else 'rewritten'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
