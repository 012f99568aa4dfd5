"""Arguments and options that several commands share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ksieve.cli.screen import OF_THE_CALL
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.core.groups import grouped
from ksieve.core.policy import POLICIES, resolve_policy
from ksieve.core.table import BY_NAME, TABLE, Option
from ksieve.files.arrays import load_array

Backend = StrEnum("Backend", ["auto", "cpu", "reference", "cuda"])
"""Where a selection runs."""

Engine = StrEnum("Engine", ["vllm", "sglang", "flashinfer", "tensorrt_llm", "all"])
"""Serving engines that `ksieve.adapters` has the calls of."""

NAMES = f"cpu, cuda or cuda:1 of this machine, or a GPU, present or not: {', '.join(DEVICES)}"
"""Devices that plans are made for."""

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
"""Factors of the suffixes k, M and G, in either case. Row widths are powers of two, so 64k is 65,536."""

TAKES = "an int such as 65536, 64k (65,536), 1M (1,048,576) or 2**16"

_COUNT = re.compile(r"([+-]?)([0-9]+(?:_[0-9]+)*)([kmg]?)", re.IGNORECASE | re.ASCII)
_POWER = re.compile(r"2\*\*([0-9]{1,2})", re.ASCII)
_MOST = (1 << 63) - 1


def option(name: str, metavar: str, text: str, **settings: Any) -> Any:
    """Option that takes one value; `metavar` is what the help shows in its place."""
    return typer.Option(name, metavar=metavar, help=text, **settings)


def flag(name: str, text: str, **settings: Any) -> Any:
    """Option without a value."""
    return typer.Option(name, help=text, **settings)


def choice(name: str, choices: Iterable[str], text: str) -> Any:
    """Option that takes one of several words."""
    return option(name, "|".join(choices), text)


def words(*choices: str) -> Callable[[str], list[str]]:
    """Shell completion of an option or argument that suggests these words and takes others too."""
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


OUT_RULE = "An existing folder, or a path that ends in a slash, gets a file named by the command."


def output(text: str, *names: str, metavar: str = "FILE") -> Any:
    """Option that names an output file, ``--out`` unless said otherwise; `ksieve.cli.files.target` makes it a path."""
    return typer.Option(*(names or ("--out", "-o")), metavar=metavar, help=f"{text} {OUT_RULE}")


def checked(name: str, check: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Callback of an option that lets the library check its value before the command begins; None passes."""

    def callback(value: Any) -> Any:
        try:
            if value is not None:
                check(value)
        except ArgumentError as error:
            raise ArgumentError(name, error.got, error.takes) from None
        return value

    return callback


def parse_count(text: str | int, *, minimum: int | None = None) -> int:
    """Read a count.

    `text`: digits with an optional k, M or G (1,024, its square, its cube), or ``2**n``. `minimum`: smaller counts are
    refused. Raises `ValueError` if the text is no count, or exceeds 64-bit integers; the message gives the text and the
    accepted forms.
    """
    words = str(text).strip()
    value = None
    if power := _POWER.fullmatch(words):
        value = 1 << int(power[1])
    elif len(words) <= 30 and (found := _COUNT.fullmatch(words)):
        value = int(found[1] + found[2]) * UNITS[found[3].lower()]
    least = "" if minimum is None else f" of at least {minimum}"
    if value is None or abs(value) > _MOST or (minimum is not None and value < minimum):
        shown = words if len(words) <= 40 else words[:37] + "..."
        raise ValueError(f"got {shown!r}; takes {TAKES.replace('an int', f'an int{least}')}")
    return value


def parse_shape(option: str, text: str, takes: str = "rows x width, such as 64x131072 or 64x128k") -> tuple[int, int]:
    """Read a shape such as 64x131072 or 64x128k: rows, then width, both at least 1.

    Raises `ArgumentError`, which names `option`.
    """
    rows, _, width = text.lower().partition("x")
    try:
        return parse_count(rows, minimum=1), parse_count(width, minimum=1)
    except ValueError:
        raise ArgumentError(option, repr(text), takes) from None


def count(name: str, metavar: str, text: str, *, minimum: int | None = None, **settings: Any) -> Any:
    """Option that takes a count, also as 64k or 1M: see `parse_count`."""

    def parse(value: str) -> int:
        try:
            return parse_count(value, minimum=minimum)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return option(name, metavar, text, parser=parse, **settings)


def of_table(test: Callable[[Option], Any], *, stated: bool = False) -> Callable[[Any], Any]:
    """Give a command those options of the table (`ksieve.core.table`) that a test holds for, as its ``**options``.

    An array is the path of a file, or with `stated`, as in `ksieve.plan`, True or a dtype.
    """

    def decorate(command: Any) -> Any:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        more = [_parameter(each, stated) for each in TABLE if test(each)]
        command.__signature__ = signature.replace(parameters=[*own, *more])
        return command

    return decorate


def _parameter(of: Option, stated: bool) -> inspect.Parameter:
    """Parameter of a command for an option of the table."""
    name, text = "--" + of.name.replace("_", "-"), f"{of.meaning[0].upper()}{of.meaning[1:]}."
    choices = of.takes if of.kind == "choice" else of.dtypes if of.shape else ()
    kind: Any = bool
    if of.kind == "int":
        kind, how = int | None, count(name, "N", text)
    elif of.shape and not stated:
        kind, how = Path | None, option(name, "FILE", text)
    elif len(choices) > 1:
        kind, how = Literal[choices] | None, choice(name, choices, text)
    elif of.neutral:  # no pair of flags, which takes too much of a narrow terminal
        unless = text.replace("Whether", "Unless given,")
        how = flag(f"--no-{name[2:]}", unless, callback=lambda value: not value)
    else:
        how = flag(name, text)
    how.rich_help_panel = OF_THE_CALL
    default = None if kind is bool else of.neutral or None
    return inspect.Parameter(of.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, how])


def keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `ksieve.select` for the options of `of_table`; files are read."""
    given = {
        name: load_array(value, prefer=name) if isinstance(value, Path) else value
        for name, value in options.items()
        if value is not None and value != BY_NAME[name].neutral
    }
    try:
        return grouped(given)
    except TypeError as error:  # it names the array that a group cannot do without
        raise ArgumentError(str(error).split("'")[1], None, "it with other options of its group") from None


def refuse(given: Mapping[str, object], takes: str) -> None:
    """Refuse parameters of a command that others exclude; None, False and an empty list pass."""
    for name, value in given.items():
        if value:
            raise ArgumentError(name, value, takes)


def written_names(command: Any) -> dict[str, str]:
    """Name of each parameter of a command as the user writes it: its long option, or the name of the argument."""
    names = {each.name: [*each.opts, (each.metavar or each.name).strip("[].")] for each in command.params}
    return {name: next((text for text in texts if text.startswith("--")), texts[-1]) for name, texts in names.items()}


_CALLED = re.compile(r"""\b(\w+)=(True\b|"[^"]*"|'[^']*'|\([\d, ]+\))""")
"""An argument and its value as Python code, in a message."""


def as_written(error: ArgumentError | FileFormatError, names: Mapping[str, str]) -> Exception:
    """Return an error of the library with the names of `written_names` in place of those of its arguments."""

    def option(found: re.Match[str]) -> str:
        name, value = names.get(found[1], ""), found[2]
        if not name.startswith("--"):
            return found[0]
        bare = value.strip("()\"'").rstrip(",").replace(", ", ",")
        return name if value == "True" else f"{name} {bare}"

    if isinstance(error, FileFormatError):
        return FileFormatError(_CALLED.sub(option, str(error)))
    got = "nothing" if error.got is None else error.got
    return type(error)(names.get(error.argument, error.argument), got, _CALLED.sub(option, error.takes))


StoredK = Annotated[int | None, count("--k", "K", "Slots per row, 1 to 1048576. Default: the K stored in the file.")]
PolicyName = Annotated[
    str | None,
    option(
        "--policy",
        "NAME",
        "Sampling policy: direct, a name such as lines-64, or a .json file of ksieve calibrate. Default: chosen by "
        f"the row width. The policy direct never samples; others are {', '.join(POLICIES)}.",
        callback=checked("--policy", resolve_policy),
        autocompletion=words("direct", *POLICIES),
    ),
]
BackendName = Annotated[
    Backend,
    choice("--backend", Backend, "auto: a CUDA GPU that PyTorch can use, else the CPU; reference: the slow model."),
]
