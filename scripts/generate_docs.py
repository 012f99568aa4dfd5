"""Write the generated parts of the documentation: the reference in docs/cli.md and the README's numbers.

``--check`` writes nothing and exits 1 naming what is out of date. The parts lie between marker comments, so that the
prose around them stays hand-written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
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


def benchmark_section(results: Path) -> str:
    """README section of every CPU result file in a folder; empty without one. GPU results have pages of their own."""
    from ksieve.bench.record import read_json

    files = sorted(results.glob("cpu-*.json"))
    parts = [_cpu_results(path.relative_to(ROOT).as_posix(), read_json(path)) for path in files]
    return "\n\n".join(["## Measured", *parts]) if parts else ""


def _cpu_results(name: str, payload: dict[str, Any]) -> str:
    from ksieve.bench.cpu import ARGPARTITION, TORCH

    facts, settings, results = payload["environment"], payload["settings"], payload["results"]
    versions = ", ".join(f"{p} {facts['packages'][p]}" for p in ("numpy", "torch") if p in facts["packages"])
    parts = [
        f"Top {settings['k']:,} on {settings['threads']} threads, {facts['cpu']['model']} ({versions}, "
        f"{facts['date'][:10]}): medians of {settings['rounds']} rounds in one process on the same rows, every answer "
        f"verified. `make bench-cpu` wrote [{name}]({name})."
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
