"""The compiled forms of `ksieve.core.entries.pool` and `ksieve.model.entries.arrange`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve.backends.cpu.compiled import cached_jit
from ksieve.backends.cpu.kernels import source_digest
from ksieve.backends.cpu.simd import (
    BFLOAT16,
    FLOAT32,
    RANKED,
    SMALLEST,
    TILE,
    ZERO_KEY,
    Int,
    Word,
    copy,
    item_size,
    jit,
    key_mask,
    load_u16,
    load_u32,
    lowest_bit,
    make_keys,
    store_i32,
    store_u16,
    tile_of,
)
from ksieve.core.guess import BLOCK
from ksieve.core.keys import NAN_KEY


@jit
def best_key(keys: Any, begin: Int, end: Int) -> Word:
    """Smallest of the keys [begin, end)."""
    best = keys[begin]
    for i in range(begin + 1, end):
        best = min(best, keys[i])
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
    """Float32 bits of a number's ordered key, other than that of the zeros, which have two."""
    return key if key >> np.uint32(31) else np.uint32(key ^ np.uint32(ZERO_KEY))


@jit
def _halve(keys: Any, count: Int, target: Any) -> None:
    """Write the smaller one of each of `count` pairs of keys."""
    for i in range(count):
        target[i] = min(keys[2 * i], keys[2 * i + 1])


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


def _pooling(source: str) -> Any:
    """Make `pool_rows`. The disk cache keys on the values a function closes over, so on `source` too."""

    @cached_jit
    def pool_rows(
        begin: Int,
        end: Int,
        scores: Int,
        pitch: Int,
        dtype: Int,
        size: Int,
        columns: Any,
        lows: Any,
        highs: Any,
        numbers: Any,
        counts: Any,
        narrow: Any,
        wide: Any,
    ) -> None:
        """Write the best score of each block of rows [begin, end).

        Parameters
        ----------
        scores : int
            Address of row 0; the pitch counts bytes.
        dtype : int
            Of the scores; it has a ranking (`simd.RANKED`), which says which is best.
        size, columns, lows, highs, numbers, counts
            As in `ksieve.core.entries.Blocks`.
        narrow, wide : array of uint16 and uint32, shape (rows, blocks)
            The one of the item size receives the best scores.
        """
        assert source  # closes over it
        itemsize = item_size(dtype)
        keys, best = np.empty(TILE + BLOCK, np.uint32), np.empty(TILE, np.uint32)  # masks are read past a block's end
        spare = np.empty(TILE // 2 + 1, np.uint32)
        address, step = np.int64(keys.ctypes.data), TILE // size
        for r in range(begin, end):
            low, row = lows[r], scores + r * pitch + columns[r] * itemsize
            for block in range(0, counts[r], step):
                last = min(block + step, counts[r])
                first_score = max((numbers[r] + block) * size - low, 0)
                end_score = min((numbers[r] + last) * size, highs[r]) - low
                tile = tile_of(row, first_score, end_score, dtype, keys)
                if tile != address:
                    copy(tile, address, 4 * (end_score - first_score))
                make_keys(0, end_score - first_score, keys)
                whole = (
                    low + first_score == (numbers[r] + block) * size
                    and end_score - first_score == (last - block) * size
                )
                if whole:
                    best_keys(keys, last - block, size, best, spare)
                at = 0
                for j in range(block, last):
                    until = min((numbers[r] + j + 1) * size, highs[r]) - low - first_score
                    key = best[j - block] if whole else best_key(keys, at, until)
                    if dtype == FLOAT32 and key != np.uint32(ZERO_KEY) and key != np.uint32(NAN_KEY):
                        wide[r, j] = score_of_key(key)
                    else:
                        where = first_score + at + first_of(address + 4 * at, key)
                        if itemsize == 4:
                            wide[r, j] = load_u32(row + 4 * where)
                        else:
                            narrow[r, j] = load_u16(row + 2 * where)
                    at = until

    return pool_rows


def _arranging(source: str) -> Any:
    """Make `arrange_rows`, as `pool_rows` is made."""

    @cached_jit
    def arrange_rows(
        begin: Int,
        end: Int,
        out: Int,
        out_pitch: Int,
        slots: Int,
        chosen: Any,
        forced: Any,
        entries: Any,
        places: Int,
        places_pitch: Int,
        by_value: Int,
        highest: Int,
        expand: Int,
        tail: Int,
        scores: Int,
        scores_pitch: Int,
        dtype: Int,
        values: Int,
        values_pitch: Int,
    ) -> None:
        """Write the slots of rows [begin, end), and the values of their entries.

        Parameters
        ----------
        out, places, scores, values : int
            Addresses of row 0, 0 where absent; a ``..._pitch`` counts bytes. `out` receives int32.
        slots : int
            Slots of a row.
        chosen : array of int32, shape (rows, k)
        forced : array of int64, shape (5, rows)
            The first five of `ksieve.core.entries.Forced`.
        entries : array of int64, shape (5, rows)
            begin, number, low, high and tail of `ksieve.core.entries.Entries`.
        by_value, highest, expand, tail : int
            Of the options.
        dtype
            Of the scores, with a ranking.
        """
        assert source  # closes over it
        kind = dtype % RANKED
        least = np.int64(0xFF800000) if kind == FLOAT32 else np.int64(0xFF80 if kind == BFLOAT16 else 0xFC00)
        if dtype // RANKED == SMALLEST:
            least ^= np.int64(0x80000000 if kind == FLOAT32 else 0x8000)
        k = chosen.shape[1]
        for r in range(begin, end):
            first, first_end, last, last_end, others = (
                forced[0, r], forced[1, r], forced[2, r], forced[3, r], forced[4, r],
            )  # fmt: skip
            at, number, low, high = entries[0, r], entries[1, r], entries[2, r], entries[3, r]
            before, behind, used = first_end - first, last_end - last, 0
            ahead = before + (behind if by_value else 0)
            flip = by_value and highest
            target, valued, row = out + r * out_pitch, values + r * values_pitch, scores + r * scores_pitch
            for i in range(before + k + behind):
                # Those of the first entries, of the others, and of the last ones, which come earlier by value.
                if i < ahead:
                    j = ahead - 1 - i if flip else i
                    entry = first + j if j < before else last + j - before
                elif i < ahead + k:
                    local = np.int64(chosen[r, i - ahead])
                    if local < 0:
                        continue
                    entry = others + local
                else:
                    entry = last + i - ahead - k
                own = number + entry
                if places:
                    own = np.int64(np.int32(load_u32(places + r * places_pitch + 4 * entry)))
                position, until = own, own + 1
                if expand > 1:
                    position, until = max(own * expand, low), min((own + 1) * expand, high)
                bits = np.int64(0)
                if values and kind == FLOAT32:
                    bits = np.int64(load_u32(row + 4 * (at + entry)))
                elif values:
                    bits = np.int64(load_u16(row + 2 * (at + entry)))
                for p in range(position, until):
                    store_i32(target + 4 * used, np.int32(p))
                    if values and kind == FLOAT32:
                        store_i32(valued + 4 * used, np.int32(bits))
                    elif values:
                        store_u16(valued + 2 * used, np.uint16(bits))
                    used += 1
            scored = used
            if tail:
                for p in range(entries[4, r], high):
                    store_i32(target + 4 * used, np.int32(p))
                    used += 1
            for i in range(used, slots):
                store_i32(target + 4 * i, np.int32(-1))
            if values:
                for i in range(scored, slots):
                    if kind == FLOAT32:
                        store_i32(valued + 4 * i, np.int32(least))
                    else:
                        store_u16(valued + 2 * i, np.uint16(least))

    return arrange_rows


pool_rows = _pooling(source_digest())
arrange_rows = _arranging(source_digest())
