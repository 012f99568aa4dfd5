"""Commands of other distributions, found by the entry-point group ``ksieve.commands`` and imported when they are run.

The object of an entry point is a table: the name of each command, its line of ``ksieve --help``, and where it is, as
``"module:attribute"`` of a `typer.Typer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module, metadata
from typing import Any

import typer
from typer.core import TyperCommand

from ksieve.cli.screen import Group
from ksieve.core.installation import install_command

Table = Mapping[str, tuple[str, str]]

GROUP = "ksieve.commands"


def register(table: Table) -> None:
    """Add commands without an entry point, as a source tree that is not installed needs it."""
    if table not in _tables():
        _tables().append(table)


@cache
def _tables() -> list[Table]:
    """Return the tables of installed distributions; `register` adds to them."""
    return [entry.load() for entry in metadata.entry_points(group=GROUP)]


class _Further(TyperCommand):
    """A command that is imported when it is run; its name and one line of help are known before."""

    def __init__(self, name: str, line: str, place: str) -> None:
        super().__init__(name, help=line)
        self._place = place

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the command and let it parse its arguments."""
        module, _, attribute = self._place.partition(":")
        group: Any = typer.main.get_command(getattr(import_module(module), attribute))
        return group.commands[self.name].make_context(info_name, args, parent, **extra)


class Commands(Group):
    """The library's commands, then those of other distributions."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of ``--help``."""
        return list(dict.fromkeys([*self.commands, *(name for table in _tables() for name in table)]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name; None if there is none."""
        if own := super().get_command(ctx, cmd_name):  # without importing the tables of others
            return own
        found = next((table[cmd_name] for table in _tables() if cmd_name in table), None)
        return found and _Further(cmd_name, *found)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; the error about an unknown one says where further ones come from."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if not _tables() and hasattr(error, "message"):
                how = install_command(name="ksieve-lab")
                error.message += f" Benches, studies, replays and captures come with ksieve-lab: {how}"
            raise
