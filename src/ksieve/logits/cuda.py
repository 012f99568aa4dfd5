"""CUDA backend of `ksieve.logits`: selections by the streaming kernels, whose first scan folds the row too."""

from __future__ import annotations

import struct
from functools import lru_cache

from ksieve.backends import cuda
from ksieve.backends.cuda import arrays
from ksieve.backends.cuda.call import workspace_memory
from ksieve.backends.cuda.packing import launched
from ksieve.backends.cuda.runtime.launch import Launcher
from ksieve.core import call as calls
from ksieve.core.problem import Problem, inspect
from ksieve.logits.problem import Request, Statistics
from ksieve.planning import choose, memory
from ksieve.planning.families import QUEUED
from ksieve.planning.plan import Plan
from ksieve.planning.resident import geometry_of

FOLD = struct.Struct("=7Qqif")
"""`FoldOptions` of kernels/common/options.cuh: temperature, row_k, logsumexp, flags, tokens, logprobs, ranks
(addresses); tokens_pitch (elements), tokens_of_row; the temperature of every row, where it is no array."""

FOLDING = (*QUEUED, "stream_split")
"""Families whose kernels fold: they scan rows, and keep none on chip."""

SELECTED = {"sorted": "value", "tie_break": "low", "values": True}
"""Options of the selection."""


@lru_cache(maxsize=4096)
def plan_of(asked: Problem, family: str | None = None) -> Plan:
    """Plan of a checked problem: the planner's, of a family that folds."""
    device = cuda.device_info(asked.device.index)
    plan = choose.choose(asked, device, family=family)
    if plan.family not in FOLDING:
        plan = choose.choose(asked, device, family="stream")
    if plan.family != "stream_split":
        return plan
    shape = geometry_of(device, plan.family, True)  # the fold would spill in the usual one
    storage = memory.storage_of(asked, device, shape, plan.family, plan.policy)
    return memory.plan_of(
        asked, device, plan.family, plan.policy, shape, storage, ctas=plan.ctas, per_row=plan.splits, reason=plan.reason
    )


def defines_of(plan: Plan, tokens: bool = False) -> dict[str, int]:
    """Defines of a plan's kernel besides its own."""
    large = tokens or plan.problem.dtype != "float32"  # the fold of larger batches would spill
    return {"KSIEVE_FOLD": 1 + tokens} | ({"KSIEVE_BATCHES": plan.stages} if large else {})


@lru_cache(maxsize=4096)
def _launcher(plan: Plan, tokens: bool, stream: int) -> Launcher:
    return Launcher(plan, False, stream, defines=defines_of(plan, tokens), more=FOLD)


def statistics(request: Request, out: Statistics, family: str | None = None) -> None:
    """Enqueue statistics on the current stream; `family`: of the kernel, for tests."""
    rows, _ = request.shape
    if not rows:
        return
    given = {"lengths": request.arrays["lengths"]} if "lengths" in request.arrays else {"lengths": None}
    call = calls.parse(request.arrays["logits"], given["lengths"], request.k, given=SELECTED)
    plan = plan_of(call.problem, family)
    library, index = call.scores.library, plan.problem.device.index
    stream = arrays.current_stream(library, request.arrays["logits"], index)
    tokens = request.described.get("tokens")
    count = tokens.shape[1] if tokens else 0
    launcher = _launcher(plan, count > 0, stream)
    made = {name: inspect(array, name).pointer for name, array in out._asdict().items() if array is not None}
    fold = (
        *(request.described[name].pointer if name in request.described else 0 for name in ("temperature", "k")),
        made["logsumexp"], made["flags"], tokens.pointer if tokens else 0, made.get("logprobs", 0),
        made.get("ranks", 0), tokens.strides[0] if tokens else 0, count, float(request.numbers.get("temperature", 1)),
    )  # fmt: skip
    with launcher.driver.activated(launcher.context):
        capturing = launcher.driver.is_capturing(stream)
        at, owner = workspace_memory(plan, None, stream, capturing, library)
        if count and plan.family == "stream_split":  # whose parts of a row count there
            launcher.driver.fill_zero(made["ranks"], 4 * rows * count, stream)
        asked = launched(launcher, plan, call, {"out": out.positions, "values": out.values}, 0, 0, at)
        launcher.launch(asked._replace(options=asked.options + fold), stream)
        del owner
