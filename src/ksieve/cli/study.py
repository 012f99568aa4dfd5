"""`ksieve study` and `ksieve calibrate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ksieve.cli import files, terminal
from ksieve.cli.options import choice
from ksieve.workloads.capture import Capture


class StudyDevice(StrEnum):
    """Where rows are ranked."""

    cpu = "cpu"
    cuda = "cuda"


Captures = Annotated[list[Path], typer.Argument(metavar="CAPTURE...", help="Score captures (.safetensors).")]
StudyK = Annotated[
    int | None, typer.Option("--k", metavar="K", help="Slots per row. What the captures suggest when omitted.")
]
Rows = Annotated[
    int,
    typer.Option("--rows", metavar="M", min=0, help="Rows of each capture, at equal spacing; 0 takes all."),
]
RankDevice = Annotated[
    StudyDevice, choice("--device", StudyDevice, "Where rows are ranked; cuda needs PyTorch and a GPU.")
]


@contextmanager
def opened(paths: Sequence[Path]) -> Iterator[list[Capture]]:
    """Open several captures."""
    with ExitStack() as stack:
        yield [stack.enter_context(files.open_capture(path)) for path in paths]


def study(
    captures: Captures,
    k: StudyK = None,
    rows: Rows = 4096,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where report, figures and result file go.")
    ] = Path("study"),
    result: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Result file instead of FOLDER/study.json.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="FOLDER", help="Figures there instead of in FOLDER/figures.")
    ] = None,
    device: RankDevice = StudyDevice.cpu,
) -> None:
    """Ask whether sampling holds on a model's own scores, with every observation of the paper.

    Measures how much a wrong boundary costs, where sampled ranks fall in the complete row, where the top K lies, and
    what order statistics predict of it, over every phase of every view. Captures may be larger than memory. Writes
    an HTML report, figures and a result file; see docs/study.md.
    """
    from ksieve import figures as drawing
    from ksieve.study import run

    drawing.require_matplotlib()
    files.check_output("--json", result, (".json",))
    with opened(captures) as sources, terminal.progress("ranking", waiting="opening the captures") as update:
        payload = run.study(sources, k, rows=rows or None, device=device.value, progress=update)
    written = run.write(payload, out, result=result, figures=figures)
    results = payload["results"]
    found = results["captures"]
    terminal.say(f"study of {sum(c['studied'] for c in found):,} rows, k={payload['settings']['k']}", style="bold")
    terminal.facts(
        (c["name"], f"{c['studied']:,} of {c['rows']:,} rows, up to {c['lengths']['most']:,} {c['dtype']} scores each")
        for c in found
    )
    terminal.say()
    terminal.table(
        ("", "paper", "predicted", *(c["name"] for c in found)),
        [(li["quantity"], li["paper"] or "-", li["predicted"] or "-", *li["here"]) for li in results["comparison"]],
    )
    terminal.say()
    terminal.table(
        ("policy", *(f"{c['name']}: median / K, 5 to 95 %, underfill" for c in found)),
        [
            (name, *(_policy_text(c["policies"][i]) for c in found))
            for i, name in enumerate(p["name"] for p in found[0]["policies"])
        ],
    )
    terminal.say()
    terminal.say(f"report: {written[0]}")
    terminal.say(f"result: {_short(written[1])}")
    terminal.say(f"figures: {len(written) - 2} files in {written[2].parent}")


def _policy_text(entry: dict[str, float]) -> str:
    if not entry["count"]:
        return "rows too short"
    below = "none" if not entry["below_k"] else f"{100 * entry['below_k']:.2g} %"
    return f"{entry['median']:.2f}, {entry['p05']:.2f} to {entry['p95']:.2f}, {below}"


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
