"""`stats=True` equals the NumPy model in every column, on rows that reach every route of every family."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gpu import material, runner, served
from gpu.served import Asked
from gpu.variants import VARIANTS, Variant, overflowing, possible
from ksieve.core.policy import QUADS_16, SamplingPolicy
from ksieve.core.stats import Route
from ksieve_lab.workloads.producers import PRODUCERS

pytestmark = pytest.mark.gpu

THIN = SamplingPolicy("thin-rescue", 64, margin=0.9, rescue_margin=1.4)
"""Boundaries so close to k that half the rows underfill, and some of those also underfill the band."""
THIN_JITTER = replace(THIN, name="thin-jitter", jitter=True)
THIN_TIED = SamplingPolicy("thin-tied", 32, margin=0.9, group=4, boundary="exact")

TRACED = {
    **VARIANTS,
    "persistent-thin": Variant("persistent-thin", "stream", THIN),
    "persistent-thin-tied": Variant("persistent-thin-tied", "stream", THIN_TIED),
    "split-4-thin": Variant("split-4-thin", "stream_split", THIN, 4),
    "split-4-thin-jitter": Variant("split-4-thin-jitter", "stream_split", THIN_JITTER, 4),
    "persistent-quads": Variant("persistent-quads", "stream", QUADS_16),
    "split-2-thin-tied": Variant("split-2-thin-tied", "stream_split", THIN_TIED, 2),
}

SHAPES = ((9000, 1000), (30_001, 2048), (70_001, 512), (131_072, 2048))
OVERFLOW = ((20_001, 64), (9000, 200))
SCANS_OF_ROUTE = np.array([0, 1, 2, 3, 4, 2])
"""Scans of a row, by `Route`, whose frontiers all fit: any more were made to narrow one that did not."""
if runner.HOST:
    SHAPES = SHAPES[:2]


def kernels():
    for variant in TRACED.values():
        for width, k in SHAPES:
            yield from ((p, True) for p in possible(variant, 64, width, k))
        for width, k in OVERFLOW:
            yield from ((overflowing(p), True) for p in possible(variant, 64, width, k))


def rows_for(variant, width, k):
    """All value families, plain rows, and rows that alias with the variant's own view; lengths of every kind."""
    stacked = material.stack(width, k)
    plain = PRODUCERS["random_normal"](12, width, seed=5, k=k)
    parts = [stacked, plain]
    if variant.policy is not None:
        for name in ("view_peak", "view_hole"):
            first = sum(len(p) for p in parts)
            parts.append(PRODUCERS[name](4, width, first_row=first, k=k, policy=variant.policy))
    scores = np.concatenate([part.view(np.int32) for part in parts])
    lengths = material.lengths_for(len(scores), width, k)
    lengths[len(stacked) :: 2] = width
    lengths[-2:] = width
    return scores, lengths


@pytest.mark.parametrize("name", TRACED)
def test_equals_the_model(name, tally):
    variant, wrong, routes, overflowed = TRACED[name], [], set(), 0
    for (width, k), make in (
        *((shape, None) for shape in SHAPES),
        *((shape, overflowing) for shape in OVERFLOW),
    ):
        bits, lengths = rows_for(variant, width, k)
        if width > 100_000:
            bits, lengths = np.ascontiguousarray(bits[::2]), lengths[::2].copy()
        scores = material.place(bits, "float32", runner.DEVICE, offset=1, padding=3)
        plan = runner.plan_for(variant, scores, k)
        plan = make(plan) if make else plan
        valid = torch.from_numpy(lengths).to(runner.DEVICE)
        found, raw = served.counted(served.Served(plan, scores, {"lengths": valid}))
        tally.add(name, len(bits), found, stats_rows=len(bits))
        routes |= set(raw[:, 0].tolist())
        overflowed += int((raw[:, 14] > SCANS_OF_ROUTE[raw[:, 0]]).sum())
        wrong += [f"{width} k={k}{' few candidates' if make else ''}: {text}" for text in found]
    assert not wrong, "\n".join(wrong)
    assert routes >= expected_routes(variant), f"only routes {sorted(Route(r).name for r in routes)} were reached"
    assert overflowed, "no frontier overflowed"


def expected_routes(variant):
    """Routes that these rows reach, by what the policy can do."""
    if variant.policy is None:
        return {Route.SHORT, Route.DIRECT}
    reached = {Route.SHORT, Route.CERTIFIED, Route.DIRECT}
    if variant.policy.rescue_margin is None:
        return reached | {Route.RECOVERED}
    return reached | {Route.RECOVERED_AFTER_BAND} | ({Route.RESCUED} if variant.policy.margin < 1 else set())


@pytest.mark.parametrize("name", VARIANTS)
@served.judged("{name}")
def test_narrow_scores_too(name):
    for dtype in ("float16", "bfloat16"):
        bits = material.narrow(material.stack(9000, 300), dtype)
        scores = material.place(bits, dtype, runner.DEVICE, offset=3, padding=1)
        call = {"lengths": torch.from_numpy(material.lengths_for(len(bits), 9000, 300)).to(runner.DEVICE)}
        yield Asked(runner.plan_for(VARIANTS[name], scores, 300), scores, call, stats=True)
