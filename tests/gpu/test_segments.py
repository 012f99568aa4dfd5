"""Segments of flat scores, by every family that takes them: rows of all lengths, bounds that are wrong, and replays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import ksieve
from flat_calls import verified
from gpu import runner
from gpu.runner import Guarded
from ksieve.core.windows import of_segments
from ksieve.planning.memory import with_workspace

pytestmark = pytest.mark.gpu

MANY, FEW = (64, 6) if runner.HOST else (20_000, 12)
DEVICE = replace(runner.PLANNED_FOR, sm_count=8) if runner.HOST else runner.PLANNED_FOR
"""Of an emulated device with few multiprocessors a few rows are many."""

ROUTES = {
    # name: family, first launch, rows, mean length, longest, k, what the host says
    "warps": ("register_warp", None, MANY, 60, 128, 8, {"max_length": 128}),
    "warps-listing": ("resident_block", "register_warp", MANY, 60, 900, 8, {}),
    "warps-listing-long": ("resident_block", "register_warp", MANY, 40, 20_000, 5, {"mean_length": 40}),
    "one-cta": ("resident_block", None, FEW, 700, 9000, 40, {}),
    "registers": ("register_block", None, FEW, 700, 2000, 40, {"max_length": 2000}),
    "streamed": ("stream_unsampled", None, FEW, 700, 9000, 1500, {"family": "stream_unsampled"}),
    "sampled": ("stream", None, FEW, 9000, 30_000, 64, {"family": "stream"}),
    "split": ("stream_split", None, 3, 9000, 30_000, 64, {"family": "stream_split"}),
    "cluster": ("resident_cluster", None, 3, 9000, 30_000, 64, {"max_length": 32_768, "family": "resident_cluster"}),
}
OPTIONS = {
    "plain": {},
    "deterministic": {"deterministic": True},
    "sorted-values": {"sorted": True, "values": True},
    "smallest": {"largest": False, "values": True},
    "offsets": {"transform": True, "raw": True},
    "own-k": {"max_k": True},
}
CASES = [(route, "float32", "plain") for route in ROUTES]
CASES += [
    (route, dtype, "plain")
    for route in ("warps", "warps-listing", "one-cta", "sampled")
    for dtype in ("float16", "bfloat16")
]
CASES += [
    (route, "float32", options)
    for route in ("warps-listing", "one-cta", "split")
    for options in OPTIONS
    if options != "plain"
]


def lengths_of(rows, mean, longest, generator):
    """Lengths of about a mean; every eleventh segment is empty, and two are the longest."""
    lengths = torch.randint(0, 2 * mean, (rows,), generator=generator).clamp(max=longest)
    lengths[::11] = 0
    lengths[[1, rows // 2]] = longest
    return lengths


def flat(lengths, dtype, generator):
    """Scores with ties and NaN, with some before and behind all segments, and the bounds."""
    indptr = 3 + torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    x = torch.randn(int(indptr[-1]) + 5, generator=generator)
    x[::7], x[::131] = x[::7].round(), torch.nan
    x[:3], x[-5:] = torch.inf, torch.inf
    scores = torch.empty(len(x) + 1, dtype=getattr(torch, dtype), device=runner.DEVICE)[1:]  # no aligned address
    scores.copy_(x)
    return scores, indptr.to(runner.DEVICE, torch.int64 if dtype == "float32" else torch.int32)


def dense(scores, starts, lengths, worst):
    """The segments as rows of a matrix."""
    column = torch.arange(max(int(lengths.max()), 1), device=scores.device)
    at = (starts[:, None] + column).clamp(max=max(len(scores) - 1, 0))
    return torch.where(column < lengths[:, None], scores[at], torch.tensor(worst, dtype=scores.dtype))


def check(scores, indptr, k, plan, call, hints, ks=None, runs=2):
    """Ask twice; what is wrong with the answers."""
    rows, index = len(indptr) - 1, torch.int32
    starts, lengths = (
        torch.from_numpy(part) for part in of_segments(indptr.cpu().numpy(), len(scores), plan.problem.width)
    )
    matrix = dense(scores.cpu(), starts, lengths, 0.0)
    outputs = {"out": Guarded.make(rows, k, index, 3)}
    outputs |= {
        name: Guarded.make(rows, k, scores.dtype if name == "values" else index)
        for name in ("values", "raw")
        if name in call
    }
    workspace, more = runner.dirty_workspace(plan), {"max_k": k} if ks is not None else {}
    transform = torch.arange(rows, dtype=torch.int32, device=runner.DEVICE) * 1000
    for run in range(runs):
        for guarded in outputs.values():
            guarded.poison()
        asked = call | more | {name: runner.on_device(guarded.out) for name, guarded in outputs.items()}
        if "transform" in call:
            asked["transform"] = ksieve.Offsets(runner.on_device(transform))
        ksieve.select(
            runner.on_device(scores), None, k if ks is None else runner.on_device(ks), plan=plan, workspace=workspace,
            bounds=ksieve.Segments(runner.on_device(indptr), **hints), **asked,
        )  # fmt: skip
        found = {name: guarded.out.cpu() for name, guarded in outputs.items()}
        indices = found.get("raw", found["out"])
        judged = {name: call[name] for name in ("largest", "sorted") if name in call}
        judged |= {"sorted": "index", "tie_break": "low"} if "deterministic" in call else {}
        verdict = verified(matrix, lengths, indices, k=k if ks is None else ks.cpu(), **judged)
        wrong = [] if verdict else [str(verdict)]
        wrong += [f"memory around {name} was written" for name, guarded in outputs.items() if not guarded.intact()]
        used = indices >= 0
        if "values" in found:
            picked = matrix.gather(1, indices.clamp(min=0).long())
            wrong += ["values"] * (
                not torch.equal(found["values"][used].view(torch.int32), picked[used].view(torch.int32))
            )
        if "transform" in call:
            moved = torch.where(used, indices + transform.cpu()[:, None], -1)
            wrong += ["offsets"] * (not torch.equal(found["out"], moved))
        if wrong:
            return [f"run {run}: {text}" for text in wrong]
    return []


def plan_of(route, dtype, total, call, k):
    family, first, rows, *_, hints = ROUTES[route]
    given = {name: value for name, value in call.items() if name != "transform"}
    given |= {"max_k": k} if "max_k" in call else {}
    given |= {"transform": ksieve.Offsets(True)} if "transform" in call else {}
    said = {name: hints[name] for name in ("max_length", "mean_length") if name in hints}
    bounds = ksieve.Segments("int64", **said)
    plan = ksieve.plan(
        rows=rows, width=total, k=None if "max_k" in call else k, dtype=dtype, device=DEVICE,
        family=hints.get("family"), bounds=bounds, **given,
    )  # fmt: skip
    assert plan.family == family or "deterministic" in call or "sorted" in call
    if first and "deterministic" not in call and "sorted" not in call:
        assert [launch.family for launch in plan.bins] == [first]
    return with_workspace(replace(plan, ctas=min(plan.ctas, 24))) if runner.HOST and not plan.bins else plan, said


@pytest.mark.parametrize(("route", "dtype", "options"), CASES)
def test_every_family_selects_within_segments(tally, route, dtype, options):
    _, _, rows, mean, longest, k, _ = ROUTES[route]
    generator = torch.Generator().manual_seed(sum(map(ord, route + dtype + options)))
    scores, indptr = flat(lengths_of(rows, mean, longest, generator), dtype, generator)
    call = OPTIONS[options]
    plan, said = plan_of(route, dtype, len(scores), call, k)
    ks = torch.arange(rows, dtype=torch.int32, device=runner.DEVICE) % (k + 2) if "max_k" in call else None
    own = {name: value for name, value in call.items() if name != "max_k"}
    tally.judge(f"segments-{route}", rows, check(scores, indptr, k, plan, own, said, ks))


@pytest.mark.parametrize("route", ["warps-listing", "one-cta", "streamed", "split"])
def test_bounds_that_are_wrong_are_clamped(tally, route):
    """Negative ones, ones behind the scores, and ends in front of their starts."""
    _, _, rows, mean, longest, k, _ = ROUTES[route]
    generator = torch.Generator().manual_seed(len(route))
    scores, indptr = flat(lengths_of(rows, mean, longest, generator), "float32", generator)
    indptr[0], indptr[1], indptr[rows // 2], indptr[-1] = -(1 << 40), longest, -5, 1 << 40
    plan, said = plan_of(route, "float32", len(scores), {}, k)
    tally.judge("segments-clamped", rows, check(scores, indptr, k, plan, {}, said))


@pytest.mark.skipif(runner.HOST, reason="there is no graph on an emulated device")
def test_bounds_change_between_replays(tally):
    rows, k = MANY, 8
    generator = torch.Generator().manual_seed(5)
    total, wrong = rows * 64, []
    scores = torch.randn(total, generator=generator).to(runner.DEVICE)
    indptr = torch.zeros(rows + 1, dtype=torch.int64, device=runner.DEVICE)
    plan = ksieve.plan(rows=rows, width=total, k=k, device="cuda", bounds=ksieve.Segments("int64")).prepare()
    assert plan.bins
    graph, out = runner.captured(lambda: ksieve.topk(scores, k=k, bounds=ksieve.Segments(indptr)))
    for seed in range(3):
        cuts = torch.randint(0, total, (rows - 1,), generator=generator.manual_seed(seed)).sort().values
        if seed == 2:  # nearly all scores are in one segment
            cuts[: rows // 2], cuts[rows // 2 :] = 100, total - 7
        indptr[1:-1], indptr[-1] = cuts.to(runner.DEVICE), total
        out.fill_(runner.POISON)
        graph.replay()
        starts, lengths = (torch.from_numpy(part) for part in of_segments(indptr.cpu().numpy(), total, total))
        few = np.r_[:500, rows // 2 : rows // 2 + 2, rows - 500 : rows]
        wrong += runner.refuted(dense(scores.cpu(), starts[few], lengths[few], 0.0), lengths[few], out.cpu()[few])
    tally.judge("segments-replayed", 3 * len(few), wrong)


@pytest.mark.skipif(runner.HOST, reason="takes 4 GiB")
def test_scores_beyond_32_bits(tally):
    rows, total = 600, (1 << 31) + (1 << 22)
    scores = torch.full((total,), -torch.inf, dtype=torch.bfloat16, device=runner.DEVICE)
    cuts = torch.linspace(0, total, rows + 1, dtype=torch.float64).long()
    cuts[-1] = total
    last = scores[-8_000_000:]
    last.copy_(torch.randn(len(last), device=runner.DEVICE))
    indptr, k = cuts.to(runner.DEVICE), 16
    out = ksieve.topk(scores, k=k, bounds=ksieve.Segments(indptr))
    few = slice(rows - 3, rows)
    starts, lengths = cuts[:-1][few], cuts.diff()[few]
    begin = int(starts[0])
    matrix = dense(scores[begin:].cpu(), starts - begin, lengths, 0.0)
    tally.judge("segments-huge", 3, runner.refuted(matrix, lengths, out[few].cpu()))
