"""The worst case: every adversarial family against the floor of its shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.planning.tune import tasks
from ksieve.planning.tune.tasks import Task
from ksieve.planning.tune.variants import PLANNED, Variant
from ksieve_lab.bench import adversarial_gpu as hard
from ksieve_lab.bench import gpu, peers, record, scores
from ksieve_lab.bench.gpu import Ask, Progress, Tell

SHAPES = ((512, 131_072), (1024, 262_144), (512, 1_048_576), (4096, 65_536), (4096, 49_152), (4096, 16_384))
"""Enough rows to fill a device, over the widths at which the planner changes its mind."""


def run(
    shapes: Sequence[tuple[int, int]] = SHAPES,
    k: int = 2048,
    *,
    families: Sequence[str] | None = None,
    lengths: str = "causal",
    variants: Sequence[Variant] = (),
    peer_names: Iterable[str] | None = None,
    rounds: int = 5,
    torch_rounds: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
    each: Tell | None = None,
) -> dict[str, Any]:
    """Time every family of `hard.FAMILIES` on every shape, next to the plain reads of the same rows.

    Periodic families have the period of the policy that the planner takes at that shape, and others aim at the very
    positions that it samples. Other arguments as in `gpu.run`.

    Returns
    -------
    dict
        ``cases``: one entry per shape and family. ``worst``: per family, the largest ratio to the floor that each
        selector reached over the shapes, and where.

    Raises
    ------
    ArgumentError
        If a family is unknown.
    """
    chosen = list(families or hard.FAMILIES)
    for family in chosen:
        if family not in hard.FAMILIES:
            raise ArgumentError("families", repr(family), f"names of {', '.join(hard.FAMILIES)}")
    device = tasks.require_device()
    loaded, skipped = peers.available(peer_names)
    ask = Ask(k, "float32", [PLANNED, *variants], loaded, rounds, torch_rounds)
    cases = [(shape, family) for shape in shapes for family in chosen]
    results = gpu.over(cases, lambda case: _case(case, lengths, seed, ask, device), progress, each)
    settings = {
        "shapes": list(shapes), "families": chosen, "k": k, "lengths": lengths, "dtype": "float32", "rounds": rounds,
        "seed": seed,
    }  # fmt: skip
    found = {"cases": results, "worst": worst(results), "peers_skipped": skipped}
    return record.payload("worst", settings, found, gpu=True)


def _case(
    case: tuple[tuple[int, int], str], lengths_kind: str, seed: int, ask: Ask, device: DeviceInfo
) -> dict[str, Any]:
    (rows, width), family = case
    facts: dict[str, Any] = {"rows": rows, "width": width, "family": family}
    matrices = tasks.allocate(rows, width, ask.dtype)
    if isinstance(matrices, str):
        return facts | {"skipped": matrices}
    policy = PLANNED.plan(rows, width, ask.k, ask.dtype, device).policy
    lengths = scores.lengths_of(lengths_kind, rows, width, seed, matrices[0].device)
    for number, matrix in enumerate(matrices):
        hard.fill(family, matrix, lengths, ask.k, policy, seed + number)
    return facts | gpu.compact(gpu.measure_task(Task(matrices, lengths, ask.k), ask, device))


def worst(cases: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Largest time over the floor per family and selector, exact answers alone, with the shape it was met at."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for case in cases:
        family = found.setdefault(case["family"], {})
        for name, facts in case.get("selectors", {}).items():
            if facts.get("exact") is not True or not facts.get("of_floor"):
                continue
            ratio = 1 / facts["of_floor"]
            if ratio > family.get(name, {"ratio": 0.0})["ratio"]:
                family[name] = {"ratio": ratio, "rows": case["rows"], "width": case["width"]}
    return found
