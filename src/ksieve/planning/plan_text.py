"""Encoding of a plan as text: an operator of a traced or exported PyTorch program takes strings, not plans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from ksieve.core import problem
from ksieve.core.device import DeviceInfo, check_device
from ksieve.core.errors import ArgumentError, KsieveError, kind_of, shown
from ksieve.core.options import Options
from ksieve.core.policy import SamplingPolicy
from ksieve.core.problem import Device, Problem
from ksieve.planning import choose as planner
from ksieve.planning.plan import Plan

_TAKES = "the text of a plan of this version of ksieve: export the program again"

_MOST_THREADS = 1 << 12
"""Most threads of a CPU in a text, which may ask this machine for them."""


def encode_plan(plan: Plan) -> str:
    """Write a plan as text."""
    return json.dumps(asdict(plan))


@lru_cache(maxsize=4096)
def decode_plan(text: str) -> Plan:
    """Read a plan back; equal texts give the same object.

    The text may come from an untrusted file, and its numbers determine the addresses that kernels write. The plan is
    therefore made again from its problem and device, and accepted only if the planner gives the same numbers.

    Raises `ArgumentError` if the text is no plan, or differs from the planner's result.
    """
    try:
        plan = _plan_of(json.loads(text))
        _check(plan)
    except KsieveError as error:
        raise ArgumentError("plan", f"a text in which {error}", _TAKES) from None
    except Exception as error:
        said = shown((str(error).splitlines() or [""])[0])
        raise ArgumentError("plan", f"a text that is no plan ({type(error).__name__}: {said})", _TAKES) from None
    numbers = _numbers(plan)
    if all(numbers != _numbers(made) for made in _made(plan)):
        raise ArgumentError("plan", "a text whose numbers differ from the planner's", _TAKES)
    return plan


def _plan_of(fields: dict[str, Any]) -> Plan:
    asked = fields.pop("problem")
    asked["device"], asked["options"] = Device(**asked["device"]), Options(**asked["options"])
    device = fields.pop("device")
    device["capability"] = tuple(device["capability"])
    policy = fields.pop("policy")
    return Plan(
        problem=Problem(**asked),
        device=DeviceInfo(**device),
        policy=SamplingPolicy(**policy) if policy else None,
        bins=tuple(map(_plan_of, fields.pop("bins"))),
        **fields,
    )


def _check(plan: Plan) -> None:
    """Refuse a problem or a device that is out of the planner's range."""
    asked, device = plan.problem, plan.device
    rows, width, _ = problem.check_shape(asked.rows, asked.width)
    problem.check_pitch(asked.pitch, width)
    problem.check_shape(rows, width, asked.pitch)
    problem.check_options(asked.options)
    problem.check_k(asked.k)
    if asked.dtype not in problem.SCORE_DTYPES:
        raise ArgumentError("dtype", shown(asked.dtype), f"one of {list(problem.SCORE_DTYPES)}")
    if not isinstance(plan.reason, str):
        raise ArgumentError("reason", kind_of(plan.reason), "a text")
    check_device(device)
    problem.check_size(device.threads, "device.threads", 1, _MOST_THREADS, "no device has more")
    if asked.device != Device(device.kind, device.index):
        raise ArgumentError("device", shown(asked.device), f"that of its facts, {shown(device.kind)}")


def _made(plan: Plan) -> Iterator[Plan]:
    """Make the planner's plans for the same problem: its own choice, then those of a forced family or policy."""
    splits = (None, plan.splits) if plan.family == "stream_split" else (None,)
    for family in (None, plan.family):
        for policy in (None, plan.policy or "direct"):
            for kept in (True, False):
                for per_row in splits:
                    try:
                        yield planner.choose(
                            plan.problem, plan.device, family=family, policy=policy, splits=per_row, kept=kept
                        )
                    except KsieveError:
                        continue


def _numbers(plan: Plan) -> str:
    """Text of all fields of a plan but its reason, for comparison: as text True differs from 1."""
    return encode_plan(_wordless(plan))


def _wordless(plan: Plan) -> Plan:
    return replace(plan, reason="", bins=tuple(map(_wordless, plan.bins)))
