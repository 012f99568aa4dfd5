"""`ksieve::topk` as PyTorch operators, for ``torch.compile``, ``torch.export`` and direct calls.

Import this module to register them; `ksieve.topk` does so by itself when it is traced. ``import ksieve`` does
not import PyTorch.

Operators
---------
``torch.ops.ksieve.topk(scores, lengths, k) -> indices``
    A new int32 tensor of shape (rows, k).
``torch.ops.ksieve.topk_out(scores, lengths, num_rows, k, plan, out!, workspace!) -> ()``
    Writes `out`. `plan` is None or a plan in the text form of `encode_plan`; `workspace` is None or bytes.

Both run on CPU and CUDA and have fake kernels. On CUDA they allocate their workspace from PyTorch in stream
order on every call, never from a cache of ksieve's own: under CUDA graphs, memory has to belong to the graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import torch

from ksieve import api, problem
from ksieve.errors import ArgumentError
from ksieve.options import Options
from ksieve.planner import DeviceInfo, Plan
from ksieve.policy import SamplingPolicy
from ksieve.problem import Device, Problem

_MOST_CHOSEN = 4096
_TAGS = (torch.Tag.pt2_compliant_tag,)

torch.library.define("ksieve::topk", "(Tensor scores, Tensor? lengths, int k) -> Tensor", tags=_TAGS)
torch.library.define(
    "ksieve::topk_out",
    "(Tensor scores, Tensor? lengths, Tensor? num_rows, int k, str? plan, *, Tensor(a!) out, Tensor(b!)? workspace)"
    " -> ()",
    tags=_TAGS,
)


def _topk(scores: torch.Tensor, lengths: torch.Tensor | None, k: int) -> torch.Tensor:
    problem.check_scores(problem.inspect(scores, "scores"))
    indices = scores.new_empty((scores.shape[0], problem.check_k(k)), dtype=torch.int32)
    _topk_out(scores, lengths, None, k, None, out=indices, workspace=None)
    return indices


def _topk_out(
    scores: torch.Tensor,
    lengths: torch.Tensor | None,
    num_rows: torch.Tensor | None,
    k: int,
    plan: str | None,
    *,
    out: torch.Tensor,
    workspace: torch.Tensor | None,
) -> None:
    made = decode_plan(plan) if plan is not None else None
    if scores.is_cuda and workspace is None:
        made = made or _choose(scores, k)
        if made.workspace_bytes:
            workspace = scores.new_empty(made.workspace_bytes, dtype=torch.uint8)
    api.topk_eager(scores, lengths, k, made, out=out, workspace=workspace, num_rows=num_rows)


torch.library.impl("ksieve::topk", ("cpu", "cuda"), _topk)
torch.library.impl("ksieve::topk_out", ("cpu", "cuda"), _topk_out)


_chosen: dict[Any, Plan] = {}


def _choose(scores: torch.Tensor, k: int) -> Plan:
    """Plan of a call that brings none, recalled by what it was chosen from."""
    key = api.choice_key(scores, k, None)
    plan = _chosen.get(key)
    if plan is None:
        asked, _, _ = problem.check_selection(scores, None, k)
        if len(_chosen) >= _MOST_CHOSEN:
            _chosen.clear()
        plan = _chosen[key] = api.choose(asked)
    return plan


def _fake_topk(scores: torch.Tensor, lengths: torch.Tensor | None, k: int) -> torch.Tensor:
    _check_fake(scores, lengths, k)
    return scores.new_empty((scores.shape[0], k), dtype=torch.int32)


def _fake_topk_out(
    scores: torch.Tensor,
    lengths: torch.Tensor | None,
    num_rows: torch.Tensor | None,
    k: int,
    plan: str | None,
    *,
    out: torch.Tensor,
    workspace: torch.Tensor | None,
) -> None:
    _check_fake(scores, lengths, k)
    torch._check(out.dim() == 2 and out.dtype == torch.int32, lambda: "out: takes int32 of shape (rows, k)")


torch.library.register_fake("ksieve::topk", _fake_topk)
torch.library.register_fake("ksieve::topk_out", _fake_topk_out)


def _check_fake(scores: torch.Tensor, lengths: torch.Tensor | None, k: int) -> None:
    """Refuse while tracing what the operator would refuse when run, as far as it is known then."""
    names = [str(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]
    if scores.dim() != 2 or str(scores.dtype) not in names:
        got = f"{scores.dtype} of {scores.dim()} dimension(s)"
        raise ArgumentError("scores", got, "a matrix of float32, float16 or bfloat16")
    if lengths is not None and (lengths.dim() != 1 or lengths.dtype != torch.int32):
        raise ArgumentError("lengths", f"{lengths.dtype} of {lengths.dim()} dimension(s)", "an int32 vector")
    if isinstance(k, int):
        problem.check_k(k)


def traced(
    scores: Any,
    lengths: Any,
    k: Any,
    *,
    plan: Plan | None,
    out: Any,
    workspace: Any,
    num_rows: Any,
    keywords: Mapping[str, Any],
) -> Any:
    """What `ksieve.topk` becomes in a traced program: one operator call, or a graph break if it has options."""
    if keywords:
        # The operators have no arguments for options: the call runs between two graphs.
        return _untraced(
            scores, lengths, k, plan, out=out, workspace=workspace, num_rows=num_rows, keywords=dict(keywords)
        )
    if plan is not None:
        if k is not None and k != plan.problem.k:
            raise ArgumentError("k", k, f"{plan.problem.k}, the plan's k, or nothing")
        k = plan.problem.k
    if k is None:
        raise ArgumentError("k", None, f"an int from 1 to {problem.MAX_K}")
    if plan is None and out is None and num_rows is None and workspace is None:
        return torch.ops.ksieve.topk(scores, lengths, k)
    if workspace is not None and not isinstance(workspace, torch.Tensor):
        raise ArgumentError("workspace", type(workspace).__name__, "a torch tensor of bytes, while tracing")
    result = out if out is not None else scores.new_empty((scores.shape[0], k), dtype=torch.int32)
    text = None if plan is None else encode_plan(plan)
    torch.ops.ksieve.topk_out(scores, lengths, num_rows, k, text, out=result, workspace=workspace)
    return result


@torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
def _untraced(scores: Any, lengths: Any, k: Any, plan: Plan | None, **given: Any) -> Any:
    return api.topk_eager(scores, lengths, k, plan, **given)


def check_traceable(*, policy: Any, backend: str, return_stats: bool) -> None:
    """Refuse options that have no place in a traced program.

    Raises
    ------
    ArgumentError
    """
    if return_stats:
        raise ArgumentError("return_stats", True, "False under torch.compile and torch.export: reading back breaks it")
    if policy is not None:
        raise ArgumentError("policy", repr(policy), "nothing while tracing: pass plan=ksieve.plan(policy=...)")
    if backend != "auto":
        raise ArgumentError("backend", repr(backend), "'auto' while tracing")


def encode_plan(plan: Plan) -> str:
    """Write a plan as text, which is what an operator of a traced program can carry."""
    return json.dumps(asdict(plan))


# A traced program guards on the plan it was given, so that the text is a constant of it.
torch.compiler.assume_constant_result(encode_plan)


@lru_cache(maxsize=4096)
def decode_plan(text: str) -> Plan:
    """Read a plan back; equal texts give the same object."""
    fields: dict[str, Any] = json.loads(text)
    asked = fields.pop("problem")
    asked["device"], asked["options"] = Device(**asked["device"]), Options(**asked["options"])
    device = fields.pop("device")
    device["capability"] = tuple(device["capability"])
    policy = fields.pop("policy")
    return Plan(
        problem=Problem(**asked),
        device=DeviceInfo(**device),
        policy=SamplingPolicy(**policy) if policy else None,
        **fields,
    )
