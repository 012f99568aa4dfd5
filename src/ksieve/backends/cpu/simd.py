"""Primitives of the CPU kernels: loads, stores and bit masks at addresses, and scores as integers.

Rows are read through addresses, so that one compiled kernel serves every pitch, alignment and dtype. Scores are
never compared as floats: `raw_key` numbers all 2**32 bit patterns from +inf (0) down to -inf and then the NaNs, and
one unsigned comparison is exact for infinities, subnormals and NaN under any flush-to-zero mode of the calling
thread. Only ``-0.0``, one place below ``+0.0``, needs care, in `raw_limit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir

from ksieve.backends.cpu.jit import numba
from ksieve.core.guess import BLOCK  # one bit each of a 64-bit mask
from ksieve.core.keys import NAN_KEY
from ksieve.core.ranking import RANKINGS

extending, types = numba.extending, numba.types

FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2

RANKED = 4
"""A kernel's `dtype` is one of these plus this times the ranking's number in `ksieve.core.ranking.RANKINGS`."""

SMALLEST, NAN_FIRST = RANKINGS.index("smallest"), RANKINGS.index("nan_first")

ANY_TIES, LOWEST_TIES, HIGHEST_TIES = 0, 1, 2

TILE = 4096
"""Scores widened or copied at a time where they cannot be compared in place (16 KiB of L1 cache).

Also the length up to which rows are bisected: at 8,192 scores a guess is faster for small k
(docs/decisions/0023-short-rows-on-the-cpu.md).
"""

AHEAD = 4096
"""Prefetch distance of a scan in bytes: the hardware prefetcher stops at every 4 KiB page."""

LINE = 64
"""Bytes of a cache line, the unit of a prefetch."""

INF_KEY = 0x007FFFFF
"""Ordered key of +inf, the best there is."""

ZERO_KEY = 0x7FFFFFFF
"""Ordered key of both zeros."""

_WORST_RAW = 0xFF000001  # raw key of -inf; larger ones are NaN

Int = Any
"""A 64-bit integer. Numba types the kernels; NumPy's annotations would describe other promotion rules."""

Word = Any
"""An unsigned 32-bit integer, or a 64-bit mask."""

_F = TypeVar("_F", bound=Callable[..., Any])

_intrinsic = cast("Callable[[Callable[..., Any]], Callable[..., Any]]", extending.intrinsic)


def jit(function: _F) -> _F:
    """Compile without the GIL, when first called."""
    return cast(_F, numba.njit(nogil=True)(function))


# ---- LLVM building blocks --------------------------------------------------------------------------------


def _lanes(builder: Any, address: Any, lane_type: Any, count: Int) -> Any:
    pointer = builder.inttoptr(address, ir.VectorType(lane_type, count).as_pointer())
    return builder.load(pointer, align=1)


def _splat(value: int, count: Int) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), count), [value] * count)


def _at_most(builder: Any, lanes: Any, limit: Any) -> Any:
    """Bit i of the result: whether lane i is at most `limit`. LLVM lowers it to 4 AVX-512 or 8 AVX2 compares."""
    single = builder.insert_element(ir.Constant(lanes.type, ir.Undefined), limit, ir.Constant(limit.type, 0))
    limits = builder.shuffle_vector(single, single, _splat(0, BLOCK))
    return builder.bitcast(builder.icmp_unsigned("<=", lanes, limits), ir.IntType(64))


@_intrinsic
def block_mask(typing: Any, address: Any, limit: Word) -> Any:
    """Bit i of the result: whether score i of the 64 float32 at `address` has a raw key of at most `limit`.

    Written in IR because the loop vectoriser does not turn 64 comparisons into one mask.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        bits = _lanes(builder, args[0], i32, BLOCK)
        sign = builder.ashr(bits, _splat(31, BLOCK))
        flip = builder.and_(builder.xor(sign, _splat(0xFFFFFFFF, BLOCK)), _splat(0x7FFFFFFF, BLOCK))
        raw = builder.sub(builder.xor(bits, flip), _splat(INF_KEY, BLOCK))
        return _at_most(builder, raw, args[1])

    return types.uint64(types.int64, types.uint32), codegen


@_intrinsic
def key_mask(typing: Any, address: Any, limit: Word) -> Any:
    """Bit i of the result: whether word i of the 64 uint32 at `address` is at most `limit`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _at_most(builder, _lanes(builder, args[0], ir.IntType(32), BLOCK), args[1])

    return types.uint64(types.int64, types.uint32), codegen


@_intrinsic
def load_u32(typing: Any, address: Any) -> Any:
    """Load 32 bits from any address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()), align=1)

    return types.uint32(types.int64), codegen


@_intrinsic
def load_u16(typing: Any, address: Any) -> Any:
    """Load 16 bits from any address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(16).as_pointer()), align=1)

    return types.uint16(types.int64), codegen


@_intrinsic
def prefetch(typing: Any, address: Any) -> Any:
    """Prefetch a cache line; the address need not be mapped."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        shape = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        instruction = builder.module.declare_intrinsic("llvm.prefetch", [pointer], shape)
        read, keep_close, data = ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)
        builder.call(instruction, [builder.inttoptr(args[0], pointer), read, keep_close, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@_intrinsic
def copy(typing: Any, source: Any, target: Any, count: Any) -> Any:
    """Copy bytes to another, separate place."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, i64 = ir.IntType(8).as_pointer(), ir.IntType(64)
        instruction = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, i64])
        source, target = (builder.inttoptr(address, pointer) for address in args[:2])
        builder.call(instruction, [target, source, args[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@_intrinsic
def _spread_block(typing: Any, source: Any, target: Any) -> Any:
    """Store 64 16-bit words from one address as 32-bit words at another."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32 = ir.VectorType(ir.IntType(32), BLOCK)
        words = builder.zext(_lanes(builder, args[0], ir.IntType(16), BLOCK), i32)
        builder.store(words, builder.inttoptr(args[1], i32.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@_intrinsic
def store_i32(typing: Any, address: Any, value: Any) -> Any:
    """Store 32 bits to any address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(32).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int32), codegen


@_intrinsic
def store_u16(typing: Any, address: Any, value: Any) -> Any:
    """Store 16 bits to any address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(16).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint16), codegen


@_intrinsic
def lowest_bit(typing: Any, mask: Word) -> Any:
    """Position of the lowest set bit; 64 for an empty mask."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


@_intrinsic
def bit_count(typing: Any, mask: Word) -> Any:
    """Number of set bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


# ---- scores and keys -------------------------------------------------------------------------------------


@jit
def _widen(narrow: Word, dtype: Int) -> Word:
    """Float32 bits of a 16-bit float of an unranked dtype, by steps that do not depend on the flush-to-zero mode."""
    if dtype == BFLOAT16:
        return np.uint32(narrow << np.uint32(16))
    sign = np.uint32((narrow & np.uint32(0x8000)) << np.uint32(16))
    magnitude = narrow & np.uint32(0x7FFF)
    normal = np.uint32(np.uint32(magnitude << np.uint32(13)) + np.uint32(112 << 23))
    subnormal = np.float32(np.float32(np.int32(magnitude)) * np.float32(2.0**-24)).view(np.uint32)
    special = np.uint32(np.uint32(magnitude << np.uint32(13)) | np.uint32(0x7F800000))
    wide = subnormal if magnitude < np.uint32(0x400) else normal
    wide = special if magnitude >= np.uint32(0x7C00) else wide
    return np.uint32(sign | wide)


@jit
def item_size(dtype: Int) -> Int:
    """Bytes of a score."""
    return 4 if dtype % RANKED == FLOAT32 else 2


@jit
def ranked_bits(bits: Word, dtype: Int) -> Word:
    """Bits of a score's ranked score (`ksieve.core.ranking.ranked`), both of the score's own size."""
    if dtype < RANKED:
        return bits
    sign = np.uint32(0x80000000 if dtype % RANKED == FLOAT32 else 0x8000)
    if dtype // RANKED == SMALLEST:
        return np.uint32(bits ^ sign)
    infinity = np.uint32(0x7F800000 if dtype % RANKED == FLOAT32 else 0x7C00 if dtype % RANKED == FLOAT16 else 0x7F80)
    size = np.uint32(bits & np.uint32(sign - np.uint32(1)))
    lower = np.uint32(bits + np.uint32(1)) if bits & sign else np.uint32(bits - np.uint32(1))
    lower = np.uint32(sign | np.uint32(1)) if size == np.uint32(0) else lower
    return infinity if size > infinity else lower


@jit
def score_bits(row: Int, position: Int, dtype: Int) -> Word:
    """Float32 bits of the ranked score of one score of the row at address `row`."""
    if dtype % RANKED == FLOAT32:
        return ranked_bits(load_u32(row + 4 * position), dtype)
    return _widen(ranked_bits(np.uint32(load_u16(row + 2 * position)), dtype), dtype % RANKED)


@jit
def prefetch_block(address: Int, itemsize: Int) -> None:
    """Prefetch the block of scores `AHEAD` bytes past an address."""
    for line in range(0, BLOCK * itemsize, LINE):
        prefetch(address + AHEAD + line)


@jit
def _copy_narrow(source: Int, count: Int, wide: Any) -> None:
    """Copy 16-bit words at an address to the first `count` words of `wide`."""
    target, whole = np.int64(wide.ctypes.data), count // BLOCK * BLOCK
    for i in range(0, whole, BLOCK):
        prefetch_block(source + 2 * i, 2)
        _spread_block(source + 2 * i, target + 4 * i)
    for i in range(whole, count):
        wide[i] = load_u16(source + 2 * i)


@jit
def _copy_ranked(row: Int, first: Int, count: Int, dtype: Int, wide: Any) -> None:
    """Put the ranked scores of `count` scores into `wide`, as float32 bits.

    Each combination has a loop of its own, with constants, which the loop vectoriser takes.
    """
    if dtype % RANKED == FLOAT32:
        source = row + 4 * first
        for i in range(0, count // BLOCK * BLOCK, BLOCK):
            prefetch_block(source + 4 * i, 4)
        copy(source, np.int64(wide.ctypes.data), 4 * count)
        if dtype // RANKED == SMALLEST:
            for i in range(count):
                wide[i] = ranked_bits(wide[i], FLOAT32 + RANKED * SMALLEST)
        else:
            for i in range(count):
                wide[i] = ranked_bits(wide[i], FLOAT32 + RANKED * NAN_FIRST)
        return
    _copy_narrow(row + 2 * first, count, wide)
    if dtype == BFLOAT16 + RANKED * SMALLEST:
        for i in range(count):
            wide[i] = _widen(ranked_bits(wide[i], BFLOAT16 + RANKED * SMALLEST), BFLOAT16)
    elif dtype == BFLOAT16 + RANKED * NAN_FIRST:
        for i in range(count):
            wide[i] = _widen(ranked_bits(wide[i], BFLOAT16 + RANKED * NAN_FIRST), BFLOAT16)
    elif dtype == FLOAT16 + RANKED * SMALLEST:
        for i in range(count):
            wide[i] = _widen(ranked_bits(wide[i], FLOAT16 + RANKED * SMALLEST), FLOAT16)
    else:
        for i in range(count):
            wide[i] = _widen(ranked_bits(wide[i], FLOAT16 + RANKED * NAN_FIRST), FLOAT16)


@jit
def tile_of(row: Int, first: Int, last: Int, dtype: Int, wide: Any) -> Int:
    """Address of the ranked scores of scores [first, last) as float32, readable in whole blocks.

    `wide` receives a copy of tiles that must be ranked or widened, and of the last tile, past which the caller's memory
    may end.
    """
    count, target = last - first, np.int64(wide.ctypes.data)
    if dtype == FLOAT32:
        if count % BLOCK == 0:
            return row + 4 * first
        copy(row + 4 * first, target, 4 * count)
        return target
    if dtype >= RANKED:
        _copy_ranked(row, first, count, dtype, wide)
        return target
    _copy_narrow(row + 2 * first, count, wide)
    if dtype == BFLOAT16:
        for i in range(count):
            wide[i] = _widen(wide[i], BFLOAT16)
    else:
        for i in range(count):
            wide[i] = _widen(wide[i], FLOAT16)
    return target


@jit
def raw_key(bits: Word) -> Any:
    """Rank of a float32 bit pattern counted from +inf: descending, -0.0 just below +0.0, then the NaNs."""
    sign = np.uint32(np.int32(bits) >> np.int32(31))  # all ones below zero
    return np.uint32((bits ^ (~sign & np.uint32(0x7FFFFFFF))) - np.uint32(INF_KEY))


@jit
def valid_mask(count: Int) -> Any:
    """Mask of the first `count` scores of a block."""
    return np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(max(0, BLOCK - count))


@jit
def order_key(bits: Word) -> Any:
    """`ksieve.core.keys.order_key` of float32 bits."""
    raw = raw_key(bits)
    key = np.uint32(raw + np.uint32(INF_KEY))
    key = np.uint32(ZERO_KEY) if bits == np.uint32(0x80000000) else key
    return np.uint32(NAN_KEY) if raw > np.uint32(_WORST_RAW) else key


@jit
def raw_limit(key: Any) -> Any:
    """Largest raw key of the scores whose ordered key is at most `key` (at least +inf's)."""
    if key == np.uint32(NAN_KEY):
        return np.uint32(NAN_KEY)
    # Both zeros share an ordered key but are neighbours as raw keys.
    below_zero = np.uint32(1) if key == np.uint32(ZERO_KEY) else np.uint32(0)
    # No score has an ordered key between -inf's and the NaNs', but the NaNs' raw keys lie there.
    return min(np.uint32(np.uint32(key - np.uint32(INF_KEY)) + below_zero), np.uint32(_WORST_RAW))


@jit
def make_keys(begin: Int, end: Int, key: Any) -> None:
    """Turn stored score bits into ordered keys; many at a time, because short loops do not vectorise."""
    for j in range(begin, end):
        key[j] = order_key(key[j])
