"""`ksieve bench blocks`: blocks, pools and forced entries in one call, beside PyTorch operations around a selector."""

from __future__ import annotations

from typing import Annotated

import typer

from ksieve.cli import exits, terminal
from ksieve.cli.options import count
from ksieve.cli.sizes import parse_shape
from ksieve.core.errors import ArgumentError
from ksieve.core.problem import SCORE_DTYPES
from ksieve_lab.cli import checks, gpu
from ksieve_lab.cli.options import Figures, Out, Rounds, Seed


def bench_blocks(
    shapes: Annotated[
        str,
        typer.Option(
            "--shapes",
            metavar="LIST",
            help="rows x positions, separated by commas, in place of each model's; none: no times.",
        ),
    ] = "",
    only: Annotated[
        str, typer.Option("--only", metavar="LIST", help="Only these models, separated by semicolons.")
    ] = "",
    dtypes: Annotated[
        str, typer.Option("--dtypes", metavar="LIST", help="Score dtypes, separated by commas.")
    ] = "float32,bfloat16",
    device: Annotated[str, typer.Option("--device", metavar="KIND", help="cuda or cpu.")] = "cuda",
    rounds: Rounds = 7,
    verified: Annotated[
        int,
        count(
            "--verify-rows",
            "INT",
            "Rows of every model's options and of others to select and verify besides.",
            minimum=0,
        ),
    ] = 0,
    seed: Seed = 0,
    out: Out = None,
    figures: Figures = None,
) -> None:
    """Time calls with blocks, forced entries, expansion and tails, and PyTorch operations around a selector.

    In the same rounds as each call: a plain read, the selection alone, a write of its output, and the same result
    around ksieve.topk and around torch.topk, each as one CUDA graph; every answer is judged. Rows to verify are of many
    kinds of calls and families, dtypes in turn, and are judged where they are selected from.
    """
    from ksieve_lab.bench import blocks

    asked = checks.listed(dtypes)
    if not asked or set(asked) - set(SCORE_DTYPES):
        raise ArgumentError("--dtypes", repr(dtypes), f"some of {', '.join(SCORE_DTYPES)}")
    if device not in ("cpu", "cuda"):
        raise ArgumentError("--device", repr(device), "'cuda' or 'cpu'")
    names = [name.strip() for name in only.split(";") if name.strip()]
    asked_shapes = [] if shapes == "none" else [parse_shape("--shapes", text) for text in checks.listed(shapes)]
    listed = [] if shapes == "none" else blocks.cases(names, asked_shapes, asked)
    path = gpu.target(out, f"blocks-{device}")
    gpu.ready(figures)
    if device == "cuda":
        with terminal.progress("compiling", unit="kernels", waiting="starting the GPU") as update:
            blocks.prepare(listed, update, verified)
    with terminal.progress("measuring", unit="steps", waiting="loading the kernels") as update:
        tell = gpu.teller()
        payload = blocks.run(
            listed, kind=device, rounds=rounds, verified_rows=verified, seed=seed, progress=update,
            each=tell and (lambda case: tell(case | {"family": case["model"]})),
        )  # fmt: skip
    results = payload["results"]
    found, rows = gpu.measured(results), []
    for case in found:
        own = case["selectors"]
        parts = f"{case['of_parts']:.2f}" if "of_parts" in case else ""
        around = (
            f"{case['times_faster'][name]:.2f}x" if name in case.get("times_faster", {}) else ""
            for name in blocks.AROUND
        )
        rows.append(
            [
                blocks.name_of(case),
                case["dtype"],
                f"{case['floor_us']:.1f}",
                gpu.microseconds(own[blocks.OWN]),
                parts,
                *around,
            ]
        )
    if rows:
        terminal.table(
            ["model, rows x positions", "dtype", "plain read", blocks.OWN, "of its parts", *blocks.AROUND], rows
        )
        terminal.say()
        terminal.say(
            f"microseconds, medians of {rounds} rounds; of its parts: over the selection alone plus a write of the "
            "output"
        )
    if (judged := results["verified"]) is not None:
        terminal.say(
            f"verified {judged['rows']:,} rows: {judged['failed']:,} failed; of {len(judged['kinds'])} kinds of calls "
            f"and {len(judged['families'])} families, {judged['by_verify']:,} of them by ksieve.verify too"
        )
        for fault in judged["wrong"]:
            terminal.say(f"{fault['kind']}, {fault['dtype']}, rows {fault['rows']}: {', '.join(fault['judge'])}")
    gpu.remarks([case | {"width": case["positions"]} for case in results["shapes"]])
    gpu.finish(path, payload, figures)
    answers = [case["selectors"][name].get("exact") for case in found for name in (blocks.OWN, *blocks.AROUND)]
    exits.judge(answers + ([judged["exact"]] if judged else []))
