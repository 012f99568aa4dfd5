"""`ksieve bench chain`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ksieve.cli import exits, terminal
from ksieve.cli.options import checked, count
from ksieve_lab.cli import checks, gpu
from ksieve_lab.cli.options import Figures, K, Out, Peers, Requests, Rounds, Seed


def bench_chain(
    requests: Requests = "245K,430K",
    k: K = 2048,
    heads: Annotated[
        int, count("--heads", "INT", "Heads of the indexer.", callback=checked("--heads", checks.power_of_two))
    ] = 64,
    dim: Annotated[
        int, count("--dim", "INT", "Dimensions per head.", callback=checked("--dim", checks.power_of_two))
    ] = 128,
    producer: Annotated[
        str,
        typer.Option(
            "--producer",
            metavar="NAME",
            callback=checked("--producer", checks.producer),
            help="triton (ksieve's own), or deep_gemm if it is installed.",
        ),
    ] = "triton",
    peers: Peers = "all",
    rounds: Rounds = 7,
    seed: Seed = 0,
    out: Out = None,
    figures: Figures = None,
) -> None:
    """Time an indexer's fp8 score production and the selection after it, in one CUDA graph.

    The last scheduler step of a long request runs call by call in order; every answer is verified. The selection's
    share is the time of the chain minus the time of its score production alone, which stores the matrix: ways
    without the matrix may take less.
    """
    from ksieve_lab.bench import chain

    wanted = checks.listed(requests)
    path = gpu.target(out, "gpu-chain")
    gpu.ready(figures)
    with terminal.progress("measuring", len(wanted), unit="requests", waiting="starting the GPU") as update:
        payload = chain.run(
            wanted, k, heads=heads, dim=dim, producer=producer, others=gpu.peers_of(peers), rounds=rounds, seed=seed,
            progress=update,
        )  # fmt: skip
    exact = [
        _print(request, payload["results"]["paper"].get(request["request"].upper()))
        for request in payload["results"]["requests"]
    ]
    gpu.finish(path, payload, figures)
    exits.judge(exact)


def _print(request: dict[str, Any], paper: dict[str, Any] | None) -> bool | None:
    """Print one request; return whether ksieve's answer is exact, None if it is missing."""
    terminal.say(f"{request['request']}: {len(request['calls'])} calls of the last step, {request['width']:,} wide")
    if "skipped" in request:
        terminal.say(f"  skipped: {request['skipped']}")
        return True
    scores = request["scores"]
    terminal.say(
        f"  scores {scores['ms']:.1f} ms ({scores['teraflops']:.0f} TFLOP/s), plain read {request['floor_ms']:.2f} ms"
    )
    rows = []
    for name, facts in request["selectors"].items():
        if "chain_ms" not in facts:
            rows.append((name, "failed", facts.get("error") or "", "", "", ""))
            continue
        rows.append((
            name, f"{facts['chain_ms']:.2f}", f"{facts['select_ms']:.2f}", f"{facts['select_share']:.1%}",
            "" if facts["of_floor"] is None else f"{facts['of_floor']:.2f}",
            {True: "yes", False: "NO", None: ""}[facts["exact"]],
        ))  # fmt: skip
    terminal.table(("selector", "chain ms", "selection ms", "share", "of floor", "exact"), rows)
    if paper:
        select = ", ".join(f"{name} {ms} ms" for name, ms in paper["select_ms"].items())
        terminal.note(f"the paper, on an H20 with DeepGEMM: selection {select}")
    for name, reason in request["skipped_peers"].items():
        terminal.note(f"{name}: {reason}")
    terminal.say()
    exact: bool | None = request["selectors"]["ksieve"].get("exact")
    return exact
