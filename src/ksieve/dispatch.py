"""Dispatch of a call: checks its arguments, chooses or checks its plan, and hands both to a backend.

`ksieve.topk`, `ksieve.select`, the adapters and the operators of PyTorch and JAX all end here. No thresholds and no
device code live here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, get_args

from ksieve.core import call as calls
from ksieve.core import problem, registry
from ksieve.core.call import Call
from ksieve.core.device import DeviceInfo, resolve_device
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, kind_of, refuse_at_exit, shown
from ksieve.core.options import PLAIN, Options, check_choice, dtype_text
from ksieve.core.policy import SamplingPolicy, check_policy_kind
from ksieve.core.problem import Device, Problem
from ksieve.core.selection import Selection
from ksieve.planning import choose as planner
from ksieve.planning.plan import Plan

Backend = Literal["auto", "cpu", "cuda", "reference"]

# Fast paths of calls that have run on CUDA with PyTorch tensors (backends/cuda/fast_path.py), by `call_key`. The paths
# of a key differ in facts of the tensors that it does not hold, and compare them. Each refers to its plan, so that the
# id of the plan is not reused. Hashing its fifty fields on every call would cost as much as the launch.
_fast_paths: dict[Any, tuple[Any, ...]] = {}
_MOST_FAST_PATHS, _MOST_OF_A_KEY = 4096, 8

_SCALARS = frozenset((int, str, bool, type(None)))
"""Types of optional arguments whose values are part of `call_key`."""

_NAMES = ("scores", "lengths", "k", "out", "workspace", "num_rows")

_AUTO = "auto"

_NOTHING: Mapping[str, Any] = {}

# Functions that receive every checked call before it runs (recordings of ksieve-lab). The tuple is replaced, never
# changed, so that another thread may iterate over it.
observers: tuple[Any, ...] = ()


def select(
    scores: Any,
    lengths: Any,
    k: Any,
    plan: Plan | None = None,
    out: Any = None,
    workspace: Any = None,
    num_rows: Any = None,
    given: Mapping[str, Any] = _NOTHING,
    *,
    stats: bool = False,
    policy: SamplingPolicy | str | None = None,
    backend: Backend = "auto",
    options: Options | None = None,
    key: tuple[Any, ...] | None = None,
) -> Selection[Any]:
    """Run one selection eagerly.

    `given`, `options`: as `ksieve.core.call.parse` takes them. `policy`: for the plan, where none is given. `backend`:
    "reference" is the NumPy model, for study. `key`: from `call_key`, if the caller has it.
    """
    if _fast_paths and not observers and stats is False and backend is _AUTO and policy is None:
        if key is None:
            key = call_key(scores, lengths, k, plan, out, workspace, num_rows, given, options)
        try:
            alike = _fast_paths.get(key, ())
        except Exception:  # a foreign class may raise anything when hashed; the general path reports the argument
            alike = ()
        for short in alike:
            result: Selection[Any] | None = short((scores, lengths, k, out, workspace, num_rows, *given.values()))
            if result is not None:
                return result
    refuse_at_exit()
    check_plan_kind(plan)
    if not isinstance(stats, bool):
        raise ArgumentError("stats", shown(stats), "True or False")
    check_choice(backend, "backend", get_args(Backend))
    own = plan is not None
    planned = plan.problem if plan else None
    call = calls.parse(scores, lengths, k, out=out, num_rows=num_rows, given=given, planned=planned, options=options)
    asked, info = call.problem, call.scores
    if backend != "auto" and (backend == "cuda") != (info.device.kind == "cuda"):
        raise ArgumentError("backend", repr(backend), f"'auto', or a backend for scores on {info.device}")
    if plan is None:
        check_policy_kind(policy)
        # Without slots nothing is launched, and the plan of one slot serves.
        plan = choose(asked if asked.k or asked.options.forced else replace(asked, k=1), policy)
    else:
        planner.check_covers(plan, asked)
    if workspace is not None and info.device.kind != "cuda":
        raise ArgumentError("workspace", kind_of(workspace), "nothing on the CPU")
    for observe in observers:
        observe(call)
    how = {"model": True} if backend == "reference" else {}
    result = registry.backend(info.device.kind).run(plan, call, workspace=workspace, stats=stats, **how)
    if info.device.kind == "cuda" and info.library == "torch" and not stats and policy is None:
        key = call_key(scores, lengths, k, plan if own else None, out, workspace, num_rows, given, options)
        values = (scores, lengths, k, out, workspace, num_rows, *given.values())
        _keep_fast_path(key, plan, call, (*_NAMES, *given), values, result)
    return result


def _keep_fast_path(key: Any, plan: Plan, call: Call, names: Any, values: Any, result: Any) -> None:
    """Keep the fast path of a call that has run on CUDA, if it can have one."""
    if key is None or not call.problem.rows or not call.problem.k:
        return
    found = registry.backend("cuda").make_fast_path(plan, call, names, values, result)
    if found is not None:
        if len(_fast_paths) >= _MOST_FAST_PATHS:
            _fast_paths.clear()
        _fast_paths[key] = (found, *_fast_paths.get(key, ())[: _MOST_OF_A_KEY - 1])


def check_plan_kind(plan: object) -> None:
    """Raise `ArgumentError` unless `plan` is a Plan or None."""
    if plan is not None and not isinstance(plan, Plan):
        raise ArgumentError("plan", kind_of(plan), "a Plan from ksieve.plan, or None")


def device_info(device: Device) -> DeviceInfo:
    """Return the properties of a device of this machine.

    Raises `BackendError` if the device is absent or cannot be used.
    """
    return registry.backend(device.kind).device_info(device.index)


def call_key(
    scores: Any,
    lengths: Any,
    k: Any,
    plan: Plan | None,
    out: Any,
    workspace: Any,
    num_rows: Any,
    given: Mapping[str, Any],
    options: Options | None = None,
) -> tuple[Any, ...] | None:
    """Return what decides a call on PyTorch tensors but for facts of the tensors; None for any other scores.

    Of arguments that may be arrays it holds the type.
    """
    try:
        found = [
            scores.shape, scores.get_device(), k if k.__class__ is int else None, k.__class__, id(plan), options,
            lengths.__class__, out.__class__, workspace.__class__, num_rows.__class__, *given,
        ]  # fmt: skip
        for value in given.values():
            kind = value.__class__
            found.append(kind)  # 1 is no flag
            if kind in _SCALARS:
                found.append(value)
    except Exception:  # an attribute of a foreign class may raise anything; the general path reports the argument
        return None
    return tuple(found)


def plan_of(
    *,
    rows: Any,
    width: Any,
    k: Any,
    pitch: Any = None,
    dtype: Any = "float32",
    device: Any | DeviceInfo = "cpu",
    options: Options = PLAIN,
    family: str | None = None,
    policy: SamplingPolicy | str | None = None,
    splits: int | None = None,
) -> Plan:
    """Make the plan of calls of a shape; arguments and errors are as of `ksieve.plan`."""
    if options.windows == "segments":
        rows, width, pitch = problem.check_size(rows, "rows"), problem.segment_width(width, options), width
    else:
        rows, width, pitch = problem.check_shape(rows, width, pitch)
    name = dtype_text(dtype)
    if not isinstance(name, str) or name not in SCORE_DTYPES:
        raise ArgumentError("dtype", shown(name), f"one of {list(SCORE_DTYPES)}")
    if isinstance(k, int) and not isinstance(k, bool) and k == 0:
        takes = f"an int from 1 to {problem.MAX_K}: ksieve.topk(..., k=0) needs no plan"
        raise ArgumentError("k", 0, takes)
    slots = problem.check_k(k)
    info = resolve_device(device) if isinstance(device, str) else device
    if not isinstance(info, DeviceInfo):
        info = device_info(problem.parse_device(info))
    problem.check_entries(options, slots, width)
    asked = Problem(rows, width, pitch, slots, name, Device(info.kind, info.index), options)
    return planner.choose(asked, info, family=family, policy=policy, splits=splits)


def choose(asked: Problem, policy: SamplingPolicy | str | None = None) -> Plan:
    """Return the plan that `topk` uses for a checked problem; equal problems share one.

    It equals the result of `ksieve.plan`, except where that plan needs a zeroed workspace and another family needs
    none. A captured or traced call would zero the workspace every time.
    """
    if asked.options.windows == "segments":  # of about as many scores, the plan is the same
        step = 1 << max(asked.pitch.bit_length() - 3, 0)
        pitch = -(-asked.pitch // step) * step
        asked = replace(asked, width=problem.segment_width(pitch, asked.options), pitch=pitch)
    return _choose(asked, device_info(asked.device), policy)


@lru_cache(maxsize=4096)
def _choose(asked: Problem, device: DeviceInfo, policy: SamplingPolicy | str | None) -> Plan:
    return planner.choose(asked, device, policy=policy, kept=False)
