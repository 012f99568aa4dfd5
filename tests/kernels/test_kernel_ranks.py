"""Ranks of scores in one coarse bin (kernels/register/select.cuh, RankList): by the lower bits of their keys alone."""

from __future__ import annotations

import re

import numpy as np

from ksieve.backends.cuda.jit import spec
from ksieve.core import keys

SOURCE = (spec.SOURCES / "register/select.cuh").read_text(encoding="utf-8")


def constant(pattern):
    """A number of the kernel's own."""
    (found,) = re.findall(pattern, SOURCE)
    return int(found)


NUMBER_BITS = constant(r"kNumberBits = (\d+);")
KEY_BITS = constant(r"kKeyBits = (\d+);")
UPPER_BITS = constant(r"kUpper = (\d+);")
BEYOND_BITS = constant(r"\(bin << kKeyBits\) \+ \(1 << (\d+)\)")
RANKED = constant(r"kRankListMax = kThreads < 512 \? kThreads / 2 : (\d+);")


def close(bins):
    """keys_are_close."""
    octave, sign = 1024 // 32, keys.COARSE_BINS // 2
    return (bins % sign - octave) % (1 << 32) < sign - 2 * octave


def rank_by(key, number):
    """RankList.rank_by, as a kernel's int."""
    return (-((key.astype(np.int64) << NUMBER_BITS) | number) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def better(negated, other):
    """Whether a kernel counts `other` as better than the entry that `negated` is, which it negates again."""
    with np.errstate(over="ignore"):
        return (-negated + other) > 0


def ranges():
    """First and last key of every bin whose keys are close."""
    bins = np.arange(keys.COARSE_BINS)
    worst = keys.BIN_CUTOFF_KEY.astype(np.int64)
    best = np.concatenate([[0], worst[:-1] + 1])
    chosen = close(bins)
    return bins[chosen], best[chosen], worst[chosen]


def test_bins_without_infinities_and_subnormals_are_close():
    bins, best, worst = ranges()
    assert len(bins) == 2 * (30 * 32), "30 octaves of either sign, in 32 bins each"
    assert (worst - best).max() < 1 << 19
    scores = keys.score_of_key(np.concatenate([best, worst]).astype(np.uint32))
    assert np.isfinite(scores).all()
    assert (keys.coarse_bin(scores) == np.concatenate([bins, bins])).all()


def test_lower_bits_tell_which_of_two_is_better():
    _, best, worst = ranges()
    rng = np.random.default_rng(0)
    for _ in range(50):
        one, other = (best + (rng.random(len(best)) * (worst - best + 1)).astype(np.int64) for _ in range(2))
        numbers = rng.integers(0, RANKED, (2, len(best)))
        expected = (other < one) | ((other == one) & (numbers[1] < numbers[0]))
        assert (better(rank_by(one, numbers[0]), rank_by(other, numbers[1])) == expected).all()
    last = np.full(len(best), RANKED - 1)
    assert better(rank_by(worst, last), rank_by(best, last)).all()
    assert not better(rank_by(best, last), rank_by(worst, 0 * last)).any()


def test_what_ends_a_list_is_worse_than_any_of_its_bin():
    bins, best, worst = ranges()
    end = rank_by((bins << KEY_BITS) + (1 << BEYOND_BITS), np.zeros_like(bins))
    for key in (best, worst):
        assert not better(rank_by(key, np.full(len(bins), RANKED - 1)), end).any()
        assert better(end, rank_by(key, np.zeros_like(bins))).all()


def test_a_second_count_keeps_the_order():
    """`count_again`: by how far a key is from where its bin begins, of which numbers tell the lower 24 bits."""
    bins, best, worst = ranges()
    shift = KEY_BITS - 11  # of 2,048 bins

    def number(key):
        beyond = ((key - (bins << KEY_BITS)) << UPPER_BITS & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
        return np.clip(beyond >> (UPPER_BITS + shift), 0, keys.COARSE_BINS - 1)

    assert (number(best) <= 64).all() and (number(worst) >= keys.COARSE_BINS - 64).all()
    rng = np.random.default_rng(1)
    steps = np.sort(rng.random((40, len(bins))), axis=0)
    found = np.array([number(best + (step * (worst - best + 1)).astype(np.int64)) for step in steps])
    assert (np.diff(found, axis=0) >= 0).all()
    assert (found[1:-1] > 0).any() and (found[1:-1] < keys.COARSE_BINS - 1).any()
