"""`ksieve tune`: measure launch shapes on this GPU, and write them for the planner."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any

from ksieve._version import __version__
from ksieve.cli import files, terminal
from ksieve.cli.options import checked, choice, count, flag, option, parse_shape
from ksieve.core import atomic
from ksieve.core.dtypes import Dtype
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.core.paths import read_utf8
from ksieve.core.problem import check_k
from ksieve.core.text import parse_json

QUICK_SHAPES = 24
QUICK_SECONDS = 120.0
SECONDS = 480.0


def tune(
    out: Annotated[
        Path | None, option("--out", "FILE", "File to write. Default: the user's own, which the planner reads.")
    ] = None,
    quick: Annotated[bool, flag("--quick", "Two minutes: say what tuning would gain, and write nothing.")] = False,
    shapes: Annotated[str, option("--shapes", "LIST", "rows x width, separated by commas. Default: some 400.")] = "",
    of: Annotated[
        str | None, option("--of", "TRACE", "Trace with the shapes and K (JSON; ksieve replay --save).")
    ] = None,
    k: Annotated[
        int | None,
        count("--k", "K", "Slots per row. Default: that of the trace, or 2048.", callback=checked("--k", check_k)),
    ] = None,
    dtype: Annotated[Dtype, choice("--dtype", Dtype, "Score dtype; a file is of one.")] = Dtype.float32,
    minutes: Annotated[
        float | None, option("--minutes", "M", "Time to measure in. Default: 8, with --quick 2.")
    ] = None,
    rounds: Annotated[int, count("--rounds", "INT", "Timed rounds; medians are reported.", minimum=1)] = 5,
    restart: Annotated[
        bool, flag("--restart", "Measure everything again, instead of going on where a run stopped.")
    ] = False,
) -> None:
    """Time launch shapes, splits and sampling strides on this GPU, and let the planner use the winners.

    What was measured is kept beside the file after each shape: a run that was interrupted, or asked for further shapes,
    goes on from there.
    What was not measured, or not in time, stays as shipped.
    """
    from ksieve.planning import tuned
    from ksieve.tuning import run as tuning
    from ksieve.tuning import table as tune_table
    from ksieve.tuning import tasks

    os.environ[tuned.VARIABLE] = "off"  # measured are the shipped shapes and all others, not those of an earlier file
    if minutes is not None and not 0 < minutes <= 600:
        raise ArgumentError("--minutes", minutes, "a number of minutes up to 600")
    files.check_folder("--out", None if out is None else out.parent)
    if of is not None and shapes:
        raise ArgumentError("--of", "--shapes too", "one of the two")
    listed, of_trace = [parse_shape("--shapes", text.strip()) for text in shapes.split(",") if text.strip()], None
    if of is not None:
        listed, of_trace = _shapes_of_trace(of)
    device = tasks.require_device()
    target = tuning.Target(device, dtype.value, k or of_trace or tuning.Target(device).k)
    asked = [target.asked(*shape) for shape in listed] or tuning.questions(target)
    if quick and not listed:
        asked = asked[:: max(1, len(asked) // QUICK_SHAPES)]
    path = out or tuned.default_path(device, target.dtype)
    state = path.with_name(path.name + ".measured")
    environment, settings = _environment(), tuning.about(target) | {"ksieve": __version__, "rounds": rounds}
    done = {} if restart or quick else _state(state, settings, environment)
    answers = {"schema": 1, "bench": "tune", "environment": environment, "settings": settings, "results": done}
    seconds = 60 * minutes if minutes is not None else QUICK_SECONDS if quick else SECONDS
    end = time.monotonic() + seconds

    def keep() -> None:
        if not quick:
            atomic.write_text(state, json.dumps(answers), folders=True)

    left = [shape for shape in asked if tuning.name_of(shape) not in done]
    with terminal.progress("compiling", unit="kernels", waiting="planning") as update:
        options = tuning.prepare(left, target, update)
    with terminal.progress("measuring", len(left), unit="shapes") as update:
        tuning.run(options, target, done, rounds=rounds, end=end, progress=update, keep=keep)
    rows = tuning.gain(done, asked)
    _report(rows, len(asked))
    parts = tune_table.table(done, target)
    if parts:
        found = tuned.Tuned(environment | tuning.about(target), parts)
        if not quick:
            with terminal.progress("compiling for options", unit="kernels", waiting="planning") as update:
                found = tune_table.without_spills(found, target, update)
        parts = dict(found.parts)
    terminal.result(lambda: {"path": None if quick else str(path), "shapes": len(rows), "entries": parts})
    if quick or not parts:
        terminal.say("nothing is written" + (": without --quick the winners are" if quick else ""))
        return
    tuned.write(path, found)
    tuned.read(path, device, target.dtype)
    terminal.say(f"written: {path}")
    if out is not None:
        terminal.say(f"the planner uses it with {tuned.VARIABLE}={path}")


def _shapes_of_trace(path: str) -> tuple[list[tuple[int, int]], int | None]:
    """Shapes of a trace's calls, those that are called most often first, and its k."""
    try:
        trace = parse_json(read_utf8(Path(path)))
        counted = Counter((int(call["rows"]), int(call["width"])) for call in trace["calls"])
        k = None if trace.get("k") is None else check_k(trace["k"])
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        takes = 'a JSON object with "calls", a list of objects with "rows" and "width"'
        raise FileFormatError(f"{path}: no trace ({error}); takes {takes}") from None
    listed = [shape for shape, _ in counted.most_common() if min(shape) > 0][:QUICK_SHAPES]
    if not listed:
        raise ArgumentError("--of", f"{path}: no calls", "a trace with calls")
    return listed, k


def _environment() -> dict[str, Any]:
    """What times depend on besides what is asked: driver, packages and CUDA sources; and the date."""
    from ksieve import doctor
    from ksieve.backends.cuda.jit.compile import shipped_sources

    packages = {name: version for name, version in doctor.package_versions().items() if version is not None}
    return {
        "driver": doctor.driver_facts().version,
        "packages": packages,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "sources": shipped_sources().digest,
    }


def _state(path: Path, settings: dict[str, Any], environment: dict[str, Any]) -> dict[str, Any]:
    """Results of a run that stopped, if its settings and sources are those of now: then so are its candidates."""
    try:
        found = parse_json(read_utf8(path))
        if found["settings"] != settings or found["environment"]["sources"] != environment["sources"]:
            return {}
        done: dict[str, Any] = dict(found["results"])
    except (ValueError, KeyError, TypeError):
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
    mean = geometric_mean(min(own, us) / own for _, own, _, us in rows)
    better = sum(us < own / 1.03 for _, own, _, us in rows)
    terminal.say()
    terminal.say(
        f"{len(rows)} of {wanted} shapes: {better} have a launch shape that is over 3 % faster than the planned one; "
        f"with the fastest everywhere, time falls by {1 - mean:.1%} (geometric mean)"
    )
