"""`ksieve::topk` as PyTorch operators, for ``torch.compile``, ``torch.export`` and direct calls.

Import this module to register the operators; `ksieve.topk` imports it when traced. ``import ksieve`` does not import
PyTorch.

Operators
---------
``torch.ops.ksieve.topk(scores, lengths, k) -> indices``
    A new int32 tensor of shape (rows, k).
``torch.ops.ksieve.topk_out(scores, lengths, num_rows, k, plan, out!, workspace!) -> ()``
    Writes `out`. `plan` is None or a plan in the text form of `encode_plan`; `workspace` is None or bytes.
``torch.ops.ksieve.topk_options(scores, lengths, num_rows, starts, ends, ks, page_table, row_to_request, offsets, k,
plan, options, out!, values_out!, raw_out!, workspace!) -> ()``
    The same with options, in the text form of `encode_options`; an array is None where the options do not use it.

All three run on CPU and CUDA and have fake kernels. On CUDA every call allocates its workspace from PyTorch in stream
order, unless the caller passes one, and never from ksieve's own cache: in a CUDA graph the memory must belong to the
graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, NoReturn

import torch

from ksieve import dispatch
from ksieve.core import arguments, problem
from ksieve.core import call as calls
from ksieve.core.errors import ArgumentError, kind_of
from ksieve.core.options import Options
from ksieve.planning.plan import Plan
from ksieve.planning.plan_text import decode_plan, encode_plan

_MOST_CHOSEN = 4096
_TAGS = (torch.Tag.pt2_compliant_tag,)

torch.library.define("ksieve::topk", "(Tensor scores, Tensor? lengths, int k) -> Tensor", tags=_TAGS)
torch.library.define(
    "ksieve::topk_out",
    "(Tensor scores, Tensor? lengths, Tensor? num_rows, int k, str? plan, *, Tensor(a!) out, Tensor(b!)? workspace)"
    " -> ()",
    tags=_TAGS,
)
torch.library.define(
    "ksieve::topk_options",
    "(Tensor scores, Tensor? lengths, Tensor? num_rows, Tensor? starts, Tensor? ends, Tensor? ks, Tensor? page_table,"
    " Tensor? row_to_request, Tensor? offsets, int k, str? plan, str options, *, Tensor(a!) out,"
    " Tensor(b!)? values_out, Tensor(c!)? raw_out, Tensor(d!)? workspace) -> ()",
    tags=_TAGS,
)

_SCORES = (torch.float32, torch.float16, torch.bfloat16)
_INDICES = {"int32": torch.int32, "int64": torch.int64}


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
    dispatch.topk_eager(scores, lengths, k, made, out=out, workspace=workspace, num_rows=num_rows)


def _topk_options(
    scores: torch.Tensor,
    lengths: torch.Tensor | None,
    num_rows: torch.Tensor | None,
    starts: torch.Tensor | None,
    ends: torch.Tensor | None,
    ks: torch.Tensor | None,
    page_table: torch.Tensor | None,
    row_to_request: torch.Tensor | None,
    offsets: torch.Tensor | None,
    k: int,
    plan: str | None,
    options: str,
    *,
    out: torch.Tensor,
    values_out: torch.Tensor | None,
    raw_out: torch.Tensor | None,
    workspace: torch.Tensor | None,
) -> None:
    asked = decode_options(options)
    keywords = {
        "starts": starts, "ends": ends, "index_base": asked.index_base, "next_n": asked.next_n,
        "max_k": None if ks is None else k, "page_table": page_table,
        "page_size": None if page_table is None else asked.page_size, "row_to_request": row_to_request,
        "offsets": offsets, "values_out": values_out, "raw_out": raw_out, "index_dtype": asked.index_dtype,
        "sorted": False if asked.order == "any" else asked.order, "tie_break": asked.tie_break,
        "overlap": asked.overlap,
    }  # fmt: skip
    slots = k if ks is None else ks
    made = decode_plan(plan) if plan is not None else None
    if scores.is_cuda and workspace is None:
        if made is None:
            call = calls.parse(scores, lengths, slots, out=out, num_rows=num_rows, keywords=keywords)
            made = dispatch.choose(call.problem)
        if made.workspace_bytes:
            workspace = scores.new_empty(made.workspace_bytes, dtype=torch.uint8)
    dispatch.topk_eager(
        scores, lengths, slots, made, out=out, workspace=workspace, num_rows=num_rows, keywords=keywords
    )  # fmt: skip


torch.library.impl("ksieve::topk", ("cpu", "cuda"), _topk)
torch.library.impl("ksieve::topk_out", ("cpu", "cuda"), _topk_out)
torch.library.impl("ksieve::topk_options", ("cpu", "cuda"), _topk_options)


_chosen: dict[Any, Plan] = {}


def _choose(scores: torch.Tensor, k: int) -> Plan:
    """Plan of a call without one, cached by `choice_key`."""
    key = dispatch.choice_key(scores, k, None)
    plan = _chosen.get(key)
    if plan is None:
        asked = calls.parse(scores, None, k).problem
        if len(_chosen) >= _MOST_CHOSEN:
            _chosen.clear()
        plan = _chosen[key] = dispatch.choose(asked)
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
    if out.dim() != 2 or out.dtype != torch.int32:
        raise ArgumentError("out", f"{out.dtype} of {out.dim()} dimension(s)", "int32 of shape (rows, k)")


def _fake_topk_options(
    scores: torch.Tensor,
    lengths: torch.Tensor | None,
    num_rows: torch.Tensor | None,
    starts: torch.Tensor | None,
    ends: torch.Tensor | None,
    ks: torch.Tensor | None,
    page_table: torch.Tensor | None,
    row_to_request: torch.Tensor | None,
    offsets: torch.Tensor | None,
    k: int,
    plan: str | None,
    options: str,
    *,
    out: torch.Tensor,
    values_out: torch.Tensor | None,
    raw_out: torch.Tensor | None,
    workspace: torch.Tensor | None,
) -> None:
    _check_fake(scores, lengths, k)
    asked = decode_options(options)
    problem.check_options(asked, k)
    vectors = {"ends": ends, "starts": starts, "k": ks, "row_to_request": row_to_request, "offsets": offsets}
    for name, dimensions, array in (*((n, 1, a) for n, a in vectors.items()), ("page_table", 2, page_table)):
        if array is not None and (array.dim() != dimensions or array.dtype != torch.int32):
            raise ArgumentError(
                name, f"{array.dtype} of {array.dim()} dimension(s)", f"int32 of {dimensions} dimension(s)"
            )
    index = _INDICES[asked.index_dtype]
    for name, dtype, array in (
        ("out", index, out),
        ("values_out", scores.dtype, values_out),
        ("raw_out", index, raw_out),
    ):
        if array is not None and (array.dim() != 2 or array.dtype != dtype):
            raise ArgumentError(name, f"{array.dtype} of {array.dim()} dimension(s)", f"{dtype} of shape (rows, k)")


torch.library.register_fake("ksieve::topk", _fake_topk)
torch.library.register_fake("ksieve::topk_out", _fake_topk_out)
torch.library.register_fake("ksieve::topk_options", _fake_topk_options)


def _check_fake(scores: torch.Tensor, lengths: torch.Tensor | None, k: int) -> None:
    """Raise while tracing the errors of a run that dtypes and dimensions already determine."""
    if scores.dim() != 2 or scores.dtype not in _SCORES:
        got = f"{scores.dtype} of {scores.dim()} dimension(s)"
        raise ArgumentError("scores", got, "a matrix of float32, float16 or bfloat16")
    if lengths is not None and (lengths.dim() != 1 or lengths.dtype != torch.int32):
        got = f"{lengths.dtype} of {lengths.dim()} dimension(s)"
        raise ArgumentError("lengths", got, "an int32 vector, such as lengths.to(torch.int32)")
    if isinstance(k, int):
        problem.check_k(k)


def refuse(argument: str, got: object, takes: str) -> NoReturn:
    """Raise `ArgumentError`. Dynamo does not trace its constructor; raised here, its message is shown unchanged."""
    raise ArgumentError(argument, got, takes)


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
    """Run `ksieve.topk` in a traced program, as one operator call."""
    if plan is not None and not isinstance(plan, Plan):
        refuse("plan", kind_of(plan), "a Plan from ksieve.plan, or None")
    for name, array in {"lengths": lengths, "out": out, "workspace": workspace, "num_rows": num_rows}.items():
        _check_tensor(array, name)
    for name in arguments.ARRAYS:
        _check_tensor(keywords.get(name), name)
    ks = k if isinstance(k, torch.Tensor) else None
    slots, most = (k, keywords.get("max_k")) if ks is None else (keywords.get("max_k"), None)
    if most is not None:
        refuse("max_k", kind_of(most), "nothing unless k is an array")
    if plan is not None:
        if slots is not None and slots != plan.problem.k:
            refuse("k" if ks is None else "max_k", slots, f"{plan.problem.k}, the plan's k, or nothing")
        slots = plan.problem.k
    if slots is None:
        refuse("k" if ks is None else "max_k", None, f"an int from 1 to {problem.MAX_K}")
    if isinstance(slots, bool) or not isinstance(slots, int):
        refuse("k" if ks is None else "max_k", kind_of(slots), f"an int from 1 to {problem.MAX_K}")
    text = None if plan is None else encode_plan(plan)
    arrays = {name: keywords.get(name) for name in arguments.ARRAYS}
    given = tuple(name for name in arguments.ARRAYS if arrays[name] is not None)
    scalars = tuple((name, keywords[name]) for name in keywords if name not in arguments.ARRAYS)
    dtype = None if out is None else str(out.dtype).removeprefix("torch.")
    options, index64, values, raw = encode_options(scalars, given, plan, ks is not None, lengths is not None, dtype)
    if values and scores.requires_grad and torch.is_grad_enabled():
        arguments.warn_of_gradients()
    shape = (scores.shape[0], slots)
    if options == "":
        lengths = arrays["ends"] if lengths is None else lengths
        if plan is None and out is None and num_rows is None and workspace is None:
            return torch.ops.ksieve.topk(scores, lengths, slots)
        result = out if out is not None else scores.new_empty(shape, dtype=torch.int32)
        torch.ops.ksieve.topk_out(scores, lengths, num_rows, slots, text, out=result, workspace=workspace)
        return result
    index = torch.int64 if index64 else torch.int32
    result = out if out is not None else scores.new_empty(shape, dtype=index)
    values_out, raw_out = arrays["values_out"], arrays["raw_out"]
    if values and values_out is None:
        values_out = scores.new_empty(shape)
    if raw and raw_out is None:
        raw_out = scores.new_empty(shape, dtype=index)
    torch.ops.ksieve.topk_options(
        scores, lengths, num_rows, arrays["starts"], arrays["ends"], ks, arrays["page_table"],
        arrays["row_to_request"], arrays["offsets"], slots, text, options, out=result, values_out=values_out,
        raw_out=raw_out, workspace=workspace,
    )  # fmt: skip
    answer = (result, *([values_out] if values else []), *([raw_out] if raw else []))
    return answer if len(answer) > 1 else result


def _check_tensor(array: Any, name: str) -> None:
    if array is not None and not isinstance(array, torch.Tensor):
        refuse(name, kind_of(array), "a torch tensor, while tracing")


def check_traceable(*, policy: Any, backend: str, return_stats: bool) -> None:
    """Raise `ArgumentError` for arguments that a traced program cannot represent."""
    if return_stats is not False:
        refuse("return_stats", True, "False under torch.compile and torch.export: reading back breaks it")
    if policy is not None:
        got = repr(policy) if isinstance(policy, str) else kind_of(policy)
        refuse("policy", got, "nothing while tracing: pass plan=ksieve.plan(policy=...)")
    if not isinstance(backend, str) or backend != "auto":
        refuse("backend", repr(backend) if isinstance(backend, str) else kind_of(backend), "'auto' while tracing")


def encode_options(
    scalars: tuple[tuple[str, Any], ...],
    arrays: tuple[str, ...],
    plan: Plan | None,
    per_row_k: bool,
    lengths: bool,
    out_dtype: str | None,
) -> tuple[str, bool, bool, bool]:
    """Encode the options of a call as text, "" for plain ones; also return whether they use int64, values and raw.

    Parameters
    ----------
    scalars : tuple of (str, object)
        Keyword arguments of the call that are no arrays.
    arrays : tuple of str
        Names of its keyword arguments that are arrays.
    plan : Plan or None
        Supplies the options that the call omits.
    per_row_k, lengths, out_dtype
        As in `ksieve.core.arguments.resolve`.
    """
    keywords = dict(scalars) | dict.fromkeys(arrays, True)
    planned = plan.problem.options if plan is not None else None
    asked = arguments.resolve(keywords, planned, per_row_k=per_row_k, lengths=lengths, out_dtype=out_dtype)
    text = "" if asked.plain else json.dumps(asdict(asked))
    return text, asked.index_dtype == "int64", asked.values, asked.raw


@lru_cache(maxsize=4096)
def decode_options(text: str) -> Options:
    """Read options back."""
    return Options(**json.loads(text))


# A traced program guards on its plan and options, so that their texts are constants of the program.
torch.compiler.assume_constant_result(encode_plan)
torch.compiler.assume_constant_result(encode_options)
torch.compiler.assume_constant_result(arguments.warn_of_gradients)
torch.compiler.assume_constant_result(arguments.remedy_of)
torch.compiler.assume_constant_result(refuse)
