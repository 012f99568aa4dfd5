"""Kernels of `ksieve.logits`: the sums of `ksieve.model.logits`, and ranks of tokens, in one read of a row.

And kept sets, or samples, of rows whose best entries do not decide them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from ksieve.backends.cpu import simd
from ksieve.backends.cpu.compiled import entry, prepare
from ksieve.backends.cpu.finishing import DIGITS, sort_by_bytes
from ksieve.backends.cpu.jit import numba
from ksieve.backends.cpu.rows import address_of, placed
from ksieve.backends.cpu.runner import _reading, _scratch, spread
from ksieve.backends.cpu.simd import TILE, Int, i32s, i64s, jit, smaller, tile_of, u32s, u64s, valid_mask
from ksieve.model import logits as model
from ksieve.model.guess import BLOCK
from ksieve.model.logits import ABOVE, FAR, FEW, FIELDS, FRACTION, GROUP, GROUPS, HEADROOM, NOTHING

types = numba.types
f32s, f64s = simd._view(types.float32), simd._view(types.float64)

Float = Any
"""A float32."""

STEP = 256
"""Scores whose powers are kept, until it is known whether one is above the unit."""

MEMORY = 4 * TILE + 12 * STEP
"""Bytes of memory for one row."""

_WORST_KEY = 0xFF7FFFFF
"""Ordered key of the least number above -inf."""

_ENTRIES = MEMORY + 8 * DIGITS
"""Bytes of memory before the sorted entries of a row."""

_C6, _C5, _C4, _C3, _C2, _C1, _C0 = map(np.float32, model.POWER)
_ROUND, _WITHIN, _FAR, _INFINITY, _ZERO = map(np.float32, (model.ROUND, model.WITHIN, FAR, np.inf, 0))
_NAN, _INFINITE = int(model.Flags.NAN), int(model.Flags.INFINITE)


@simd.built(types.float32, types.float32, types.float32, types.float32)
def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c``, rounded once."""
    return builder.fma(a, b, c)


@simd.built(types.int32, types.float32)
def _bits(builder: Any, number: Any) -> Any:
    return builder.bitcast(number, ir.IntType(32))


@jit
def _power(x: Float, high: Float, low: Float) -> Any:
    """Bits of a number in [0.5, 2) with the mantissa of a score's power, and the exponent of the power."""
    whole = _fma(x, high, _ROUND) - _ROUND
    f = _fma(x, low, _fma(x, high, -whole))
    p = _fma(_fma(_fma(_fma(_fma(_fma(_C6, f, _C5), f, _C4), f, _C3), f, _C2), f, _C1), f, _C0)
    bits = _bits(p)
    return bits, np.int32(np.int32(bits >> np.int32(23)) + np.int32(np.int32(whole) - np.int32(127)))


@jit
def _take_step(tile: Int, count: Int, base: Float, high: Float, low: Float, unit: Int, memory: Int) -> Any:
    """Find the powers of scores; return the least distance of an exponent below the unit, and whether one is NaN."""
    nearest, nan = np.int32(FAR), np.uint32(0)
    downs, shifts, mantissas = i32s(memory), u32s(memory + 4 * STEP), u32s(memory + 8 * STEP)
    least, most = np.float32(np.float32(unit) - _FAR) / high, np.float32(np.float32(unit) + _FAR) / high
    for i in range(count):
        score = f32s(tile)[i]
        nan = np.uint32(nan | np.uint32(score != score))
        x = _ZERO if score == base else score - base  # also of inf
        x = x if x > least else least  # so does NaN, and the term is 0
        bits, exponent = _power(x if x < most else most, high, low)
        down = np.int32(unit - exponent)
        nearest = down if down < nearest else nearest
        below = np.uint32(down) if np.uint32(down) < np.uint32(NOTHING) else np.uint32(NOTHING)
        downs[i], shifts[i] = down, np.uint32(below + np.uint32(60 - FRACTION))
        mantissas[i] = np.uint32(np.int32(bits & np.int32(0x7FFFFF)) | np.int32(0x800000))
    return nearest, nan


@jit
def _near(memory: Int, i: Int) -> Any:
    """Near term of a score whose power `_take_step` found."""
    doubled = (np.uint64(u32s(memory + 8 * STEP)[i]) << np.uint64(38)) >> np.uint64(u32s(memory + 4 * STEP)[i])
    return (doubled + np.uint64(1)) >> np.uint64(1)


@jit
def _sum_step(tile: Int, count: Int, base: Float, high: Float, low: Float, unit: Int, memory: Int) -> Any:
    """Sums of the near and the far terms, and what `_take_step` returns.

    Separate loops, since the compiler takes as many lanes for a loop as its widest number allows.
    """
    near, far, downs = np.uint64(0), np.uint64(0), i32s(memory)
    nearest, nan = _take_step(tile, count, base, high, low, unit, memory)
    for i in range(count):
        near += _near(memory, i)
    if nearest < 0:
        for i in range(count):
            if downs[i] < 0:
                far += np.uint64(u32s(memory + 8 * STEP)[i]) << np.uint64((-downs[i] - 1) & 63)
    return near, far, nearest, nan


@jit
def _better(tile: Int, first: Int, count: Int, key: Int, place: Int) -> Int:
    """Number of scores of a tile, which begins at position `first`, that are better than one of a key at a place."""
    found, equal, above = 0, simd.raw_limit(key), simd.raw_limit(simd.larger(key - 1, simd.INF_KEY))
    for block in range(0, count, BLOCK):
        before, mask = place - first - block, np.uint64(0)
        if before > 0:
            mask = simd.block_mask(tile + 4 * block, equal) & valid_mask(before)
        if before < BLOCK and key > simd.INF_KEY:
            mask |= simd.block_mask(tile + 4 * block, above)
        found += simd.bit_count(mask & valid_mask(count - block))
    return found


@jit
def _sum_row(
    row: Int, length: Int, size: Int, convert: Int, base: Float, high: Float, low: Float, unit: Int, tokens: Int,
    keys: Int, places: Int, ranks: Int, memory: Int,
) -> Any:  # fmt: skip
    """Return what `_sum_step` does of a whole row, and add to the ranks of its tokens; a place below 0 has none."""
    near, far, nearest, nan = np.uint64(0), np.uint64(0), np.int32(FAR), np.uint32(0)
    for first in range(0, length, TILE):
        last = smaller(first + TILE, length)
        tile = tile_of(row, first, last, size, convert, memory)
        for at in range(0, last - first, STEP):
            count = smaller(STEP, last - first - at)
            part = _sum_step(tile + 4 * at, count, base, high, low, unit, memory + 4 * TILE)
            near, far, nan = near + part[0], far + part[1], np.uint32(nan | part[3])
            nearest = part[2] if part[2] < nearest else nearest
        for j in range(tokens):
            if i32s(places)[j] >= 0:
                i32s(ranks)[j] += _better(tile, first, last - first, np.int64(u32s(keys)[j]), i32s(places)[j])
    return near, far, nearest, nan


@jit
def _greatest(row: Int, first: Int, last: Int, size: Int, convert: Int, best: Float, memory: Int) -> Float:
    """Return the greatest of the scores [first, last) and `best`, but for NaN."""
    for begin in range(first, last, TILE):
        end = smaller(begin + TILE, last)
        tile = tile_of(row, begin, end, size, convert, memory)
        for i in range(end - begin):
            best = f32s(tile)[i] if f32s(tile)[i] > best else best
    return best


@entry
def sum_rows(
    begin: Int, end: Int, scores: Int, pitch: Int, size: Int, convert: Int, lengths: Int, factors: Int, tokens: Int,
    keys: Int, places: Int, ranks: Int, state: Int, memory: Int,
) -> None:  # fmt: skip
    """Sum rows [begin, end); arguments as of `sum_all`, by address."""
    for r in range(begin, end):
        row, length, its, own = scores + r * pitch, i64s(lengths)[r], 4 * tokens * r, state + 8 * FIELDS * r
        if length <= 0:
            continue
        high, low, base, flags = f32s(factors)[2 * r], f32s(factors)[2 * r + 1], _ZERO, 0
        score, group = -_INFINITY, length if length <= FEW else GROUP
        for g in range(1 if length <= FEW else GROUPS):
            first = g * (length - group) // (GROUPS - 1)
            score = _greatest(row, first, first + group, size, convert, score, memory)
        within = abs(score * high) < _WITHIN
        unit = np.int32(_power(score if within else base, high, low)[1] + HEADROOM)
        near, far, nearest, nan = _sum_row(
            row, length, size, convert, base, high, low, unit, tokens, keys + its, places + its, ranks + its, memory
        )
        flags = _NAN if nan else 0
        if not within or nearest < -ABOVE:
            score = _greatest(row, 0, length, size, convert, -_INFINITY, memory)
            if abs(score) < _INFINITY:
                base = base if abs(score * high) < _WITHIN else score
                unit = np.int32(_power(score - base, high, low)[1] + HEADROOM)
                near, far, nearest, nan = _sum_row(
                    row, length, size, convert, base, high, low, unit, 0, 0, 0, 0, memory
                )
            else:
                near, far, unit = np.uint64(0), np.uint64(0), np.int32(0)
                flags |= _INFINITE if score > 0 else 0
        u64s(own)[0], u64s(own)[1], i64s(own)[2], i64s(own)[3], i64s(own)[4] = near, far, unit, _bits(base), flags


def sum_all(
    scores: NDArray[Any],
    lengths: NDArray[np.int64],
    factors: NDArray[np.float32],
    keys: NDArray[np.uint32],
    places: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the columns of `ksieve.model.logits.Sums` of every row, and the ranks of its tokens.

    `scores` (ndarray, shape (rows, width)): last stride 1. `lengths`: in [0, width]. `factors` (ndarray, shape
    (rows, 2)): from `ksieve.model.logits.factors`. `keys`, `places` (ndarray, shape (rows, tokens)): ordered keys of
    the tokens, and the tokens; -1 for one without a rank, whose rank is -1.
    """
    (rows, width), tokens, matrix = scores.shape, places.shape[1], placed(scores)
    state, ranks = np.zeros((rows, FIELDS), np.int64), np.where(places < 0, np.int32(-1), np.int32(0))
    reading, rest = _reading(matrix, "largest"), [address_of(array) for array in (lengths, factors)]
    own = [address_of(array) for array in (keys, places, ranks, state)]
    prepare(sum_rows)

    def work(begin: int, end: int) -> None:
        memory = _scratch(MEMORY)
        sum_rows(begin, end, matrix.address, matrix.pitch, *reading, *rest, tokens, *own, memory.address)

    spread(work, 0, rows, width)
    return state, ranks


# ---- kept sets without k ---------------------------------------------------------------------------------


@jit
def _below(sums: Int, count: Int, mass: Int) -> Int:
    """Number of running sums below a mass."""
    found = 0
    for i in range(count):
        found += int(u64s(sums)[i] < np.uint64(mass))
    return found


@entry
def finish_rows(
    begin: Int, end: Int, rows: Int, scores: Int, pitch: Int, size: Int, convert: Int, lengths: Int, factors: Int,
    bests: Int, numbers: Int, min_p_first: Int, found: Int, memory: Int,
) -> None:  # fmt: skip
    """Finish the kept sets [begin, end), and draw from them; arguments as of `finish_all`, by address."""
    powers, entries = memory + 4 * TILE, memory + _ENTRIES
    for i in range(begin, end):
        row, length, count, enough, differing = scores + i64s(rows)[i] * pitch, i64s(lengths)[i], 0, 0, np.uint64(0)
        own = numbers + 32 * i
        p, uniform, exact, least = f64s(own)[0], f64s(own)[1], f64s(own)[2], f64s(own)[3]
        for first in range(0, length, TILE):
            last = smaller(first + TILE, length)
            tile = tile_of(row, first, last, size, convert, memory)
            for j in range(last - first):
                key = simd.order_key(u32s(tile)[j])
                u64s(entries)[count] = np.uint64(key) << np.uint64(32) | np.uint64(first + j)
                if key <= np.uint32(_WORST_KEY):
                    differing |= u64s(entries)[count] ^ u64s(entries)[0]
                    count += 1
        sums = entries + 8 * length
        ordered = sort_by_bytes(entries, sums, memory + MEMORY, count, 4, 8, np.int64(differing))
        sums, total = entries + sums - ordered, np.uint64(0)
        high, low, best = f32s(factors)[2 * i], f32s(factors)[2 * i + 1], f32s(bests)[i]
        base = _ZERO if abs(best * high) < _WITHIN else best
        unit = np.int32(_power(_ZERO if best == base else best - base, high, low)[1] + HEADROOM)
        for first in range(0, count, STEP):
            step = smaller(STEP, count - first)
            for j in range(step):
                key = np.uint32(u64s(ordered)[first + j] >> np.uint64(32))
                u32s(memory)[j] = key if key >> np.uint32(31) != 0 else np.uint32(key ^ np.uint32(0x7FFFFFFF))
            _take_step(memory, step, base, high, low, unit, powers)
            for j in range(step):
                total += _near(powers, j)
                u64s(sums)[first + j] = total
                x = f32s(memory)[j]
                enough += int(x == best or (np.float64(x) - np.float64(best)) * exact >= least)
        kept = enough if min_p_first else count
        if p < 1.0:
            needed = np.int64(np.ceil(p * np.float64(u64s(sums)[kept - 1])))
            kept = smaller(kept, _below(sums, kept, needed) + 1)
        kept = smaller(kept, enough)
        mass = i64s(sums)[kept - 1]
        drawn = smaller(np.int64(np.floor(uniform * np.float64(mass))) + 1, mass)
        place = np.int64(u32s(ordered)[2 * _below(sums, kept, drawn)])
        i64s(found)[3 * i], i64s(found)[3 * i + 1], i64s(found)[3 * i + 2] = kept, mass, place


def finish_all(
    scores: NDArray[Any],
    rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    factors: NDArray[np.float32],
    bests: NDArray[np.float32],
    numbers: NDArray[np.float64],
    min_p_first: bool,
) -> NDArray[np.int64]:
    """Return the sizes and masses of the kept sets of some rows, and the positions of the entries drawn from them.

    `scores`: as of `sum_all`; `lengths`, `factors`: the same, of `rows` alone. `bests`: their greatest scores.
    `numbers` (ndarray, shape (rows, 4)): p, a uniform number, and log2(e) over temperature and the least exponent of
    min-p as of `ksieve.model.logits`.
    """
    matrix, found = placed(scores), np.empty((len(rows), 3), np.int64)
    own = [address_of(array) for array in (lengths, factors, bests, numbers)]
    reading, width = _reading(matrix, "largest"), scores.shape[1]
    prepare(finish_rows)

    def work(begin: int, end: int) -> None:
        memory = _scratch(_ENTRIES + 16 * width)
        finish_rows(
            begin, end, address_of(rows), matrix.address, matrix.pitch, *reading, *own, int(min_p_first),
            address_of(found), memory.address,
        )  # fmt: skip

    spread(work, 0, len(rows), width)
    return found
