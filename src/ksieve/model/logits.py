"""NumPy model of `ksieve.logits`: a log-sum-exp that no order of summation changes, and the kept set.

Every backend must equal these functions to the byte. No exponential or logarithm of a library is called. Both are
written out: in float32 with fused multiply-adds, and in float64 with additions, multiplications and one division.

**Log-sum-exp.** With C = log2(e) / temperature, the power ``2^(x * C)`` of a score is an integer of 24 bits times a
power of two (`powers`). Sums of 64-bit integers add the powers, each rounded half up to a unit: no order changes them.
The greatest score of at most 1,024 positions gives the unit (`reference_positions`). A row is summed again, with the
unit that its greatest score gives, if a power is more than 2^20 times above the unit (`sum_row`). So is a row whose
scores times C reach 2^21, which float32 cannot reduce: its greatest score is first subtracted from all.

**Kept set.** The weights ``2^((x - best) * C)`` are float64, and are added from the best on.

**Kept set without k.** The mass of a score is the term that it adds where the greatest score gives the unit (`masses`).
Integers again: no order changes the mass of a row. The best entries mostly decide the set, or the token that is drawn,
as bounds of the row's mass follow from its log-sum-exp (`begin`). Where they do not, the row is read again.
"""

from __future__ import annotations

from enum import IntFlag
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]


class Flags(IntFlag):
    """Bits of the flags of a row; scores are those that are valid and allowed.

    Attributes
    ----------
    NAN
        A score is NaN. Log-sum-exp and logprobs are NaN, the kept set is empty, and there is no sample.
    EMPTY
        No score is NaN or above -inf. The log-sum-exp is -inf, the kept set is empty, and there is no sample.
    TOKEN
        A token is outside [0, width): its logprob is NaN and its rank -1.
    CAPACITY
        The kept set is larger than the capacity.
    INVALID
        The temperature, p, min_p, k or uniform number in the row's array is out of range; the row counts as empty.
    INFINITE
        A score is inf. The log-sum-exp is inf, and a sample is one of the scores of inf.
    SCANNED
        Without k: the row was read again, because its best scores did not decide the kept set or the sample.
    """

    NAN, EMPTY, TOKEN, CAPACITY, INVALID, INFINITE, SCANNED = 1, 2, 4, 8, 16, 32, 64


POWER = (1.5326471e-4, 1.3390807e-3, 9.6185058e-3, 5.5503599e-2, 2.4022648e-1, 6.9314718e-1, 1.0)
"""Float32 coefficients of 2^f, that of f^6 first: for |f| <= 0.5 within 3.1e-9 of the power (minimax)."""

ROUND = 12_582_912.0
"""1.5 * 2^23: adding it to a float32 below 2^22 in size rounds that to an integer."""

FEW, GROUPS, GROUP = 1024, 32, 32
"""Length up to which all positions of a row are its reference; number and size of the groups in a longer row."""

WITHIN = float(1 << 21)
"""From here on exponents are too large for float32: the greatest score of the row is subtracted first."""

HEADROOM, ABOVE, NOTHING, FAR = 3, 20, 46, 64
"""The unit's exponent is so far above the reference's, where few scores are greater. Exponents at most so far above
the unit's have terms; those so far below have none; none is taken as farther."""

FRACTION, SHIFT = 44, 22
"""Near terms are integers times ``2^(unit - 44)``, far terms integers times ``2^(unit - 44 + 22)``."""

SPREAD = 2.0**-19
"""The mass of a row, and the one by its log-sum-exp, differ by less than so much of it: by one at most per score."""

UNBOUNDED = 2.0**63
"""More than the mass of any row."""

RANGES = {"temperature": (2.0**-100, 2.0**100), "p": (2.0**-149, 1.0), "min_p": (0.0, 1.0), "uniform": (0.0, 1.0)}
"""Least and most of each number of a row; all are float32, and the least `p` is the first above 0."""

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453

_ROUND64 = 6_755_399_441_055_744.0  # 1.5 * 2^52
_EXP2 = [1.0]
for _i in range(1, 14):
    _EXP2.insert(0, _EXP2[0] * LN2 / _i)
_ATANH = [1 / (2 * i + 1) for i in range(11, -1, -1)]


# ---- float64, written out --------------------------------------------------------------------------------


def exp2(y: F64) -> F64:
    """Return 2^y for y <= 0, with a relative error below 2.3e-16; 0 below -1,000."""
    y = np.where(y >= -1000, y, -1000.0)
    whole = (y + _ROUND64) - _ROUND64
    f, found = y - whole, np.full_like(y, _EXP2[0])
    for coefficient in _EXP2[1:]:
        found = found * f + coefficient
    scale = ((whole.astype(np.int64) + 1023) << 52).view(np.float64)
    return np.where(y > -1000, found * scale, 0.0)


def log2(s: F64) -> F64:
    """Return log2(s) of normal numbers, with an error below 1e-15 of the larger of 1 and the result."""
    bits = s.view(np.int64)
    # The mantissa is in [0.75, 1.5), so that a sum near a power of two loses no digits.
    exponent = (bits - 0x3FE8_0000_0000_0000) >> 52
    m = (bits - (exponent << 52)).view(np.float64)
    z = (m - 1) / (m + 1)
    square, found = z * z, np.full_like(z, _ATANH[0])
    for coefficient in _ATANH[1:]:
        found = found * square + coefficient
    return exponent + (2 * LOG2E) * (z * found)


# ---- the power of a score, as an integer times a power of two --------------------------------------------


def factors(temperature: F32) -> tuple[F64, F32]:
    """Return log2(e) / temperature in float64, and as the sum of two float32 in the last dimension."""
    exact = LOG2E / temperature.astype(np.float64)
    high = exact.astype(np.float32)
    return exact, np.stack([high, (exact - high).astype(np.float32)], -1)


def fma(a: Any, b: Any, c: Any) -> F32:
    """Return ``a * b + c`` of float32 numbers, rounded once."""
    product, more = np.float64(a) * np.float64(b), np.float64(c)  # the product is exact
    total = np.atleast_1d(product + more)
    rest = total - product
    error = (product - (total - rest)) + (more - rest)
    # Rounded to odd in float64, so that rounding to float32 is the only one.
    bits = total.view(np.int64)
    away = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & (bits & 1 == 0), bits + away, bits).view(np.float64)
    return odd.astype(np.float32)


def powers(x: F32, factor: Any) -> tuple[I64, I64]:
    """Return integers m of [2^23, 2^24) and exponents e: the powers of the scores are ``m * 2^(e - 23)``."""
    high, low = factor
    whole = fma(x, high, np.float32(ROUND)) - np.float32(ROUND)
    f = fma(x, low, fma(x, high, -whole))
    p = np.full_like(f, POWER[0])
    for coefficient in POWER[1:]:
        p = fma(p, f, np.float32(coefficient))
    bits = p.view(np.int32).astype(np.int64)
    return bits & 0x7FFFFF | 0x800000, (bits >> 23) - 127 + whole.astype(np.int64)


# ---- the sums of a row -----------------------------------------------------------------------------------


class Sums(NamedTuple):
    """What is known of rows once they are read, in int64; arrays of one number for each row.

    `near`, `far`: bits of the unsigned sums of the terms up to the unit, and above it. `unit`: exponent of the unit's
    power. `base`: bits of the float32 that was subtracted from all scores, 0 or the greatest one. `flags`: `Flags.NAN`
    and `Flags.INFINITE`.
    """

    near: I64
    far: I64
    unit: I64
    base: I64
    flags: I64

    def log2(self, exact: F64) -> F64:
        """Logarithm of the sum of the powers, to base 2: -inf without any, NaN or inf where a score is."""
        s = self.near.view(np.uint64).astype(np.float64) + self.far.view(np.uint64).astype(np.float64) * 2.0**SHIFT
        base = (self.base & 0xFFFFFFFF).astype(np.uint32).view(np.float32).astype(np.float64)
        found = (log2(np.where(s > 0, s, 1.0)) + (self.unit - FRACTION)) + base * exact
        found = np.where(s > 0, found, -np.inf)
        found = np.where(self.flags & Flags.INFINITE, np.inf, found)
        return np.where(self.flags & Flags.NAN, np.nan, found)


FIELDS = len(Sums._fields)


def reference_positions(length: int) -> I64:
    """Positions whose greatest score gives the unit of a row."""
    if length <= FEW:
        return np.arange(length)
    first = np.arange(GROUPS) * (length - GROUP) // (GROUPS - 1)
    return (first[:, None] + np.arange(GROUP)).ravel()


def sum_row(row: F32, factor: F32) -> list[int]:
    """Return the columns of `Sums` of one row; scores that are masked out are -inf, and -inf counts for nothing."""
    flags = Flags.NAN if np.isnan(row).any() else 0
    row = np.where(np.isnan(row), np.float32(-np.inf), row)
    score = row[reference_positions(row.size)].max(initial=-np.inf)
    found = _summed(row, score, np.float32(0), factor) if _within(score, factor) else None
    if found is None:
        score = row.max(initial=-np.inf)
        if not np.isfinite(score):
            return [0, 0, 0, 0, flags | (Flags.INFINITE if score > 0 else 0)]
        base = np.float32(0) if _within(score, factor) else score
        found = _summed(row, score, base, factor)
    assert found is not None
    return [*found, flags]


def _within(score: Any, factor: F32) -> bool:
    with np.errstate(over="ignore"):
        return bool(abs(np.float32(score) * factor[0]) < np.float32(WITHIN))


def _summed(row: F32, score: Any, base: Any, factor: F32) -> list[int] | None:
    """Sums with the unit of a score; None if a power is too far above it."""
    unit = int(powers(np.array([score - base], np.float32), factor)[1][0]) + HEADROOM
    least, most = (np.float32(np.float32(unit) + np.float32(side)) / factor[0] for side in (-FAR, FAR))
    with np.errstate(over="ignore"):
        m, e = powers(np.clip(row - base, least, most), factor)
    down = unit - e
    if down.min() < -ABOVE:
        return None
    near = near_terms(m, down)
    far = np.where(down < 0, m << np.maximum(-down - 1, 0), 0).view(np.uint64)
    sums = [int(np.sum(part).view(np.int64)) for part in (near, far)]
    return [*sums, unit, int(np.float32(base).view(np.int32))]


def near_terms(m: I64, down: I64) -> U64:
    """Terms of powers whose exponents are so far below the unit's, rounded half up; 0 of those above it."""
    shift = np.where(down >= 0, np.minimum(down, NOTHING), NOTHING).astype(np.uint64)
    half = np.uint64(1) << (shift + np.uint64(60 - FRACTION))
    return np.asarray(((m.astype(np.uint64) << np.uint64(38)) + half) >> (shift + np.uint64(61 - FRACTION)))


# ---- what follows from the sums, and the kept set --------------------------------------------------------


def logsumexp(total: F64) -> F32:
    """Logarithm of a sum of powers, to base e; `total`: from `Sums.log2`."""
    with np.errstate(over="ignore"):
        return (total * LN2).astype(np.float32)


def logprobs(scores: Any, exact: F64, total: F64) -> F32:
    """Logarithm of the probability of scores, to base e; `total`: from `Sums.log2`. -inf has no probability."""
    with np.errstate(invalid="ignore", over="ignore"):
        found = (scores.astype(np.float64) * exact - total) * LN2
        found = np.where((scores == -np.inf) & ~np.isnan(total), -np.inf, found)
        return found.astype(np.float32)


class KeptRows(NamedTuple):
    """Kept sets: weights of entries from the best on, their running sums, and how many are kept."""

    weights: F64
    sums: F64
    counts: I64

    @property
    def total(self) -> F64:
        """Sum of the weights of the kept entries; 1 where there are none."""
        last = np.maximum(self.counts - 1, 0)[:, None]
        return np.where(self.counts > 0, np.take_along_axis(self.sums, last, 1)[:, 0], 1.0)

    def draw(self, uniform: F32) -> I64:
        """Index of the entry of each row where the running sum exceeds ``uniform * total``; -1 without entries.

        Where none does, it is the last kept entry whose weight is above 0.
        """
        found = np.count_nonzero(self.sums <= (uniform * self.total)[:, None], axis=1)
        last = np.minimum(np.count_nonzero(self.weights, axis=1), self.counts) - 1
        return np.asarray(np.minimum(found, last))


def keep(
    scores: F32, exact: F64, p: F32 | None, min_p: F32 | None, min_p_first: bool, total: F64 | None = None
) -> KeptRows:
    """Return the kept sets among entries in order; -inf in unused slots.

    `scores` (ndarray of float32, shape (rows, k)), `exact`: from `factors`. `p`, `min_p` (ndarray of float32, shape
    (rows,), or None): a `p` of 1 keeps all entries.

    `total` (from `Sums.log2`, or None): if given, p counts the whole row, whose sum of weights is S. The fewest best
    entries are kept whose weights sum to ``p * S`` or more; all, if they do not. S is ``2^(total - best * C)``, or the
    entries' own sum if that is more, or the best score inf. `min_p_first` then changes nothing. S errs by less than
    1e-6 of itself where ``best * C`` is within 2^30.
    """
    best, wide = scores[:, :1], scores.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinities; and a p out of range, where no score is left
        weights = exp2(np.where(scores == best, 0.0, (wide - best) * exact[:, None]))
        weights = np.where(scores > -np.inf, weights, 0.0)
        counts = enough = np.count_nonzero(scores > -np.inf, axis=1)
        if min_p is not None:
            enough = np.minimum(np.count_nonzero(weights >= min_p[:, None], axis=1), counts)
        if min_p_first and total is None:
            counts = enough
            weights = np.where(np.arange(scores.shape[1]) < counts[:, None], weights, 0.0)
        sums = np.cumsum(weights, axis=1)
        if p is not None:
            mass = sums[:, -1]
            if total is not None:
                mass = np.maximum(mass, exp2((total - wide[:, 0] * exact) - 32) * 2.0**32)
            short = np.count_nonzero(sums < (p * mass)[:, None], axis=1) + 1
            counts = np.where(p < 1, np.minimum(counts, short), counts)
    return KeptRows(weights, sums, np.minimum(counts, enough))


# ---- kept sets without k ---------------------------------------------------------------------------------


class Begun(NamedTuple):
    """Kept sets without k, as far as the best entries tell.

    `weights`, `sums`: masses of these entries, and their running sums. `there`: how many there are. `counts`: sizes of
    the sets; -1 of those that are not decided. `least`, `most`: bounds of the set's mass, equal if it is decided.
    """

    weights: U64
    sums: U64
    there: I64
    counts: I64
    least: F64
    most: F64

    @property
    def total(self) -> U64:
        """Mass of a decided set; 1 where there is none."""
        return _sum_of(self.sums, np.maximum(self.counts, 0)) + (self.counts <= 0)

    def draw(self, uniform: F32) -> I64:
        """Index of the entry of each row whose running sum exceeds ``floor(uniform * mass)``; -1 without entries.

        It is the last one of any mass where none does, and the number of slots where the entries do not decide.
        """
        with np.errstate(invalid="ignore"):
            drawn = (np.floor(uniform * bound).astype(np.uint64) + np.uint64(1) for bound in (self.least, self.most))
            last = np.where(self.counts < 0, np.uint64(UNBOUNDED), self.total)
            low, high = (np.count_nonzero(self.sums < np.minimum(each, last)[:, None], axis=1) for each in drawn)
        return np.where(self.there == 0, -1, np.where(low == high, low, self.sums.shape[1]))


def masses(scores: F32, factor: F32) -> tuple[U64, I64, NDArray[np.bool_]]:
    """Return the masses of entries in order, and exponents of the best power, in columns.

    Also whether scores are not reduced; then the log-sum-exp bounds the mass of the row. `factor`: from `factors`.
    """
    best, (high, low) = scores[:, :1], np.split(factor, 2, axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        within = abs(best * high) < np.float32(WITHIN)
        base = np.where(within, np.float32(0), best)
        reduced = np.where(scores == base, np.float32(0), scores - base)
        exponent = powers(reduced[:, :1], (high, low))[1]
        least = (exponent - FAR).astype(np.float32) / high
        m, e = powers(np.maximum(reduced, least), (high, low))
    found = near_terms(m, exponent + HEADROOM - e)
    return np.where(scores > -np.inf, found, np.uint64(0)), exponent, within


def least_exponents(min_p: F32) -> F64:
    """Return log2(min_p): min-p keeps the scores with ``(x - best) * C`` of at least so much, in float64."""
    return np.where(min_p > 0, log2(np.where(min_p > 0, min_p, 1).astype(np.float64)), -np.inf)


def begin(
    scores: F32, exact: F64, factor: F32, total: F64, p: F32 | None, min_p: F32 | None, min_p_first: bool
) -> Begun:
    """Decide kept sets without k by the best entries, if these do; a row with an unused slot has no others.

    `scores`, `exact`, `p`, `min_p`: as of `keep`. `factor`: from `factors`. `total`: from `Sums.log2`.
    """
    mass, exponent, within = masses(scores, factor)
    sums, there = np.cumsum(mass, axis=1, dtype=np.uint64), np.count_nonzero(scores > -np.inf, axis=1)
    wide, beyond = scores.astype(np.float64), scores.shape[1] + 1
    whole = np.where(there < scores.shape[1], there, beyond)  # the size of the row, if it is known
    enough, endless = whole, np.full(len(whole), True)
    if min_p is not None:
        with np.errstate(invalid="ignore"):
            scaled = np.where(scores == scores[:, :1], 0.0, (wide - wide[:, :1]) * exact[:, None])
        enough = np.count_nonzero((scaled >= least_exponents(min_p)[:, None]) & (scores > -np.inf), axis=1)
        enough, endless = np.where(enough < there, enough, whole), min_p == 0
    of = enough if min_p_first else whole  # how many p counts
    with np.errstate(invalid="ignore", over="ignore"):
        size = exp2((total - exponent[:, 0]) - 32) * 2.0 ** (FRACTION - HEADROOM + 32)
        bounded = (of == beyond) & within[:, 0] & (endless if min_p_first else True)
        least, most = np.where(bounded, size * (1 - SPREAD), 0), np.where(bounded, size * (1 + SPREAD), UNBOUNDED)
        summed = _sum_of(sums, of % beyond).astype(np.float64)
        least, most = (np.where(of < beyond, summed, bound) for bound in (least, most))
        if p is None:
            counts = np.array([of, of])
        else:
            needed = (np.ceil(p * bound).astype(np.uint64)[:, None] for bound in (least, most))
            counts = np.array([np.minimum(np.count_nonzero(sums < each, axis=1) + 1, of) for each in needed])
            counts = np.where(p < 1, counts, of)
            endless = endless & (p >= 1)
    low, high = np.minimum(counts, enough)
    decided = (low == high) & (high < beyond)
    summed = _sum_of(sums, np.where(decided, low, 0)).astype(np.float64)
    least = np.where(decided, summed, np.where(endless, least, 0))
    most = np.where(decided, summed, np.where(endless, most, UNBOUNDED))
    return Begun(mass, sums, there, np.where(decided, low, -1), least, most)


def _sum_of(sums: U64, counts: I64) -> U64:
    """Running sum of so many entries of each row."""
    found = np.take_along_axis(sums, np.maximum(counts - 1, 0)[:, None], 1)[:, 0]
    return np.where(counts > 0, found, np.uint64(0))
