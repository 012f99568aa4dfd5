"""CPU backend of `ksieve.logits`: top-k by `ksieve.select`, compiled sums, and kept sets by the NumPy model."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ksieve import api
from ksieve.backends.cpu import logits as compiled
from ksieve.core.arrays import as_numpy
from ksieve.core.keys import order_key, widen
from ksieve.logits.problem import Kept, Request, Sample, Statistics
from ksieve.model import logits as model
from ksieve.model.epilogue import filled

AT_A_TIME = 1 << 22
"""Scores of rows that are copied at a time, where tokens are masked out."""

_C = ctypes.PyDLL(None) if sys.platform == "linux" else None
"""Functions of the C library, which are called without another thread of Python in between."""


class _Rows(NamedTuple):
    """Some rows of a request, read.

    `part`: which rows. `scores`, `lengths`: with -inf where tokens are masked out. `positions`, `values`: of the best
    scores, as `Statistics` has them. `exact`, `factors`: from `ksieve.model.logits.factors`. `total`: logarithms to
    base 2 of the sums of powers. `flags`: all but `CAPACITY` and `SCANNED`.
    """

    part: slice
    scores: NDArray[Any]
    lengths: NDArray[np.int64]
    positions: NDArray[np.int32]
    values: NDArray[Any]
    exact: model.F64
    factors: model.F32
    total: model.F64
    flags: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int32]


@contextmanager
def default_arithmetic() -> Iterator[None]:
    """Compute in the floating-point environment of a new process: XLA's threads flush subnormals, and any may."""
    if _C is None:
        yield
        return
    before = ctypes.create_string_buffer(256)
    _C.fegetenv(before)
    _C.fesetenv(ctypes.c_void_p(-1))  # FE_DFL_ENV
    try:
        yield
    finally:
        _C.fesetenv(before)


@default_arithmetic()
def statistics(request: Request, out: Statistics) -> None:
    """Fill statistics."""
    rows = request.shape[0]
    for found in _read(request, as_numpy(out.positions), as_numpy(out.values)):
        as_numpy(out.logsumexp)[found.part] = model.logsumexp(found.total)
        as_numpy(out.flags)[found.part] = found.flags
        if out.ranks is not None:
            as_numpy(out.logprobs).reshape(rows, -1)[found.part] = found.logprobs
            as_numpy(out.ranks).reshape(rows, -1)[found.part] = found.ranks


@default_arithmetic()
def kept(request: Request, out: Kept) -> None:
    """Fill kept sets."""
    tokens, probabilities, counts, flags = map(as_numpy, out)
    columns = min(tokens.shape[1], request.k)
    for found in _read(request):
        part, rows = found.part, _kept_rows(request, found)
        flags[part] = found.flags
        sizes, total, again = rows.counts, rows.total, np.flatnonzero(rows.counts < 0)
        sizes[again], total[again], _ = _finish(request, found, again, flags[part])
        used = np.arange(columns) < sizes[:, None]
        tokens[part], probabilities[part], counts[part] = -1, 0, sizes
        tokens[part, :columns] = np.where(used, found.positions[:, :columns], -1)
        probabilities[part, :columns] = np.where(used, rows.weights[:, :columns] / total[:, None], 0)
        flags[part] |= np.where(sizes > tokens.shape[1], np.int32(model.Flags.CAPACITY), 0)


@default_arithmetic()
def sample(request: Request, out: Sample) -> None:
    """Fill samples."""
    tokens, logprobs, flags = map(as_numpy, out)
    for found in _read(request):
        part, rows, uniform = found.part, _kept_rows(request, found), _numbers(request, "uniform", found.part)
        flags[part] = found.flags
        drawn = rows.draw(uniform)
        again = np.flatnonzero(drawn == request.k)
        missing, drawn = drawn < 0, np.minimum(drawn, request.k - 1)[:, None]
        place, score = (np.take_along_axis(array, drawn, 1)[:, 0] for array in (found.positions, widen(found.values)))
        place[again] = _finish(request, found, again, flags[part])[2]
        score[again] = widen(found.scores[again, place[again]])
        tokens[part] = np.where(missing, -1, place)
        logprobs[part] = np.where(missing, np.nan, model.logprobs(score, found.exact, found.total))


def _kept_rows(request: Request, found: _Rows) -> model.KeptRows | model.Begun:
    scores = np.where((found.flags & model.Flags.NAN != 0)[:, None], np.float32(-np.inf), widen(found.values))
    p, min_p = (_numbers(request, name, found.part) if request.has(name) else None for name in ("p", "min_p"))
    if request.whole:
        return model.begin(scores, found.exact, found.factors, found.total, p, min_p, request.min_p_first)
    total = found.total if request.joint else None
    return model.keep(scores, found.exact, p, min_p, request.min_p_first, total)


def _finish(request: Request, found: _Rows, rows: NDArray[np.int64], flags: NDArray[np.int32]) -> NDArray[np.int64]:
    """Read some rows again, and flag them; return the sizes of kept sets, their masses, and positions drawn."""
    if not rows.size:
        return np.empty((3, 0), np.int64)
    flags[rows] |= np.int32(model.Flags.SCANNED)
    p, min_p, uniform = (_numbers(request, name, found.part)[rows] for name in ("p", "min_p", "uniform"))
    own = found.lengths[rows], found.factors[rows], widen(found.values[rows, 0])
    numbers = np.stack([p, uniform, found.exact[rows], model.least_exponents(min_p)], 1)
    return compiled.finish_all(found.scores, rows, *own, numbers, request.min_p_first).T


def _numbers(request: Request, name: str, part: slice) -> NDArray[np.float32]:
    """One number for each row of a part."""
    if name in request.arrays:
        return np.asarray(as_numpy(request.arrays[name])[part])
    rows = range(*part.indices(request.shape[0]))
    return np.full(len(rows), request.numbers.get(name, name != "min_p"), np.float32)


def _read(
    request: Request, positions: NDArray[Any] | None = None, values: NDArray[Any] | None = None
) -> Iterator[_Rows]:
    """Read the rows, all at once unless tokens are masked out; `positions` and `values` are filled if given."""
    rows, width = request.shape
    scores = as_numpy(request.arrays["logits"])
    if positions is None or values is None:
        positions, values = np.empty((rows, request.k), np.int32), np.empty((rows, request.k), scores.dtype)
    step = max(1, AT_A_TIME // width) if "allowed" in request.arrays else max(1, rows)
    for begin in range(0, rows, step):
        part = slice(begin, begin + step)
        yield _read_part(request, part, scores[part], positions[part], values[part])


def _read_part(
    request: Request, part: slice, scores: NDArray[Any], positions: NDArray[Any], values: NDArray[Any]
) -> _Rows:
    (rows, width), arrays = scores.shape, {name: as_numpy(array)[part] for name, array in request.arrays.items()}
    usable = np.full(rows, True)
    for name, (least, most) in model.RANGES.items():
        if name in arrays:
            usable &= (arrays[name] >= np.float32(least)) & (arrays[name] <= np.float32(most))
    slots: dict[str, Any] = {"k": request.k}
    if "k" in arrays:
        slots = {"k": np.ascontiguousarray(arrays["k"]), "max_k": request.k}
        usable &= arrays["k"] > 0
    lengths = np.clip(arrays["lengths"], 0, width) if "lengths" in arrays else np.full(rows, width)
    lengths = np.where(usable, lengths, 0).astype(np.int64)
    nothing = filled(scores.dtype, -np.inf)
    if "allowed" in arrays:
        words = np.ascontiguousarray(arrays["allowed"]).view(np.uint8)
        bits = np.unpackbits(words, axis=1, count=width, bitorder="little").view(np.bool_)
        scores = np.where(bits, scores, nothing)
    api.select(scores, lengths, **slots, sorted=True, tie_break="low", out=positions, values=values)
    unused = ~(widen(values) > -np.inf)
    positions[unused], values[unused] = -1, nothing
    temperature = np.where(usable, _numbers(request, "temperature", part), np.float32(1))
    exact, factors = model.factors(temperature)
    given = arrays["tokens"].reshape(rows, -1) if "tokens" in arrays else np.empty((rows, 0), np.int32)
    tokens = np.clip(given, 0, width - 1)
    own = np.where(tokens < lengths[:, None], widen(np.take_along_axis(scores, tokens, 1)), np.float32(-np.inf))
    own[tokens != given] = np.nan
    places = np.where(own > -np.inf, tokens, -1)
    state, ranks = compiled.sum_all(scores, lengths, factors, order_key(own), places)
    sums = model.Sums(*state.T)
    total = sums.log2(exact)
    flags = sums.flags | np.where(total == -np.inf, model.Flags.EMPTY, 0) | np.where(usable, 0, model.Flags.INVALID)
    flags |= np.where((tokens != given).any(axis=1), model.Flags.TOKEN, 0)
    logprobs = model.logprobs(own, exact[:, None], total[:, None])
    return _Rows(
        part, scores, lengths, positions, values, exact, factors, total, flags.astype(np.int32), logprobs, ranks
    )
