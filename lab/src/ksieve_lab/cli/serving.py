"""`ksieve bench options`."""

from __future__ import annotations

from typing import Annotated

import typer

from ksieve.cli import exits, terminal
from ksieve.cli.options import Dtype
from ksieve_lab.cli import gpu
from ksieve_lab.cli.options import Element, K, Lengths, Out, Rounds, Scores, Seed


def bench_options(
    shapes: Annotated[
        str, typer.Option("--shapes", metavar="LIST", help="rows x width such as 64x65536, separated by commas.")
    ] = "",
    only: Annotated[
        str, typer.Option("--only", metavar="LIST", help="Only these options, separated by semicolons.")
    ] = "",
    k: K = 2048,
    lengths: Lengths = None,
    dtype: Element = Dtype.float32,
    scores: Scores = "endpoint",
    rounds: Rounds = 7,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Time the cost of every serving option: windows, page tables, values, orders, tie-breaks and others.

    Each option and the plain call are timed on the same tensors in the same rounds, and every answer is verified.
    """
    from ksieve_lab.bench import options

    listed, kind = gpu.shapes_of(shapes, None) if shapes else (list(options.SHAPES), "causal")
    names = [name.strip() for name in only.split(";") if name.strip()]
    path = gpu.target(out, f"gpu-options-k{k}", scores)
    with terminal.progress("measuring", len(listed), unit="shapes", waiting="starting the GPU") as update:
        payload = options.run(
            listed, k, lengths=lengths or kind, dtype=dtype, source=scores, names=names or None, rounds=rounds,
            seed=seed, progress=update, each=gpu.teller(),
        )  # fmt: skip
    results = payload["results"]
    gpu.head(payload)
    found = gpu.measured(results)
    columns = list(dict.fromkeys(name for shape in found for name in shape["selectors"]))
    rows = []
    for name in columns:
        cells = []
        for shape in found:
            facts = shape["selectors"].get(name)
            share = f" ({facts['of_plain']:.2f})" if facts and "of_plain" in facts else ""
            cells.append(gpu.microseconds(facts) + share if facts else "")
        mean = results["of_plain"].get(name)
        rows.append([name, *cells, f"{mean['geometric_mean']:.3f}" if mean else ""])
    terminal.table(["option", *(gpu.shape_name(shape) for shape in found), "of plain"], rows)
    terminal.say()
    terminal.say(
        f"microseconds, medians of {rounds} rounds; in brackets and last, over the plain call: 1 costs nothing"
    )
    gpu.remarks(results["shapes"])
    gpu.finish(path, payload, None)
    exits.judge(facts.get("exact") for shape in found for facts in shape["selectors"].values())
