"""CUDA backend of `ksieve.logits`: selections by the streaming kernels, whose first scan folds the row too.

A kept set, or a sample, is made of the selection by a second kernel (kernels/logits/keep.cu), which also reads the row
where there is no k (kernels/logits/nucleus.cu).
"""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ksieve.backends import cuda
from ksieve.backends.cuda import arrays
from ksieve.backends.cuda.call import workspace_memory
from ksieve.backends.cuda.jit.spec import KernelSpec, architecture, bare_spec, kernel_spec
from ksieve.backends.cuda.packing import launched
from ksieve.backends.cuda.runtime.launch import Launcher, kernel_of
from ksieve.core import call as calls
from ksieve.core.device import DeviceInfo
from ksieve.core.problem import Problem, inspect
from ksieve.logits.problem import Kept, Request, Sample, Statistics, statistics_of
from ksieve.planning import choose, memory
from ksieve.planning.families import QUEUED
from ksieve.planning.plan import Plan
from ksieve.planning.resident import geometry_of
from ksieve.planning.shapes import Geometry
from ksieve.planning.switch_points import SEGMENT

FOLD = struct.Struct("=8Qqif")
"""`FoldOptions` of kernels/common/options.cuh: temperature, row_k, logsumexp, totals, flags, tokens, logprobs, ranks
(addresses); tokens_pitch (elements), tokens_of_row; the temperature of every row, where it is no array."""

ALLOWED = struct.Struct(f"{FOLD.format}Qq")
"""The same of a kernel that reads a bitmask: its address and pitch (elements) too."""

KEEP = struct.Struct("=13Q2i4f2i")
"""`Keep` of kernels/logits/keep.cuh: positions, values, row_flags, totals, temperature, p, min_p, uniform, tokens,
probabilities, counts, logprobs, flags (addresses); k, columns; the four numbers of every row; min_p_first, joint."""

NUCLEUS = struct.Struct(f"{KEEP.format}3Q2q2i")
"""`Nucleus` of kernels/logits/nucleus.cu: a `Keep`; scores, lengths, bitmask (addresses); the pitches of the scores and
the bitmask (elements); width, and whether lengths have 64 bits."""

NUMBERS = ("temperature", "p", "min_p", "uniform")
"""Arguments of one number for each row, or for all rows, in the order of `KEEP`; the defaults change nothing."""

BARE = {
    "logits/keep": {"threads": 32, "ctas_per_sm": 14, "shared": 16 * 1024},
    "logits/nucleus": {"threads": 512, "ctas_per_sm": 2, "shared": 30 * 1024},
}
"""Kernels without a plan, and their launch shapes."""

FOLDING = (*QUEUED, "stream_split")
"""Families whose kernels fold: they scan rows, and keep none on chip."""

SPLIT = Geometry(512, 1, stages=12)
"""Launch shape where CTAs share a row, if shared memory suffices: in the usual one the fold would spill."""

SELECTED = {"sorted": "value", "tie_break": "low", "values": True}
"""Options of the selection."""


@lru_cache(maxsize=4096)
def plan_of(asked: Problem, device: DeviceInfo, family: str | None = None) -> Plan:
    """Plan of a checked problem: the planner's, of a family that folds."""
    few = 2 * asked.rows <= device.sm_count and asked.width >= 2 * SEGMENT  # a CTA folds slower than it selects
    plan = choose.choose(asked, device, family=family or ("stream_split" if few else None))
    if plan.family not in FOLDING:
        plan = choose.choose(asked, device, family="stream")
    if plan.family != "stream_split":
        return plan
    shape = SPLIT if device.shared_per_block > 160 * 1024 else geometry_of(device, plan.family, True)
    storage = memory.storage_of(asked, device, shape, plan.family, plan.policy)
    return memory.plan_of(
        asked, device, plan.family, plan.policy, shape, storage, ctas=plan.ctas, per_row=plan.splits, reason=plan.reason
    )


def folding_kernel(plan: Plan, *, masked: bool = False) -> KernelSpec:
    """Specialisation of a plan's kernel that folds; `masked`: it reads a bitmask."""
    spec = kernel_spec(plan)
    own = {"KSIEVE_FOLD": 1} | ({"KSIEVE_ALLOWED": 1} if masked else {})
    if plan.problem.dtype != "float32" and plan.threads * plan.ctas_per_sm > 512:
        own["KSIEVE_BATCHES"] = plan.stages  # in 64 registers, the fold of larger batches would spill
    return replace(spec, defines=tuple({**dict(spec.defines), **own}.items()))


def bare_kernel(stem: str, arch: str, dtype: str) -> KernelSpec:
    """Specialisation of a kernel of kernels/logits."""
    return bare_spec(stem, arch, dtype, "largest", **BARE[stem])


@lru_cache(maxsize=4096)
def _launcher(plan: Plan, stream: int, masked: bool) -> Launcher:
    return Launcher(plan, False, stream, spec=folding_kernel(plan, masked=masked), more=ALLOWED if masked else FOLD)


def statistics(request: Request, out: Statistics, family: str | None = None, workspace: Any = None) -> None:
    """Enqueue statistics on the current stream; `family`: of the kernel. `workspace`: of `plan_of_request`."""
    _fold(request, out, None, family, workspace)


def kept(request: Request, out: Kept, family: str | None = None, workspace: Any = None) -> None:
    """Enqueue kept sets on the current stream."""
    _keep(request, out, family, workspace)


def sample(request: Request, out: Sample, family: str | None = None, workspace: Any = None) -> None:
    """Enqueue samples on the current stream."""
    _keep(request, out, family, workspace)


def _call(request: Request) -> calls.Call:
    """The selection of a request."""
    return calls.parse(request.arrays["logits"], request.arrays.get("lengths"), request.k, given=SELECTED)


def plan_of_request(request: Request, family: str | None = None) -> Plan:
    """Plan of a request with rows."""
    return _planned(_call(request), family)


def _planned(call: calls.Call, family: str | None) -> Plan:
    return plan_of(call.problem, cuda.device_info(call.problem.device.index), family)


def _fold(request: Request, out: Statistics, totals: Any, family: str | None, workspace: Any) -> None:
    """Enqueue the selection that fills statistics, and `totals` if it is an array."""
    rows, _ = request.shape
    if not rows:
        return
    scores, tokens, call = request.arrays["logits"], request.described.get("tokens"), _call(request)
    allowed = request.described.get("allowed")
    plan, count = _planned(call, family), tokens.shape[1] if tokens else 0
    stream = arrays.current_stream(call.scores.library, scores, plan.problem.device.index)
    launcher = _launcher(plan, stream, allowed is not None)
    made = {name: _address(array) for name, array in out._asdict().items()}
    fold = (
        _given(request, "temperature"), _given(request, "k"), made["logsumexp"], _address(totals), made["flags"],
        _given(request, "tokens"), made["logprobs"], made["ranks"], tokens.strides[0] if tokens else 0, count,
        float(request.numbers.get("temperature", 1)), *((allowed.pointer, allowed.strides[0]) if allowed else ()),
    )  # fmt: skip
    with launcher.driver.activated(launcher.context):
        capturing = launcher.driver.is_capturing(stream)
        at, owner = workspace_memory(plan, workspace, stream, capturing, call.scores.library)
        asked = launched(launcher, plan, call, {"out": out.positions, "values": out.values}, 0, 0, at)
        launcher.launch(asked._replace(options=asked.options + fold), stream)
        del owner


def _keep(request: Request, out: Kept | Sample, family: str | None, workspace: Any) -> None:
    """Enqueue a selection, and what is kept of it or drawn from it."""
    (rows, width), k = request.shape, request.k
    best, totals = statistics_of(request), request.empty("float64", rows)
    _fold(request, best, totals, family, workspace)
    if not rows:
        return
    made = {name: _address(array) for name, array in out._asdict().items()}
    columns = inspect(out.tokens, "tokens").shape[1] if isinstance(out, Kept) else 1
    keep = (
        *map(_address, (best.positions, best.values, best.flags, totals)),
        *(_given(request, name) for name in NUMBERS),
        *(made.get(name, 0) for name in ("tokens", "probabilities", "counts", "logprobs", "flags")),
        k, columns, *(float(request.numbers.get(name, name != "min_p")) for name in NUMBERS), request.min_p_first,
        request.joint,
    )  # fmt: skip
    if not request.whole:
        _launch(request, "logits/keep", KEEP, keep, rows)
        return
    own, lengths, allowed = request.described["logits"], *map(request.described.get, ("lengths", "allowed"))
    pitches = own.strides[0] if rows > 1 else width, allowed.strides[0] if allowed else 0
    addresses = (_given(request, name) for name in ("logits", "lengths", "allowed"))
    row = *addresses, *pitches, width, lengths is not None and lengths.dtype == "int64"
    ctas = ctas_of_row(rows, cuda.device_info(request.device.index))
    _launch(request, "logits/nucleus", NUCLEUS, (*keep, *row), rows, ctas)


def ctas_of_row(rows: int, device: DeviceInfo) -> int:
    """CTAs of a cluster that reads a row without k: all clusters together have one for each multiprocessor at most."""
    most = device.sm_count if device.capability >= (9, 0) else 0
    return max(size for size in (1, 2, 4, 8) if size == 1 or rows * size <= most)


def _launch(request: Request, stem: str, layout: struct.Struct, params: Any, rows: int, ctas: int = 1) -> None:
    """Enqueue a kernel of kernels/logits without a plan, with a cluster of CTAs for each row."""
    index, logits = request.device.index, request.arrays["logits"]
    stream = arrays.current_stream(request.described["logits"].library, logits, index)
    spec = bare_kernel(stem, architecture(cuda.device_info(index).capability), request.dtype)
    kernel_of(spec, index, layout.size, stream, ctas).run(layout, params, rows * ctas, stream)


def _given(request: Request, name: str) -> int:
    """Address of an array of the call; 0 if it is not given."""
    found = request.described.get(name)
    return found.pointer if found is not None else 0


def _address(array: Any) -> int:
    """Address of a result; 0 of None."""
    return 0 if array is None else inspect(array, "out").pointer
