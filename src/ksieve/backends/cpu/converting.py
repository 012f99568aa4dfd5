"""Scores as the kernels compare them: their ranked scores (`ksieve.core.ranking`) as float32 bits.

Float32 with the largest first is compared in place. Every other dtype and ranking has a kernel here, which copies a few
scores at a time. All other kernels get its address, so that they are compiled once, for every dtype.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
from llvmlite import ir

from ksieve.backends.cpu.compiled import Kernel, kernel, prepare
from ksieve.backends.cpu.jit import numba
from ksieve.backends.cpu.simd import (
    Int,
    Word,
    built,
    jit,
    lanes,
    load_u16,
    load_u32,
    prefetch_block,
    smaller,
    u32s,
)
from ksieve.core.dtypes import SCORE_DTYPES, canonical
from ksieve.core.ranking import RANKINGS, Ranking
from ksieve.model.guess import BLOCK

types = numba.types

LARGEST, SMALLEST = RANKINGS.index("largest"), RANKINGS.index("smallest")
BFLOAT16 = SCORE_DTYPES["bfloat16"].number


@built(types.void, types.int64, types.int64)
def _spread_block(builder: Any, source: Any, target: Any) -> None:
    """Store 64 16-bit words from one address as 32-bit words at another."""
    i32 = ir.VectorType(ir.IntType(32), BLOCK)
    words = builder.zext(lanes(builder, source, ir.IntType(16), BLOCK), i32)
    builder.store(words, builder.inttoptr(target, i32.as_pointer()), align=1)


@jit
def _widened(bits: Word, dtype: Int) -> Word:
    """Float32 bits of a 16-bit float, by steps that do not depend on the flush-to-zero mode."""
    if dtype == BFLOAT16:
        return np.uint32(bits << np.uint32(16))
    sign = np.uint32((bits & np.uint32(0x8000)) << np.uint32(16))
    magnitude = bits & np.uint32(0x7FFF)
    normal = np.uint32(np.uint32(magnitude << np.uint32(13)) + np.uint32(112 << 23))
    subnormal = np.float32(np.float32(np.int32(magnitude)) * np.float32(2.0**-24)).view(np.uint32)
    special = np.uint32(np.uint32(magnitude << np.uint32(13)) | np.uint32(0x7F800000))
    wide = subnormal if magnitude < np.uint32(0x400) else normal
    wide = special if magnitude >= np.uint32(0x7C00) else wide
    return np.uint32(sign | wide)


@jit
def _ranked(bits: Word, sign: Word, infinity: Word, ranking: Int) -> Word:
    """Bits of a score's ranked score, both of the score's own size; `sign` and `infinity`: bits of that size."""
    if ranking == LARGEST:
        return bits
    if ranking == SMALLEST:
        return np.uint32(bits ^ sign)
    size = np.uint32(bits & np.uint32(sign - np.uint32(1)))
    lower = np.uint32(bits + np.uint32(1)) if bits & sign else np.uint32(bits - np.uint32(1))
    lower = np.uint32(sign | np.uint32(1)) if size == np.uint32(0) else lower
    return infinity if size > infinity else lower


@cache
def address(dtype: str, ranking: Ranking) -> int:
    """Address of the converter of a dtype, prepared."""
    chosen = converter(canonical(dtype), ranking)
    prepare(chosen)
    return chosen.address


@cache
def converter(dtype: str, ranking: Ranking) -> Kernel:
    """Kernel that puts the ranked scores of `count` scores at `source` at the address `target`, as float32 bits.

    Of float32 both addresses may be the same.
    """
    # Numbers alone: a function in the closure would be part of the key of the machine code, another in each process.
    order, number, size = RANKINGS.index(ranking), SCORE_DTYPES[dtype].number, SCORE_DTYPES[dtype].size
    sign, infinity = np.uint32(1 << (8 * size - 1)), np.uint32(SCORE_DTYPES[dtype].infinity)

    def in_place(source: Int, count: Int, target: Int) -> None:
        wide = u32s(target)
        for i in range(0, count, BLOCK):
            prefetch_block(source + 4 * i, 4)
            for j in range(i, smaller(i + BLOCK, count)):
                wide[j] = _ranked(load_u32(source + 4 * j), sign, infinity, order)

    def from_narrow(source: Int, count: Int, target: Int) -> None:
        wide, whole = u32s(target), count // BLOCK * BLOCK
        for i in range(0, whole, BLOCK):
            prefetch_block(source + 2 * i, 2)
            _spread_block(source + 2 * i, target + 4 * i)
        for i in range(whole, count):
            wide[i] = load_u16(source + 2 * i)
        for i in range(count):
            wide[i] = _widened(_ranked(wide[i], sign, infinity, order), number)

    function = from_narrow if size == 2 else in_place
    function.__name__ = f"convert_{dtype}_{ranking}"
    return kernel(function)


def converters() -> list[Kernel]:
    """All of them."""
    return [converter(*pair) for pair in product(SCORE_DTYPES, RANKINGS) if pair != ("float32", "largest")]
