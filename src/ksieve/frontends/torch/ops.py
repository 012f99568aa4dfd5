"""`ksieve::topk` as PyTorch operators, for ``torch.compile``, ``torch.export`` and direct calls.

Import this module to register the operators; `ksieve.topk` imports it when traced. ``import ksieve`` does not import
PyTorch.

Operators
---------
``torch.ops.ksieve.topk(scores, lengths, k) -> indices``
    A new int32 tensor of shape (rows, k).
``torch.ops.ksieve.topk_options(scores, lengths, num_rows, starts, ends, ks, page_table, row_to_request, offsets, k,
plan, options, out!, values_out!, raw_out!, workspace!, tail, positions, block_table, counts_out!) -> ()``
    Writes `out`, with options in the text form of `encode_options`; an array is None where the options do not use it.
    `plan` is None or a plan in the text form of `encode_plan`; `workspace` is None or bytes.
``torch.ops.ksieve.select``
    `topk_options` without outputs to write (`ksieve.frontends.torch.select`), for ``torch.func``.

All of them run on CPU and CUDA and have fake kernels. On CUDA every call allocates its workspace from PyTorch in stream
order, unless the caller passes one, and never from ksieve's own cache: in a CUDA graph the memory must belong to the
graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, NoReturn

import torch

from ksieve.core import arguments, problem
from ksieve.core.errors import ArgumentError, kind_of
from ksieve.core.options import PLAIN, Options
from ksieve.frontends.torch import gradients
from ksieve.frontends.torch.select import check_fake, decode_options, run
from ksieve.planning.plan import Plan
from ksieve.planning.plan_text import encode_plan

Scalars = tuple[tuple[str, Any], ...]
"""Keyword arguments of a call that are no arrays."""

_ARRAYS = (*arguments.ARRAYS, *arguments.UNTRACED)
_TAGS = (torch.Tag.pt2_compliant_tag,)

torch.library.define("ksieve::topk", "(Tensor scores, Tensor? lengths, int k) -> Tensor", tags=_TAGS)


def _topk(scores: torch.Tensor, lengths: torch.Tensor | None, k: int) -> torch.Tensor:
    problem.check_scores(problem.inspect(scores, "scores"))
    indices = scores.new_empty((scores.shape[0], problem.check_k(k)), dtype=torch.int32)
    run(scores, lengths, k, None, PLAIN, {}, out=indices)
    return indices


torch.library.impl("ksieve::topk", ("cpu", "cuda"), _topk)


def _fake_topk(scores: torch.Tensor, lengths: torch.Tensor | None, k: int) -> torch.Tensor:
    check_fake(scores, lengths, k)
    return scores.new_empty((scores.shape[0], k), dtype=torch.int32)


torch.library.register_fake("ksieve::topk", _fake_topk)


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
    """Run `ksieve.topk` in a traced program or inside ``torch.func``, as one operator call.

    Values that carry a gradient are gathered by operators of PyTorch (`ksieve.frontends.torch.gradients`).
    """
    if plan is not None and not isinstance(plan, Plan):
        refuse("plan", kind_of(plan), "a Plan from ksieve.plan, or None")
    live = problem.live_rows(num_rows, problem.MAX_SIZE)
    if live is not None:
        num_rows = torch.full((1,), live, dtype=torch.int32, device=scores.device)
    for name, array in {"lengths": lengths, "out": out, "workspace": workspace, "num_rows": num_rows}.items():
        _check_tensor(array, name)
    for name in _ARRAYS:
        _check_tensor(keywords.get(name), name)
    ks = k if isinstance(k, torch.Tensor) else None
    slots = _slots(k, ks is not None, keywords.get("max_k"), plan)
    arrays = {name: keywords.get(name) for name in _ARRAYS}
    lengths, arrays["ends"], arrays["starts"] = map(_narrowed, (lengths, arrays["ends"], arrays["starts"]))
    given = tuple(name for name in _ARRAYS if arrays[name] is not None)
    scalars = tuple((name, keywords[name]) for name in keywords if name not in _ARRAYS)
    dtype = None if out is None else str(out.dtype).removeprefix("torch.")
    asked = (scalars, given, plan, ks is not None, lengths is not None, dtype)
    options, values, raw = encode_options(*asked)
    text = None if plan is None else encode_plan(plan)
    transformed = inside_transform()
    if transformed:
        _refuse_outputs({"out": out, "workspace": workspace} | arrays)
    recorded = values and gradients.recorded(scores)
    if recorded and arrays["values_out"] is not None:
        arguments.warn_of_gradients()
    if not values or arrays["values_out"] is not None or not (recorded or transformed):
        outputs = (out, arrays["values_out"], arrays["raw_out"], workspace)
        found = _operator(scores, lengths, num_rows, ks, arrays, slots, text, options, outputs, transformed)
        return found if len(found) > 1 else found[0]
    text, options, layout = encode_positions(*asked)
    # The workspace was made for the plan of the call, and not for that of the positions.
    outputs = (out, None, arrays["raw_out"], None)
    selected = scores.detach()
    found = _operator(selected, lengths, num_rows, ks, arrays, slots, text, options, outputs, transformed)
    bounds = arrays["ends"] if lengths is None else lengths
    own = {name: arrays[name] for name in ("starts", "tail", "positions", "block_table")}
    gathered = gradients.gather(scores, found[-1], gradients.Layout(*layout), lengths=bounds, **own)
    return (found[0], gathered, found[-1]) if raw else (found[0], gathered)


def _narrowed(lengths: Any) -> Any:
    """Lengths, ends or starts of 64 bits as int32 of the same effect: the operators take no others."""
    if lengths is None or lengths.dtype != torch.int64:
        return lengths
    return lengths.clamp(-problem.MAX_SIZE, problem.MAX_SIZE).to(torch.int32)


def _slots(k: Any, per_row: bool, max_k: Any, plan: Plan | None) -> int:
    """Slots of a row: k, or max_k for an array k, or the plan's k."""
    name, slots = ("max_k", max_k) if per_row else ("k", k)
    if max_k is not None and not per_row:
        refuse("max_k", kind_of(max_k), "nothing unless k is an array")
    if plan is not None:
        if slots is not None and slots != plan.problem.k:
            refuse(name, slots, f"{plan.problem.k}, the plan's k, or nothing")
        slots = plan.problem.k
    if slots is None:
        refuse(name, None, f"an int from 1 to {problem.MAX_K}")
    if isinstance(slots, bool) or not isinstance(slots, int):
        refuse(name, kind_of(slots), f"an int from 1 to {problem.MAX_K}")
    return slots


def _operator(
    scores: Any,
    lengths: Any,
    num_rows: Any,
    ks: Any,
    arrays: Mapping[str, Any],
    slots: int,
    plan: str | None,
    options: str,
    outputs: tuple[Any, Any, Any, Any],
    transformed: bool,
) -> tuple[Any, ...]:
    """Call the operator that serves; the results of `topk`, in its order."""
    out, values_out, raw_out, workspace = outputs
    alone = plan is None and out is None and num_rows is None and workspace is None
    if options == "" and alone and not transformed:
        return (torch.ops.ksieve.topk(scores, arrays["ends"] if lengths is None else lengths, slots),)
    inputs = (
        scores, lengths, num_rows, arrays["starts"], arrays["ends"], ks, arrays["page_table"],
        arrays["row_to_request"], arrays["offsets"], slots, plan, options,
    )  # fmt: skip
    more = (arrays["tail"], arrays["positions"], arrays["block_table"])
    if transformed:
        return tuple(torch.ops.ksieve.select(*inputs, *more))
    index64, values, raw, expand, further = outputs_of(options)
    shape, index = (scores.shape[0], slots * expand + further), torch.int64 if index64 else torch.int32
    result = out if out is not None else scores.new_empty(shape, dtype=index)
    if values and values_out is None:
        values_out = scores.new_empty(shape)
    if raw and raw_out is None:
        raw_out = scores.new_empty(shape, dtype=index)
    torch.ops.ksieve.topk_options(
        *inputs, out=result, values_out=values_out, raw_out=raw_out, workspace=workspace, tail=more[0],
        positions=more[1], block_table=more[2], counts_out=arrays["counts_out"],
    )  # fmt: skip
    return (result, *([values_out] if values else []), *([raw_out] if raw else []))


def inside_transform() -> bool:
    """Whether a transform of ``torch.func`` is active. While Dynamo traces one, it is."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _refuse_outputs(arrays: Mapping[str, Any]) -> None:
    for name in ("out", "workspace", "values_out", "raw_out", "counts_out"):
        if arrays[name] is not None:
            refuse(name, "a tensor inside torch.func", "nothing there: the results are new tensors")


def _check_tensor(array: Any, name: str) -> None:
    if array is not None and not isinstance(array, torch.Tensor):
        refuse(name, kind_of(array), "a torch tensor, while tracing")


def check_traceable(*, policy: Any, backend: str, return_stats: bool) -> None:
    """Raise `ArgumentError` for arguments that the operators do not have."""
    if return_stats is not False:
        refuse("return_stats", True, "False under torch.compile, torch.export and torch.func")
    if policy is not None:
        got = repr(policy) if isinstance(policy, str) else kind_of(policy)
        refuse("policy", got, "nothing while tracing or inside torch.func: pass plan=ksieve.plan(policy=...)")
    if not isinstance(backend, str) or backend != "auto":
        refuse(
            "backend",
            repr(backend) if isinstance(backend, str) else kind_of(backend),
            "'auto' while tracing or inside torch.func",
        )


def encode_options(scalars: Scalars, arrays: tuple[str, ...], plan: Plan | None, *facts: Any) -> tuple[str, bool, bool]:
    """Encode the options of a call as text, "" for plain ones; also return whether they have values and raw indices.

    `scalars`: keyword arguments of the call that are no arrays. `arrays`: names of its keyword arguments that are
    arrays. `plan`: supplies the options that the call omits. `facts`: `per_row_k`, `lengths` and `out_dtype` of
    `ksieve.core.arguments.resolve`.
    """
    asked = _resolved(scalars, arrays, plan, *facts)
    return _text(asked), asked.values, asked.raw


def encode_positions(
    scalars: Scalars, arrays: tuple[str, ...], plan: Plan | None, *facts: Any
) -> tuple[str | None, str, tuple[Any, ...]]:
    """Encode plan and options of the call that selects the positions of values that carry a gradient.

    Also return the fields of `ksieve.frontends.torch.gradients.Layout`.
    """
    asked = _resolved(scalars, arrays, plan, *facts)
    inner = gradients.positions_only(asked)
    if plan is not None:
        plan = replace(plan, problem=replace(plan.problem, options=inner))
    text = None if plan is None else encode_plan(plan)
    return text, _text(inner), tuple(gradients.layout_of(asked))


def outputs_of(options: str) -> tuple[bool, bool, bool, int, int]:
    """Whether options in text form use int64 indices, values, and raw indices; the columns of an entry, and others."""
    asked = decode_options(options)
    return asked.index_dtype == "int64", asked.values, asked.raw, asked.expand, asked.columns(0)


def _resolved(scalars: Scalars, arrays: tuple[str, ...], plan: Plan | None, *facts: Any) -> Options:
    per_row_k, lengths, out_dtype = facts
    keywords = dict(scalars) | dict.fromkeys(arrays, True)
    planned = plan.problem.options if plan is not None else None
    return arguments.resolve(keywords, planned, per_row_k=per_row_k, lengths=lengths, out_dtype=out_dtype)


def _text(options: Options) -> str:
    return "" if options.plain else json.dumps(asdict(options))


# A traced program guards on its plan and options, so that their texts are constants of the program.
torch.compiler.assume_constant_result(encode_plan)
torch.compiler.assume_constant_result(encode_options)
torch.compiler.assume_constant_result(encode_positions)
torch.compiler.assume_constant_result(outputs_of)
torch.compiler.assume_constant_result(inside_transform)
torch.compiler.assume_constant_result(arguments.warn_of_gradients)
torch.compiler.assume_constant_result(arguments.remedy_of)
torch.compiler.assume_constant_result(refuse)
