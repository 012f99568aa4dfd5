"""`ksieve bench ablation`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ksieve.cli import exits, terminal
from ksieve.cli.options import checked
from ksieve_lab.cli import checks, gpu
from ksieve_lab.cli.options import BudgetBytes, Figures, K, Out, Peers, Requests, Rounds, Seed, StepTokens


def bench_ablation(
    parts: Annotated[
        str,
        typer.Option(
            "--parts",
            metavar="LIST",
            callback=checked("--parts", checks.parts),
            help="margin, stride, rescue, proposal, activation, separated by commas.",
            show_default="all",
        ),
    ] = "margin,stride,rescue,proposal,activation",
    requests: Requests = "245K,430K",
    k: K = 2048,
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="auto | cpu | cuda",
            callback=checked("--backend", checks.backend),
            help="auto: a GPU if there is one, else the CPU.",
        ),
    ] = "auto",
    scores: Annotated[
        str,
        typer.Option(
            "--scores",
            metavar="NAME",
            callback=checked("--scores", checks.scores_anywhere),
            help="endpoint, normal, or on a GPU factors:PATH.",
        ),
    ] = "endpoint",
    peers: Peers = "none",
    step_tokens: StepTokens = 65_536,
    budget_bytes: BudgetBytes = 6_300_000_000,
    rounds: Rounds = 5,
    seed: Seed = 0,
    out: Out = None,
    figures: Figures = None,
) -> None:
    """Repeat the paper's ablations on this machine, and print the paper's results with them.

    The last scheduler steps of long requests run call by call with other margins and strides, with and without rescue,
    and with an exact proposal; activation sweeps row widths from 16K to 64K. Every answer is verified. On a CPU only
    the rates compare with the paper's: choose a small prompt, few step tokens and a small budget.
    """
    from ksieve_lab.bench import ablation
    from ksieve_lab.bench.targets import stem_of

    wanted = checks.listed(parts)
    stem = stem_of(backend, "ablation", *(wanted if set(wanted) != set(ablation.PARTS) else ()))
    path = gpu.target(out, stem, scores)
    gpu.ready(figures)
    with terminal.progress("measuring", unit="steps", waiting="loading the kernels") as update:
        payload = ablation.run(
            wanted, checks.listed(requests), k, backend=backend, source=scores, peers=gpu.peers_of(peers),
            step_tokens=step_tokens, budget_bytes=budget_bytes, rounds=rounds, seed=seed, progress=update,
        )  # fmt: skip
    for name, step in payload["results"].get("steps", {}).items():
        _print_step(name, step, payload["results"]["paper"])
    if "activation" in payload["results"]:
        _print_activation(payload["results"]["activation"]["widths"])
    _print_paper(payload["results"]["paper"])
    gpu.finish(path, payload, figures)
    for text in ablation.inexact(payload):
        terminal.complain(f"failed or not exact: {text}")
    exits.judge(ablation.verdicts(payload).values())


def _print_step(name: str, step: dict[str, Any], paper: dict[str, Any]) -> None:
    calls = len(step["calls"])
    terminal.say(f"{name}: last step, {calls} calls, plain read {step['floor_ms']:.2f} ms", style="bold")
    rows = []
    for variant, facts in {**step["variants"], **step["peers"]}.items():
        if facts["step_ms"] is None:
            rows.append((variant, "failed", "", "", "", facts["error"] or "not exact"))
            continue
        missed, recovered, admitted = (
            facts[key] for key in ("primary_missed_percent", "recovery_percent", "admitted_mean")
        )
        rows.append((
            variant, f"{facts['step_ms']:.2f}", f"{facts['of_floor']:.2f}", _percent(missed), _percent(recovered),
            "" if admitted is None else f"{admitted:,.0f}",
        ))  # fmt: skip
    terminal.table(("variant", "ms", "of floor", "missed", "recovered", "admitted"), rows)
    wave = step.get("wave")
    if wave and "rescue_us" in wave:
        published = paper.get("rescue", {}).get(name.upper())
        beside = f" (paper, H20: {published['rescue_us']} and {published['recovery_us']})" if published else ""
        terminal.say(
            f"recovery path of {wave['rows']} missed rows: rescue {wave['rescue_us']:.1f} us, exact recovery "
            f"{wave['recovery_us']:.1f} us{beside}"
        )
    phases = step.get("phases", {})
    if "error" in phases:
        terminal.note(phases["error"])
    for how in ("alone", "together"):
        lines = [
            (variant, *(f"{us:.2f}" for us in split["row_us"].values()), f"{split['total_us']:.2f}")
            for variant, split in phases.get(how, {}).items()
        ]
        if lines:
            terminal.say()
            terminal.table((f"us of a row, {how}", *next(iter(phases[how].values()))["row_us"], "all"), lines)
    terminal.say()


def _print_activation(widths: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in widths for name in row if name != "width"))
    lines = []
    for row in widths:
        cells = [f"{row[n]['median']:.2f} ({row[n]['won']}/{row[n]['cells']})" if n in row else "" for n in names]
        lines.append((f"{row['width']:,}", *cells))
    terminal.table(("width", *names), lines, title="times as fast as exact proposal: median (cells won)")
    terminal.say()


def _print_paper(paper: dict[str, Any]) -> None:
    """Print the paper's result of each part."""
    for part, found in paper.items():
        terminal.note(f"paper, {part}: {found['says']}")
        for key in ("recovery_percent", "speedup", "245K", "430K", "wins", "median_speedup_at_64K"):
            if key in found:
                listed = ", ".join(f"{name}: {value}" for name, value in found[key].items())
                terminal.note(f"  {key}: {listed}".replace("_", " "))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}%"
