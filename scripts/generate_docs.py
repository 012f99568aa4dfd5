"""Write every measured number and figure of committed pages from result files, and the site's generated pages.

``--check`` writes nothing and exits 1 naming what is out of date. The parts lie between marker comments, so that the
prose around them stays hand-written. `docs/conf.py` calls `site`, whose pages are not committed.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ksieve.cli.screen import default_of, names_of
from ksieve.core import atomic
from ksieve.core.groups import GROUPS
from ksieve.core.table import TABLE, Option
from ksieve_lab.report import figures, specs, tables

ROOT = Path(__file__).parent.parent


def between_markers(text: str, name: str, body: str) -> str:
    """Replace what stands between ``<!-- name:begin -->`` and ``<!-- name:end -->``."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    head, found_begin, rest = text.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not (found_begin and found_end):
        raise SystemExit(f"markers {begin} and {end} are missing")
    return f"{head}{begin}\n{body.strip()}\n{end}{tail}"


def wrapped(body: str) -> str:
    """Fold prose of more than 120 columns; tables, headings and code stay as they are."""
    lines: list[str] = []
    code = False
    for line in body.split("\n"):
        code ^= line.startswith("```")
        if code or len(line) <= 120 or line.startswith(("|", "#", "![", "<")):
            lines.append(line)
        else:
            lines += textwrap.wrap(line, 120, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def commands(group: Any, path: tuple[str, ...] = ("ksieve",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Walk the command tree: every command and group with its full name, in the order of ``--help``."""
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def cli_reference() -> Iterator[tuple[str, str]]:
    """Name and Markdown of the page of every command, with its arguments and options."""
    from ksieve_lab.cli.app import tree

    yield from (("-".join(path), _describe(path, command)) for path, command in commands(tree()))


def _describe(path: tuple[str, ...], command: Any) -> str:
    inner = getattr(command, "commands", {})
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    usage = " ".join([*path, *command.collect_usage_pieces(None)])
    parts = [f"# `{' '.join(path)}`", command.help, tables.fenced("text", usage)]
    parts.append("\n".join(f"* `{name}`: {child.help.partition(chr(10) * 2)[0]}" for name, child in inner.items()))
    if arguments:
        parts.append(tables.markdown(("argument", "meaning"), [(f"`{names_of(p)}`", p.help) for p in arguments]))
    if options:
        rows = [(f"`{names_of(p)}`", p.help, default_of(p)) for p in options]
        parts.append(tables.markdown(("option", "meaning", "default"), rows))
    parts.append(command.epilog if inner else tables.fenced("bash", command.epilog.replace("\n\n", "\n")))
    return "\n\n".join(part for part in parts if part)


_SHAPES = {
    "rows": "(rows)", "bounds": "(rows + 1)", "requests": "(rows / next_n)", "table": "(requests, pages)",
    "scores": "(rows, width)", "parts": "(rows, n)", "slots": "shape of the indices",
}  # fmt: skip
_DTYPES = {"": "dtype of the scores", "index": "dtype of the indices"}


def options_reference() -> str:
    """Markdown table of every option, from the table that the library reads."""
    groups = {kind.__name__ for kinds in GROUPS.values() for kind in kinds}
    rows = []
    for option in TABLE:
        group = f" of `{option.where}`" if option.where in groups else ""
        neutral = "" if option.neutral is None else f"`{option.neutral!r}`"
        judged = "yes" if option.judged else ""
        rows.append((f"`{option.name}`{group}", _takes(option), neutral, option.meaning, judged))
    return tables.markdown(("option", "takes", "default", "meaning", "judged"), rows)


def _takes(option: Option) -> str:
    """What an option takes, in words."""
    if option.shape:
        array = f"{' or '.join(_DTYPES.get(dtype, dtype) for dtype in option.dtypes)}, {_SHAPES[option.shape]}"
        return f"True, or an array: {array}" if option.kind == "output" else f"array: {array}"
    if option.kind == "choice":
        return ", ".join(f"`{value!r}`" for value in option.takes)
    return "bool" if option.kind == "flag" else f"int, {' to '.join(map(str, option.takes))}".rstrip(", ")


def site(target: Path) -> None:
    """Write what the site shows and the repository does not hold: a page for each command, and the table of options."""
    shutil.rmtree(target, ignore_errors=True)  # pages of what has gone
    (target / "cli").mkdir(parents=True)
    (target / "options.md").write_text(options_reference() + "\n", encoding="utf-8")
    for name, text in cli_reference():
        (target / "cli" / f"{name}.md").write_text(text + "\n", encoding="utf-8")


def draw(files: list[tables.File], folder: Path, *, check: bool) -> list[str]:
    """Draw the figures that pages show and that are missing, or not of their result files; return their names.

    A figure ends with the hash of its marks: how it looks may change with the plotting library.
    """
    pages = "".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
    stale = []
    for name, spec in specs.drawn(files).items():
        if f"figures/{name}.svg)" not in pages:
            continue
        mark = f"<!-- marks, SHA-256 {hashlib.sha256(repr(spec).encode()).hexdigest()} -->\n"
        path = folder / f"{name}.svg"
        if not (path.exists() and path.read_text("utf-8").endswith(mark)):
            stale.append(name)
            if not check:
                atomic.write_text(path, figures.svg_of(figures.render(spec)) + mark)
    return stale


def main(arguments: list[str]) -> int:
    """Rewrite, or with ``--check`` compare, every generated part."""
    check, files = "--check" in arguments, tables.read(ROOT / "benchmarks" / "results")
    stale = [f"docs/figures/{name}.svg" for name in draw(files, ROOT / "docs" / "figures", check=check)]
    for page, name, body in specs.committed(files):
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
