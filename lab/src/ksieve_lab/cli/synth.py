"""`ksieve synth`: captures of synthetic scores."""

from __future__ import annotations

from typing import Annotated

import typer

from ksieve.cli import files, terminal
from ksieve.cli.options import choice, count, flag, option, words
from ksieve.core.dtypes import Dtype
from ksieve_lab.cli.captures import Target, describe
from ksieve_lab.workloads.lengths import LENGTHS
from ksieve_lab.workloads.producers import PRODUCERS, write_synthetic
from ksieve_lab.workloads.rowwise import line_of


def _print_producers(wanted: bool) -> None:
    if wanted:
        for title, lines in (
            ("producers", {name: each.description for name, each in PRODUCERS.items()}),
            ("lengths", {name: line_of(make) for name, make in LENGTHS.items()}),
        ):
            terminal.say(title, style="bold")
            terminal.facts(lines, indent=2)
        raise typer.Exit


def synth(
    producer: Annotated[
        str,
        typer.Argument(
            metavar="PRODUCER", autocompletion=words(*PRODUCERS), help="Family of scores; --list describes them."
        ),
    ],
    out: Target,
    rows: Annotated[int, count("--rows", "M", "Rows of the score matrix.")],
    width: Annotated[int, count("--width", "N", "Scores per row.")],
    lengths: Annotated[
        str,
        option(
            "--lengths",
            " | ".join(LENGTHS),
            "Valid lengths; --list describes the kinds.",
            autocompletion=words(*LENGTHS),
        ),
    ] = "full",
    dtype: Annotated[Dtype, choice("--dtype", Dtype, "Score dtype; narrower ones are rounded.")] = Dtype.float32,
    seed: Annotated[int, option("--seed", "INT", "Seed; equal seeds give equal files.")] = 0,
    k: Annotated[int, count("--k", "K", "The K that the capture is meant for; stored with it.")] = 2048,
    _list: Annotated[
        bool,
        flag("--list", "Describe producers and kinds of lengths, and exit.", callback=_print_producers, is_eager=True),
    ] = False,
) -> None:
    """Make a capture of synthetic scores, block by block."""
    path = files.target("OUT", out, f"{producer}-{rows}x{width}.safetensors", (".safetensors",))
    with terminal.progress("writing", rows) as update:
        write_synthetic(
            path,
            producer,
            rows,
            width,
            lengths=lengths,
            dtype=dtype.value,
            seed=seed,
            k=k,
            progress=update,
        )
    describe(path)
