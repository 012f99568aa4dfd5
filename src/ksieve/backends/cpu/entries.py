"""The compiled forms of `ksieve.model.pooling.pool`, of `ksieve.model.entries.arrange`, and of `gathering.gather`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu.compiled import entry
from ksieve.backends.cpu.finishing import sort_by_bytes
from ksieve.backends.cpu.ranking import make_keys
from ksieve.backends.cpu.simd import (
    TILE,
    ZERO_KEY,
    Int,
    Word,
    copy,
    i32s,
    i64s,
    jit,
    key_mask,
    larger,
    load_score,
    load_u32,
    lowest_bit,
    smaller,
    store_i32,
    store_score,
    tile_of,
    u32s,
    u64s,
)
from ksieve.core.keys import NAN_KEY
from ksieve.model.guess import BLOCK

_BEST = 4 * (TILE + BLOCK)
_SPARE = _BEST + 4 * TILE
POOLING_BYTES = _SPARE + 4 * (TILE // 2 + 1)
"""Bytes of scratch memory: keys of a tile, whose masks are read past a block's end; best keys; keys of halves."""


@jit
def best_key(keys: Any, begin: Int, end: Int) -> Word:
    """Smallest of the keys [begin, end)."""
    best = keys[begin]
    for i in range(begin + 1, end):
        best = keys[i] if keys[i] < best else best
    return best


@jit
def first_of(address: Int, key: Word) -> Int:
    """Place of the first of the keys at `address` that is at most `key`; one of them is."""
    place, found = 0, key_mask(address, key)
    while found == np.uint64(0):
        place += BLOCK
        found = key_mask(address + 4 * place, key)
    return place + lowest_bit(found)


@jit
def score_of_key(key: Word) -> Word:
    """Float32 bits of a number's ordered key, except for the zeros, which have two."""
    return key if key >> np.uint32(31) else np.uint32(key ^ np.uint32(ZERO_KEY))


@jit
def _halve(keys: Any, count: Int, target: Any) -> None:
    """Write the smaller one of each of `count` pairs of keys."""
    for i in range(count):
        first, second = keys[2 * i], keys[2 * i + 1]
        target[i] = first if first < second else second


@jit
def best_keys(keys: Any, count: Int, size: Int, best: Any, spare: Any) -> None:
    """Write the smallest key of each of `count` whole blocks: by halves while the size is even, which vectorises."""
    if size & 1 or size > BLOCK:
        for j in range(count):
            best[j] = best_key(keys, j * size, j * size + size)
        return
    halved = size // 2
    _halve(keys, count * halved, spare)
    source, target = spare, best
    while halved % 2 == 0:
        halved //= 2
        _halve(source, count * halved, target)
        source, target = target, source
    for j in range(count):
        best[j] = best_key(source, j * halved, j * halved + halved)


@entry
def pool_rows(
    begin: Int, end: Int, scores: Int, pitch: Int, itemsize: Int, convert: Int, size: Int, columns: Int, lows: Int,
    highs: Int, numbers: Int, counts: Int, out: Int, out_pitch: Int, memory: Int,
) -> None:  # fmt: skip
    """Write the best score of each block of rows [begin, end).

    `scores`, `out`: addresses of row 0; a pitch counts bytes. `itemsize`, `convert`: of the scores, as of
    `kernels.select_rows`: they have a ranking, which says which is best. `size`, `columns`, `lows`, `highs`, `numbers`,
    `counts`: as in `ksieve.core.entries.Blocks`, arrays by the address of int64 (rows,). `memory`: address of
    POOLING_BYTES.
    """
    keys, best, spare, step = u32s(memory), u32s(memory + _BEST), u32s(memory + _SPARE), TILE // size
    for r in range(begin, end):
        low, high, number, count = i64s(lows)[r], i64s(highs)[r], i64s(numbers)[r], i64s(counts)[r]
        row, target = scores + r * pitch + i64s(columns)[r] * itemsize, out + r * out_pitch
        for block in range(0, count, step):
            last = smaller(block + step, count)
            first_score = larger((number + block) * size - low, 0)
            end_score = smaller((number + last) * size, high) - low
            tile = tile_of(row, first_score, end_score, itemsize, convert, memory)
            if tile != memory:
                copy(tile, memory, 4 * (end_score - first_score))
            make_keys(memory, 0, end_score - first_score)
            whole = low + first_score == (number + block) * size and end_score - first_score == (last - block) * size
            if whole:
                best_keys(keys, last - block, size, best, spare)
            at = 0
            for j in range(block, last):
                until = smaller((number + j + 1) * size, high) - low - first_score
                key = best[j - block] if whole else best_key(keys, at, until)
                if itemsize == 4 and convert == 0 and key != np.uint32(ZERO_KEY) and key != np.uint32(NAN_KEY):
                    store_i32(target + 4 * j, np.int32(score_of_key(key)))
                else:
                    where = first_score + at + first_of(memory + 4 * at, key)
                    store_score(itemsize, target + itemsize * j, load_score(itemsize, row + itemsize * where))
                at = until


@entry
def arrange_rows(
    begin: Int, end: Int, k: Int, out: Int, out_pitch: Int, slots: Int, chosen: Int, forced: Int, entries: Int,
    rows: Int, places: Int, places_pitch: Int, by_value: Int, highest: Int, expand: Int, tail: Int, scores: Int,
    scores_pitch: Int, size: Int, least: Int, values: Int, values_pitch: Int,
) -> None:  # fmt: skip
    """Write the slots of rows [begin, end), and the values of their entries.

    `out`, `places`, `scores`, `values`: addresses of row 0, 0 where absent; a ``..._pitch`` counts bytes. `out`
    receives int32. `slots`: of a row. `chosen`: address of int32 (rows, k). `forced`: address of int64 (5, rows), the
    first five of `ksieve.core.entries.Forced`. `entries`: address of int64 (5, rows), begin, number, low, high and tail
    of `ksieve.core.entries.Entries`. `by_value`, `highest`, `expand`, `tail`: of the options. `size`, `least`: bytes of
    a score, and bits of the value of an unused slot.
    """
    of, parts = i64s(entries), i64s(forced)
    for r in range(begin, end):
        first, first_end, last, last_end = parts[r], parts[rows + r], parts[2 * rows + r], parts[3 * rows + r]
        others, at, number = parts[4 * rows + r], of[r], of[rows + r]
        low, high = of[2 * rows + r], of[3 * rows + r]
        before, behind, used = first_end - first, last_end - last, 0
        ahead = before + (behind if by_value else 0)
        target, valued, row = out + r * out_pitch, values + r * values_pitch, scores + r * scores_pitch
        for i in range(before + k + behind):
            # Those of the first entries, of the others, and of the last ones, which come earlier by value.
            if i < ahead:
                j = ahead - 1 - i if by_value and highest else i
                own = first + j if j < before else last + j - before
            elif i < ahead + k:
                local = np.int64(i32s(chosen)[r * k + i - ahead])
                if local < 0:
                    continue
                own = others + local
            else:
                own = last + i - ahead - k
            score = row + size * (at + own)
            own = np.int64(np.int32(load_u32(places + r * places_pitch + 4 * own))) if places != 0 else number + own
            position, until = own, own + 1
            if expand > 1:
                position, until = larger(own * expand, low), smaller((own + 1) * expand, high)
            for p in range(position, until):
                store_i32(target + 4 * used, np.int32(p))
                if values != 0:
                    store_score(size, valued + size * used, load_score(size, score))
                used += 1
        scored = used
        for p in range(of[4 * rows + r], high if tail else 0):
            store_i32(target + 4 * used, np.int32(p))
            used += 1
        for i in range(used, slots):
            store_i32(target + 4 * i, np.int32(-1))
        for i in range(scored, slots if values != 0 else 0):
            store_score(size, valued + size * i, least)


@entry
def gather_rows(
    begin: Int, end: Int, width: Int, scores: Int, pitch: Int, size: Int, positions: Int, positions_pitch: Int,
    begins: Int, lengths: Int, by_position: Int, gathered: Int, places: Int, counts: Int, memory: Int,
) -> None:  # fmt: skip
    """Gather rows [begin, end).

    `scores`, `positions`: addresses of row 0; a pitch counts bytes. `size`: bytes of a score. `begins`, `lengths`:
    addresses of int64 (rows,), windows. `gathered`, `places`: addresses of the scores and of the int32 positions, both
    (rows, width). `counts`: address of int32 (rows,). `memory`: address of `finishing.bytes_needed`, for a row's width.
    """
    words, spare = u64s(memory), memory + 8 * width
    for r in range(begin, end):
        row, own = scores + r * pitch + i64s(begins)[r] * size, positions + r * positions_pitch + i64s(begins)[r] * 4
        target, place_of = gathered + r * width * size, i32s(places + r * width * 4)
        kept, last, differing, unordered = 0, np.int64(-1), np.uint64(0), 0
        for i in range(i64s(lengths)[r]):
            place = np.int64(np.int32(load_u32(own + 4 * i)))
            if place < 0:
                continue
            place_of[kept] = place
            store_score(size, target + size * kept, load_score(size, row + size * i))
            if by_position:
                words[kept] = np.uint64(place) << np.uint64(32) | np.uint64(i)
                differing |= words[kept] ^ words[0]
                unordered += int(place < last)
                last = place
            kept += 1
        i32s(counts)[r] = kept
        if unordered == 0:
            continue
        ordered = u64s(sort_by_bytes(memory, spare, memory + 16 * width, kept, 4, 8, np.int64(differing)))
        for j in range(kept):
            at = np.int64(ordered[j] & np.uint64(0xFFFFFFFF))
            place_of[j] = np.int32(ordered[j] >> np.uint64(32))
            store_score(size, target + size * j, load_score(size, row + size * at))
