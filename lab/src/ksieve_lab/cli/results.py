"""Result files and figures of commands that measure, and options of several commands."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from ksieve.cli import files, terminal
from ksieve.cli.exits import Exit
from ksieve.cli.options import option, output

Out = Annotated[str | None, output("JSON file to write.")]
Figures = Annotated[Path | None, option("--figures", "FOLDER", "Folder for figures of the result, PNG and SVG.")]


def target(out: str | Path | None, stem: str, scores: str | None = None) -> Path | None:
    """File to write: the one asked for, or one named `stem` in the folder asked for; not one of those with scores."""
    path = files.optional_target("--out", out, f"{stem}.json", (".json",))
    for source in (scores or "").split(","):
        files.keep_apart({"--out": path}, {"--scores": source.strip().removeprefix("factors:") or None})
    return path


def ready(figures: Path | None) -> None:
    """Refuse to measure for a figure that cannot be drawn or written afterwards."""
    if figures is not None:
        files.check_folder("--figures", figures)
        from ksieve_lab.report.figures import require_matplotlib

        require_matplotlib()


def write(path: Path | None, payload: dict[str, Any]) -> None:
    """Write a result file where one was asked for."""
    from ksieve_lab.bench import record

    if path is not None:
        record.write_json(path.absolute(), payload)


def tell(payload: dict[str, Any]) -> None:
    """Print what there is to say about a result."""
    from ksieve_lab.report import told

    for said in told.told(payload):
        if isinstance(said, told.Table):
            terminal.table(said.columns, said.rows, title=said.title or None)
            terminal.say()
        elif isinstance(said, told.Note):
            terminal.note(said)
        else:
            terminal.say(said, style="bold" if isinstance(said, told.Head) else None)


def finish(path: Path | None, payload: dict[str, Any], figures: Path | None) -> None:
    """Write the result file, draw the figures that were asked for, and say where they are."""
    write(path, payload)
    if path is not None:
        terminal.say(f"written: {short(path)}")
    if figures is not None:
        from ksieve_lab.report.figures import draw

        for drawn in draw(payload, figures.absolute(), path.stem if path else payload["bench"]):
            terminal.say(f"drawn: {short(drawn)}")
    terminal.result(lambda: payload)


def judge(answers: Iterable[bool | None], slower: Iterable[str] = ()) -> None:
    """Exit by the verdicts on answers: `Exit.REFUTED` if one is False, `Exit.ERROR` if one is missing (None).

    Calls that became slower are named, and refute a result too.
    """
    found = list(answers)
    if any(answer is False for answer in found):
        terminal.complain("an answer is not exact: see above")
        raise typer.Exit(Exit.REFUTED)
    if any(answer is not True for answer in found):
        terminal.complain("an answer is missing: something failed, see above")
        raise typer.Exit(Exit.ERROR)
    if worse := list(slower):
        terminal.complain("slower than before:\n" + "\n".join(worse))
        raise typer.Exit(Exit.REFUTED)


def short(path: Path) -> Path:
    """The path from the working directory, where it is below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
