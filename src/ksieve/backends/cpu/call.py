"""One selection on the host, for arrays of any library."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.backends.cpu.rows import Rows
from ksieve.backends.cpu.runner import (
    model_arguments,
    run_arranging,
    run_finished,
    run_gathering,
    run_pooling,
    run_reference,
)
from ksieve.backends.cpu.runner import run as run_rows
from ksieve.core import entries, problem
from ksieve.core.arrays import check_jax_int64
from ksieve.core.call import NUMBERS, OUTPUTS, Call
from ksieve.core.entries import I64
from ksieve.core.selection import Selection
from ksieve.core.stats import Stats
from ksieve.core.windows import of_segments, windows
from ksieve.model import reference
from ksieve.model.entries import arrange, values_of
from ksieve.model.epilogue import Finish
from ksieve.model.gathering import gather, positions_of
from ksieve.model.pooling import entries_of
from ksieve.planning.plan import Plan


def run(plan: Plan, call: Call, *, workspace: Any = None, stats: bool = False, model: bool = False) -> Selection[Any]:
    """Select every row of a call that the plan covers; `model` uses the NumPy model. There is no workspace."""
    given, strided = _given(call, model)
    asked = call.problem
    if "indptr" in given:
        given["starts"], given["lengths"] = of_segments(given.pop("indptr"), asked.pitch, asked.width)
        call = replace(call, problem=replace(asked, options=replace(asked.options, windows="lengths")))
    if "block_table" in given:
        given["positions"] = positions_of(given["block_table"], asked.width)
    live = int(np.clip(given["num_rows"][0], 0, asked.rows)) if "num_rows" in given else call.live
    serve = _with_entries if asked.options.entries else _plain if asked.options.plain and asked.k else _with_options
    answer = serve(plan, call, given, live, stats, model)
    for name, target in strided.items():
        target[...] = given[name].reshape(target.shape)
    return answer


def _given(call: Call, model: bool) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The arrays of a call as matrices and vectors, and the outputs among them that are compact copies.

    Scores and positions are never copied for compiled code.
    """
    given: dict[str, Any] = {name: call.host(name) for name in call.arrays}
    strided: dict[str, NDArray[Any]] = {}
    for name, array in given.items():
        if array.ndim == 3:
            in_place = name in ("scores", "positions") and not model
            given[name] = Rows(array) if in_place else np.array(array).reshape(-1, array.shape[2])
        elif array.ndim == 2 and name in NUMBERS:
            given[name] = np.array(array).reshape(-1)
        else:
            continue
        if name in OUTPUTS:
            strided[name] = array
    return given, strided


def _plain(
    plan: Plan, call: Call, given: dict[str, NDArray[Any]], live: int, with_stats: bool, model: bool
) -> Selection[Any]:
    matrix = given["scores"]
    rows, width = matrix.shape
    valid = given["lengths"] if "lengths" in given else np.full(rows, width, np.int32)
    result = given["out"] if "out" in given else np.empty((rows, plan.problem.k), np.int32)
    result[live:] = -1
    select = run_reference if model else run_rows
    stats = select(plan, matrix[:live], valid[:live], result[:live], with_stats)
    return Selection(_part(call, "out", result), stats=stats if with_stats else None)


def _with_options(
    plan: Plan, call: Call, given: dict[str, NDArray[Any]], live: int, with_stats: bool, model: bool
) -> Selection[Any]:
    options, k, matrix = call.problem.options, call.problem.k, given["scores"]
    rows, width = matrix.shape
    lengths, starts, ks = (given.get(name) for name in ("lengths", "starts", "k"))
    begins, valid = windows(options, rows, width, lengths=lengths, starts=starts)
    places, selected = given.get("positions"), options
    if places is not None:
        valid[live:] = 0
        rest = (matrix, places, begins, valid, options.by_position)
        matrix, places, found = gather(*rest) if model else run_gathering(plan, *rest)
        begins, valid, lengths, starts = 0 * begins, found.astype(np.int64), found[:live], None
        selected = replace(options, windows="none", next_n=1)
    finish = Finish(options, matrix, begins, places=places, **_outputs(call, given))
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
        stats = run_finished(plan, matrix[:live], begins[:live], valid[:live], own, finish, with_stats)
    return _answer(call, finish, stats if with_stats else None)


def _with_entries(
    plan: Plan, call: Call, given: dict[str, NDArray[Any]], live: int, with_stats: bool, model: bool
) -> Selection[Any]:
    """Serve a call whose rows have entries, in the five steps of `ksieve.core.entries`."""
    options, k, matrix = call.problem.options, call.problem.k, given["scores"]
    rows, width = matrix.shape
    lengths, starts, tails, ks, positions = (given.get(n) for n in ("lengths", "starts", "tail", "k", "positions"))
    begin, length, tails = entries.bounds(options, rows, width, lengths=lengths, starts=starts, tails=tails)
    compiled: dict[str, Any] = (
        {} if model else {"gather": partial(run_gathering, plan), "pooled": partial(run_pooling, plan)}
    )
    found = entries_of(
        options, matrix[:live], begin[:live], length[:live], None if tails is None else tails[:live],
        positions=None if positions is None else positions[:live], **compiled,
    )  # fmt: skip
    own = np.full(live, k) if ks is None else np.clip(ks[:live].astype(np.int64), 0, k)
    parts = entries.forced(options, found.total, own)
    inner, (entry_width, slots) = entries.selecting(options), entries.selected(options, width, k)
    # The slots are in order, and count from where indices do.
    outer = replace(options, order="any", index_base="start", positions=False)
    finish = Finish(outer, matrix, begin, **_outputs(call, given))
    finish.clear(live, rows)
    first = found.begin + parts.begin
    chosen, stats = np.full((live, slots), -1, np.int32), Stats.without_slots(live)
    if slots:
        asked = replace(plan.problem, width=entry_width, k=slots, options=inner)
        wanted = None if ks is None else np.minimum(parts.slots, slots).astype(np.int32)
        chosen, stats = _chosen(replace(plan, problem=asked), found.scores, first, parts.total, wanted, model)
    if model:
        numbers, sources = arrange(options, found, parts, chosen, call.problem.columns)
        replace(finish, values=None).write(0, live, numbers)
        if finish.values is not None:
            finish.values[:live] = values_of(found, sources, options.unused_value)
    else:
        run_arranging(plan, found, parts, chosen, finish, options)
    return _answer(call, finish, stats if with_stats else None)


def _chosen(
    plan: Plan, scores: NDArray[Any], begin: I64, total: I64, ks: NDArray[np.int32] | None, model: bool
) -> tuple[NDArray[np.int32], Stats]:
    """Select among entries [begin, begin + total) of each row; return the selected ones, counted from `begin`."""
    options, (rows, width), k = plan.problem.options, scores.shape, plan.problem.k
    finish = Finish(options, scores, begin, np.empty((rows, k), np.int32))
    stats: Stats | None
    if model:
        local, stats = reference.select(
            scores, total, k, options=options, starts=begin, ks=ks, **model_arguments(plan, width)
        )
        finish.write(0, rows, local)
    else:
        stats = run_finished(plan, scores, begin, total, ks, finish, True)
    assert stats is not None  # asked for
    return finish.out, stats


def _outputs(call: Call, given: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """The output arrays of a call and its tables, by the names of `Finish`: those given, else new ones."""
    options, scores = call.problem.options, given["scores"]
    shape, index = (scores.shape[0], call.problem.columns), np.dtype(options.index_dtype)
    if index == np.int64 and call.scores.library == "jax" and ("out" not in given or options.raw):
        check_jax_int64()
    return {
        "out": given["out"] if "out" in given else np.empty(shape, index),
        "raw": given.get("raw", np.empty(shape, index) if options.raw else None),
        "values": given.get("values", np.empty(shape, scores.dtype) if options.values else None),
        "counts": given.get("counts", np.empty(scores.shape[0], np.int32) if options.counts else None),
        **{name: given.get(name) for name in ("page_table", "row_to_request", "offsets")},
    }


def _answer(call: Call, finish: Finish, stats: Stats | None) -> Selection[Any]:
    """Answer of a call, in arrays of the scores' library."""
    results = {"out": finish.out, "values": finish.values, "raw": finish.raw, "counts": finish.counts}
    parts = [None if array is None else _part(call, name, array) for name, array in results.items()]
    return Selection._make([*parts, stats])


def _part(call: Call, name: str, result: Any) -> Any:
    """The caller's output array of a name, or the new `result` in the scores' library and leading shape."""
    if name in call.arrays:
        return call.arrays[name]
    scores = call.arrays["scores"]
    shape = call.leading if name == "counts" else call.shape
    return _like(result.reshape(shape), scores, scores if name == "values" else None)


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
