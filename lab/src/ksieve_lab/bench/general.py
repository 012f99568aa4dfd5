"""Shapes from outside the indexer, of every dtype, beside ``torch.topk``: whether a user ever has to choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ksieve.core.problem import SCORE_DTYPES
from ksieve.planning.tune import tasks
from ksieve.planning.tune.variants import PLANNED, compile_plans
from ksieve_lab.bench import gpu, peers, record, scores
from ksieve_lab.bench.gpu import Ask, Progress, Tell
from ksieve_lab.bench.shape_lists import GENERAL

RIVAL = "torch.topk"

Case = tuple[int, int, int, str]
"""Rows, width, k and dtype."""


def cases(shapes: Sequence[tuple[int, int, int]] = GENERAL, dtypes: Sequence[str] = SCORE_DTYPES) -> list[Case]:
    """Return every shape (rows, width, k) in every dtype."""
    return [(*shape, dtype) for shape in shapes for dtype in dtypes]


def name_of(case: Mapping[str, Any]) -> str:
    """Write a case."""
    return f"{case['rows']:,} x {case['width']:,}, top {case['k']:,}"


def run(
    listed: Sequence[Case],
    *,
    source: str = "normal",
    rounds: int = 7,
    seed: int = 0,
    progress: Progress | None = None,
    each: Tell | None = None,
) -> dict[str, Any]:
    """Measure the planner's choice beside ``torch.topk(sorted=False)`` and a plain read, on whole rows.

    Parameters
    ----------
    listed : sequence of Case
    source : str
        Of the scores: "endpoint", "normal" or "factors:PATH".
    rounds, seed : int
    progress, each : callable, optional
        As in `ksieve_lab.bench.gpu.run`.

    Returns
    -------
    dict
        For `record.write_json`: every case with the time of ``torch.topk`` over that of ksieve, their
        geometric mean and least, and the cases in which ksieve is slower.

    Raises
    ------
    BackendError
        Without PyTorch or a GPU.
    """
    device, fill = tasks.require_device(), scores.source_of(source)
    loaded, _ = peers.available([RIVAL])

    def measure(case: Case) -> dict[str, Any]:
        rows, width, k, dtype = case
        ask = Ask(k, dtype, [PLANNED], loaded, rounds, rounds)
        facts = gpu.compact(gpu.measure_shape((rows, width), str(width), fill, seed, ask, device))
        found = {"rows": rows, "width": width, "k": k, "dtype": dtype} | facts
        own, rival = (facts.get("selectors", {}).get(name, {}) for name in (PLANNED.name, RIVAL))
        timed = own.get("exact") is True and "median_us" in rival
        return found | ({"times_faster": rival["median_us"] / own["median_us"]} if timed else {})

    results = gpu.over(listed, measure, progress, each)
    settings = {"cases": list(listed), "scores": gpu.source_name(source), "rounds": rounds, "seed": seed}
    return record.payload("general", settings, {"shapes": results, **summary(results)}, gpu=True)


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the geometric mean and the least of the times over ``torch.topk``, and where ksieve is slower."""
    times = [case["times_faster"] for case in results if "times_faster" in case]
    if not times:
        return {"over_torch": None, "slower": []}
    slower = [f"{name_of(case)}, {case['dtype']}" for case in results if case.get("times_faster", 1.0) < 1]
    return {"over_torch": gpu.mean_of(times), "slower": slower}


def prepare(listed: Sequence[Case], progress: Progress) -> None:
    """Compile the kernels of a `run` on all processors."""
    device = tasks.require_device()
    compile_plans([PLANNED.plan(*case, device) for case in listed], progress)
