"""`ksieve bench` of traces and the worst case, and figures from result files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ksieve.cli import exits, terminal
from ksieve.cli.options import checked, count
from ksieve.core.errors import ArgumentError
from ksieve_lab.cli import checks, gpu
from ksieve_lab.cli.options import BudgetBytes, Figures, K, Out, Peers, Rounds, Scores, Seed, StepTokens, TorchRounds


def bench_trace(
    prompts: Annotated[
        str,
        typer.Option(
            "--prompts",
            metavar="LIST",
            callback=checked("--prompts", checks.requests),
            help="Prompt tokens, separated by commas; 245K and 430K are the paper's requests.",
        ),
    ] = "245K,430K",
    k: K = 2048,
    step_tokens: StepTokens = 65_536,
    budget_bytes: BudgetBytes = 6_300_000_000,
    decode_steps: Annotated[int, count("--decode-steps", "INT", "Tokens decoded after the prompt.", minimum=0)] = 0,
    batch: Annotated[int, count("--batch", "INT", "Requests of this length.", minimum=1)] = 1,
    scores: Scores = "endpoint",
    peers: Peers = "all",
    rounds: Rounds = 5,
    torch_rounds: TorchRounds = 0,
    seed: Seed = 0,
    out: Out = None,
    figures: Figures = None,
) -> None:
    """Time every selection of the prefill of a long prompt, and sum the times.

    A prompt is split into scheduler steps, and each step into calls whose score matrix fits a budget, with causal
    lengths, as vLLM does. The sum is compared with that of plain reads of the same rows.
    """
    from ksieve_lab.bench import trace
    from ksieve_lab.bench.chain import prompt_of

    asked = {text: prompt_of(text) for text in checks.listed(prompts)}
    tail = f"-{scores.partition(':')[0]}" if scores != "endpoint" else ""
    path = gpu.target(out, f"gpu-trace{tail}-k{k}", scores)
    gpu.ready(figures)
    with terminal.progress("measuring", unit="invocations", waiting="starting the GPU") as update:
        payload = trace.run(
            asked, k, step_tokens=step_tokens, budget_bytes=budget_bytes, decode_steps=decode_steps, batch=batch,
            source=scores, peer_names=gpu.peers_of(peers), rounds=rounds, torch_rounds=torch_rounds, seed=seed,
            progress=update, each=gpu.teller(),
        )  # fmt: skip
    results = payload["results"]
    gpu.head(payload)
    rows = []
    for name, found in results["traces"].items():
        line = [name, str(len(found["invocations"]))]
        if "skipped" in found:
            rows.append([*line, "", "", f"{found['skipped']} invocations do not fit", ""])
            continue
        line.append(f"{found['floor_us'] / 1e3:.2f}")
        for selector, facts in found["selectors"].items():
            rows.append([*line, selector, *_sum(facts)])
            line = ["", "", ""]
    terminal.table(["request", "invocations", "floor, ms", "selector", "sum, ms", "of floor"], rows)
    terminal.say()
    terminal.say(f"milliseconds over all invocations, each the median of {rounds} rounds")
    cases = [case for found in results["traces"].values() for case in found["invocations"]]
    gpu.remarks(cases)
    gpu.skipped(results)
    gpu.finish(path, payload, figures)
    _judge(cases)


def _sum(facts: dict[str, Any]) -> list[str]:
    if "total_us" in facts:
        return [f"{facts['total_us'] / 1e3:.2f}", f"{facts['of_floor']:.3f}"]
    return [f"{facts['inexact']} inexact" if facts["inexact"] else f"{facts['failed']} failed", ""]


def bench_worst(
    shapes: Annotated[
        str, typer.Option("--shapes", metavar="LIST", help="rows x width such as 1024x262144, separated by commas.")
    ] = "",
    inputs: Annotated[
        str, typer.Option("--inputs", metavar="LIST", help="Families of scores, separated by commas. Default: all.")
    ] = "",
    k: K = 2048,
    peers: Peers = "all",
    rounds: Rounds = 5,
    torch_rounds: TorchRounds = 0,
    seed: Seed = 0,
    out: Out = None,
    figures: Figures = None,
) -> None:
    """Time adversarial rows, relative to a plain read of the same shape.

    Ties and plateaus, rows inside one float16 value, sorted and periodic rows in every phase, subnormals, infinities
    and NaN, made on the GPU. Periodic rows have the period of the sampling policy; others place extreme scores at the
    sampled positions.
    """
    from ksieve_lab.bench import adversarial_gpu as hard
    from ksieve_lab.bench import worst

    for name in checks.listed(inputs):
        if name not in hard.FAMILIES:
            raise ArgumentError("--inputs", repr(name), f"names of {', '.join(hard.FAMILIES)}")
    listed = gpu.shapes_of(shapes, None)[0] if shapes else list(worst.SHAPES)
    path = gpu.target(out, f"gpu-worst-k{k}")
    gpu.ready(figures)
    with terminal.progress("measuring", unit="cases", waiting="starting the GPU") as update:
        payload = worst.run(
            listed, k, families=checks.listed(inputs) or None, peer_names=gpu.peers_of(peers), rounds=rounds,
            torch_rounds=torch_rounds, seed=seed, progress=update, each=gpu.teller(),
        )  # fmt: skip
    results = payload["results"]
    gpu.head(payload)
    names = list(dict.fromkeys(name for by_name in results["worst"].values() for name in by_name))
    ratios = {(c["family"], gpu.shape_name(c)): c for c in results["cases"]}
    shapes_named = [f"{m} x {n}" for m, n in listed]
    others = [name for name in names if name != "ksieve"]
    rows = []
    for family, by_name in results["worst"].items():
        cells = [_ratio(ratios[family, shape]) for shape in shapes_named]
        rows.append([family, *cells, *(f"{by_name[n]['ratio']:.2f}" if n in by_name else "" for n in others)])
    terminal.table(["scores", *shapes_named, *(f"{n}, worst" for n in others)], rows)
    terminal.say()
    own = {family: found["ksieve"]["ratio"] for family, found in results["worst"].items() if "ksieve" in found}
    if own:
        family = max(own, key=lambda f: own[f])
        terminal.say(f"worst of ksieve: {family}, {own[family]:.2f} times the floor")
    terminal.say(f"times over the floor of the same rows, medians of {rounds} rounds; lower is better")
    gpu.remarks(results["cases"])
    gpu.skipped(results)
    gpu.finish(path, payload, figures)
    _judge(results["cases"])


def _ratio(case: dict[str, Any]) -> str:
    facts = case.get("selectors", {}).get("ksieve", {})
    if "skipped" in case or not facts.get("of_floor"):
        return "skipped" if "skipped" in case else "failed"
    return f"{1 / facts['of_floor']:.2f}" + (" INEXACT" if facts.get("exact") is False else "")


def _judge(cases: list[dict[str, Any]]) -> None:
    """Exit with a code other than 0 if an answer of ksieve is wrong or missing."""
    exits.judge(case["selectors"]["ksieve"].get("exact") for case in cases if "skipped" not in case)


def bench_plot(
    results: Annotated[list[Path], typer.Argument(metavar="RESULT...", help="Result files of GPU benches.")],
    folder: Annotated[
        Path, typer.Option("--figures", metavar="DIR", help="Folder for the figures, PNG and SVG.")
    ] = Path("figures"),
) -> None:
    """Draw figures from result files: latency over rows, fractions of the plain-read speed, worst cases, traces.

    A figure has the name of its result file.
    """
    from ksieve_lab.bench import record
    from ksieve_lab.report import figures

    payloads = [record.read_json(path) for path in results]
    gpu.ready(folder)
    for path, payload in zip(results, payloads, strict=True):
        drawn = figures.draw(payload, folder, path.stem)
        if not drawn:
            terminal.note(f"{path}: nothing to draw in a result of bench {payload['bench']}")
        for file in drawn:
            terminal.say(f"drawn: {file}")
