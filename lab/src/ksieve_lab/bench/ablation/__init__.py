"""The ablations of the paper (Siran Liu et al., "Sample-Guided Exact Top-K Selection for Long-Context Sparse
Attention", Tencent) on ksieve's kernels: retention margin, stride, rescue, exact against sampled proposal, and the row
width from which sampling pays. Each result file also holds the paper's results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.policy import LINES_128
from ksieve_lab.bench import record
from ksieve_lab.bench.ablation import activation, steps
from ksieve_lab.bench.ablation.paper import PAPER
from ksieve_lab.bench.chain import prompt_of, terminal_step
from ksieve_lab.bench.targets import Choice, Gpu, Machine, machine_of
from ksieve_lab.traces.serving import BUDGET_BYTES, STEP_TOKENS, Invocation

PARTS = tuple(PAPER)
"""margin, stride, rescue, proposal, activation."""

STEP_PARTS = PARTS[:-1]

PHASE_CHOICES: dict[str, Choice] = {
    steps.DIRECT: ("stream_unsampled", "direct"),
    "sampled, s = 128": (steps.FAMILY, steps.paper_policy(steps.STRIDE, steps.MARGIN)),
    "sampled by lines": (steps.FAMILY, LINES_128),
}
"""Kernels whose phases are compared: all own whole rows, and share the scan and the refinement."""


def run(
    parts: Sequence[str] = PARTS,
    requests: Sequence[str | int] = ("245K", "430K"),
    k: int = 2048,
    *,
    backend: str = "auto",
    source: str = "endpoint",
    peers: Sequence[str] | None = (),
    step_tokens: int = STEP_TOKENS,
    budget_bytes: int = BUDGET_BYTES,
    widths: Sequence[int] = activation.WIDTHS,
    rows: Sequence[int] = activation.ROWS,
    rounds: int = 5,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Measure some of the ablations.

    Parameters
    ----------
    parts : sequence of str
        Of `PARTS`.
    requests : sequence of str or int
        Whose terminal scheduler step is replayed: "245K", "430K", or prompt tokens.
    k : int
    backend : {"auto", "cpu", "cuda"}
        On the CPU rates are the same and times its own; phases are not split there.
    source : str
        Scores: "endpoint" or "normal", on the GPU also "factors:PATH".
    peers : sequence of str or None
        Names of `ksieve_lab.bench.peers`, timed as well; None means all that are installed.
    step_tokens, budget_bytes : int
        The scheduler's.
    widths, rows : sequence of int
        Of the activation sweep.
    rounds : int
        Timed rounds; medians count.
    seed : int
    progress : callable, optional
        Called as ``progress(steps done, steps in all)``.

    Returns
    -------
    dict
        For `record.write_json`; the paper's findings are in ``results["paper"]``.

    Raises
    ------
    ArgumentError
        If an argument cannot be used.
    BackendError
        If the backend cannot run here.
    """
    check_parts(parts)
    if rounds < 1:
        raise ArgumentError("rounds", rounds, "an int of at least 1")
    step_parts = [part for part in STEP_PARTS if part in parts]
    asked = {str(r): terminal_step(prompt_of(r), step_tokens=step_tokens, budget_bytes=budget_bytes) for r in requests}
    machine = machine_of(backend)
    total = sum(map(len, asked.values())) * bool(step_parts)
    total += len(widths) * len(rows) * 2 * ("activation" in parts)
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    if progress is not None:
        progress(0, total)
    results: dict[str, Any] = {"paper": {part: PAPER[part] for part in PARTS if part in parts}}
    if step_parts:
        results["steps"] = {
            name: steps.run_step(
                machine, calls, step_parts, k, source=source, rounds=rounds, peers=peers, seed=seed, advance=advance
            )
            for name, calls in asked.items()
        }
        if "proposal" in parts:
            for name, calls in asked.items():
                results["steps"][name]["phases"] = _phases(machine, calls, k, source, seed)
    if "activation" in parts:
        results["activation"] = activation.run(
            machine, k, widths=widths, rows=rows, rounds=rounds, seed=seed, advance=advance
        )
    settings = {
        "parts": list(parts), "requests": list(asked), "k": k, "backend": machine.name, "scores": _shown(source),
        "step_tokens": step_tokens, "budget_bytes": budget_bytes, "widths": list(widths), "rows": list(rows),
        "rounds": rounds, "seed": seed,
    }  # fmt: skip
    return record.payload("ablation", settings, results, gpu=machine.name == "cuda")


def check_parts(parts: Sequence[str]) -> None:
    """Refuse names that are not of `PARTS`."""
    for part in parts:
        if part not in PARTS:
            raise ArgumentError("parts", repr(part), f"some of {', '.join(PARTS)}")


def inexact(payload: dict[str, Any]) -> list[str]:
    """Name everything whose answers were not all verified as exact."""
    return [name for name, exact in verdicts(payload).items() if exact is not True]


def verdicts(payload: dict[str, Any]) -> dict[str, bool | None]:
    """Whether the answers of everything that ran were exact, by name; None where there is no answer."""
    found: dict[str, bool | None] = {}
    for name, step in payload["results"].get("steps", {}).items():
        found |= {f"{name}: {variant}": facts["exact"] for variant, facts in step["variants"].items()}
        if (step.get("wave") or {}).get("exact") is False:
            found[f"{name}: rows missed by their boundary"] = False
    for cell in payload["results"].get("activation", {}).get("cells", []):
        for variant, facts in cell["selectors"].items():
            found[f"{cell['rows']} x {cell['width']} {cell['scores']}: {variant}"] = facts.get("exact")
    return found


def _phases(machine: Machine, calls: Sequence[Invocation], k: int, source: str, seed: int) -> dict[str, Any]:
    """Split a row's time: one row alone on the GPU, and the rows of the step's first call together."""
    if not isinstance(machine, Gpu):
        return {"error": "phases are stamped on a GPU's clock: not measured on the CPU"}
    from ksieve_lab.bench.ablation import phases

    call = calls[0]
    scores, lengths = machine.scores(call.rows, call.width, call.lengths(), source, seed)
    found: dict[str, Any] = {"alone": {}, "together": {}}
    try:
        for name, choice in PHASE_CHOICES.items():
            found["alone"][name] = phases.profile(machine, scores[:1], lengths[:1], k, choice)
            found["together"][name] = phases.profile(machine, scores, lengths, k, choice)
    except BackendError as error:
        return {"error": str(error)}
    return found


def _shown(source: str) -> str:
    """Source of scores without folders."""
    kind, colon, path = source.partition(":")
    return f"{kind}{colon}{path.rpartition('/')[2]}"
