"""Arguments and options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from ksieve.cli.sizes import parse_count
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.core.policy import POLICIES, resolve_policy

Backend = StrEnum("Backend", ["auto", "cpu", "reference", "cuda"])
"""Where a selection runs."""

Dtype = StrEnum("Dtype", ["float32", "float16", "bfloat16"])
"""Score dtypes."""

Engine = StrEnum("Engine", ["vllm", "sglang", "flashinfer", "tensorrt_llm", "all"])
"""Serving engines that `ksieve.adapters` has the calls of."""


def flag(name: str, text: str, **settings: Any) -> Any:
    """Option without a value."""
    return typer.Option(name, metavar="", help=text, **settings)


def choice(name: str, choices: type[StrEnum], text: str) -> Any:
    """Option that takes one of an enumeration's values."""
    return typer.Option(name, metavar=" | ".join(choices), help=text)


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


def count(name: str, metavar: str, text: str, *, minimum: int | None = None, **settings: Any) -> Any:
    """Option that takes a count, also as 64k or 1M: see `ksieve.cli.sizes`."""

    def parse(value: str) -> int:
        try:
            return parse_count(value, minimum=minimum)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return typer.Option(name, metavar=metavar, help=text, parser=parse, **settings)


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
QUOTES = "()\"'"


def as_written(error: ArgumentError | FileFormatError, names: Mapping[str, str]) -> Exception:
    """Return an error of the library with the names of `written_names` in place of those of its arguments."""

    def option(found: re.Match[str]) -> str:
        name, value = names.get(found[1], ""), found[2]
        if not name.startswith("--"):
            return found[0]
        return name if value == "True" else f"{name} {value.strip(QUOTES).rstrip(',').replace(', ', ',')}"

    if isinstance(error, FileFormatError):
        return FileFormatError(_CALLED.sub(option, str(error)))
    got = "nothing" if error.got is None else error.got
    return type(error)(names.get(error.argument, error.argument), got, _CALLED.sub(option, error.takes))


StoredK = Annotated[
    int | None,
    count("--k", "K", "Slots per row, 1 to 1048576. Default: the K stored in the file."),
]
PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        callback=checked("--policy", resolve_policy),
        autocompletion=words("direct", *POLICIES),
        help=f"Sampling policy: direct (never samples), {', '.join(POLICIES)}, or a policy file (.json) of "
        "ksieve calibrate. Default: chosen by the row width.",
    ),
]
BackendName = Annotated[
    Backend,
    choice(
        "--backend",
        Backend,
        "auto: a CUDA GPU that PyTorch can use, else the CPU. reference: the NumPy model, slow.",
    ),
]
