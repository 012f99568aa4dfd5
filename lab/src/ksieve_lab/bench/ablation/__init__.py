"""The ablations of the paper (Siran Liu et al., "Sample-Guided Exact Top-K Selection for Long-Context Sparse
Attention", Tencent) on ksieve's kernels. They vary retention margin, stride, rescue, exact or sampled proposal, and the
row width from which sampling pays. Each result file also holds the paper's results.
"""

from __future__ import annotations

import itertools
from typing import Any

from ksieve.core.errors import BackendError
from ksieve.core.policy import LINES_128
from ksieve_lab.bench.ablation import activation, steps
from ksieve_lab.bench.ablation.paper import PAPER
from ksieve_lab.bench.chain import terminal_step
from ksieve_lab.bench.machines import Choice, Gpu, Machine, machine_of
from ksieve_lab.bench.runner import Facts, Live, Settings
from ksieve_lab.traces.serving import Invocation

PARTS = tuple(PAPER)
"""margin, stride, rescue, proposal, activation."""

STEP_PARTS = PARTS[:-1]

PHASE_CHOICES: dict[str, Choice] = {
    steps.DIRECT: ("stream_unsampled", "direct"),
    "sampled, s = 128": (steps.FAMILY, steps.paper_policy(steps.STRIDE, steps.MARGIN)),
    "sampled by lines": (steps.FAMILY, LINES_128),
}
"""Kernels whose phases are compared: all own whole rows, and share the scan and the refinement."""


def cases(settings: Settings) -> list[str]:
    """Parts to measure."""
    return settings.chosen(PARTS)


def measure(settings: Settings, live: Live) -> Facts:
    """Measure some of the ablations; on the CPU rates are the same and times its own, and phases are not split.

    The paper's findings are in ``results["paper"]``. Raises `BackendError` if the backend cannot run here.
    """
    fixed, parts = settings.fixed, cases(settings)
    step_parts = [part for part in STEP_PARTS if part in parts]
    step = {name: fixed[name] for name in ("step_tokens", "budget_bytes")}
    asked = {name: terminal_step(prompt, **step) for name, prompt in settings.shapes.items}
    machine = machine_of(fixed["backend"])
    total = sum(map(len, asked.values())) * bool(step_parts)
    total += len(fixed["widths"]) * len(fixed["rows"]) * 2 * ("activation" in parts)
    results: Facts = {"paper": {part: PAPER[part] for part in parts}}
    with live.phase("measuring", "steps") as progress:
        done = itertools.count(1)

        def advance() -> None:
            progress(next(done), total)

        if step_parts:
            results["steps"] = {
                name: steps.run_step(machine, calls, step_parts, settings, advance) for name, calls in asked.items()
            }
        for name, calls in asked.items() if "proposal" in parts else ():
            results["steps"][name]["phases"] = _phases(machine, calls[0], settings)
        if "activation" in parts:
            results["activation"] = activation.run(machine, settings, advance)
    return settings.payload(
        results, gpu=machine.name == "cuda", parts=parts, requests=list(asked), backend=machine.name, shapes=None
    )


def _phases(machine: Machine, call: Invocation, settings: Settings) -> dict[str, Any]:
    """Split a row's time: one row alone on the GPU, and the rows of a call together."""
    if not isinstance(machine, Gpu):
        return {"error": "phases are stamped on a GPU's clock: not measured on the CPU"}
    from ksieve_lab.bench.ablation import phases

    scores, lengths = machine.scores(call.rows, call.width, call.lengths(), settings.scores, settings.seed)
    found: dict[str, Any] = {"alone": {}, "together": {}}
    try:
        for name, choice in PHASE_CHOICES.items():
            found["alone"][name] = phases.profile(machine, scores[:1], lengths[:1], settings.k, choice)
            found["together"][name] = phases.profile(machine, scores, lengths, settings.k, choice)
    except BackendError as error:
        return {"error": str(error)}
    return found
