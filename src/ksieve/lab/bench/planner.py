"""The planner against every alternative to its choice: forced families, policies and split counts over a grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ksieve import api
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.core.policy import POLICIES
from ksieve.lab.bench import gpu, record, scores
from ksieve.lab.bench.gpu import Ask, Progress, Tell
from ksieve.lab.bench.variants import PLANNED, Variant, compile_plans
from ksieve.planning import shapes, thresholds
from ksieve.planning.families import ONE_CTA, SAMPLED, SHARED_ROWS, former
from ksieve.planning.plan import Plan

GRID = tuple(
    (m, n)
    for n in (4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
    for m in (1, 4, 16, 64, 128, 256, 512, 1024, 4096)
)
"""Rows from one to a device full many times over, widths at and between every threshold."""

FEW_ROWS = 256
"""Up to so many rows lengths are those of a decode batch, beyond it those of a prefill."""

WAVES = 2
"""Splits are tried up to so many resident sets of CTAs: more only queue."""

SHORTEST_SEGMENT = 2048
"""Fewest scores per CTA that a split is tried with."""

PAPER = tuple(name for name in POLICIES if name.startswith("paper"))
"""Policies that reproduce the paper; the planner never chooses between them."""


def alternatives(rows: int, width: int, k: int, dtype: str, device: DeviceInfo) -> Iterator[Variant]:
    """Forced plans worth timing at a shape, each another kernel, policy or split than all before it.

    Parameters
    ----------
    rows, width, k : int
    dtype : str
    device : DeviceInfo

    Yields
    ------
    Variant
        Named by its `key`.
    """
    seen = {key(PLANNED.plan(rows, width, k, dtype, device))}
    for family in shapes.families():
        sampled = family in SAMPLED
        for policy in [name for name in POLICIES if name not in PAPER] if sampled else [None]:
            for splits in _splits(rows, width, device) if family == "stream_split" else [None]:
                try:
                    plan = api.plan(
                        rows=rows, width=width, k=k, dtype=dtype, device=device, family=family, policy=policy,
                        splits=splits,
                    )  # fmt: skip
                except ArgumentError:
                    continue  # the device or the shape rules it out
                if not _sensible(plan) or key(plan) in seen:
                    continue
                seen.add(key(plan))
                changes = (("splits", splits),) if splits is not None else ()
                yield Variant(key(plan), family, policy, changes=changes)


def _splits(rows: int, width: int, device: DeviceInfo) -> list[int]:
    slots = device.sm_count * shapes.of(device).usual["stream_split"].ctas_per_sm
    return [s for s in sorted(thresholds.SPLITS) if rows * s <= WAVES * slots and width >= s * SHORTEST_SEGMENT]


def _sensible(plan: Plan) -> bool:
    """Whether a forced plan can win at all: direct routes stream long rows several times."""
    rows, width = plan.problem.rows, plan.problem.width
    if plan.family in ONE_CTA:
        return width <= 2 * plan.resident_width
    if plan.family in SHARED_ROWS:
        return rows * plan.splits <= 2 * plan.device.sm_count and (plan.resident_width > 0 or width <= 262_144)
    return plan.policy is not None or width <= 131_072


def key(plan: Plan) -> str:
    """Name of a plan's choices: family, policy and CTAs per row."""
    policy = plan.policy.name if plan.policy else "direct"
    return f"{plan.family} {policy}" + (f" x{plan.splits}" if plan.splits > 1 else "")


def prepare(shapes: Sequence[tuple[int, int]], k: int, *, dtype: str = "float32", progress: Progress) -> None:
    """Compile the kernels of a `run` on all processors; its arguments are as there."""
    device = gpu.require_device()
    plans = (
        variant.plan(*shape, k, dtype, device)
        for shape in shapes
        for variant in (PLANNED, *alternatives(*shape, k, dtype, device))
    )
    compile_plans(plans, progress)


def run(
    shapes: Sequence[tuple[int, int]] = GRID,
    k: int = 2048,
    *,
    dtype: str = "float32",
    source: str = "endpoint",
    rounds: int = 7,
    seed: int = 0,
    progress: Progress | None = None,
    each: Tell | None = None,
) -> dict[str, Any]:
    """Time the planner's choice and every alternative.

    Every answer of the choice is verified, and the first of every alternative. Arguments as in `gpu.run`.

    Returns
    -------
    dict
        ``shapes``: each with ``choice`` (a `key`) and the selectors by key. ``of_best``: geometric mean and least of
        the best exact time over the choice's.
    """
    device = gpu.require_device()
    fill = scores.source_of(source)

    def measure(shape: tuple[int, int]) -> dict[str, Any]:
        rows, width = shape
        others = list(alternatives(rows, width, k, dtype, device))
        ask = Ask(k, dtype, [PLANNED, *others], (), rounds, 0, reads=False, judged=1)
        lengths = "ragged" if rows <= FEW_ROWS else "causal"
        if rows > width:
            lengths = "ragged"
        found = gpu.compact(gpu.measure_shape(shape, lengths, fill, seed, ask, device))
        choice = key(PLANNED.plan(rows, width, k, dtype, device))
        if "selectors" in found:
            own = found["selectors"].pop(PLANNED.name)
            found["selectors"] = {choice: own} | found["selectors"]
            found["fastest"] = gpu.fastest(found["selectors"])
        return found | {"choice": choice, "lengths": lengths}

    results = gpu.over(shapes, measure, progress, each)
    settings = {
        "shapes": list(shapes), "k": k, "dtype": dtype, "lengths": "ragged, causal", "device": device.name,
        "scores": gpu.source_name(source), "rounds": rounds, "seed": seed,
    }  # fmt: skip
    return record.payload("planner", settings, {"shapes": results, "of_best": of_best(results)}, gpu=True)


def share_of_best(shape: dict[str, Any], chosen: str) -> float:
    """Best exact time at a measured shape over that of a choice.

    Raises
    ------
    KeyError
        If the choice was not measured there, or not exact.
    """
    selectors = shape["selectors"]
    best = gpu.fastest(selectors)
    asked = chosen
    if chosen not in selectors:  # a file of before the families had their names
        family, _, rest = chosen.partition(" ")
        chosen = f"{former(family)} {rest}"
    if best is None or selectors.get(chosen, {}).get("exact") is not True:
        raise KeyError(asked)
    return float(selectors[best]["median_us"] / selectors[chosen]["median_us"])


def of_best(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean and least of the best time over the choice's, and the shapes where the choice loses over 5 %."""
    shares = {
        f"{shape['rows']}x{shape['width']}": share_of_best(shape, shape["choice"])
        for shape in results
        if "selectors" in shape and shape["selectors"][shape["choice"]].get("exact") is True
    }
    if not shares:
        return {"shapes": 0}
    return gpu.mean_of(list(shares.values())) | {
        "worse_than_5_percent": {name: share for name, share in shares.items() if share < 1 / 1.05}
    }
