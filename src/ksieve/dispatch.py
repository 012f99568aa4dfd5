"""Dispatch of a call: checks its arguments, chooses or checks its plan, and hands both to a backend.

`ksieve.topk` and the operators of `ksieve.frontends.torch.ops` both end here. No thresholds and no device code live
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ksieve.core import arguments, problem, registry
from ksieve.core import call as calls
from ksieve.core.arguments import Backend
from ksieve.core.call import Call
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, kind_of, refuse_at_exit, shown
from ksieve.core.policy import SamplingPolicy, check_policy_kind
from ksieve.core.problem import Device, Problem
from ksieve.planning import choose as planner
from ksieve.planning.plan import Plan

# Fast paths of calls that have run on CUDA with PyTorch tensors (backends/cuda/fast_path.py), by `call_key`: those of a
# key differ in facts of the tensors that it does not hold, and compare them. Each refers to its plan, so that the id of
# the plan is not reused; hashing its fifty fields on every call would cost as much as the launch.
_fast_paths: dict[Any, tuple[Any, ...]] = {}
_MOST_FAST_PATHS, _MOST_OF_A_KEY = 4096, 8

_SCALARS = frozenset((int, str, bool, type(None)))
"""Types of optional arguments whose values are part of `call_key`."""

_NAMES = ("scores", "lengths", "k", "out", "workspace", "num_rows")

_AUTO = "auto"
_BACKENDS = (_AUTO, "cpu", "cuda", "reference")

_NO_KEYWORDS: Mapping[str, Any] = {}

# Functions that receive every checked call before it runs (recordings of ksieve-lab). The tuple is replaced, never
# changed, so that another thread may iterate over it.
observers: tuple[Any, ...] = ()


def topk_eager(
    scores: Any,
    lengths: Any,
    k: Any,
    plan: Plan | None = None,
    policy: SamplingPolicy | str | None = None,
    backend: Backend = "auto",
    out: Any = None,
    workspace: Any = None,
    num_rows: Any = None,
    return_stats: bool = False,
    keywords: Mapping[str, Any] = _NO_KEYWORDS,
    key: tuple[Any, ...] | None = None,
) -> Any:
    """Run `topk` eagerly; the operators of a traced PyTorch program call it too. `key` is that of `call_key`."""
    # Identity is tested first: == of an object that is no string may return an array.
    if (
        _fast_paths
        and not observers
        and return_stats is False
        and (backend is _AUTO or (backend.__class__ is str and backend == "cuda"))
    ):
        if key is None:
            key = call_key(scores, lengths, k, plan, policy, out, workspace, num_rows, keywords)
        try:
            alike = _fast_paths.get(key, ())
        except Exception:  # a foreign class may raise anything when hashed; the general path reports the argument
            alike = ()
        for short in alike:
            result = short((scores, lengths, k, out, workspace, num_rows, *keywords.values()))
            if result is not None:
                return result
    refuse_at_exit()
    check_plan_kind(plan)
    if not isinstance(return_stats, bool):
        raise ArgumentError("return_stats", shown(return_stats), "True or False")
    if not isinstance(backend, str) or backend not in _BACKENDS:
        raise ArgumentError("backend", shown(backend), "'auto', 'cpu', 'cuda' or 'reference'")
    given = plan is not None
    call = calls.parse(
        scores, lengths, k, out=out, num_rows=num_rows, keywords=keywords, planned=plan.problem if plan else None
    )
    asked, info = call.problem, call.scores
    carried = info.library == "torch" and asked.options.values and _carries_gradient(call)
    selected = replace(call, problem=_of_positions(asked)) if carried else call
    if backend != "auto" and (backend == "cuda") != (info.device.kind == "cuda"):
        raise ArgumentError("backend", repr(backend), f"'auto', or a backend for scores on {info.device}")
    if plan is None:
        check_policy_kind(policy)
        # Without slots nothing is launched, and the plan of one slot serves.
        wanted = selected.problem
        plan = choose(wanted if wanted.k or wanted.options.forced else replace(wanted, k=1), policy)
    else:
        if policy is not None:
            raise ArgumentError("policy", shown(policy), "nothing when plan is given: the plan holds one")
        planner.check_covers(plan, asked)
        plan = replace(plan, problem=_of_positions(plan.problem)) if carried else plan
    if workspace is not None and info.device.kind != "cuda":
        raise ArgumentError("workspace", kind_of(workspace), "nothing on the CPU")
    # The workspace was made for the plan of the call, and not for that of the positions.
    workspace = None if carried else workspace
    for observe in observers:
        observe(call)
    serving = registry.backend("reference" if backend == "reference" else info.device.kind)
    result = serving.run(plan, selected, workspace=workspace, return_stats=return_stats)
    if carried:
        result = _with_values(call, result)
    if info.device.kind == "cuda" and info.library == "torch" and not return_stats and not carried:
        key = call_key(scores, lengths, k, plan if given else None, policy, out, workspace, num_rows, keywords)
        values = (scores, lengths, k, out, workspace, num_rows, *keywords.values())
        _keep_fast_path(key, plan, call, (*_NAMES, *keywords), values, result)
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


def _carries_gradient(call: Call) -> bool:
    """Whether the values of a call on PyTorch tensors carry a gradient.

    Values that are written to a given tensor carry none, which is said once; one that requires grad is refused.
    """
    from ksieve.frontends.torch import gradients

    values, scores = call.arrays.get("values_out"), call.arrays["scores"]
    if values is None:
        return gradients.wanted(scores)
    if problem.library_of(values) == "torch" and gradients.recorded(problem.plain_tensor(values)):
        raise ArgumentError("values_out", "a tensor that requires grad", "one that does not: values_out.detach()")
    if gradients.wanted(scores):
        arguments.warn_of_gradients()
    return False


def _of_positions(asked: Problem) -> Problem:
    """Problem of the call that selects the positions at which values with a gradient are gathered."""
    from ksieve.frontends.torch import gradients

    return replace(asked, options=gradients.positions_only(asked.options))


def _with_values(call: Call, result: Any) -> Any:
    """Result of `topk` with values that carry a gradient, from that of the call that selects the positions."""
    from ksieve.frontends.torch import gradients

    options = call.problem.options
    indices, *more = result if isinstance(result, tuple) else (result,)
    raw = more.pop(0) if gradients.positions_only(options).raw else indices
    scores = call.arrays["scores"]
    own = {name: gradients.beside(scores, call.arrays.get(name)) for name in gradients.ARRAYS}
    values = gradients.gather(scores, raw, gradients.layout_of(options), **own)
    return (indices, values, *([raw] if options.raw else []), *more)


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
    policy: Any,
    out: Any,
    workspace: Any,
    num_rows: Any,
    keywords: Mapping[str, Any],
) -> tuple[Any, ...] | None:
    """Return what decides a call on PyTorch tensors but for facts of the tensors; None for any other scores.

    Of arguments that may be arrays it holds the type. It is a key if `policy` is.
    """
    try:
        found = [
            scores.shape, scores.get_device(), k if k.__class__ is int else None, k.__class__, id(plan), policy,
            lengths.__class__, out.__class__, workspace.__class__, num_rows.__class__, *keywords,
        ]  # fmt: skip
        for value in keywords.values():
            kind = value.__class__
            found.append(kind)  # 1 is no flag
            if kind in _SCALARS:
                found.append(value)
    except Exception:  # an attribute of a foreign class may raise anything; the general path reports the argument
        return None
    return tuple(found)


def choose(asked: Problem, policy: SamplingPolicy | str | None = None) -> Plan:
    """Return the plan that `topk` uses for a checked problem; equal problems share one.

    It equals the result of `ksieve.plan`, except where that plan needs a zeroed workspace and another family needs
    none: a captured or traced call would zero the workspace every time.
    """
    return _choose(asked, device_info(asked.device), policy)


@lru_cache(maxsize=4096)
def _choose(asked: Problem, device: DeviceInfo, policy: SamplingPolicy | str | None) -> Plan:
    return planner.choose(asked, device, policy=policy, kept=False)
