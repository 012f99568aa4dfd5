"""One selection on the host, for arrays of any library."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.backends.cpu.rows import placed, rows_in
from ksieve.backends.cpu.runner import run as run_rows
from ksieve.backends.cpu.runner import run_arranging, run_finished, run_gathering, run_pooling
from ksieve.core import entries
from ksieve.core.arrays import check_jax_int64
from ksieve.core.call import NUMBERS, OUTPUTS, Call
from ksieve.core.dtypes import held
from ksieve.core.selection import Selection
from ksieve.core.stats import Stats
from ksieve.core.windows import of_segments, windows
from ksieve.model.entries import arrange, values_of
from ksieve.model.epilogue import Finish
from ksieve.model.gathering import gather, positions_of
from ksieve.model.pooling import entries_of
from ksieve.planning.plan import Plan


def run(plan: Plan, call: Call, *, workspace: Any = None, stats: bool = False, model: bool = False) -> Selection[Any]:
    """Select every row of a call that the plan covers; `model` uses the NumPy model. There is no workspace."""
    asked, live = call.problem, call.live
    if "num_rows" in call.arrays:
        live = int(np.clip(call.host("num_rows")[0], 0, asked.rows))
    given, strided = _given(call, live, model)
    if "indptr" in given:
        given["starts"], given["lengths"] = of_segments(given.pop("indptr"), asked.pitch, asked.width)
        call = replace(call, problem=replace(asked, options=replace(asked.options, windows="lengths")))
    if "block_table" in given:
        positions = positions_of(given["block_table"], asked.width)
        given["positions"] = positions if model else placed(positions)
    if asked.options.plain and asked.k and not model:
        answer = _plain(plan, call, given, live, stats)
    else:
        serve = _with_entries if asked.options.entries else _with_options
        answer = serve(plan, call, given, live, stats, model)
    for name, target in strided.items():
        target[...] = given[name].reshape(target.shape)
    return answer


def _given(call: Call, live: int, model: bool) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The arrays of a call as matrices and vectors, and the outputs among them that are compact copies.

    Compiled code reads scores and positions where they lie; the scores are placed later.
    """
    given: dict[str, Any] = {}
    strided: dict[str, NDArray[Any]] = {}
    for name in call.arrays:
        if name == "positions" and not model:
            given[name] = rows_in(call, name, live)
        elif name != "scores" or model:
            given[name] = array = call.host(name)
            if array.ndim > (1 if name in NUMBERS else 2):
                given[name] = np.array(array).reshape(-1, *array.shape[2:])
                if name in OUTPUTS:
                    strided[name] = array
    return given, strided


def _plain(plan: Plan, call: Call, given: dict[str, Any], live: int, with_stats: bool) -> Selection[Any]:
    result = given["out"] if "out" in given else np.empty((call.problem.rows, plan.problem.k), np.int32)
    result[live:] = -1
    scores = rows_in(call, "scores", live)
    valid = given["lengths"][:live] if "lengths" in given else np.full(live, scores.shape[1], np.int32)
    stats = run_rows(plan, scores, valid, result[:live], with_stats)
    return Selection(_part(call, "out", result), stats=stats)


def _with_options(
    plan: Plan, call: Call, given: dict[str, Any], live: int, with_stats: bool, model: bool
) -> Selection[Any]:
    options, k, rows, outputs = call.problem.options, call.problem.k, call.problem.rows, _outputs(call, given)
    matrix: Any = given["scores"][:live] if model else rows_in(call, "scores", live)
    lengths, starts, ks, places = (given.get(name) for name in ("lengths", "starts", "k", "positions"))
    windowed = windows(options, rows, matrix.shape[1], lengths=lengths, starts=starts)
    begins, valid = (bounds[:live] for bounds in windowed)
    if places is not None:
        rest = (matrix, places, begins, valid, options.by_position)
        matrix, places, found = gather(*rest) if model else run_gathering(plan, *rest)
        begins, valid = 0 * begins, found.astype(np.int64)
    finish = Finish(options, matrix, begins, places=places, **outputs)
    finish.clear(live if k else 0, rows)
    stats = None if k else Stats.without_slots(live)
    if k:
        own = None if ks is None else np.clip(ks[:live], 0, k).astype(np.int32)
        stats = run_finished(plan, matrix, begins, valid, own, finish, with_stats, model)
    return _answer(call, finish, stats if with_stats else None)


def _with_entries(
    plan: Plan, call: Call, given: dict[str, Any], live: int, with_stats: bool, model: bool
) -> Selection[Any]:
    """Serve a call whose rows have entries, in the five steps of `ksieve.core.entries`."""
    options, k, rows, outputs = call.problem.options, call.problem.k, call.problem.rows, _outputs(call, given)
    matrix: Any = given["scores"][:live] if model else rows_in(call, "scores", live)
    lengths, starts, tails, ks, positions = (given.get(n) for n in ("lengths", "starts", "tail", "k", "positions"))
    width = matrix.shape[1]
    begin, length, tails = entries.bounds(options, rows, width, lengths=lengths, starts=starts, tails=tails)
    begin, length, tails = begin[:live], length[:live], None if tails is None else tails[:live]
    compiled: dict[str, Any] = (
        {} if model else {"gather": partial(run_gathering, plan), "pooled": partial(run_pooling, plan)}
    )
    found = entries_of(options, matrix, begin, length, tails, positions=positions, **compiled)
    own = np.full(live, k) if ks is None else np.clip(ks[:live].astype(np.int64), 0, k)
    parts = entries.forced(options, found.total, own)
    inner, (entry_width, slots) = entries.selecting(options), entries.selected(options, width, k)
    # The slots are in order, and count from where indices do.
    outer = replace(options, order="any", index_base="start", positions=False)
    finish = Finish(outer, matrix, begin, **outputs)
    finish.clear(live, rows)
    chosen = np.empty((live, slots), np.int32)
    stats = None if slots else Stats.without_slots(live)
    if slots:
        asked = replace(plan.problem, width=entry_width, k=slots, options=inner)
        wanted = None if ks is None else np.minimum(parts.slots, slots).astype(np.int32)
        others = Finish(inner, found.scores, found.begin + parts.begin, chosen)
        rest = (others.scores, others.begin, parts.total, wanted, others, with_stats, model)
        stats = run_finished(replace(plan, problem=asked), *rest)
    if model:
        numbers, sources = arrange(options, found, parts, chosen, call.problem.columns)
        replace(finish, values=None).write(0, live, numbers)
        if finish.values is not None:
            finish.values[:live] = values_of(found, sources, options.unused_value)
    else:
        run_arranging(plan, found, parts, chosen, finish, options)
    return _answer(call, finish, stats if with_stats else None)


def _outputs(call: Call, given: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """The output arrays of a call and its tables, by the names of `Finish`: those given, else new ones."""
    asked, options = call.problem, call.problem.options
    shape, index = (asked.rows, asked.columns), np.dtype(options.index_dtype)
    dtype = held(asked.dtype)
    if index == np.int64 and call.scores.library == "jax" and ("out" not in given or options.raw):
        check_jax_int64()
    return {
        "out": given["out"] if "out" in given else np.empty(shape, index),
        "raw": given.get("raw", np.empty(shape, index) if options.raw else None),
        "values": given.get("values", np.empty(shape, dtype) if options.values else None),
        "counts": given.get("counts", np.empty(asked.rows, np.int32) if options.counts else None),
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
    result = result.reshape(call.leading if name == "counts" else call.shape)
    library, bits = call.scores.library, result.dtype == np.uint16  # values that are computed as bits
    if library == "torch":
        import torch

        if bits:
            return torch.from_numpy(result.view(np.int16)).view(call.arrays["scores"].dtype)
        return torch.from_numpy(result)
    if bits:
        result = result.view(call.arrays["scores"].dtype)
    if library == "jax":
        import jax.numpy as jnp

        return jnp.asarray(result)
    return result
