"""Options that several commands share, with the checks that come before any output, extra or measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ksieve.cli.options import output

Out = Annotated[str | None, output("JSON file to write.")]
Figures = Annotated[
    Path | None, typer.Option("--figures", metavar="DIR", help="Folder for figures of the result, PNG and SVG.")
]
