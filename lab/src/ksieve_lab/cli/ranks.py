"""`ksieve bench ranks`: selection over the ranks of a process group."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ksieve.cli import exits, terminal
from ksieve.cli.options import count
from ksieve.cli.sizes import parse_shape
from ksieve.core.errors import ArgumentError
from ksieve.core.problem import SCORE_DTYPES
from ksieve_lab.cli import checks, gpu
from ksieve_lab.cli.options import K, Out, Rounds, Seed

MERGED = ("gathered", "pairs", "planned")
"""Selectors of whole rows."""


def bench_ranks(
    shapes: Annotated[
        str,
        typer.Option(
            "--shapes",
            metavar="LIST",
            help="rows x width of whole rows, separated by commas; none: no times.",
            show_default="1, 16, 64 rows of 131,072",
        ),
    ] = "1x131072,16x131072,64x131072",
    interleaved: Annotated[
        str,
        typer.Option(
            "--interleaved", metavar="LIST", help="rows x width to time in interleaved shards of blocks of 64."
        ),
    ] = "none",
    k: K = 2048,
    dtypes: Annotated[
        str, typer.Option("--dtypes", metavar="LIST", help="Score dtypes, separated by commas.")
    ] = "float32",
    rounds: Rounds = 9,
    verified: Annotated[
        int, count("--verify-rows", "INT", "Rows of many shapes and layouts to select and verify besides.", minimum=0)
    ] = 0,
    replays: Annotated[
        int,
        count("--replays", "INT", "Replays of CUDA graphs to verify, with other scores and lengths each.", minimum=0),
    ] = 0,
    predicted: Annotated[
        str | None,
        typer.Option(
            "--predict",
            metavar="LIST",
            help="Predict so many GPUs, from the results in --out's folder.",
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="KIND", help="cpu (gloo) or cuda (NCCL).")] = "cpu",
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Time selection from rows that lie on ranks beside a gather of pairs, and verify rows.

    Run it under torchrun, or alone as one rank. The first rank prints and writes.
    """
    if predicted is not None:
        _predict(predicted, out)
        return
    from ksieve_lab.bench import ranks

    asked = checks.listed(dtypes)
    if not asked or set(asked) - set(SCORE_DTYPES):
        raise ArgumentError("--dtypes", repr(dtypes), f"some of {', '.join(SCORE_DTYPES)}")
    if device not in ("cpu", "cuda"):
        raise ArgumentError("--device", repr(device), "'cpu' or 'cuda'")
    listed, striped = _shapes("--shapes", shapes), _shapes("--interleaved", interleaved)
    with ranks.group(device) as (rank, world):
        path = gpu.target(out, f"ranks-{device}-{world}")

        def measure(update: ranks.Progress | None) -> dict[str, Any]:
            return ranks.run(
                listed, interleaved=striped, k=k, dtypes=asked, rounds=rounds, verified_rows=verified,
                replays=replays, kind=device, seed=seed, progress=update,
            )  # fmt: skip

        if rank:
            measure(None)
            return
        with terminal.progress("measuring", unit="steps", waiting="loading the kernels") as update:
            payload = measure(update)
    results = payload["results"]
    rows = []
    for case in results["shapes"]:
        own = case["selectors"]
        rows.append(
            [f"{case['rows']:,} x {case['width']:,}", case["dtype"], case["layout"], f"{own['local']['median_us']:.0f}",
             *(f"{own[name]['added_us']:.0f}" for name in MERGED), own["planned"]["schedule"]]
        )  # fmt: skip
    if rows:
        terminal.table(
            ["rows", "dtype", "layout", "shard", "gather adds", "pairs add", "planned adds", "schedule"], rows
        )
        terminal.say()
        terminal.say(f"microseconds on {world} rank(s), medians of {rounds} rounds; every answer verified")
    found = results["verified"]
    if found is not None:
        terminal.say(
            f"verified {found['rows']:,} rows: {found['failed']} failed; digest {found['digest'][:16]}, "
            f"{'the same' if found['same_on_every_rank'] else 'NOT the same'} on every rank"
        )
    again = results["replays"]
    if again is not None:
        terminal.say(f"verified {again['replays']:,} replays, {again['rows']:,} rows: {again['failed']} failed")
    terminal.note("seconds: " + ", ".join(f"{phase} {s:.1f}" for phase, s in results["seconds"].items()))
    gpu.finish(path, payload, None)
    answers = [
        case["selectors"][name]["exact"] for case in results["shapes"] for name in ("gathered", "pairs", "planned")
    ]
    answers += [found["exact"] and found["same_on_every_rank"]] if found else []
    exits.judge(answers + ([again["exact"]] if again else []))


def _shapes(name: str, text: str) -> list[tuple[int, int]]:
    return [] if text == "none" else [parse_shape(name, shape) for shape in checks.listed(text)]


def _predict(worlds: str, out: str | None) -> None:
    """Write, or print, what more GPUs are predicted to take."""
    from ksieve_lab.bench import rank_model, record

    listed = checks.listed(worlds)
    if not listed or not all(text.isascii() and text.isdigit() and int(text) for text in listed):
        raise ArgumentError("--predict", repr(worlds), "numbers of GPUs, separated by commas")
    path = gpu.target(out, "predicted-ranks")
    folder = record.RESULTS if path is None else path.parent
    measured = [record.read_json(file) for file in sorted(folder.glob("ranks-cuda-*.json"))]
    payload = rank_model.predict([int(text) for text in listed], measured)
    rows = [
        [str(case["world"]), f"{case['rows']:,} x {case['width']:,}", case["dtype"], f"{case['local_us']:.0f}",
         *(f"{case['added_us'][name]:.0f}" for name in ("gathered", "planned")), case["schedule"]]
        for case in payload["results"]["shapes"]
    ]  # fmt: skip
    terminal.table(["GPUs", "rows", "dtype", "shard", "gather adds", "planned adds", "schedule"], rows)
    gpu.finish(path, payload, None)
