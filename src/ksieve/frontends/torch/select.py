"""The PyTorch operators with options, `ksieve::topk_options` and `ksieve::select`, and batching by ``torch.vmap``.

`topk_options` writes the caller's arrays. `select` returns new ones, which ``torch.func`` asks for: under ``vmap`` the
batch becomes further rows of one selection where it can. `ksieve.frontends.torch.ops` describes all operators.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from ksieve import dispatch
from ksieve.core import call as calls
from ksieve.core import problem
from ksieve.core.errors import ArgumentError
from ksieve.core.options import PLAIN, Options
from ksieve.planning.plan import Plan
from ksieve.planning.plan_text import decode_plan

_TAGS = (torch.Tag.pt2_compliant_tag,)
_INPUTS = (
    "Tensor scores, Tensor? lengths, Tensor? num_rows, Tensor? starts, Tensor? ends, Tensor? ks, Tensor? page_table,"
    " Tensor? row_to_request, Tensor? offsets, int k, str? plan, str options"
)

_MORE = "Tensor? tail=None, Tensor? positions=None, Tensor? block_table=None"
"""Behind the others, with defaults, so that exported programs without them load."""

torch.library.define(
    "ksieve::topk_options",
    f"({_INPUTS}, *, Tensor(a!) out, Tensor(b!)? values_out, Tensor(c!)? raw_out, Tensor(d!)? workspace, {_MORE}, "
    "Tensor(e!)? counts_out=None) -> ()",
    tags=_TAGS,
)
torch.library.define("ksieve::select", f"({_INPUTS}, {_MORE}) -> Tensor[]", tags=_TAGS)

_NAMES = (
    "scores", "lengths", "num_rows", "starts", "ends", "ks", "page_table", "row_to_request", "offsets", "k", "plan",
    "options", "tail", "positions", "block_table",
)  # fmt: skip
"""Names of `_INPUTS` and `_MORE`."""

_VECTORS = ("ends", "starts", "ks", "row_to_request", "offsets", "tail", "counts_out")
_MATRICES = ("page_table", "positions", "block_table")
"""Inputs and outputs of int32, of one dimension and of two."""

SCORES = (torch.float32, torch.float16, torch.bfloat16)
INDICES = {"int32": torch.int32, "int64": torch.int64}


@lru_cache(maxsize=4096)
def decode_options(text: str) -> Options:
    """Read options back from their text; "" are plain ones."""
    return Options(**json.loads(text)) if text else PLAIN


_chosen: dict[Any, Plan] = {}
_MOST_CHOSEN = 4096


def _named(inputs: tuple[Any, ...], more: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an operator by name: PyTorch passes none at the end that has its default."""
    return dict.fromkeys(_NAMES) | dict(zip(_NAMES, inputs, strict=False)) | more


def _topk_options(*inputs: Any, **outputs: Any) -> None:
    given = _named(inputs, outputs)
    scores, lengths, num_rows, ks, k = (given.pop(name) for name in ("scores", "lengths", "num_rows", "ks", "k"))
    plan, options, out, workspace = (given.pop(name) for name in ("plan", "options", "out", "workspace"))
    asked = decode_options(options)
    keywords = given | {
        "index_base": asked.index_base, "next_n": asked.next_n, "max_k": None if ks is None else k,
        "page_size": None if given["page_table"] is None else asked.page_size, "index_dtype": asked.index_dtype,
        "sorted": False if asked.order == "any" else asked.order, "tie_break": asked.tie_break,
        "largest": asked.largest, "nan": asked.nan, "overlap": asked.overlap, "fill": asked.filled,
        "block_size": asked.block_size, "force_first": asked.force_first, "force_last": asked.force_last,
        "force": asked.force, "expand": asked.expand,
    }  # fmt: skip
    if asked.plain:
        keywords = {} if given["ends"] is None else {"ends": given["ends"]}
    made = None if plan is None else decode_plan(plan)
    slots = k if ks is None else ks
    run(scores, lengths, slots, made, asked, keywords, out=out, num_rows=num_rows, workspace=workspace)


def run(
    scores: torch.Tensor,
    lengths: torch.Tensor | None,
    k: Any,
    plan: Plan | None,
    options: Options,
    keywords: Mapping[str, Any],
    *,
    out: torch.Tensor,
    num_rows: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Select into `out`; on CUDA with memory of PyTorch, unless the caller passes some."""
    if scores.is_cuda and workspace is None:
        key = (scores.shape, scores.stride(), scores.dtype, scores.device, out.shape, options)
        plan = plan or _chosen.get(key)
        if plan is None:
            call = calls.parse(scores, lengths, k, out=out, num_rows=num_rows, keywords=keywords)
            if len(_chosen) >= _MOST_CHOSEN:
                _chosen.clear()
            plan = _chosen[key] = dispatch.choose(call.problem)
        if plan.workspace_bytes:
            workspace = scores.new_empty(plan.workspace_bytes, dtype=torch.uint8)
    dispatch.topk_eager(scores, lengths, k, plan, out=out, workspace=workspace, num_rows=num_rows, keywords=keywords)


def _select(*inputs: Any, **more: Any) -> list[torch.Tensor]:
    """Select into new arrays: the indices, and the raw ones if the options have them. There are no values."""
    given = _named(inputs, more)
    problem.check_scores(problem.inspect(given["scores"], "scores"))
    found = _new(given["scores"], given["k"], decode_options(given["options"]))
    outputs = {"out": found[0], "values_out": None, "raw_out": found[1] if len(found) > 1 else None}
    _topk_options(**given, **outputs, workspace=None)
    return found


def _new(scores: torch.Tensor, k: int, asked: Options) -> list[torch.Tensor]:
    shape = (*scores.shape[:-1], asked.columns(k))
    return [scores.new_empty(shape, dtype=INDICES[asked.index_dtype]) for _ in range(2 if asked.raw else 1)]


def _vmapped(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[list[torch.Tensor], list[int]]:
    """Select every element of a batch: as rows of one selection, or one after another.

    Rows can be appended where scores and one entry for each row are all that is given. A plan, which is made for a
    number of rows, a page table and `num_rows` belong to each element of its own.
    """
    batch = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(given, in_dims, strict=True)]
    single = [i for i, dim in enumerate(in_dims) if dim is None]
    scores, _, num_rows, _, _, _, page_table, _, _, _, plan, *_ = batch
    if 0 in single or num_rows is not None or page_table is not None or plan is not None:
        elements = [[x if i in single else x[n] for i, x in enumerate(batch)] for n in range(info.batch_size)]
        every = [torch.ops.ksieve.select(dense(element[0]), *element[1:]) for element in elements]
        return [torch.stack(found) for found in zip(*every, strict=True)], [0] * len(every[0])
    for i, vector in enumerate(batch):
        if i and isinstance(vector, torch.Tensor):
            whole = vector.expand(info.batch_size, *vector.shape) if i in single else vector
            batch[i] = whole.reshape(-1, *whole.shape[2:])
    batch[0] = dense(scores.reshape(scores.shape[:-1].numel(), scores.shape[-1]))
    found = torch.ops.ksieve.select(*batch)
    return [x.reshape(*scores.shape[:-1], x.shape[-1]) for x in found], [0] * len(found)


def dense(scores: torch.Tensor) -> torch.Tensor:
    """Scores whose rows are contiguous and lie apart: the argument itself, or a copy."""
    apart = scores.dim() < 2 or scores.shape[-2] < 2 or scores.stride(-2) >= scores.shape[-1]
    return scores if scores.stride(-1) == 1 and apart else scores.contiguous()


def check_fake(scores: torch.Tensor, lengths: torch.Tensor | None, k: int) -> None:
    """Raise while tracing the errors of a run that dtypes and dimensions already determine."""
    if scores.dim() != 2 or scores.dtype not in SCORES:
        got = f"{scores.dtype} of {scores.dim()} dimension(s)"
        raise ArgumentError("scores", got, "a matrix of float32, float16 or bfloat16")
    if lengths is not None and (lengths.dim() != 1 or lengths.dtype != torch.int32):
        got = f"{lengths.dtype} of {lengths.dim()} dimension(s)"
        raise ArgumentError("lengths", got, "an int32 vector, such as lengths.to(torch.int32)")
    if isinstance(k, int):
        problem.check_k(k)


def _checked(given: Mapping[str, Any]) -> Options:
    """Check the inputs of a call with options as `check_fake` does, and return the options."""
    check_fake(given["scores"], given["lengths"], given["k"])
    for names, dimensions in ((_VECTORS, 1), (_MATRICES, 2)):
        for name in names:
            array = given.get(name)
            if array is not None and (array.dim() != dimensions or array.dtype != torch.int32):
                got, takes = f"{array.dtype} of {array.dim()} dimension(s)", f"int32 of {dimensions} dimension(s)"
                raise ArgumentError("k" if name == "ks" else name, got, takes)
    return decode_options(given["options"])


def _fake_topk_options(*inputs: Any, **outputs: Any) -> None:
    given = _named(inputs, outputs)
    index = INDICES[_checked(given).index_dtype]
    for name, dtype in (("out", index), ("values_out", given["scores"].dtype), ("raw_out", index)):
        array = given[name]
        if array is not None and (array.dim() != 2 or array.dtype != dtype):
            raise ArgumentError(name, f"{array.dtype} of {array.dim()} dimension(s)", f"{dtype} of shape (rows, k)")


def _fake_select(*inputs: Any, **more: Any) -> list[torch.Tensor]:
    given = _named(inputs, more)
    return _new(given["scores"], given["k"], _checked(given))


torch.library.impl("ksieve::topk_options", ("cpu", "cuda"), _topk_options)
torch.library.impl("ksieve::select", ("cpu", "cuda"), _select)
torch.library.register_fake("ksieve::topk_options", _fake_topk_options)
torch.library.register_fake("ksieve::select", _fake_select)
torch.library.register_vmap("ksieve::select", _vmapped)
