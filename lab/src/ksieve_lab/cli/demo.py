"""`ksieve demo`."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from ksieve import __version__
from ksieve.cli import terminal
from ksieve.cli.exits import Exit
from ksieve.cli.options import StoredK
from ksieve.cli.selection import print_stats, routes, suggested_k
from ksieve.core.text import seconds_text
from ksieve_lab.cli.captures import open_capture

BUNDLED_CAPTURE = Path("examples/indexer_capture.safetensors")


def demo(
    capture: Annotated[
        Path | None,
        typer.Argument(
            metavar="CAPTURE",
            help="Score capture. Default: the bundled one in the repository's folder, synthetic scores elsewhere.",
        ),
    ] = None,
    k: StoredK = None,
) -> None:
    """Select from a capture on this machine, verify, and compare with other libraries on the same rows.

    The bundled capture holds real indexer-style scores; `ksieve info` prints their origin. The best synthetic scores
    are near both ends of a row, as in an indexer's rows.
    """
    from ksieve_lab.demo import ROUNDS, demonstrate, synthetic_capture

    given = capture or (BUNDLED_CAPTURE if BUNDLED_CAPTURE.exists() else None)
    name = str(given) if given else "none: synthetic scores"
    with (
        synthetic_capture() if given is None else nullcontext(given) as path,
        open_capture(path) as source,
        terminal.status("reading the capture, loading the kernels, and timing"),
    ):
        result = demonstrate(source, suggested_k(source, k))
        title = source.metadata.get("title")
        how = "computed from the stored factors" if source.kind == "factors" else "read"
    plan, own, verdict = result.plan, result.seconds["ksieve"], result.verdicts["ksieve"]
    terminal.say(f"ksieve {__version__}: the exact top {plan.problem.k:,} of every row", style="bold")
    terminal.say()
    terminal.facts(
        {
            "capture": name,
            **({"what": title} if title else {}),
            "scores": f"{result.rows:,} rows x {plan.problem.width:,} {plan.problem.dtype}, "
            f"{result.valid.min():,} to {result.valid.max():,} of them valid; "
            f"{how} in {seconds_text(result.read_seconds)}",
            "select": f"{seconds_text(own)} on {plan.threads} CPU threads "
            f"({result.valid.sum() / own / 1e9:.2f} G scores/s); "
            f"first call {seconds_text(result.first_call_seconds)}, which compiles or loads the kernels",
            "verify": str(verdict).replace("\n ", ";"),
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
            (name, seconds_text(each), _compared(each / own), _word(result.verdicts[name].ok))
            for name, each in result.seconds.items()
            if name != "ksieve"
        ],
    )
    terminal.say(f"median of {ROUNDS} rounds in one process, every answer verified")
    if importlib.util.find_spec("torch") is None:
        terminal.say("torch is not installed, so torch.topk is not compared")
    terminal.result(
        lambda: {
            "ksieve": __version__,
            "capture": name,
            "rows": result.rows,
            "width": plan.problem.width,
            "k": plan.problem.k,
            "threads": plan.threads,
            "read_seconds": result.read_seconds,
            "first_call_seconds": result.first_call_seconds,
            "rounds": ROUNDS,
            "routes": routes(result.stats, result.valid),
            "libraries": {
                name: {"seconds": each, "exact": result.verdicts[name].ok} for name, each in result.seconds.items()
            },
        }
    )
    if not verdict.ok:
        raise typer.Exit(Exit.REFUTED)


def _compared(ratio: float) -> str:
    return f"{ratio:.1f}x faster" if ratio >= 1 else f"{1 / ratio:.1f}x slower"


def _word(exact: bool) -> str:
    return "exact" if exact else "NOT exact"
