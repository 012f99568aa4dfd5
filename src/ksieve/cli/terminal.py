"""How the command line talks: results on stdout, progress and errors on stderr, colour only on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

PIPE_WIDTH = 1000
"""Columns of an output that is no terminal: it has no width, so nothing is cut or wrapped because of it."""


def stdout(*, wide: bool = False) -> Console:
    """Console of results; made anew on each use, so that it follows a redirected ``sys.stdout``.

    Lines are never wrapped. With `wide`, tables are not cut either where there is no terminal.
    """
    console = Console(highlight=False, soft_wrap=True)
    if wide and not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def stderr() -> Console:
    """Console of progress, notes and errors."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str = "", *, style: str | None = None) -> None:
    """Print one result line as it is: no markup, no wrapping."""
    stdout().print(text, style=style, markup=False)


def complain(text: str) -> None:
    """Print one error line, red on a terminal."""
    stderr().print(f"[bold red]error:[/] {escape(text)}")


def note(text: str) -> None:
    """Print a remark that is no result."""
    stderr().print(text, style="dim", markup=False)


def facts(pairs: Mapping[str, Any] | Iterable[tuple[str, Any]], *, indent: int = 0) -> None:
    """Print ``name  value`` lines with the values aligned; a terminal wraps them under each other."""
    items = list(pairs.items() if isinstance(pairs, Mapping) else pairs)
    width = max((len(name) for name, _ in items), default=0)
    console = stdout()
    if console.is_terminal:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in items:
            grid.add_row(" " * indent + escape(name), escape(str(value)))
        console.print(grid, soft_wrap=False)
        return
    for name, value in items:
        say(f"{' ' * indent}{name:<{width}}  {value}")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table; the first column left-aligned, the others right-aligned."""
    grid = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for position, column in enumerate(columns):
        grid.add_column(column, justify="left" if position == 0 else "right", header_style="bold", no_wrap=True)
    for row in rows:
        grid.add_row(*map(escape, row))
    console = stdout()
    if not console.is_terminal:
        # A pipe has no width: never cut a cell because of it.
        console.width = max(console.width, console.measure(grid, options=console.options.update(width=1000)).maximum)
    console.print(grid, soft_wrap=False)


@contextmanager
def progress(
    description: str, total: int | None = None, unit: str = "rows", *, waiting: str | None = None
) -> Iterator[Callable[..., None]]:
    """Show a progress bar on a terminal's stderr; until its first update it says what it is waiting for.

    Yields
    ------
    callable
        Called as ``update(done)`` or ``update(done, total)``, counts from the start.
    """
    console = stderr()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(waiting or description, total=total)

        def update(done: int, of: int | None = total) -> None:
            bar.update(task, description=description, completed=done, total=of)

        yield update


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal's stderr what is being done; the yielded function replaces the text."""
    console = stderr()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(escape(text)) as shown:
        yield lambda new: shown.update(escape(new))


def seconds_text(seconds: float) -> str:
    """Write a duration with three significant digits: ``1.23 s``, ``45.6 ms``, ``7.89 us``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
