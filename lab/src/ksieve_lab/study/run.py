"""A complete study: from captures to result file, figures and report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ksieve.core import atomic
from ksieve.core.device import DeviceInfo, resolve_device
from ksieve.core.errors import ArgumentError
from ksieve.core.problem import check_k
from ksieve_lab.bench import record
from ksieve_lab.captures.format import Capture
from ksieve_lab.study.measure import pooled_ranks, study_capture
from ksieve_lab.study.ranked import I64, check_backend, require_cuda
from ksieve_lab.study.rows import ROWS, eligible_rows
from ksieve_lab.study.verdict import least_length, overall


def suggested_k(captures: Sequence[Capture], k: int | None) -> int:
    """Return `k`, or the one that the captures agree on; raises `ArgumentError` if there is none."""
    if k is not None:
        return check_k(k)
    suggested = {capture.k for capture in captures}
    if len(suggested) != 1 or None in suggested:
        got = "none" if suggested == {None} else f"none, and captures that suggest {sorted(map(str, suggested))}"
        raise ArgumentError("k", got, "an int, as these captures do not agree on one")
    return check_k(suggested.pop())


def check(
    captures: Sequence[Capture], k: int | None, *, rows: int | None, backend: str, device: str | None
) -> tuple[int, list[I64], str | DeviceInfo]:
    """Check the arguments of `study`; return k, the rows of each capture, and the device that is planned for.

    Raises `ArgumentError`, also for rows too short for a sample or an upper tail, and `BackendError` for a backend that
    cannot be used here.
    """
    if not captures:
        raise ArgumentError("captures", "none", "at least one capture")
    slots = suggested_k(captures, k)
    check_backend(backend)
    chosen = [eligible_rows(capture, slots, rows) for capture in captures]
    for capture in captures:
        longest = capture.valid_scores()[1]
        if longest < (least := least_length(slots)):
            got = f"{slots} for {capture.path.name}, whose longest row has {longest:,} scores"
            raise ArgumentError("k", got, f"rows of at least {least:,} scores: no sampling policy reads shorter ones")
    target = resolve_device(device or backend)
    if backend == "cuda":
        require_cuda()
    return slots, chosen, target


def study(
    captures: Sequence[Capture],
    k: int | None = None,
    *,
    rows: int | None = ROWS,
    backend: str = "cpu",
    device: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    rank: int = 0,
    world: int = 1,
) -> dict[str, Any] | None:
    """Measure captures and return the payload of a result file; every rank must call it.

    Parameters
    ----------
    captures : sequence of Capture
    k : int, optional
        Default: the K stored in the captures.
    rows : int or None
        At most this many rows of each capture, at equal spacing among the eligible ones; None takes all.
    backend : {"cpu", "cuda"}
        Where rows are ranked.
    device : str, optional
        Device whose plan is judged, as `ksieve.plan` takes it or a name such as "h200"; `backend` when omitted.
    progress : callable, optional
        Called as ``progress(rows done, rows in all)``.
    rank, world : int
        Of the processes that share the rows of every capture (`ksieve.files.split`).

    Returns
    -------
    dict or None
        On the first rank: the results of one process, for any number of them.

    Raises
    ------
    ArgumentError
        Before anything is measured.
    """
    slots, chosen, target = check(captures, k, rows=rows, backend=backend, device=device)
    total, done = sum(numbers.size for numbers in chosen), 0
    studies = []
    for capture, numbers in zip(captures, chosen, strict=True):

        def report(rows_done: int, before: int = done) -> None:
            if progress is not None:
                progress(before + rows_done, total)

        studied = study_capture(
            capture, slots, numbers, device=backend, plan_for=target, progress=report, rank=rank, world=world
        )
        if studied is not None:
            studies.append(studied)
        done += numbers.size
    if rank:
        return None
    found = [s.results() for s in studies]
    results: dict[str, Any] = {
        "verdict": overall(found),
        "k": slots,
        "captures": found,
        "pooled": pooled_ranks(studies),
    }
    settings = {
        "captures": [capture.path.name for capture in captures],
        "k": slots,
        "rows": rows,
        "device": backend,
        "plan_for": device or backend,
    }
    return record.payload("study", settings, results, gpu=backend == "cuda")


def targets(folder: Path, figures: Path | None = None) -> list[Path]:
    """List the files that `write` writes: the report, the result file, then the figures where they can be drawn."""
    from ksieve_lab.report import figures as drawing
    from ksieve_lab.report.specs.study import FIGURES

    names = FIGURES if drawing.can_draw() else ()
    stems = [(figures or folder / "figures") / f"study-{name}" for name in names]
    drawn = [stem.with_name(stem.name + suffix) for stem in stems for suffix in (".png", ".svg")]
    return [folder / "report.html", folder / "study.json", *drawn]


def write(payload: dict[str, Any], folder: Path, *, figures: Path | None = None) -> list[Path]:
    """Write the results of a study: ``study.json``, ``report.html`` and figures as PNG and SVG.

    Without matplotlib there are no figures, and the report is without them.

    Parameters
    ----------
    payload : dict
        From `study`, or read back from a result file.
    folder : Path
        Made as needed.
    figures : Path, optional
        Folder of the figures instead of ``folder/figures``.

    Returns
    -------
    list of Path
        Files written, the report first.

    Raises
    ------
    BackendError
        If `figures` is given and matplotlib is not installed.
    """
    from ksieve_lab.report import figures as drawing
    from ksieve_lab.report.specs.study import FIGURES
    from ksieve_lab.study.report import report

    if figures is not None:
        drawing.require_matplotlib()
    page, facts, *_ = targets(folder, figures)
    written = [record.write_json(facts.absolute(), payload)]
    drawn = {}
    for name, (_, specify) in FIGURES.items() if drawing.can_draw() else ():
        figure = drawing.render(specify(payload["results"]))
        written += (files := drawing.save(figure, (figures or folder / "figures") / f"study-{name}"))
        drawn[name] = files[-1].read_bytes()
    atomic.write_text(page, report(payload, drawn), folders=True)
    return [page, *written]
