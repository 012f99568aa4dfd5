"""Selection on a GPU against the plain read and other libraries, on the same tensors in the same process.

A `Case` says what a selection has as its input; the benches of shapes are lists of cases, and what is told of them all.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.installation import install_command
from ksieve.planning.plan import Plan
from ksieve.tuning import tasks, timing
from ksieve.tuning.tasks import Task
from ksieve.tuning.timing import Contender, Timing
from ksieve.tuning.variants import PLANNED, Variant
from ksieve_lab.bench import adversarial_gpu as hard
from ksieve_lab.bench import floor, peers, runner, scores
from ksieve_lab.bench.engine_calls import UnsupportedError
from ksieve_lab.bench.runner import Facts, Live, Settings
from ksieve_lab.traces.serving import invocations


@dataclass(frozen=True)
class Case:
    """Input of a selection.

    `lengths`: a kind of lengths, a number that all rows have, or an array of them. `family`: of adversarial scores; ""
    for the scores of the run. The scores of cases with another `number` are others. `names`: further ones of the case,
    in the result file. `calls`: names of options that are asked for, of a bench of options.
    """

    rows: int
    width: int
    k: int
    dtype: str = "float32"
    lengths: Any = "causal"
    family: str = ""
    number: int = 0
    names: Mapping[str, Any] = field(default_factory=dict)
    calls: tuple[str, ...] = ()

    @property
    def ask(self) -> tuple[int, int, int, str]:
        """What a plan is made of."""
        return self.rows, self.width, self.k, self.dtype


@dataclass(frozen=True)
class Here:
    """What the cases of a run share: device or "cpu", options, other libraries, and the law of the scores."""

    device: Any
    settings: Settings
    loaded: Sequence[tuple[peers.Peer, peers.Own]]
    law: scores.Fill


def by_case(
    settings: Settings, live: Live, *, results: Callable[..., Facts],
    measure: Callable[[Any, Here], Facts] | None = None, written: Callable[[Settings], Facts] = lambda settings: {},
    plans: Callable[[Any, Here], Iterable[Callable[[], Plan]]] | None = None,
) -> Facts:  # fmt: skip
    """Measure the cases of a bench, on a GPU unless the bench is one of the CPU; returns the payload of a result file.

    `results`: ``results(found, settings)`` returns the results of the file, from the facts of all cases; a case that
    does not fit into memory has the reason. `measure`: ``measure(case, here)`` returns the facts of a case; default:
    `measure_case`. `written`: further settings for the file; None drops one. `plans`: ``plans(case, here)`` makes
    functions that make the plans of a case; default: `plans_of`. Raises `BackendError` without PyTorch, or a GPU where
    the bench needs one.
    """
    device, listed = device_of(settings), settings.bench.cases(settings)
    law = scores.source_of(settings.scores) if settings.scores else tasks.endpoint_structured
    loaded, skipped = peers.available(settings.peers)
    here = Here(device, settings, loaded, law)
    if device != "cpu":
        runner.compiled((plan for case in listed for plan in (plans or plans_of)(case, here)), live)
    with live.phase("measuring", "cases") as progress:
        found = runner.over(listed, lambda case: (measure or measure_case)(case, here), progress, live.each)
    told = {"peers_skipped": skipped} if settings.bench.peers else {}
    return settings.payload(results(found, settings) | told, gpu=device != "cpu", **written(settings))


def device_of(settings: Settings) -> Any:
    """The GPU at hand, or "cpu" for a bench of the CPU, which makes its inputs with PyTorch too."""
    if settings.fixed.get("device") != "cpu":
        return tasks.require_device()
    if importlib.util.find_spec("torch") is None:
        raise BackendError(f"the bench makes its inputs with PyTorch: {install_command('torch')}")
    return "cpu"


def plans_of(case: Case, here: Here) -> Iterator[Callable[[], Plan]]:
    """Plans that a case is measured with."""
    for variant in (PLANNED, *here.settings.variants) if case.k else ():
        yield partial(variant.plan, *case.ask, here.device)


def lengths_of(case: Case, seed: int) -> Any:
    """Lengths of a case, on the host."""
    import torch

    if isinstance(case.lengths, str):
        return scores.lengths_of(case.lengths, case.rows, case.width, seed, "cpu")
    return torch.from_numpy(case.lengths)


def filled(case: Case, here: Here) -> Task | str:
    """Input sets of a case, or why there is no room."""
    seed = here.settings.seed
    lengths = lengths_of(case, seed)
    matrices = tasks.allocate(case.rows, case.width, case.dtype, valid=tasks.valid_scores(lengths, case.width))
    if isinstance(matrices, str):
        return matrices
    lengths = lengths.to(matrices[0].device)
    law = here.law
    if case.family:
        policy = PLANNED.plan(*case.ask, here.device).policy
        law = lambda matrix, valid, own: hard.fill(case.family, matrix, valid, case.k, policy, own)  # noqa: E731
    for turn, matrix in enumerate(matrices):
        law(matrix, lengths, seed + 1000 * case.number + turn)
    return Task(matrices, lengths, case.k)


def measure_case(case: Case, here: Here) -> Facts:
    """Time plain reads, the planner's choice, other plans and other libraries on one case."""
    facts: Facts = {"rows": case.rows, "width": case.width, **case.names}
    task, settings = filled(case, here), here.settings
    if isinstance(task, str):
        return facts | {"skipped": task}
    variants = (PLANNED, *settings.variants) if case.k else ()
    return facts | measure_task(
        task, variants, here.loaded, here.device, rounds=settings.rounds, torch_rounds=settings.torch_rounds
    )


def measure_task(
    task: Task, variants: Sequence[Variant], loaded: Sequence[tuple[peers.Peer, peers.Own]], device: DeviceInfo, *,
    rounds: int, torch_rounds: int = 0,
) -> Facts:  # fmt: skip
    """Time plain reads, plans and peers on one task, in rotated rounds; ``torch.topk``, which is slow, in its own.

    Returns ``floor_us`` and how it was read, and of every selector its times, whether its answers were exact, and the
    floor divided by its median.
    """
    dtype = str(task.matrices[0].dtype).removeprefix("torch.")
    reads = floor.contenders(list(task.matrices), task.lengths, device)
    contenders: list[Contender] = []
    plans: dict[str, Plan | str] = {}
    for variant in variants:
        try:
            plans[variant.name] = plan = variant.plan(task.rows, task.width, task.k, dtype, device)
        except ArgumentError as error:
            plans[variant.name] = str(error)
        else:
            contenders.append(tasks.selector(variant, plan, task))
    refused: dict[str, str] = {}
    for peer, own in loaded:
        slow = peer.name == "torch.topk"
        if slow and not torch_rounds:
            continue
        try:
            contenders.append(peers.contender(peer, own, task, torch_rounds if slow else None))
        except UnsupportedError as error:
            refused[peer.name] = str(error)
    read_bytes = tasks.valid_scores(task.lengths, task.width) * task.matrices[0].element_size()
    facts, selectors = timed(reads, contenders, len(task.matrices), read_bytes, rounds=rounds)
    facts["floor_terabytes_per_second"] = read_bytes / facts["floor_us"] / 1e6
    for name, made in plans.items():
        selectors[name] = (
            {"error": made, "exact": None} if isinstance(made, str) else selectors[name] | plan_facts(made)
        )
    selectors |= {name: {"unsupported": reason, "exact": None} for name, reason in refused.items()}
    for name in [peer.name for peer, _ in loaded if peer.name in selectors]:
        selectors[name]["peer"] = True
    return facts | {"selectors": selectors}


def timed(
    reads: Sequence[Contender], contenders: Sequence[Contender], sets: int, read_bytes: int, *, rounds: int,
    clock: Callable[..., list[Timing]] | None = None,
) -> tuple[Facts, dict[str, Facts]]:  # fmt: skip
    """Time plain reads and contenders in rotated rounds.

    Returns the fastest read and its time. Of every contender it returns the times, whether its answers were exact, and
    the fastest read over its median.
    """
    times = (clock or timing.measure)([*reads, *contenders], sets, read_bytes, rounds=rounds)
    own, others = times[: len(reads)], times[len(reads) :]
    least = min((t for t in own if t.rounds), key=lambda t: t.median, default=Timing("none"))
    facts: Facts = {
        "input_sets": sets, "read_bytes": read_bytes, "floor_us": least.median, "floor_kernel": least.name,
    }  # fmt: skip
    return facts, {t.name: t.facts() | {"of_floor": least.median / t.median} for t in others}


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Choice of a plan."""
    policy = plan.policy.name if plan.policy else "direct"
    return {"family": plan.family, "splits": plan.splits, "policy": policy}


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric mean and least fraction of the floor per selector, over the shapes it was exact on."""
    by_name: dict[str, list[float]] = {}
    for name, facts in (pair for shape in results for pair in shape.get("selectors", {}).items()):
        if facts.get("exact") is not False and math.isfinite(facts.get("of_floor", math.nan)):
            by_name.setdefault(name, []).append(facts["of_floor"])
    return {name: mean_of(shares) for name, shares in by_name.items()}


def mean_of(values: Sequence[float]) -> dict[str, Any]:
    """Geometric mean and least of positive numbers, and how many there are."""
    mean = math.exp(sum(map(math.log, values)) / len(values))
    return {"geometric_mean": mean, "least": min(values), "shapes": len(values)}


# ---- the benches of shapes --------------------------------------------------------------------------------


def of_shapes(settings: Settings) -> list[Case]:
    """Shapes in one dtype, with lengths of one kind."""
    shapes = {f"{rows}x{width}": (rows, width) for rows, width in settings.shapes.items}
    return [
        Case(*shapes[name], settings.k, settings.dtype, settings.shapes.how) for name in settings.chosen(shapes)
    ]  # fmt: skip


def found_shapes(found: Sequence[Facts], settings: Settings) -> Facts:
    """Results of `of_shapes`."""
    return {"shapes": list(found), "of_floor": summary(found)}


def of_everything(settings: Settings) -> list[Case]:
    """Shapes with their own k, in every dtype, whole rows."""
    chosen = settings.chosen(dict.fromkeys(f"{rows}x{width}" for rows, width, _ in settings.shapes.items))
    return [
        Case(rows, width, k, dtype, str(width), names={"k": k, "dtype": dtype})
        for rows, width, k in settings.shapes.items
        if f"{rows}x{width}" in chosen
        for dtype in settings.dtypes
    ]


RIVAL = "torch.topk"


def found_general(found: Sequence[Facts], settings: Settings) -> Facts:
    """Results of `of_everything`: times of ``torch.topk`` over ours, and the cases in which ours is slower."""
    for case in found:
        own, rival = (case.get("selectors", {}).get(name, {}) for name in (PLANNED.name, RIVAL))
        if own.get("exact") is True and "median_us" in rival:
            case["times_faster"] = rival["median_us"] / own["median_us"]
    times = {
        f"{case['rows']:,} x {case['width']:,}, top {case['k']:,}, {case['dtype']}": case["times_faster"]
        for case in found
        if "times_faster" in case
    }
    over = mean_of(list(times.values())) if times else None
    return {"shapes": list(found), "over_torch": over, "slower": [name for name, share in times.items() if share < 1]}


def of_families(settings: Settings) -> list[Case]:
    """Every adversarial family on every shape; families aim at the policy that the planner takes there."""
    chosen = settings.chosen(hard.FAMILIES)
    return [
        Case(rows, width, settings.k, lengths=settings.shapes.how, family=family, names={"family": family})
        for rows, width in settings.shapes.items
        for family in chosen
    ]


def found_worst(found: Sequence[Facts], settings: Settings) -> Facts:
    """Results of `of_families`, and of every family and selector the largest time over the floor, and its shape."""
    largest: dict[str, dict[str, Facts]] = {}
    for case in found:
        family = largest.setdefault(case["family"], {})
        for name, facts in case.get("selectors", {}).items():
            if facts.get("exact") is not True or not facts.get("of_floor"):
                continue
            ratio = 1 / facts["of_floor"]
            if ratio > family.get(name, {"ratio": 0.0})["ratio"]:
                family[name] = {"ratio": ratio, "rows": case["rows"], "width": case["width"]}
    return {"cases": list(found), "worst": largest}


def of_requests(settings: Settings) -> list[Case]:
    """Every selection that serving long prompts takes."""
    cases = []
    for name, prompt in settings.shapes.items:
        for number, call in enumerate(invocations(prompt, **settings.fixed)):
            names = {"trace": name, "step": call.step, "phase": call.phase, "first": call.first}
            cases.append(Case(call.rows, call.width, settings.k, lengths=call.lengths(), number=number, names=names))
    return cases


def found_traces(found: Sequence[Facts], settings: Settings) -> Facts:
    """Results of `of_requests`, summed for each prompt."""
    traces = {}
    for name, prompt in settings.shapes.items:
        own = [case for case in found if case["trace"] == name]
        traces[name] = {"prompt": prompt, "invocations": own} | total(own)
    return {"traces": traces}


def total(results: Sequence[Mapping[str, Any]]) -> Facts:
    """Sum a trace.

    Returns ``floor_us``, the sum of each invocation's fastest plain read, and per selector ``total_us`` and
    ``of_floor``. A selector that failed or was inexact anywhere has none. Nothing is summed of a trace with an
    invocation that did not fit.
    """
    if any("skipped" in result for result in results):
        return {"skipped": sum("skipped" in result for result in results)}
    floor_us = math.fsum(result["floor_us"] for result in results)
    names = dict.fromkeys(name for result in results for name in result["selectors"])
    selectors: dict[str, Any] = {}
    for name in names:
        facts = [result["selectors"].get(name, {}) for result in results]
        if not all("median_us" in f and f.get("exact") is not False for f in facts):
            selectors[name] = {"exact": False if any(f.get("exact") is False for f in facts) else None}
            continue
        spent = math.fsum(f["median_us"] for f in facts)
        selectors[name] = {"total_us": spent, "of_floor": floor_us / spent, "exact": True}
    return {"floor_us": floor_us, "selectors": selectors}
