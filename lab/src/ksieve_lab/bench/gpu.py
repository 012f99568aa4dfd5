"""Selection on a GPU against the plain-read floor and other libraries, on the same tensors in the same process."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.planning.plan import Plan
from ksieve.planning.tune import laws, tasks, timing
from ksieve.planning.tune.tasks import Task
from ksieve.planning.tune.timing import Timing
from ksieve.planning.tune.variants import PLANNED, Variant, compile_plans
from ksieve_lab.bench import floor, peers, record, scores
from ksieve_lab.bench.shape_lists import OPERATOR

Tell = Callable[[dict[str, Any]], None]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Ask:
    """Measurements to make of every case.

    Attributes
    ----------
    k : int
        0 measures plain reads alone.
    dtype : str
    variants : sequence of Variant
        Plans to time.
    loaded : sequence of (Peer, module)
        Other libraries, from `peers.available`.
    rounds : int
        Timed rounds.
    torch_rounds : int
        The same of ``torch.topk``, which is slow; 0 leaves it out.
    reads : bool
        Whether plain reads are timed too.
    judged : int or None
        Input sets whose answers are verified, of every variant but the planner's; None means all.
    """

    k: int
    dtype: str = "float32"
    variants: Sequence[Variant] = (PLANNED,)
    loaded: Sequence[tuple[peers.Peer, Any]] = field(default=())
    rounds: int = 7
    torch_rounds: int = 3
    reads: bool = True
    judged: int | None = None


def run(
    shapes: Sequence[tuple[int, int]] = OPERATOR,
    k: int = 2048,
    *,
    lengths: str = "causal",
    dtype: str = "float32",
    source: str = "endpoint",
    variants: Sequence[Variant] = (),
    peer_names: Iterable[str] | None = None,
    rounds: int = 7,
    torch_rounds: int = 3,
    seed: int = 0,
    name: str = "gpu",
    progress: Progress | None = None,
    each: Tell | None = None,
) -> dict[str, Any]:
    """Measure the planner's choice, other plans, and other libraries.

    Parameters
    ----------
    shapes : sequence of (rows, width)
    k : int
    lengths : str
        A name of `ksieve_lab.workloads.lengths.LENGTHS`, or a number that all rows have.
    dtype : str
    source : str
        Of the scores: "endpoint", "normal" or "factors:PATH".
    variants : sequence of Variant
        Further plans to time.
    peer_names : iterable of str, optional
        Other libraries; None means every one that is installed.
    rounds, torch_rounds : int
        Timed rounds; of ``torch.topk``, which reads whole rows, fewer (0 leaves it out).
    seed : int
    name : str
        Of the bench, for the result file.
    progress : callable, optional
        Called as ``progress(shapes done, shapes in all)``.
    each : callable, optional
        Called with the results of every shape as it is done.

    Returns
    -------
    dict
        For `record.write_json`; a shape that does not fit into memory is listed with the reason.

    Raises
    ------
    BackendError
        Without PyTorch or a GPU.
    """
    device = tasks.require_device()
    fill = scores.source_of(source)
    loaded, skipped = peers.available(peer_names)
    ask = Ask(k, dtype, [PLANNED, *variants], loaded, rounds, torch_rounds)

    def reduced(shape: tuple[int, int]) -> dict[str, Any]:
        return compact(measure_shape(shape, lengths, fill, seed, ask, device))

    results = over(shapes, reduced, progress, each)
    settings = {
        "shapes": list(shapes), "k": k, "lengths": lengths, "dtype": dtype, "scores": source_name(source),
        "rounds": rounds, "seed": seed,
    }  # fmt: skip
    found = {"shapes": results, **summary(results), "peers_skipped": skipped}
    return record.payload(name, settings, found, gpu=True)


def prepare(
    shapes: Sequence[tuple[int, int]], k: int, *, dtype: str, variants: Sequence[Variant], progress: Progress
) -> None:
    """Compile the kernels of a `run` on all processors; its arguments are as there."""
    device, plans = tasks.require_device(), []
    for (rows, width), variant in itertools.product(shapes, [PLANNED, *variants]):
        with contextlib.suppress(ArgumentError):  # the run says so
            plans.append(variant.plan(rows, width, k, dtype, device))
    compile_plans(plans, progress)


def run_floor(
    shapes: Sequence[tuple[int, int]],
    *,
    lengths: str = "causal",
    dtype: str = "float32",
    rounds: int = 7,
    seed: int = 0,
    progress: Progress | None = None,
    each: Tell | None = None,
) -> dict[str, Any]:
    """Measure every plain-read kernel over the valid prefixes alone; arguments as in `run`."""
    device, ask = tasks.require_device(), Ask(0, dtype, (), rounds=rounds, torch_rounds=0)
    fill = laws.endpoint_structured
    results = over(shapes, lambda shape: measure_shape(shape, lengths, fill, seed, ask, device), progress, each)
    settings = {"shapes": list(shapes), "lengths": lengths, "dtype": dtype, "rounds": rounds, "seed": seed}
    return record.payload("floor", settings, {"shapes": results}, gpu=True)


def over(
    cases: Sequence[Any], measure: Callable[[Any], dict[str, Any]], progress: Progress | None, each: Tell | None
) -> list[dict[str, Any]]:
    """Measure cases in turn, and report progress and results."""
    results = []
    for done, case in enumerate(cases):
        if progress is not None:
            progress(done, len(cases))
        results.append(measure(case))
        if each is not None:
            each(results[-1])
    if progress is not None:
        progress(len(cases), len(cases))
    return results


def source_name(source: str) -> str:
    """Source of scores as a result file names it: without folders."""
    kind, colon, path = source.partition(":")
    return f"{kind}{colon}{Path(path).name}" if colon else kind


def measure_shape(
    shape: tuple[int, int], lengths_kind: str, fill: laws.Fill, seed: int, ask: Ask, device: DeviceInfo
) -> dict[str, Any]:
    """Measure one shape on scores and lengths made here."""
    rows, width = shape
    facts: dict[str, Any] = {"rows": rows, "width": width}
    lengths = scores.lengths_of(lengths_kind, rows, width, seed, "cpu")
    matrices = tasks.allocate(rows, width, ask.dtype, valid=tasks.valid_scores(lengths, width))
    if isinstance(matrices, str):
        return facts | {"skipped": matrices}
    lengths = lengths.to(matrices[0].device)
    for number, matrix in enumerate(matrices):
        fill(matrix, lengths, seed + number)
    return facts | measure_task(Task(matrices, lengths, ask.k), ask, device)


def measure_task(task: Task, ask: Ask, device: DeviceInfo) -> dict[str, Any]:
    """Time plain reads, plans and peers on one task, in rotated rounds.

    Returns
    -------
    dict
        ``floor_us`` and how it was read, every plain read, and of every selector its times, whether its answers were
        exact, and the floor divided by its median; ``fastest`` is the fastest exact one.
    """
    contenders = floor.contenders(list(task.matrices), task.lengths, device) if ask.reads else []
    reads = len(contenders)
    plans: dict[str, Plan | str] = {}
    for variant in ask.variants:
        try:
            plans[variant.name] = plan = variant.plan(task.rows, task.width, task.k, ask.dtype, device)
        except ArgumentError as error:
            plans[variant.name] = str(error)
        else:
            contenders.append(tasks.selector(variant, plan, task, ask.judged))
    refused: dict[str, str] = {}
    for peer, module in ask.loaded:
        slow = peer.name == "torch.topk"
        if slow and not ask.torch_rounds:
            continue
        try:
            contenders.append(peers.contender(peer, module, task, ask.torch_rounds if slow else None))
        except peers.UnsupportedError as error:
            refused[peer.name] = str(error)
    read_bytes = tasks.valid_scores(task.lengths, task.width) * task.matrices[0].element_size()
    times = timing.measure(contenders, len(task.matrices), read_bytes, rounds=ask.rounds)
    facts: dict[str, Any] = {"input_sets": len(task.matrices), "read_bytes": read_bytes}
    least = min((t for t in times[:reads] if t.rounds), key=lambda t: t.median, default=Timing("none"))
    if ask.reads:
        facts |= {
            "floor_us": least.median,
            "floor_kernel": least.name,
            "floor_terabytes_per_second": read_bytes / least.median / 1e6,
            "reads": {t.name: t.facts() for t in times[:reads]},
        }
    selectors = {
        t.name: t.facts() | ({"of_floor": least.median / t.median} if ask.reads else {}) for t in times[reads:]
    }
    for name, made in plans.items():
        selectors[name] = (
            {"error": made, "exact": None} if isinstance(made, str) else selectors[name] | plan_facts(made)
        )
    selectors |= {name: {"unsupported": reason, "exact": None} for name, reason in refused.items()}
    for name in [peer.name for peer, _ in ask.loaded if peer.name in selectors]:
        selectors[name]["peer"] = True
    return facts | {"selectors": selectors, "fastest": fastest(selectors)}


def compact(facts: dict[str, Any]) -> dict[str, Any]:
    """Keep of a case what a result file has: no plain read but the fastest, and of a plan the choice."""
    kept = (
        "median_us",
        "min_us",
        "spread",
        "exact",
        "error",
        "unsupported",
        "of_floor",
        "of_plain",
        "peer",
        "family",
        "policy",
        "splits",
    )
    slim = {key: value for key, value in facts.items() if key != "reads"}
    if "selectors" in facts:
        slim["selectors"] = {
            name: {key: one[key] for key in kept if key in one} for name, one in facts["selectors"].items()
        }
    return slim


def fastest(
    selectors: Mapping[str, Mapping[str, Any]], among: Callable[[Mapping[str, Any]], bool] | None = None
) -> str | None:
    """Name of the fastest selector whose answers were exact, of those that `among` holds for; None without any."""
    exact = {
        name: facts["median_us"]
        for name, facts in selectors.items()
        if facts.get("exact") is True and "median_us" in facts and (among is None or among(facts))
    }
    return min(exact, key=lambda name: exact[name]) if exact else None


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Choice of a plan."""
    policy = plan.policy.name if plan.policy else "direct"
    return {"family": plan.family, "splits": plan.splits, "policy": policy}


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise the shapes.

    Returns
    -------
    dict
        ``of_floor``: geometric mean and least fraction of the floor per selector, over the shapes it was exact on.
        ``over_best_peer``: how many times as fast as the fastest exact peer the planner's choice is, over the shapes
        with both; None without peers. ``inexact``: shapes with a wrong answer per selector.
    """
    by_name: dict[str, list[float]] = {}
    inexact: dict[str, int] = {}
    over_peer: list[float] = []
    for shape in results:
        selectors = shape.get("selectors", {})
        for name, facts in selectors.items():
            if facts.get("exact") is False:
                inexact[name] = inexact.get(name, 0) + 1
            elif "of_floor" in facts and math.isfinite(facts["of_floor"]):
                by_name.setdefault(name, []).append(facts["of_floor"])
        best = fastest(selectors, lambda facts: bool(facts.get("peer")))
        own = selectors.get(PLANNED.name, {})
        if best is not None and own.get("exact") is True:
            over_peer.append(selectors[best]["median_us"] / own["median_us"])
    return {
        "of_floor": {name: mean_of(shares) for name, shares in by_name.items()},
        "over_best_peer": mean_of(over_peer) if over_peer else None,
        "inexact": inexact,
    }


def mean_of(values: Sequence[float]) -> dict[str, Any]:
    """Geometric mean and least of positive numbers, and how many there are."""
    mean = math.exp(sum(map(math.log, values)) / len(values))
    return {"geometric_mean": mean, "least": min(values), "shapes": len(values)}
