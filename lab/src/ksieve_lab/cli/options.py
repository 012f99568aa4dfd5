"""Options that several benches share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ksieve.cli.options import Dtype, checked, choice, count, output
from ksieve.core.problem import check_k
from ksieve_lab.cli import checks

Shapes = Annotated[
    str,
    typer.Option(
        "--shapes", metavar="LIST", help="operator (the paper's 20), decode, short, between (those of ksieve tune and "
        "others), quick, or rows x width such as "
        "512x131072, separated by commas."
    ),
]  # fmt: skip
Only = Annotated[str | None, typer.Option("--only", metavar="TEXT", help="Only the shapes whose MxN contains TEXT.")]
K = Annotated[int, count("--k", "K", "Slots per row.", callback=checked("--k", check_k))]
Lengths = Annotated[
    str | None,
    typer.Option(
        "--lengths",
        metavar="NAME",
        callback=checked("--lengths", checks.lengths),
        help="causal, ragged, full, uniform, or one length for all rows. Default: depends on the list of shapes.",
    ),
]
Element = Annotated[Dtype, choice("--dtype", Dtype, "Score dtype.")]
Scores = Annotated[
    str,
    typer.Option(
        "--scores", metavar="SOURCE", callback=checked("--scores", checks.scores),
        help="endpoint (top scores near both ends of a row), normal, or factors:PATH "
        "for the scores of an indexer whose factors a capture holds."
    ),
]  # fmt: skip
Families = Annotated[
    str,
    typer.Option(
        "--families",
        metavar="LIST",
        callback=checked("--families", checks.families),
        help="Also time these kernel families, separated by commas.",
    ),
]
Policies = Annotated[
    str,
    typer.Option(
        "--policies",
        metavar="LIST",
        callback=checked("--policies", checks.policies),
        help="Also time these sampling policies, separated by commas.",
    ),
]
Variants = Annotated[
    str | None,
    typer.Option(
        "--variants",
        metavar="JSON",
        help="Also time these plans: a JSON list of objects with family, policy and numbers of a plan, or a file "
        "that holds one.",
    ),
]
Peers = Annotated[
    str,
    typer.Option(
        "--peers", metavar="LIST", callback=checked("--peers", checks.peers),
        help="Other libraries to time: all that are installed, none, or names such as "
        "sglang, flashinfer."
    ),
]  # fmt: skip
Requests = Annotated[
    str,
    typer.Option(
        "--requests",
        metavar="LIST",
        callback=checked("--requests", checks.requests),
        help="245K, 430K or prompt tokens, separated by commas.",
    ),
]
StepTokens = Annotated[int, count("--step-tokens", "INT", "Query tokens of a scheduler step.", minimum=1)]
BudgetBytes = Annotated[int, count("--budget-bytes", "INT", "Largest score matrix of one call, in bytes.", minimum=1)]
Rounds = Annotated[int, count("--rounds", "INT", "Timed rounds; medians are reported.", minimum=1)]
TorchRounds = Annotated[
    int, count("--torch-rounds", "INT", "Timed rounds of torch.topk, which is slow; 0: none.", minimum=0)
]
Seed = Annotated[int, typer.Option("--seed", metavar="INT", help="Seed of the scores.")]
Out = Annotated[str | None, output("JSON file to write.")]
Figures = Annotated[
    Path | None, typer.Option("--figures", metavar="DIR", help="Folder for figures of the result, PNG and SVG.")
]
