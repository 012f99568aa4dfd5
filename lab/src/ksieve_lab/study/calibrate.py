"""Which sampling policy suits a model's scores, how often it will fail, and whether that comes true.

The rows of the captures are cut into blocks of consecutive rows. Every second block is calibrated on. For each view and
each sample rank, the boundary of every phase is looked up in the complete row. That gives the probability of underfill
and the candidates admitted. The cheapest combination by the device's cost model is recommended. The other blocks are
held back and selected with it by the CPU backend, whose routes are then set against the prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve import api, dispatch
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError
from ksieve.core.policy import SamplingPolicy
from ksieve.core.stats import Stats
from ksieve_lab.bench import record
from ksieve_lab.captures.format import Capture
from ksieve_lab.read_counts import check_traffic, expected_traffic
from ksieve_lab.study.costs import DEVICE_COSTS, DeviceCost
from ksieve_lab.study.measure import KEPT
from ksieve_lab.study.predict import (
    QUANTITIES,
    SLACK,
    Sample,
    Tried,
    capacities,
    cheapest,
    predict,
    sample_ranks,
    shapes,
    try_row,
)
from ksieve_lab.study.ranked import check_backend, ranked_rows, require_cuda
from ksieve_lab.study.rows import ROWS, eligible_rows, read_blocks
from ksieve_lab.study.run import suggested_k
from ksieve_lab.study.views import statistics_sizes

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

BLOCKS = 32
"""Blocks of consecutive rows per capture: half to calibrate on, half held back."""

LEAST_ROWS = 16
"""Eligible rows that a capture needs: fewer say nothing about rates."""


def calibrate(
    captures: Sequence[Capture],
    k: int | None = None,
    *,
    device: str | DeviceCost = "h200",
    rows: int | None = ROWS,
    backend: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[SamplingPolicy, dict[str, Any]]:
    """Recommend a sampling policy, predict its costs, and check the prediction on held-back rows.

    Returns the policy, and the payload of a result file. It has predictions for three: the ``chosen`` policy, the
    planner's ``default`` (None where it would not sample), and every view's best policy (``ranking``, cheapest first).
    ``realised`` are the quantities on the held-back rows, as the CPU backend met them; ``came_true`` says which lie in
    their predicted intervals.

    `k`: by default the K stored in the captures. `device`: the one to calibrate for, its cost model or its name in
    `costs.DEVICE_COSTS`. `rows`: at most so many of each capture; None takes all. `backend`: "cpu" or "cuda", where
    rows are ranked. `progress` is called as ``progress(rows done, rows in all)``, held-back rows included. Raises
    `ArgumentError` before anything is measured.
    """
    if not captures:
        raise ArgumentError("captures", "none", "at least one capture")
    slots = suggested_k(captures, k)
    check_backend(backend)
    if isinstance(device, str) and device.lower() not in DEVICE_COSTS:
        raise ArgumentError("device", repr(device), f"one of {', '.join(DEVICE_COSTS)}")
    model = DEVICE_COSTS[device.lower()] if isinstance(device, str) else device
    parts = [split_rows(capture, slots, rows) for capture in captures]
    shortest = min(int(capture.clamped()[part[0]].min()) for capture, part in zip(captures, parts, strict=True))
    if not any(statistics_sizes(shortest, view).min() >= sample_ranks(view, slots)[0] for view in shapes()):
        got = f"{slots} for a row of {shortest:,} scores"
        raise ArgumentError("k", got, "a smaller k or longer rows: every view samples too few of these")
    if backend == "cuda":
        require_cuda()
    total = sum(calibrated.size + held.size for calibrated, held, _ in parts)
    done = 0

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(done, total)

    default = default_policy(captures, slots, model)
    tried, sample = _measure(captures, parts, slots, model, default, backend, count)
    best = [cheapest(entry, slots, model, sample) for entry in tried[: len(shapes())]]
    ranking = sorted((p for p in best if p is not None), key=lambda p: p.row_ns)
    alike = [p for p in ranking if p.row_ns <= (1 + SLACK) * ranking[0].row_ns]
    chosen = min(alike, key=lambda p: 2 * p.p_exact.high + p.p_band.high)
    chosen = replace(chosen, policy=replace(chosen.policy, name=f"calibrated-{chosen.policy.name}",
                                            source=_source(captures, slots, model)))  # fmt: skip
    ordinary = None
    if default is not None:
        q0, q1 = default.primary_rank(slots), default.rescue_rank(slots)
        ordinary = replace(predict(tried[-1], slots, model, sample, q0, q1), policy=default)
    stats, valid = _select_held_back(captures, parts, slots, chosen.policy, count)
    traffic = check_traffic(stats, valid, chosen.policy, family="cpu")
    realised = {
        "p_band": traffic.p_band,
        "p_exact": traffic.p_exact,
        "traffic": expected_traffic(chosen.policy.stride, traffic.p_band, traffic.p_exact),
        "admitted": float(np.minimum(stats.admitted0[stats.admitted0 >= 0], KEPT * slots + 1).mean() / slots)
        if (stats.admitted0 >= 0).any() else 0.0,
    }  # fmt: skip
    predicted = {name: getattr(chosen, name) for name in QUANTITIES}
    true = {name: each.next_low <= realised[name] <= each.next_high for name, each in predicted.items()}
    saved = 1 - chosen.row_ns / ordinary.row_ns if ordinary else None
    settings = {"captures": [capture.path.name for capture in captures], "k": slots, "cost": model.name}
    results = {
        "verdict": {"as_predicted": all(true.values()), "policy": chosen.policy.name, "saved": saved},
        "rows": sample.lengths.size,
        "held_back": sample.following,
        "chosen": chosen.plain(),
        "default": ordinary.plain() if ordinary else None,
        "ranking": [entry.plain() for entry in ranking],
        "realised": realised,
        "came_true": true,
        "cost_source": model.source,
    }
    return chosen.policy, record.payload("calibrate", settings, results)


def split_rows(capture: Capture, k: int, most: int | None) -> tuple[I64, I64, int]:
    """Cut a capture's eligible rows into blocks: those calibrated on, those held back, and the rows of a block."""
    chosen = eligible_rows(capture, k, most)
    if chosen.size < LEAST_ROWS:
        got = f"{capture.path.name}, with {chosen.size} rows of at least {4 * k} scores"
        raise ArgumentError("captures", got, f"captures with at least {LEAST_ROWS} such rows")
    size = max(1, -(-chosen.size // BLOCKS))
    odd = np.arange(chosen.size) // size % 2 == 1
    return chosen[~odd], chosen[odd], size


def default_policy(captures: Sequence[Capture], k: int, cost: DeviceCost) -> SamplingPolicy | None:
    """Policy that the planner takes for many rows of the widest capture on the device the cost stands for."""
    width = max(capture.width for capture in captures)
    device = DEVICES.get(cost.name, "cpu" if cost.kind == "cpu" else DEVICES["h200"])
    return api.plan(rows=4096, width=width, k=k, device=device).policy


def _measure(
    captures: Sequence[Capture],
    parts: Sequence[tuple[I64, I64, int]],
    k: int,
    cost: DeviceCost,
    default: SamplingPolicy | None,
    device: str,
    count: Callable[[int], None],
) -> tuple[list[Tried], Sample]:
    """Try every view, and the default policy last, on the calibration rows."""
    views = [(view, sample_ranks(view, k)) for view in shapes()]
    if default is not None:
        wanted = [default.primary_rank(k), default.rescue_rank(k)]
        views.append((default, np.array([q for q in wanted if q], dtype=np.int64)))
    width = max(capture.width for capture in captures)
    room = [capacities(view, ranks, k, width, cost) for view, ranks in views]
    found: list[list[tuple[F64, ...]]] = [[] for _ in views]
    lengths: list[int] = []
    blocks: list[int] = []
    for part, (capture, (calibrated, _, size)) in enumerate(zip(captures, parts, strict=True)):
        for at, row in enumerate(ranked_rows(capture, calibrated, KEPT * k, device)):
            for entries, (view, ranks), capacity in zip(found, views, room, strict=True):
                entries.append(try_row(row, view, ranks, k, capacity, len(lengths)))
            lengths.append(row.length)
            blocks.append(part * BLOCKS + at // size)
            count(1)
    tried = [
        Tried(view, ranks, *(np.stack(column) for column in zip(*entries, strict=True)))
        for entries, (view, ranks) in zip(found, views, strict=True)
    ]
    following = sum(held.size for _, held, _ in parts)
    itemsize = 4 if any(capture.dtype == "float32" for capture in captures) else 2
    return tried, Sample(np.array(lengths, np.int64), np.array(blocks, np.int64), following, itemsize)


def _select_held_back(
    captures: Sequence[Capture],
    parts: Sequence[tuple[I64, I64, int]],
    k: int,
    policy: SamplingPolicy,
    count: Callable[[int], None],
) -> tuple[Stats, I64]:
    """Select the held-back rows with the CPU backend and return its statistics."""
    raw, valid = [], []
    for capture, (_, held, _) in zip(captures, parts, strict=True):
        for block in read_blocks(capture, held):
            lengths = block.lengths.astype(np.int32)
            found = dispatch.select(block.scores, lengths, k, policy=policy, backend="cpu", stats=True)
            raw.append(found.stats.raw)
            valid.append(block.lengths)
            count(block.rows.size)
    return Stats(np.concatenate(raw)), np.concatenate(valid)


def _source(captures: Sequence[Capture], k: int, cost: DeviceCost) -> str:
    names = ", ".join(capture.path.name for capture in captures)
    return f"ksieve calibrate {names} --k {k} --device {cost.name}"
