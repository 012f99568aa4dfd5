"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ksieve.core.policy import POLICIES
from ksieve.core.sizes import parse_count


class Backend(StrEnum):
    """Where a selection runs."""

    auto = "auto"
    cpu = "cpu"
    reference = "reference"
    cuda = "cuda"


class Dtype(StrEnum):
    """Score dtypes."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


class Engine(StrEnum):
    """Serving engines that `ksieve.adapters` has the calls of."""

    vllm = "vllm"
    sglang = "sglang"
    flashinfer = "flashinfer"
    tensorrt_llm = "tensorrt_llm"
    aiter = "aiter"
    all = "all"


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


def count(name: str, metavar: str, text: str, *, minimum: int | None = None) -> Any:
    """Option that takes a count, also as 64k or 1M: see `ksieve.core.sizes`."""

    def parse(value: str) -> int:
        try:
            return parse_count(value, minimum=minimum)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return typer.Option(name, metavar=metavar, help=text, parser=parse)


CapturePath = Annotated[Path, typer.Argument(metavar="CAPTURE", help="Score capture (.safetensors).")]
CaptureK = Annotated[
    int | None,
    count("--k", "K", "Slots per row, 1 to 1048576. Default: the K stored in the capture."),
]
PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME",
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
