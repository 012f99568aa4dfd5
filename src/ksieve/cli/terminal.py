"""Output of the command line: results on stdout, progress and errors on stderr, colour only on a terminal.

Names, metadata and file names are untrusted: every text passes through `ksieve.core.text.printable`, here `safe`, and
no text is interpreted as markup.
"""

from __future__ import annotations

import json
import logging
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from ksieve.core.text import plain
from ksieve.core.text import printable as safe

_BETWEEN_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}

UNBOUNDED = 1_000_000
"""Columns of a pipe, which any table fits in."""


@dataclass
class Mode:
    """Output mode of a command: all output, one JSON object (`json`), or only errors (`quiet`)."""

    json: bool = False
    quiet: bool = False


mode = Mode()
"""Set by ``--json`` and ``--quiet`` of the command that runs."""


def reset() -> None:
    """Restore the default mode, for the next command."""
    mode.json = mode.quiet = False


class _Console(Console):
    """Console that raises BrokenPipeError when its reader closes the pipe, in place of an exit with 1."""

    def on_broken_pipe(self) -> NoReturn:
        raise


def stdout() -> Console:
    """Console of results; made anew on each use, so that it follows a redirected ``sys.stdout``.

    It prints nothing in the modes `json` and `quiet`.
    """
    return _Console(highlight=False, soft_wrap=True, quiet=mode.json or mode.quiet)


def stderr() -> Console:
    """Console of progress, notes and errors."""
    return _Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: object = "", *, style: str | None = None) -> None:
    """Print one result line, without markup or wrapping."""
    stdout().print(Text(safe(text, lines=True), style=style or ""))


def result(facts: Callable[[], Any]) -> None:
    """With ``--json``, print a command's facts as one JSON object: NaN and infinities are null.

    `facts` is called only then.
    """
    if mode.json:
        # Characters beyond ASCII are escaped: any locale can print them, and none controls the terminal.
        text = json.dumps(plain(facts()), indent=1, allow_nan=False)
        _Console(highlight=False, soft_wrap=True).out(text, highlight=False)


def complain(text: object) -> None:
    """Print one error, red on a terminal; its further lines are indented, so that none looks like another message."""
    first, *rest = safe(text, lines=True).splitlines() or [""]
    stderr().print(Text.assemble(("error:", "bold red"), " ", "\n  ".join([first, *rest])))


def note(text: object) -> None:
    """Print a remark that is no result."""
    if mode.quiet:
        return
    console = stderr()
    lines = "\n  ".join(safe(text, lines=True).splitlines()).split("\n")
    if console.is_terminal:  # broken between words, so that a path stays whole
        lines = [part for line in lines for part in textwrap.wrap(line, console.width, **_BETWEEN_WORDS) or [line]]
    console.print(Text("\n".join(lines), style="dim"))


class _Notes(logging.Handler):
    """Prints the package's log records as notes; on a terminal above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            note(record.getMessage())
        except (OSError, ValueError):
            self.handleError(record)


@contextmanager
def logged() -> Iterator[None]:
    """Show the package's warnings, and how long the CPU kernels took to compile."""
    handler, cpu = _Notes(logging.INFO), logging.getLogger("ksieve.backends.cpu")
    level = cpu.level
    logging.getLogger("ksieve").addHandler(handler)
    cpu.setLevel(logging.INFO)
    try:
        yield
    finally:
        cpu.setLevel(level)
        logging.getLogger("ksieve").removeHandler(handler)


def raw_error(text: str) -> None:
    """Print lines on stderr as they are, control characters excepted."""
    stderr().print(Text(safe(text.rstrip("\n"), lines=True)))


def facts(pairs: Mapping[str, Any] | Iterable[tuple[str, Any]], *, indent: int = 0) -> None:
    """Print ``name  value`` lines with the values aligned; a terminal wraps them under each other."""
    items = [(safe(name), safe(value)) for name, value in (pairs.items() if isinstance(pairs, Mapping) else pairs)]
    width = max((cell_len(name) for name, _ in items), default=0)
    console = stdout()
    if not console.is_terminal:  # a grid would end short lines with spaces
        for name, value in items:
            say(f"{' ' * indent}{name:<{width}}  {value}")
        return
    grid = Table.grid(Column(overflow="fold"), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for name, value in items:
        grid.add_row(Text(" " * indent + name), Text(value))
    console.print(grid, soft_wrap=False)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, texts: Sequence[str] = ()
) -> None:
    """Print a table; the first column left-aligned, the others right-aligned.

    No cell is ever cut: a terminal that is narrower than the table gets cells of several lines. A pipe has no width.

    `rows`: one text per column. `texts`: columns of text, left-aligned too.
    """
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for position, column in enumerate(columns):
        justify: Literal["left", "right"] = "left" if position == 0 or column in texts else "right"
        grid.add_column(Text(safe(column)), justify=justify, header_style="bold", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(safe(cell)) for cell in row))
    if title is not None:
        say(title, style="bold")
    console = stdout()
    if not console.is_terminal:
        console.width = UNBOUNDED
    console.print(grid, soft_wrap=False)


@contextmanager
def progress(
    description: str, total: int | None = None, unit: str = "rows", *, waiting: str | None = None
) -> Iterator[Callable[..., None]]:
    """Show a progress bar on a terminal's stderr; until its first update it shows the text `waiting`.

    The yielded function is called as ``update(done)`` or ``update(done, total)``, counts from the start.
    """
    console = stderr()
    if mode.quiet or not console.is_terminal:
        yield lambda *_: None  # no disabled bar: rich before 14.3 ends one with an empty line
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(safe(unit).replace("{", "{{").replace("}", "}}"), markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(safe(waiting or description), total=total)

        def update(done: int, of: int | None = total) -> None:
            bar.update(task, description=safe(description), completed=done, total=of)

        yield update


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """Show a status text on a terminal's stderr; the yielded function replaces it."""
    console = stderr()
    if mode.quiet or not console.is_terminal:
        yield lambda _: None
        return
    with console.status(escape(safe(text))) as shown:
        yield lambda new: shown.update(escape(safe(new)))
