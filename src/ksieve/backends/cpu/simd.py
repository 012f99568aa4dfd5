"""Primitives of the CPU kernels: loads, stores and bit masks at addresses, and scores as integers.

Rows are read through addresses, so that one compiled kernel serves every pitch, alignment and dtype. Scores are never
compared as floats. `raw_key` numbers all 2**32 bit patterns from +inf (0) down to -inf and then the NaNs. One unsigned
comparison is exact for infinities, subnormals and NaN under any flush-to-zero mode of the calling thread. Only
``-0.0``, one place below ``+0.0``, needs care, in `raw_limit`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir

from ksieve.backends.cpu.jit import OPTIONS, numba
from ksieve.core.keys import NAN_KEY
from ksieve.model.guess import BLOCK  # one bit each of a 64-bit mask

extending, types = numba.extending, numba.types


HIST_BINS = 2048

TILE = 4096
"""Scores widened or copied at a time where they cannot be compared in place (16 KiB of L1 cache)."""

SHORT = 16_384
"""Length up to which the keys of a row are searched in cache (docs/decisions/0023-short-rows-on-the-cpu.md)."""

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

intrinsic = cast("Callable[[Callable[..., Any]], Callable[..., Any]]", extending.intrinsic)


def jit(function: _F) -> _F:
    """Compile into each kernel that calls it."""
    return cast(_F, numba.njit(**OPTIONS, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))


# ---- LLVM building blocks --------------------------------------------------------------------------------


def built(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic of these types from a function that builds its instructions, given the builder and values."""

    def made(build: Callable[..., Any]) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            found = build(builder, *args)
            return context.get_dummy_value() if found is None else found

        return intrinsic(wraps(build)(lambda typing, *given: (result(*arguments), codegen)))

    return made


def lanes(builder: Any, address: Any, lane_type: Any, count: Int) -> Any:
    """Load a vector from any address."""
    pointer = builder.inttoptr(address, ir.VectorType(lane_type, count).as_pointer())
    return builder.load(pointer, align=1)


def _splat(value: int, count: Int) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), count), [value] * count)


def _at_most(builder: Any, lanes: Any, limit: Any) -> Any:
    """Bit i of the result: whether lane i is at most `limit`. LLVM lowers it to 4 AVX-512 or 8 AVX2 compares."""
    single = builder.insert_element(ir.Constant(lanes.type, ir.Undefined), limit, ir.Constant(limit.type, 0))
    limits = builder.shuffle_vector(single, single, _splat(0, BLOCK))
    return builder.bitcast(builder.icmp_unsigned("<=", lanes, limits), ir.IntType(64))


@built(types.uint64, types.int64, types.uint32)
def block_mask(builder: Any, address: Any, limit: Any) -> Any:
    """Bit i of the result: whether score i of the 64 float32 at `address` has a raw key of at most `limit`.

    Written in IR because the loop vectoriser does not turn 64 comparisons into one mask.
    """
    i32 = ir.IntType(32)
    bits = lanes(builder, address, i32, BLOCK)
    sign = builder.ashr(bits, _splat(31, BLOCK))
    flip = builder.and_(builder.xor(sign, _splat(0xFFFFFFFF, BLOCK)), _splat(0x7FFFFFFF, BLOCK))
    raw = builder.sub(builder.xor(bits, flip), _splat(INF_KEY, BLOCK))
    return _at_most(builder, raw, limit)


@built(types.uint64, types.int64, types.uint32)
def key_mask(builder: Any, address: Any, limit: Any) -> Any:
    """Bit i of the result: whether word i of the 64 uint32 at `address` is at most `limit`."""
    return _at_most(builder, lanes(builder, address, ir.IntType(32), BLOCK), limit)


def _chosen(sign: str) -> Any:
    @built(types.int64, types.int64, types.int64)
    def choose(builder: Any, first: Any, second: Any) -> Any:
        return builder.select(builder.icmp_signed(sign, first, second), first, second)

    return choose


smaller, larger = _chosen("<"), _chosen(">")
"""One of two integers. Numba compiles its `min` and `max` anew for each kernel."""


def _view(item: Any) -> Any:
    @intrinsic
    def view(typing: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(item)(types.int64), codegen

    return view


i32s, u32s, i64s, u64s = _view(types.int32), _view(types.uint32), _view(types.int64), _view(types.uint64)
"""Views of aligned memory at an address: ``i32s(address)[i]``. Arrays would take Numba ten times as long to compile."""


@intrinsic
def call(typing: Any, address: Any, arguments: Any) -> Any:
    """Call the kernel at an address, with a tuple of integers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i64, kinds = ir.IntType(64), signature.args[1].types
        words = [
            context.cast(builder, builder.extract_value(args[1], i), kind, types.int64) for i, kind in enumerate(kinds)
        ]
        function = ir.FunctionType(ir.VoidType(), [i64] * len(words)).as_pointer()
        builder.call(builder.inttoptr(args[0], function), words)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), codegen


def _loading(item: Any) -> Any:
    @built(item, types.int64)
    def load(builder: Any, address: Any) -> Any:
        return builder.load(builder.inttoptr(address, ir.IntType(item.bitwidth).as_pointer()), align=1)

    return load


def _storing(item: Any) -> Any:
    @built(types.void, types.int64, item)
    def store(builder: Any, address: Any, value: Any) -> None:
        builder.store(value, builder.inttoptr(address, ir.IntType(item.bitwidth).as_pointer()), align=1)

    return store


load_u32, load_u16 = _loading(types.uint32), _loading(types.uint16)
"""Load from any address, whatever its alignment."""

store_i32, store_u16 = _storing(types.int32), _storing(types.uint16)
"""Store to any address."""


@built(types.void, types.int64)
def prefetch(builder: Any, address: Any) -> None:
    """Prefetch a cache line; the address need not be mapped."""
    i32, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
    shape = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
    instruction = builder.module.declare_intrinsic("llvm.prefetch", [pointer], shape)
    read, keep_close, data = ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)
    builder.call(instruction, [builder.inttoptr(address, pointer), read, keep_close, data])


@built(types.void, types.int64, types.int64, types.int64)
def copy(builder: Any, source: Any, target: Any, count: Any) -> None:
    """Copy bytes to another, separate place."""
    pointer, i64 = ir.IntType(8).as_pointer(), ir.IntType(64)
    instruction = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, i64])
    source, target = (builder.inttoptr(address, pointer) for address in (source, target))
    builder.call(instruction, [target, source, count, ir.Constant(ir.IntType(1), 0)])


@built(types.int64, types.uint64)
def lowest_bit(builder: Any, mask: Any) -> Any:
    """Position of the lowest set bit; 64 for an empty mask."""
    return builder.cttz(mask, ir.Constant(ir.IntType(1), 0))


@built(types.int64, types.uint64)
def bit_count(builder: Any, mask: Any) -> Any:
    """Number of set bits."""
    return builder.ctpop(mask)


# ---- scores and keys -------------------------------------------------------------------------------------


@jit
def load_score(size: Int, address: Int) -> Word:
    """Bits of a score of `size` bytes, 4 or 2."""
    return load_u32(address) if size == 4 else np.uint32(load_u16(address))


@jit
def store_score(size: Int, address: Int, bits: Word) -> None:
    """Store the bits of a score of `size` bytes."""
    if size == 4:
        store_i32(address, np.int32(bits))
    else:
        store_u16(address, np.uint16(bits))


@jit
def prefetch_block(address: Int, itemsize: Int) -> None:
    """Prefetch the block of scores `AHEAD` bytes past an address."""
    for line in range(0, BLOCK * itemsize, LINE):
        prefetch(address + AHEAD + line)


@jit
def tile_of(row: Int, first: Int, last: Int, size: Int, convert: Int, wide: Int) -> Int:
    """Address of the ranked scores of scores [first, last) as float32, readable in whole blocks.

    Memory at `wide` receives a copy of tiles that must be ranked or widened. It receives the last tile too, past which
    the caller's memory may end.
    """
    source, count = row + size * first, last - first
    if convert != 0:
        call(convert, (source, count, wide))
    elif count % BLOCK == 0:
        return source
    else:
        copy(source, wide, 4 * count)
    return wide


@jit
def raw_key(bits: Word) -> Any:
    """Rank of a float32 bit pattern counted from +inf: descending, -0.0 just below +0.0, then the NaNs."""
    sign = np.uint32(np.int32(bits) >> np.int32(31))  # all ones below zero
    return np.uint32((bits ^ (~sign & np.uint32(0x7FFFFFFF))) - np.uint32(INF_KEY))


@jit
def valid_mask(count: Int) -> Any:
    """Mask of the first `count` scores of a block."""
    return np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(larger(0, BLOCK - count))


@jit
def order_key(bits: Word) -> Any:
    """`ksieve.core.keys.order_key` of float32 bits."""
    raw = raw_key(bits)
    key = np.uint32(raw + np.uint32(INF_KEY))
    key = np.uint32(ZERO_KEY) if bits == np.uint32(0x80000000) else key
    return np.uint32(NAN_KEY) if raw > np.uint32(_WORST_RAW) else key


@jit
def raw_limit(key: Int) -> Any:
    """Largest raw key of the scores whose ordered key is at most `key` (at least +inf's)."""
    if key == NAN_KEY:
        return np.uint32(NAN_KEY)
    # Both zeros share an ordered key but are neighbours as raw keys. No score has an ordered key between -inf's and
    # the NaNs', but the NaNs' raw keys lie there.
    return np.uint32(smaller(key - INF_KEY + (1 if key == ZERO_KEY else 0), _WORST_RAW))
