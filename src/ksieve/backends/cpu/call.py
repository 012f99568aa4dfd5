"""One selection on the host, for arrays of any library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.backends.cpu.runner import model_arguments, run_finished, run_gathering, run_reference
from ksieve.backends.cpu.runner import run as run_rows
from ksieve.core import problem
from ksieve.core.arrays import check_jax_int64
from ksieve.core.call import Call
from ksieve.core.gathering import gather
from ksieve.core.stats import Stats
from ksieve.core.windows import windows
from ksieve.model import reference
from ksieve.model.epilogue import Finish
from ksieve.planning.plan import Plan


def run(plan: Plan, call: Call, *, workspace: Any = None, return_stats: bool = False, model: bool = False) -> Any:
    """Select every row of a call that the plan covers; `model` uses the NumPy model. There is no workspace.

    Returns
    -------
    indices, or a tuple that begins with them : see `ksieve.topk`
    """
    given = {name: call.host(name) for name in call.arrays}
    asked = call.problem
    live = int(np.clip(given["num_rows"][0], 0, asked.rows)) if "num_rows" in given else call.live
    serve = _plain if asked.options.plain and asked.k else _with_options
    return serve(plan, call, given, live, return_stats, model)


def _plain(plan: Plan, call: Call, given: dict[str, NDArray[Any]], live: int, return_stats: bool, model: bool) -> Any:
    matrix = given["scores"]
    rows, width = matrix.shape
    valid = given["lengths"] if "lengths" in given else np.full(rows, width, np.int32)
    result = given["out"] if "out" in given else np.empty((rows, plan.problem.k), np.int32)
    result[live:] = -1
    select = run_reference if model else run_rows
    stats = select(plan, matrix[:live], valid[:live], result[:live], return_stats)
    indices = _part(call, "out", result)
    return (indices, stats) if return_stats else indices


def _with_options(
    plan: Plan, call: Call, given: dict[str, NDArray[Any]], live: int, return_stats: bool, model: bool
) -> Any:
    options, k, matrix = call.problem.options, call.problem.k, given["scores"]
    (rows, width), shape = matrix.shape, (matrix.shape[0], k)
    lengths, starts, ks = (given.get(name) for name in ("lengths", "starts", "k"))
    index = np.dtype(options.index_dtype)
    if index == np.int64 and call.scores.library == "jax" and ("out" not in given or options.raw):
        check_jax_int64()
    raw = given.get("raw_out", np.empty(shape, index) if options.raw else None)
    values = given.get("values_out", np.empty(shape, matrix.dtype) if options.values else None)
    result = given["out"] if "out" in given else np.empty(shape, index)
    begins, valid = windows(options, rows, width, lengths=lengths, starts=starts)
    places, selected = given.get("positions"), options
    if places is not None:
        valid[live:] = 0
        rest = (matrix, places, begins, valid, options.by_position)
        matrix, places, found = gather(*rest) if model else run_gathering(plan, *rest)
        begins, valid, lengths, starts = 0 * begins, found.astype(np.int64), found[:live], None
        selected = replace(options, windows="none", next_n=1)
    tables = {name: given.get(name) for name in ("page_table", "row_to_request", "offsets")}
    finish = Finish(
        options, matrix, begins, result, raw, values, places=places, counts=given.get("counts_out"), **tables
    )
    finish.clear(live, rows)
    stats: Stats | None
    if not k:
        finish.clear(0, live)
        stats = Stats.without_slots(live)
    elif model:
        local, stats = reference.select(
            matrix[:live], lengths, k, options=selected, starts=None if starts is None else starts[:live],
            ks=None if ks is None else ks[:live], **model_arguments(plan, width),
        )  # fmt: skip
        finish.write(0, live, local)
    else:
        own = None if ks is None else np.clip(ks[:live], 0, k).astype(np.int32)
        stats = run_finished(plan, matrix[:live], begins[:live], valid[:live], own, finish, return_stats)
    answer = [_part(call, "out", result)]
    if options.values:
        answer.append(_part(call, "values_out", values))
    if options.raw:
        answer.append(_part(call, "raw_out", raw))
    if return_stats:
        answer.append(stats)
    return tuple(answer) if len(answer) > 1 else answer[0]


def _part(call: Call, name: str, result: Any) -> Any:
    """The caller's output array of a name, or the new `result` in the scores' library and leading shape."""
    if name in call.arrays:
        return call.arrays[name]
    scores = call.arrays["scores"]
    return _like(result.reshape(call.shape), scores, scores if name == "values_out" else None)


def _like(result: Any, scores: Any, dtype_of: Any = None) -> Any:
    """Convert a NumPy result to an array of the scores' library, without copying where the library allows it.

    With `dtype_of` the result also takes the dtype of that array, since bfloat16 is computed as bits.
    """
    library = problem.library_of(scores)
    if library == "torch":
        import torch

        if dtype_of is not None and dtype_of.dtype is torch.bfloat16:
            return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(result)
    if dtype_of is not None and result.dtype != dtype_of.dtype:
        result = result.view(dtype_of.dtype)
    if library == "jax":
        import jax.numpy as jnp

        return jnp.asarray(result)
    return result
