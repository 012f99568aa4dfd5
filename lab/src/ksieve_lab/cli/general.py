"""`ksieve bench general`: shapes from outside the indexer, beside torch.topk."""

from __future__ import annotations

from typing import Annotated

import typer

from ksieve.cli import exits, terminal
from ksieve.core.errors import ArgumentError
from ksieve.core.problem import SCORE_DTYPES
from ksieve_lab.cli import checks, gpu
from ksieve_lab.cli.options import Out, Rounds, Scores, Seed


def bench_general(
    only: Annotated[
        str, typer.Option("--only", metavar="TEXT", help="Only the shapes whose ROWSxWIDTH contains TEXT.")
    ] = "",
    dtypes: Annotated[
        str, typer.Option("--dtypes", metavar="LIST", help="Score dtypes, separated by commas.")
    ] = ",".join(SCORE_DTYPES),
    scores: Scores = "normal",
    rounds: Rounds = 7,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Time shapes from outside the indexer beside torch.topk: many small rows, one huge row, sampling, routing.

    Whole rows, every dtype; every answer is verified.
    """
    from ksieve_lab.bench import general

    asked = checks.listed(dtypes)
    if not asked or set(asked) - set(SCORE_DTYPES):
        raise ArgumentError("--dtypes", repr(dtypes), f"some of {', '.join(SCORE_DTYPES)}")
    listed = [case for case in general.cases(dtypes=asked) if only in f"{case[0]}x{case[1]}"]
    if not listed:
        raise ArgumentError("--only", repr(only), "part of the ROWSxWIDTH of a shape, such as 65536x128")
    path = gpu.target(out, "gpu-general", scores)
    with terminal.progress("compiling", unit="kernels", waiting="starting the GPU") as update:
        general.prepare(listed, update)
    with terminal.progress("measuring", len(listed), unit="cases") as update:
        payload = general.run(
            listed, source=scores, rounds=rounds, seed=seed, progress=update, each=gpu.teller()
        )  # fmt: skip
    results = payload["results"]
    rows = []
    for case in gpu.measured(results):
        own, rival = case["selectors"]["ksieve"], case["selectors"].get(general.RIVAL, {})
        faster = f"{case['times_faster']:.2f}x" if "times_faster" in case else ""
        rows.append(
            [general.name_of(case), case["dtype"], f"{case['floor_us']:.1f}", gpu.microseconds(own),
             gpu.microseconds(rival), faster]
        )  # fmt: skip
    terminal.table(["rows", "dtype", "floor", "ksieve", general.RIVAL, "faster"], rows)
    terminal.say()
    found = results["over_torch"]
    if found:
        terminal.say(
            f"torch.topk over ksieve: geometric mean {found['geometric_mean']:.2f}x, least {found['least']:.2f}x, "
            f"{found['shapes']} cases; ksieve is slower in {len(results['slower'])}"
        )
    terminal.say(f"microseconds, medians of {rounds} rounds; the floor is a plain read of the scores")
    gpu.remarks(results["shapes"])
    gpu.finish(path, payload, None)
    exits.judge(case["selectors"]["ksieve"].get("exact") for case in gpu.measured(results))
