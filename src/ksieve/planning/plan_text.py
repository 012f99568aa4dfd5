"""Encoding of a plan as text: an operator of a traced or exported PyTorch program takes strings, not plans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import product
from typing import Any

from ksieve.core import problem
from ksieve.core.device import DeviceInfo, check_device
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, KsieveError, shown
from ksieve.core.options import Options, check_choice
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

    The text may come from an untrusted file, and its numbers determine the addresses that kernels write. So the plan is
    made again, from its problem, its device and what a caller may force. Its numbers must equal the text's.

    Raises `ArgumentError` if the text is no plan, or differs from the planner's result.
    """
    try:
        fields = json.loads(text)
        numbers, reason = _numbers(fields), str(fields["reason"])
        for made in _made(fields):
            if _numbers(json.loads(encode_plan(made))) == numbers:
                return replace(made, reason=reason)
    except KsieveError as error:
        raise ArgumentError("plan", f"a text in which {error}", _TAKES) from None
    except Exception as error:
        said = shown((str(error).splitlines() or [""])[0])
        raise ArgumentError("plan", f"a text that is no plan ({type(error).__name__}: {said})", _TAKES) from None
    raise ArgumentError("plan", "a text whose numbers differ from the planner's", _TAKES)


def _numbers(fields: dict[str, Any]) -> str:
    """Text of all fields of a plan but its reasons, for comparison: as text True differs from 1."""
    return json.dumps(fields | {"reason": "", "bins": [launch | {"reason": ""} for launch in fields["bins"]]})


def _made(fields: dict[str, Any]) -> Iterator[Plan]:
    """Make the planner's plans for a text's problem: its own choice, then plans with a forced family or policy."""
    of = fields["problem"] | {"device": Device(**fields["problem"]["device"])}
    asked = Problem(**of | {"options": Options(**of["options"])})
    device = DeviceInfo(**fields["device"] | {"capability": tuple(fields["device"]["capability"])})
    policy = SamplingPolicy(**fields["policy"]) if fields["policy"] else "direct"
    _check(asked, device)
    splits = (None, fields["splits"]) if fields["family"] == "stream_split" else (None,)
    for forced in product((None, fields["family"]), (None, policy), (True, False), splits):
        family, by, kept, per_row = forced
        with suppress(KsieveError):
            yield planner.choose(asked, device, family=family, policy=by, kept=kept, splits=per_row)


def _check(asked: Problem, device: DeviceInfo) -> None:
    """Refuse a problem or a device that is out of the planner's range."""
    rows, width, _ = problem.check_shape(asked.rows, asked.width)
    problem.check_shape(rows, width, problem.check_pitch(asked.pitch, width))
    problem.check_k(asked.k)
    check_choice(asked.dtype, "dtype", SCORE_DTYPES)
    check_device(device)
    problem.check_size(device.threads, "device.threads", 1, _MOST_THREADS, "no device has more")
    if asked.device != Device(device.kind, device.index):
        raise ArgumentError("device", shown(asked.device), f"that of its facts, {shown(device.kind)}")
