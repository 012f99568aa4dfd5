"""`ksieve bench`, with a table of benches; and `ksieve plot`, which draws the figures of result files again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ksieve.cli import terminal
from ksieve.cli.options import count, option, words
from ksieve.core.errors import ArgumentError
from ksieve_lab.bench import catalog
from ksieve_lab.bench.runner import Live
from ksieve_lab.bench.shape_lists import SHAPES
from ksieve_lab.cli import results
from ksieve_lab.cli.results import Figures, Out
from ksieve_lab.report import told


def bench(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            autocompletion=words(*(each.name for each in catalog.BENCHES)),
            help="A bench; --help-all lists them.",
        ),
    ],
    shapes: Annotated[
        str | None,
        option(
            "--shapes",
            "LIST",
            f"What to measure, separated by commas: {', '.join(SHAPES)}, or rows x width such as 512x131072; "
            "lengths come after a colon (decode:full, 64x8192:300: causal, ragged, full, uniform or a number), and so "
            "does k in general. Prompts, rows or numbers of GPUs where the list of benches says so.",
        ),
    ] = None,
    only: Annotated[
        str | None,
        option(
            "--only",
            "LIST",
            "Only cases with one of these texts in their names, separated by semicolons; !TEXT leaves out. Names "
            "are MxN, or those of families, options, models, operators or parts.",
        ),
    ] = None,
    k: Annotated[int | None, count("--k", "K", "Slots per row.")] = None,
    dtype: Annotated[
        str | None, option("--dtype", "LIST", "Score dtype; general, blocks, engines, ranks: several.")
    ] = None,
    scores: Annotated[
        str | None,
        option(
            "--scores",
            "SOURCE",
            "endpoint (top scores near both ends of a row), normal, or factors:PATH for the scores of an indexer "
            "whose factors a capture holds. On the CPU names of producers and captures.",
        ),
    ] = None,
    peers: Annotated[
        str | None,
        option(
            "--peers",
            "LIST",
            "What to time besides: all libraries that are installed, none, or names such as sglang, flashinfer; "
            "in benches of shapes also our families and policies (stream paper-64), or plans in JSON or a .json file.",
        ),
    ] = None,
    rounds: Annotated[int | None, count("--rounds", "INT", "Timed rounds; medians count.", minimum=1)] = None,
    seed: Annotated[int | None, option("--seed", "INT", "Seed of the scores.")] = None,
    against: Annotated[
        str | None,
        option("--against", "FILE", "Result file to compare with; default: the committed one of the same card."),
    ] = None,
    out: Out = None,
    figures: Figures = None,
) -> None:
    """Measure what one of these benches lists, in one process, with every answer verified."""
    asked = {
        "shapes": shapes, "only": only, "k": k, "dtype": dtype, "scores": scores, "peers": peers, "rounds": rounds,
        "seed": seed, "against": against,
    }  # fmt: skip
    chosen = catalog.find(name)
    if figures is not None and not chosen.figures:
        raise ArgumentError("figures", str(figures), f"nothing in bench {name}, whose results have no figures")
    settings = chosen.read(**asked)
    path = results.target(out, settings.stem, settings.scores)
    if chosen.against is not None and not settings.only and not settings.before.exists():
        path = path or settings.before
    settings = replace(settings, folder=path.parent if path else settings.folder)
    results.ready(figures)
    live = Live(_phase, _teller(), lambda payload: results.write(path, payload))
    payload = chosen.measure(settings, live)
    if payload is None:  # on other ranks than the first
        return
    results.write(path, payload)  # whatever becomes of the tables
    results.tell(payload)
    results.finish(path, payload, figures)
    results.judge(told.verdicts(payload), payload["results"].get("regressed", ()))


bench.__doc__ = "\n\n".join([str(bench.__doc__), *(f"{each.name}: {each.line}" for each in catalog.BENCHES)])


def _phase(description: str, unit: str) -> Any:
    return terminal.progress(description, unit=unit, waiting="starting")


def _teller() -> Callable[[dict[str, Any]], None] | None:
    """Print a line per case where there is no progress bar, so that an interrupted run shows its measurements."""
    if terminal.stderr().is_terminal:
        return None

    def tell(case: dict[str, Any]) -> None:
        names = (case.get(key) for key in ("trace", "family", "model", "operator"))
        name = " ".join(filter(None, (*names, told.name_of(case))))
        if "skipped" in case:
            terminal.note(f"{name}: skipped, {case['skipped']}")
            return
        times = [f"floor {case['floor_us']:.1f} us ({case['floor_kernel']})"] if "floor_us" in case else []
        for selector, facts in case.get("selectors", {}).items():
            why = facts.get("error") or facts.get("unsupported")
            times.append(f"{selector} {why or told.microseconds(facts, 'of_floor')}")
        terminal.note(f"{name}: {', '.join(times)}")

    return tell


def plot(
    files: Annotated[list[Path], typer.Argument(metavar="RESULT...", help="Result files of benches.")],
    folder: Annotated[Path, option("--figures", "FOLDER", "Folder for the figures, PNG and SVG.")] = Path("figures"),
) -> None:
    """Draw figures from result files: latency over rows, fractions of the plain-read speed, worst cases, traces.

    A figure has the name of its result file.
    """
    from ksieve_lab.bench import record
    from ksieve_lab.report.figures import draw

    payloads = [record.read_json(path) for path in files]
    results.ready(folder)
    for path, payload in zip(files, payloads, strict=True):
        drawn = draw(payload, folder, path.stem)
        if not drawn:
            terminal.note(f"{path}: nothing to draw in a result of bench {payload['bench']}")
        for file in drawn:
            terminal.say(f"drawn: {file}")
