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
    parts = [f"{'#' * (len(path) + 1)} `{' '.join(path)}`", command.help or "", _fenced("text", " ".join(usage))]
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
    return str(command.help or "").split("\n\n")[0]


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


def main(arguments: list[str]) -> int:
    """Rewrite, or with ``--check`` compare, every generated part."""
    stale = []
    for page, name, body in (("docs/cli.md", "reference", cli_reference()),):
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
