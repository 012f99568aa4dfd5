"""Result files of the studies: where they go, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ksieve.cli import files, terminal
from ksieve.errors import ArgumentError


def result_path(out: Path | None, name: str, figure: bool = False) -> Path | None:
    """Where a JSON result goes: `out`, or `name` in it if it is a folder; refused before anything is measured.

    Parameters
    ----------
    out : Path or None
        What ``--out`` said.
    name : str
        File name in a folder.
    figure : bool
        Whether figures go beside it: they need a place, and matplotlib.
    """
    if figure:
        from ksieve.figures import require_matplotlib

        require_matplotlib()
        if out is None:
            raise ArgumentError("--figure", "no --out", "--out, a JSON file or a folder: figures go beside it")
    if out is None:
        return None
    folder = out.is_dir()
    files.check_output("--out", None if folder else out, (".json",))
    return out / name if folder else out


def write_result(
    path: Path | None, payload: dict[str, Any], draw: Callable[[dict[str, Any], Path], list[Path]] | None = None
) -> None:
    """Write a payload and its figures, and say where; nothing without a path."""
    if path is None:
        return
    from ksieve.bench import record

    written = [record.write_json(path.absolute(), payload)]
    if draw is not None:
        written += draw(payload, path.absolute().with_suffix(""))
    for file in written:
        terminal.say(f"written: {file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}")
