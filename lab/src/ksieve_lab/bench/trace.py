"""Framework traces: every selection of serving a long prompt, summed, against the floor summed over the same rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ksieve.core.device import DeviceInfo
from ksieve.planning.tune import laws, tasks
from ksieve.planning.tune.tasks import Task
from ksieve.planning.tune.variants import PLANNED, Variant
from ksieve_lab.bench import gpu, peers, record, scores
from ksieve_lab.bench.gpu import Ask, Progress, Tell
from ksieve_lab.traces.serving import BUDGET_BYTES, PAPER_REQUESTS, STEP_TOKENS, Invocation, invocations


def run(
    prompts: Mapping[str, int] = PAPER_REQUESTS,
    k: int = 2048,
    *,
    step_tokens: int = STEP_TOKENS,
    budget_bytes: int = BUDGET_BYTES,
    decode_steps: int = 0,
    batch: int = 1,
    source: str = "endpoint",
    variants: Sequence[Variant] = (),
    peer_names: Iterable[str] | None = None,
    rounds: int = 5,
    torch_rounds: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
    each: Tell | None = None,
) -> dict[str, Any]:
    """Time the invocations that requests of these lengths take.

    Parameters
    ----------
    prompts : mapping of str to int
        Prompt tokens by name.
    k : int
    step_tokens, budget_bytes, decode_steps, batch : int
        As `ksieve_lab.traces.serving.invocations` takes them.

    The others are those of `gpu.run`.

    Returns
    -------
    dict
        ``traces``: per name its invocations and their sums, from `total`.
    """
    device = tasks.require_device()
    fill = scores.source_of(source)
    loaded, skipped = peers.available(peer_names)
    ask = Ask(k, "float32", [PLANNED, *variants], loaded, rounds, torch_rounds)
    asked = {
        name: invocations(
            prompt, step_tokens=step_tokens, budget_bytes=budget_bytes, decode_steps=decode_steps, batch=batch
        )
        for name, prompt in prompts.items()
    }
    cases = [(name, number, call) for name, calls in asked.items() for number, call in enumerate(calls)]
    results = gpu.over(cases, lambda case: _case(case, fill, seed, ask, device), progress, each)
    settings = {
        "prompts": dict(prompts), "k": k, "step_tokens": step_tokens, "budget_bytes": budget_bytes,
        "decode_steps": decode_steps, "batch": batch, "lengths": "causal", "scores": gpu.source_name(source),
        "dtype": "float32", "rounds": rounds, "seed": seed,
    }  # fmt: skip
    traces = {}
    for name, prompt in prompts.items():
        own = [result for result in results if result["trace"] == name]
        traces[name] = {"prompt": prompt, "invocations": own} | total(own)
    return record.payload("trace", settings, {"traces": traces, "peers_skipped": skipped}, gpu=True)


def _case(
    case: tuple[str, int, Invocation], fill: laws.Fill, seed: int, ask: Ask, device: DeviceInfo
) -> dict[str, Any]:
    import torch

    name, number, call = case
    facts: dict[str, Any] = {
        "trace": name, "step": call.step, "phase": call.phase, "rows": call.rows, "width": call.width,
        "first": call.first,
    }  # fmt: skip
    matrices = tasks.allocate(call.rows, call.width, ask.dtype)
    if isinstance(matrices, str):
        return facts | {"skipped": matrices}
    lengths = torch.from_numpy(call.lengths()).to(matrices[0].device)
    for turn, matrix in enumerate(matrices):
        fill(matrix, lengths, seed + 1000 * number + turn)
    return facts | gpu.compact(gpu.measure_task(Task(matrices, lengths, ask.k), ask, device))


def total(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum a trace.

    Returns
    -------
    dict
        ``floor_us``, the sum of each invocation's fastest plain read, and per selector ``total_us`` and ``of_floor``;
        of a selector that failed or was inexact anywhere, ``inexact`` and ``failed`` counts and no sum. Nothing is
        summed of a trace with an invocation that did not fit.
    """
    if any("skipped" in result for result in results):
        return {"skipped": sum("skipped" in result for result in results)}
    floor_us = math.fsum(result["floor_us"] for result in results)
    names = dict.fromkeys(name for result in results for name in result["selectors"])
    selectors: dict[str, Any] = {}
    for name in names:
        facts = [result["selectors"].get(name, {}) for result in results]
        inexact = sum(f.get("exact") is False for f in facts)
        failed = sum("median_us" not in f for f in facts)
        if inexact or failed:
            selectors[name] = {"exact": False if inexact else None, "inexact": inexact, "failed": failed}
            continue
        spent = math.fsum(f["median_us"] for f in facts)
        selectors[name] = {"total_us": spent, "of_floor": floor_us / spent, "exact": True}
    return {"floor_us": floor_us, "selectors": selectors}
