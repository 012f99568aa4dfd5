"""``--help`` on one screen: what a command does, its options by their first sentences, and an example to paste.

``--help-all`` has every option, every sentence and every example.
"""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

OF_THE_CALL = "Options of ksieve.select"
"""Panel of the options of the table, which the short help names together."""

_SENTENCE = re.compile(r"(?<=[.])\s+(?=[A-Z])")


def show_all(ctx: typer.Context, wanted: bool) -> None:
    """Print the whole help of a command, for ``--help-all``."""
    if wanted:
        ctx.meta[__name__] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def names_of(param: Any) -> str:
    """An option or argument as a user writes it; a flag has no value."""
    argument = param.param_type_name == "argument"
    return param.metavar if argument else f"{', '.join(sorted(param.opts, key=len))} {param.metavar or ''}".strip()


def default_of(param: Any) -> str:
    """Default that a user would type, or "required"."""
    if param.required:
        return "required"
    # A default of "absent" differs between versions of typer.
    shown = isinstance(param.default, (str, int)) and param.default is not False
    return str(param.default) if shown else ""


def first_sentence(text: str) -> str:
    """First sentence of a text, and those that say a default."""
    first, *others = _SENTENCE.split(text)
    return " ".join([first, *(each for each in others if each.startswith("Default:"))])


def _write(command: Any, ctx: Any, formatter: Any) -> None:
    whole = ctx.meta.get(__name__, False)
    command.format_usage(ctx, formatter)
    paragraphs = (command.help or "").split("\n\n")
    formatter.write_paragraph()
    formatter.write_text("\n\n".join(paragraphs if whole else paragraphs[:1]))
    lists: dict[str, list[tuple[str, str]]] = {}
    for param in sorted(command.get_params(ctx), key=lambda each: not each.required):
        default = default_of(param)
        said = param.help or "Show this message and exit."  # click's own option may have no text
        text = said if whole else first_sentence(said)
        panel = getattr(param, "rich_help_panel", None) or f"{param.param_type_name.title()}s"
        lists.setdefault(panel, []).append((names_of(param), text + (f" [{default}]" if default else "")))
    more = [] if whole else lists.pop(OF_THE_CALL, [])
    if isinstance(command, TyperGroup):
        found: dict[str, Any] = {name: command.get_command(ctx, name) for name in command.list_commands(ctx)}
        lists["Commands"] = [(name, first_sentence(each.help.split("\n\n")[0])) for name, each in found.items()]
    for title, rows in lists.items():
        with formatter.section(title):
            formatter.write_dl(rows, col_max=22)
    if isinstance(command, TyperGroup):
        formatter.write_paragraph()
        formatter.write_text(command.epilog)
    elif command.epilog:
        with formatter.section("Examples" if whole else "Example"):
            for example in command.epilog.split("\n\n")[: None if whole else 1]:
                formatter.write("".join(f"  {line}\n" for line in example.split("\n")))
    if more:
        formatter.write_paragraph()
        formatter.write_text(f"{ctx.command_path} --help-all lists {len(more)} options of the call too.")


class Command(TyperCommand):
    """A command with both kinds of help."""

    format_help = _write

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Words of the usage line."""
        arguments = (each for each in self.params if each.param_type_name == "argument")
        return ["[OPTIONS]", *(f"{each.metavar}" if each.required else f"[{each.metavar}]" for each in arguments)]


class Group(TyperGroup):
    """A group whose commands have a line each."""

    format_help = _write

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Words of the usage line."""
        return ["[OPTIONS]", "COMMAND ..."]
