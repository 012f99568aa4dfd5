"""Help pages: those of typer, with long words folded where typer cuts them, and without a type beside a flag."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.columns import Columns
from rich.table import Table
from typer.core import TyperCommand, TyperGroup


def _fold(table: Table) -> None:
    for column in table.columns:
        column.overflow = "fold"


class _Table(Table):
    """A table that breaks a word which is wider than its column."""

    def add_row(self, *cells: Any, **settings: Any) -> None:
        super().add_row(*cells, **settings)
        _fold(self)


class _Columns(Columns):
    """The texts of a cell side by side, with such words broken; rich lays them out in a table."""

    def __rich_console__(self, console: Any, options: Any) -> Any:
        for part in super().__rich_console__(console, options):
            if isinstance(part, Table):
                _fold(part)
            yield part


@contextmanager
def _page(command: Any, context: Any) -> Iterator[None]:
    """Set up a help page, which typer then prints."""
    from typer import rich_utils

    for parameter in command.get_params(context):
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""  # as `ksieve.cli.options.flag`; of typer's own flags, such as --help
    names: Any = vars(rich_utils)
    kept = {name: names[name] for name in ("Table", "Columns") if name in names}
    names.update({name: made for name, made in (("Table", _Table), ("Columns", _Columns)) if name in kept})
    try:
        yield
    finally:
        names.update(kept)


class Command(TyperCommand):
    """A command."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help page."""
        with _page(self, ctx):
            super().format_help(ctx, formatter)


class Group(TyperGroup):
    """A group of commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help page."""
        with _page(self, ctx):
            super().format_help(ctx, formatter)
