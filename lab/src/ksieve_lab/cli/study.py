"""`ksieve study` and `ksieve calibrate`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ksieve.cli import files, terminal
from ksieve.cli.options import NAMES, choice, count, option, output
from ksieve.core.text import plain
from ksieve.files import split
from ksieve_lab.cli import results
from ksieve_lab.cli.captures import open_capture
from ksieve_lab.study.costs import DEVICE_COSTS

RankBackend = StrEnum("RankBackend", ["cpu", "cuda"])
"""Where rows are ranked."""

Captures = Annotated[list[Path], typer.Argument(metavar="CAPTURE...", help="Score captures (.safetensors).")]
StudyK = Annotated[int | None, count("--k", "K", "Slots per row. Default: the K stored in the captures.")]
Rows = Annotated[int, count("--rows", "M", "Rows of each capture, at equal spacing; 0 takes all.", minimum=0)]
RankedOn = Annotated[
    RankBackend, choice("--backend", RankBackend, "Where rows are ranked; cuda needs PyTorch and a GPU.")
]


def study(
    captures: Captures,
    k: StudyK = None,
    rows: Rows = 4096,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for report, figures and result file.")
    ] = Path("study"),
    figures: Annotated[
        Path | None, option("--figures", "FOLDER", "Folder for the figures. Default: OUT/figures.")
    ] = None,
    device: Annotated[
        str | None,
        option("--device", "NAME", f"Device whose plan is judged: {NAMES}. Default: that of --backend."),
    ] = None,
    backend: RankedOn = RankBackend.cpu,
) -> None:
    """Test whether sampled boundaries are accurate on a model's own scores, and repeat the paper's measurements.

    Measures the cost of a wrong boundary, the complete-row ranks of sampled scores, and the positions of the top K,
    over every phase of every sampling policy, and compares them with order statistics. Captures may be larger than
    memory. Writes an HTML report, figures (with matplotlib) and a result file.

    Under torchrun the processes share the rows, on one machine or several that see the captures. The first one prints
    and writes, the results of one process.
    """
    from ksieve_lab.report import figures as drawing
    from ksieve_lab.study import run
    from ksieve_lab.study.report import NO_FIGURES

    files.check_folder("--out", out)
    files.check_folder("--figures", figures)
    planned = {str(path): path for path in run.targets(out, figures)}
    files.keep_apart(planned, {f"CAPTURE {path}": path for path in captures})
    asked: dict[str, Any] = {"rows": rows or None, "backend": backend.value, "device": device}
    sources = [open_capture(path) for path in captures]
    run.check(sources, k, **asked)
    if figures is not None:
        drawing.require_matplotlib()
    with split.ranks() as (rank, world):
        if rank:
            run.study(sources, k, **asked, rank=rank, world=world)
            return
        if not drawing.can_draw():
            terminal.note(NO_FIGURES)
        with terminal.progress("ranking", waiting="opening the captures") as update:
            payload = run.study(sources, k, **asked, progress=update, rank=rank, world=world)
    assert payload is not None  # on the first rank
    written = run.write(payload, out, figures=figures)
    terminal.result(lambda: payload)
    results.tell(payload)
    terminal.say(f"report: {written[0]}")
    terminal.say(f"result: {results.short(written[1])}")
    if drawn := written[2:]:
        terminal.say(f"figures: {len(drawn)} files in {drawn[0].parent}")


def calibrate(
    captures: Captures,
    k: StudyK = None,
    device: Annotated[str, choice("--device", DEVICE_COSTS, "Device whose cost model ranks the policies.")] = "h200",
    rows: Rows = 4096,
    out: Annotated[str, output("Policy file to write (.json), with all policies tried.")] = "policy.json",
    backend: RankedOn = RankBackend.cpu,
) -> None:
    """Recommend a sampling policy for a model's own scores, and check its predicted costs on held-back rows.

    Stride, margin and rescue are chosen on half of the rows, by measured underfill and candidates and the device's
    costs. The other half is selected with the policy, and its routes are compared with the prediction. Pass the policy
    file as policy="policy.json" to ksieve.plan, or to ksieve select --policy.
    """
    from ksieve_lab.study import calibrate as calibration

    target = files.target("--out", out, "policy.json", (".json",))
    files.keep_apart({"--out": target}, {f"CAPTURE {path}": path for path in captures})
    sources = [open_capture(path) for path in captures]
    with terminal.progress("calibrating", waiting="reading the captures") as update:
        policy, payload = calibration.calibrate(
            sources, k, device=device, rows=rows or None, backend=backend.value, progress=update
        )
    policy.save(target, extra={"calibration": plain(payload)})
    terminal.result(lambda: payload)
    results.tell(payload)
    terminal.say(f"policy: {target}")
