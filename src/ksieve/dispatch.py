"""From the arguments of a call to the backend that runs it: checks, the plan, what was prepared for it before.

`ksieve.topk` and the operators of `ksieve.torch_ops` both end here. No thresholds and no device code live here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from ksieve.core import arguments, problem, registry
from ksieve.core import call as calls
from ksieve.core.call import Call
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, kind_of, shown
from ksieve.core.policy import SamplingPolicy, check_policy_kind
from ksieve.core.problem import Device, Problem
from ksieve.planning import choose as planner
from ksieve.planning.plan import Plan

Backend = Literal["auto", "cpu", "cuda", "reference"]

# Short ways of plans that have run on CUDA with PyTorch tensors (backends/cuda/fast_path.py), by the plan's id, which
# the entry's own reference to the plan keeps from being reused: hashing a plan's fifty fields on every call would
# cost as much as the launch. Calls without a plan find theirs by what the plan was chosen from.
_short_ways: dict[Any, Any] = {}
_MOST_SHORT_WAYS = 4096

_AUTO = "auto"
_BACKENDS = (_AUTO, "cpu", "cuda", "reference")

# Called with every checked call before it runs (`ksieve.record`), but for calls whose valid scores are no prefixes of
# rows with a length each: starts, next_n. Replaced as a whole, so that threads may iterate.
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
    keywords: Mapping[str, Any] | None = None,
) -> Any:
    """Run `topk` now, whether or not PyTorch is tracing: operators of a traced program call this."""
    # Compared by identity first: what is no string may have an == that gives an array.
    if (
        _short_ways
        and not keywords
        and not observers
        and return_stats is False
        and (backend is _AUTO or (backend.__class__ is str and backend == "cuda"))
    ):
        if plan is None:
            short = _short_ways.get(choice_key(scores, k, policy))
        else:
            # An array k has no place in a plan that has a short way; the general way says so.
            short = _short_ways.get(id(plan)) if policy is None and (k is None or k.__class__ is int) else None
        if short is not None:
            indices = short(scores, lengths, k, out, workspace, num_rows)
            if indices is not None:
                return indices
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
    if backend != "auto" and (backend == "cuda") != (info.device.kind == "cuda"):
        raise ArgumentError("backend", repr(backend), f"'auto', or a backend for scores on {info.device}")
    if plan is None:
        check_policy_kind(policy)
        plan = choose(asked, policy)
    else:
        if policy is not None:
            raise ArgumentError("policy", shown(policy), "nothing when plan is given: the plan holds one")
        planner.check_covers(plan, asked)
    if workspace is not None and info.device.kind != "cuda":
        raise ArgumentError("workspace", kind_of(workspace), "nothing on the CPU")
    if info.library == "torch" and asked.options.values:
        _check_gradients(call)
    for observe in observers:
        observe(call)
    serving = registry.backend("reference" if backend == "reference" else info.device.kind)
    result = serving.run(plan, call, workspace=workspace, return_stats=return_stats)
    plain = asked.options.plain and not keywords
    if info.device.kind == "cuda" and info.library == "torch" and asked.rows and not return_stats and plain:
        key = id(plan) if given else choice_key(scores, k, policy)
        if key is not None and key not in _short_ways:
            if len(_short_ways) >= _MOST_SHORT_WAYS:
                _short_ways.clear()
            _short_ways[key] = serving.short_way(plan)
    return result


def _check_gradients(call: Call) -> None:
    """Say that the values have no gradient, where one is being recorded."""
    if not sys.modules["torch"].is_grad_enabled():
        return
    values = call.arrays.get("values_out")
    if values is not None and problem.library_of(values) == "torch" and problem.plain_tensor(values).requires_grad:
        raise ArgumentError("values_out", "a tensor that requires grad", "one that does not: values_out.detach()")
    if call.arrays["scores"].requires_grad:
        arguments.warn_of_gradients()


def check_plan_kind(plan: object) -> None:
    """Refuse what is no plan.

    Raises
    ------
    ArgumentError
    """
    if plan is not None and not isinstance(plan, Plan):
        raise ArgumentError("plan", kind_of(plan), "a Plan from ksieve.plan, or None")


def device_info(device: Device) -> DeviceInfo:
    """Facts of a device of this machine.

    Raises
    ------
    BackendError
        If it is not there, or cannot be used.
    """
    return registry.backend(device.kind).device_info(device.index)


def choice_key(scores: Any, k: Any, policy: Any) -> Any:
    """What a plan is chosen from, read off a PyTorch tensor; None for anything else."""
    try:
        key = (scores.shape, scores.stride(), scores.dtype, scores.get_device(), k, type(k), policy)
        hash(key)
    except Exception:  # of a foreign class; the general way names what is wrong with the argument
        return None
    return key


def choose(asked: Problem, policy: SamplingPolicy | str | None = None) -> Plan:
    """Return the plan that `topk` uses for a checked problem on the device it names; equal problems share one.

    It is the one of `plan`, but where that needs a zeroed workspace for what another family does without: the call may
    be captured or traced, and zero it each time.
    """
    return _choose(asked, device_info(asked.device), policy)


@lru_cache(maxsize=4096)
def _choose(asked: Problem, device: DeviceInfo, policy: SamplingPolicy | str | None) -> Plan:
    return planner.choose(asked, device, policy=policy, kept=False)
