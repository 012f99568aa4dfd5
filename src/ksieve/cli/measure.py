"""`ksieve demo`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from ksieve import __version__
from ksieve.cli import files, terminal
from ksieve.cli.options import CaptureK
from ksieve.cli.selection import EXIT_REFUTED, print_stats, suggested_k
from ksieve.errors import ArgumentError

BUNDLED_CAPTURE = Path("examples/indexer_capture.safetensors")


def demo(
    capture: Annotated[
        Path, typer.Argument(metavar="[CAPTURE]", help="Score capture; the bundled one of the repository when omitted.")
    ] = BUNDLED_CAPTURE,
    k: CaptureK = None,
) -> None:
    """Select from a capture on this machine, verify, and compare with other libraries on the same rows.

    The bundled capture holds real indexer-style scores; `ksieve info` says how they were made.
    """
    from ksieve.demo import ROUNDS, demonstrate

    if capture == BUNDLED_CAPTURE and not capture.exists():
        raise ArgumentError("CAPTURE", "nothing", f"a capture, or nothing in the repository's folder with {capture}")
    with (
        files.open_capture(capture) as source,
        terminal.progress("running", unit="steps", waiting="reading the capture, loading the kernels") as update,
    ):
        result = demonstrate(source, suggested_k(source, k), progress=update)
        title = source.metadata.get("title")
        how = "computed from the stored factors" if source.kind == "factors" else "read"
    plan, (own, *others) = result.plan, result.contenders
    terminal.say(f"ksieve {__version__}: the exact top {plan.problem.k:,} of every row", style="bold")
    terminal.say()
    terminal.facts(
        {
            "capture": capture,
            **({"what": title} if title else {}),
            "scores": f"{result.rows:,} rows x {plan.problem.width:,} {plan.problem.dtype}, "
            f"{result.valid.min():,} to {result.valid.max():,} of them valid; "
            f"{how} in {terminal.seconds_text(result.read_seconds)}",
            "select": f"{terminal.seconds_text(own.seconds)} on {plan.threads} CPU threads "
            f"({result.valid.sum() / own.seconds / 1e9:.2f} G scores/s); "
            f"first call {terminal.seconds_text(result.first_call_seconds)}, which compiles or loads the kernels",
            "verify": own.verdict,
        }
    )
    terminal.say()
    terminal.say("How the rows reached their answer", style="bold")
    print_stats(result.stats, result.valid)
    terminal.say()
    terminal.say("The same rows with other libraries", style="bold")
    terminal.table(
        ("", "time", "ksieve is", "answer"),
        [
            (c.name, terminal.seconds_text(c.seconds), f"{c.seconds / own.seconds:.1f}x faster", _word(c.verdict.ok))
            for c in others
        ],
    )
    terminal.say(f"median of {ROUNDS} rounds in one process, every answer verified")
    if importlib.util.find_spec("torch") is None:
        terminal.say("torch is not installed, so torch.topk is not compared")
    if not own.verdict.ok:
        raise typer.Exit(EXIT_REFUTED)


def _word(exact: bool) -> str:
    return "exact" if exact else "NOT exact"
