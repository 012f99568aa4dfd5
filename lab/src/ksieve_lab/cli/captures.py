"""`ksieve info` and `ksieve import`: describing captures, and making them from arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ksieve.cli import files, terminal
from ksieve.cli.options import OUT_RULE, choice, count, flag, option
from ksieve.core.dtypes import Dtype
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.core.paths import unreadable
from ksieve_lab.captures.format import Capture
from ksieve_lab.captures.importers import CAUSAL, import_scores
from ksieve_lab.captures.sources import FOREIGN_SUFFIXES, SUFFIXES

CapturePath = Annotated[Path, typer.Argument(metavar="CAPTURE", help="Score capture (.safetensors).")]
Target = Annotated[str, typer.Argument(metavar="OUT", help=f"Capture to write (.safetensors). {OUT_RULE}")]
SuggestedK = Annotated[int | None, count("--k", "K", "The K that the capture is meant for; stored with it.")]


def open_capture(path: Path) -> Capture:
    """Open a capture; the error for a file that must be imported first names the command."""
    if path.suffix in FOREIGN_SUFFIXES and unreadable(path) is None:
        remedy = f"ksieve import {path} {path.with_suffix('.safetensors')}"
        raise FileFormatError(f"{path}: not a capture yet; make one with: {remedy}")
    return Capture(path)


def describe(path: Path) -> None:
    """Print the facts of a capture."""
    with open_capture(path) as source:
        terminal.result(lambda: facts_of(source))
        terminal.facts(source.describe())


def facts_of(source: Capture) -> dict[str, Any]:
    """Facts of a capture as ``--json`` prints them; lengths are those of the contract, from 0 to the width."""
    least, most, total = source.valid_scores()
    return {
        "file": str(source.path),
        "bytes": source.path.stat().st_size,
        "kind": source.kind,
        "rows": source.rows,
        "width": source.width,
        "dtype": source.dtype,
        "lengths": {"least": least, "most": most, "sum": total} if source.rows else None,
        "k": source.k,
        "metadata": source.metadata,
    }


def info(capture: CapturePath) -> None:
    """Describe a capture: shape, lengths, kind, size and metadata. Reads the header, not the scores."""
    describe(capture)


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help=f"{', '.join(SUFFIXES)} with a score matrix (rows, width) or a stack of them; a torch file may hold a "
            "dict of tensors.",
        ),
    ],
    out: Target,
    name: Annotated[
        str | None,
        option("--name", "NAME", 'Array to read if SOURCE holds several. Default: "scores", or the only one.'),
    ] = None,
    lengths: Annotated[
        str | None,
        option(
            "--lengths",
            "FILE | causal",
            "File of integers, a valid length per row; or causal: row r of M has width - M + 1 + r valid scores. "
            'Default: the array "lengths" of SOURCE, or full rows.',
        ),
    ] = None,
    lengths_name: Annotated[
        str | None, option("--lengths-name", "NAME", "Array of lengths, if its file holds several.")
    ] = None,
    index: Annotated[
        str | None,
        option("--index", "I,J..", "Matrix to read from a stack: one index for every dimension before the last two."),
    ] = None,
    flatten: Annotated[bool, flag("--flatten", "Take all matrices of a stack, one after the other.")] = False,
    dtype: Annotated[
        Dtype | None, choice("--dtype", Dtype, "Round the scores to this dtype. Needed for float64.")
    ] = None,
    k: SuggestedK = None,
) -> None:
    """Copy a score matrix saved by NumPy, PyTorch or safetensors into a capture, block by block.

    If SOURCE holds several arrays or a stack of matrices and no option selects one, the error lists them.
    """
    path = files.target("OUT", out, f"{source.stem}.safetensors", (".safetensors",))
    files.keep_apart({"OUT": path}, {"SOURCE": source, "--lengths": None if lengths == CAUSAL else lengths})
    try:
        picked = None if index is None else [int(part) for part in index.split(",")]
    except ValueError:
        raise ArgumentError("--index", repr(index), "ints with commas between them, such as 3 or 3,0") from None
    with terminal.progress("importing") as update:
        import_scores(
            source,
            path,
            name=name,
            lengths=lengths,
            lengths_name=lengths_name,
            index=picked,
            flatten=flatten,
            dtype=dtype.value if dtype else None,
            k=k,
            progress=update,
        )
    describe(path)
