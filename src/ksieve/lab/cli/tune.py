"""`ksieve tune`: measure launch shapes on this GPU, and write them for the planner."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ksieve._version import __version__
from ksieve.cli import terminal
from ksieve.cli.options import count
from ksieve.core import atomic
from ksieve.core.errors import ArgumentError
from ksieve.lab.cli.gpu import shapes_of

QUICK_SHAPES = 24
QUICK_SECONDS = 120.0
SECONDS = 480.0


def tune(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="File to write. Default: the one in the user's configuration directory that the planner reads.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two minutes: say what tuning would gain, and write nothing.")
    ] = False,
    shapes: Annotated[
        str, typer.Option("--shapes", metavar="LIST", help="rows x width, separated by commas. Default: some 180.")
    ] = "",
    k: Annotated[int, count("--k", "K", "Slots per row.")] = 2048,
    minutes: Annotated[
        float | None, typer.Option("--minutes", metavar="M", help="Time to measure in. Default: 8, with --quick 2.")
    ] = None,
    rounds: Annotated[int, count("--rounds", "N", "Timed rounds.")] = 5,
    restart: Annotated[
        bool, typer.Option("--restart", help="Measure everything again, instead of going on where a run stopped.")
    ] = False,
) -> None:
    """Time resident launch shapes of float32 rows on this GPU, and let the planner use the winners.

    What was measured is kept beside the file after each shape: a run that was interrupted, or asked for further shapes,
    goes on from there.
    Widths that were not measured, or not in time, keep the shipped launch shapes.
    """
    from ksieve.lab import tune as tuning
    from ksieve.lab.bench import gpu
    from ksieve.planning import tuned

    os.environ[tuned.VARIABLE] = "off"  # measured are the shipped shapes and all others, not those of an earlier file
    if minutes is not None and not 0 < minutes <= 600:
        raise ArgumentError("--minutes", minutes, "a number of minutes up to 600")
    device = gpu.require_device()
    listed = shapes_of(shapes, None)[0] if shapes else tuning.questions(device)
    if quick and not shapes:
        listed = listed[:: max(1, len(listed) // QUICK_SHAPES)]
    path = out or tuned.default_path(device)
    state = path.with_name(path.name + ".measured")
    done = {} if restart or quick else _state(state, device, k)
    seconds = 60 * minutes if minutes is not None else QUICK_SECONDS if quick else SECONDS
    end = time.monotonic() + seconds
    facts = {"device": tuned.described(device), "k": k, "ksieve": __version__}

    def keep() -> None:
        if not quick:
            state.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_text(state, json.dumps({**facts, "done": done}))

    left = [shape for shape in listed if tuning.name_of(shape) not in done]
    with terminal.progress("compiling", unit="kernels", waiting="planning") as update:
        options = tuning.prepare(left, k, device, update)
    with terminal.progress("measuring", len(left), unit="shapes") as update:
        tuning.run(options, k, done, rounds=rounds, end=end, progress=update, keep=keep)
    rows = tuning.gain(done, listed)
    _report(rows, len(listed))
    entries = tuning.table(done, device)
    terminal.result(lambda: {"path": None if quick else str(path), "shapes": len(rows), "entries": entries})
    if quick or not entries:
        terminal.say("nothing is written" + (": without --quick the winners are" if quick else ""))
        return
    tuned.write(path, tuned.Tuned(tuning.about(device, k), entries))
    tuned.read(path, device)
    terminal.say(f"written: {path}, {sum(map(len, entries.values()))} entries")
    if out is not None:
        terminal.say(f"the planner uses it with {tuned.VARIABLE}={path}")


def _state(path: Path, device: Any, k: int) -> dict[str, Any]:
    """Results of a run that stopped, if they are of this device and k."""
    from ksieve.planning import tuned

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if (found["device"], found["k"], found["ksieve"]) != (tuned.described(device), k, __version__):
            return {}
        done: dict[str, Any] = dict(found["done"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    terminal.say(f"{len(done)} shapes are taken from {path}; --restart measures them again")
    return done


def _report(rows: list[tuple[str, float, str, float]], wanted: int) -> None:
    """Print the planner's time and the best one of each shape, those that gain most first."""
    if not rows:
        terminal.say("no shape was measured in the time")
        return
    shown = sorted(rows, key=lambda row: row[3] / row[1])[:20]
    terminal.table(
        ["rows x width", "planned, us", "fastest launch shape", "us", "faster by"],
        [[name, f"{own:.1f}", best, f"{us:.1f}", f"{own / us - 1:.1%}"] for name, own, best, us in shown],
    )
    mean = 1.0
    for _, own, _, us in rows:
        mean *= (min(own, us) / own) ** (1 / len(rows))
    better = sum(us < own / 1.03 for _, own, _, us in rows)
    terminal.say()
    terminal.say(
        f"{len(rows)} of {wanted} shapes: {better} have a launch shape that is over 3 % faster than the planned one; "
        f"with the fastest everywhere, time falls by {1 - mean:.1%} (geometric mean)"
    )
