"""The kernels' float tests of ordered keys, compiled for the host: each admits what the exact key would."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import host_code
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.keys import order_key, widen
from ksieve.core.ranking import RANKINGS, Ranking, ranked

DEVICE = """
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>
using u32 = unsigned int;
#define __device__
#define __forceinline__ inline
#define __CUDA_ARCH__ 900
static float __uint_as_float(u32 bits) { float value; std::memcpy(&value, &bits, 4); return value; }
static u32 __float_as_uint(float value) { u32 bits; std::memcpy(&bits, &value, 4); return bits; }
static unsigned short half_of(float value) {
  _Float16 half = value; unsigned short bits; std::memcpy(&bits, &half, 2); return bits;
}
static float float_of_half(unsigned short bits) { _Float16 half; std::memcpy(&half, &bits, 2); return half; }
template <bool> u32 equal_halves(u32, u32);  // not called here
u32 signs_of_halves(u32);
template <bool kFirst, class A, class B> struct Choose { using Type = A; };
template <class A, class B> struct Choose<false, A, B> { using Type = B; };
struct Words { u32 word[4]; };
u32 __byte_perm(u32, u32, u32);  // not called here
#define KSIEVE_OPTION(define) define
#define KSIEVE_DTYPE %(dtype)d
#define KSIEVE_RANKING %(number)d
#define KSIEVE_SOURCE_DTYPE 0
%(dtypes)s
%(ranking)s
"""
"""What the kernels' text needs of the device, common/dtypes.cuh and common/ranking.cuh."""

HOST = """
static float __saturatef(float x) { return x >= 1 ? 1.0f : x > 0 ? x : 0.0f; }  // NaN gives 0, as on the device
constexpr u32 kNanKey = 0xffffffffu;
constexpr int kBatch = 4;
using Raw = Words;
static float unpack(const Raw& raw, int i) { return widen(__uint_as_float(raw.word[i])); }
%(keys)s
%(above)s
struct Classify {
%(classify)s
};
// Reads a cutoff key and 16 scores at a time; prints bits: fast test (or -1), comparison, keys better than the cutoff.
int main() {
  u32 words[17];
  while (std::fread(words, 4, 17, stdin) == 17) {
    Raw raw[kBatch];
    std::memcpy(raw, words + 1, sizeof raw);
    u32 key = words[0], reached = 0, better = 0;
    for (int i = 0; i < 16; ++i) {
      float score = unpack(raw[i / 4], i %% 4);
      reached |= u32(score >= hot_cutoff(key)) << i;
      better |= u32(score >= Classify::cutoff_before(key)) << i;
    }
    Choose<kRanking == Ranking::kNanFirst, NotBelow, Above>::Type fast(key);
    std::printf("%%d %%u %%u\\n", fast.scale == 0 ? -1 : int(fast.gather(raw)), reached, better);
  }
}
"""

NUMBERS = [
    0.0, -0.0, 1e-45, -1e-45, 1e-38, -1.1754944e-38, 2.0**-101, 2.0**-100, -(2.0**-100), 2.0**-99, 0.5, -0.5, 1.0, -1.0,
    1.5, 65_504.0, -3.4e38, 3.4028235e38, -3.4028235e38, np.inf, -np.inf, np.nan,
]  # fmt: skip


def device(dtype: str, ranking: Ranking = "largest") -> str:
    """`DEVICE` for a dtype and a ranking."""
    ranking_text, dtypes = (host_code.text(f"common/{name}.cuh") for name in ("ranking", "dtypes"))
    return DEVICE % {
        "dtype": SCORE_DTYPES[dtype].number,
        "number": RANKINGS.index(ranking),
        "dtypes": dtypes.replace("#pragma once", ""),
        "ranking": ranking_text[ranking_text.index("enum class Ranking") :],
    }


def source(ranking: Ranking) -> str:
    """Key functions of keys.cuh, the fast test of compare.cuh and the cutoffs of its classifying scan, as a program."""
    above = host_code.between("stream/compare.cuh", "// Returns the float for which", "// The comparisons for scores")
    cutoff_before = r"^  __device__ __forceinline__ static float cutoff_before.*?^  }$"
    classify = re.search(cutoff_before, host_code.text("stream/filter.cuh"), re.DOTALL | re.MULTILINE)
    assert classify
    return device("float32", ranking) + HOST % {
        "keys": host_code.between("common/keys.cuh", "// Adding +0", "__device__ __forceinline__ int coarse_bin"),
        "above": re.sub(r"^#pragma unroll$", "", above, flags=re.MULTILINE),
        "classify": classify[0],
    }


def cases() -> tuple[np.ndarray, np.ndarray]:
    """Cutoff keys of special and random numbers, and for each 16 scores: its neighbours, other numbers, any bits."""
    rng = np.random.default_rng(3)
    numbers = np.concatenate([np.array(NUMBERS, np.float32), rng.standard_normal(500, np.float32)])
    any_bits = rng.integers(0, 1 << 32, 4000, dtype=np.uint32)
    powers = (np.arange(1, 255, dtype=np.uint32) << 23)[:, None] | np.array([0, 1 << 31], np.uint32)
    # On one side of a power of two the neighbour is half as far: a scale of half the size would miss it.
    cutoffs = np.concatenate(
        [numbers.view(np.uint32), any_bits, *(powers.ravel() + np.uint32(i) for i in (0, 1, 2**32 - 1))]
    )
    near = cutoffs[:, None] + np.array([0, 1, 2, -1, -2, 1 << 31], np.int64).astype(np.uint32)
    others = rng.choice(numbers, (len(cutoffs), 5)).view(np.uint32)
    rest = rng.integers(0, 1 << 32, (len(cutoffs), 5), dtype=np.uint32)
    return order_key(cutoffs.view(np.float32)), np.concatenate([near, others, rest], axis=1)


@host_code.needs_compiler
@pytest.mark.parametrize("ranking", RANKINGS)
def test_float_tests_admit_what_the_exact_key_would(tmp_path: Path, ranking: Ranking):
    keys, scores = cases()
    given = np.concatenate([keys[:, None].astype(np.uint32), scores], axis=1).tobytes()
    printed = host_code.run(tmp_path, source(ranking), given=given, flags=["-ffp-contract=off"])
    fast, reached, better = np.array([line.split() for line in printed.splitlines()], np.int64).T
    assert len(fast) == len(keys)

    compared = ranked(scores.view(np.float32), ranking)
    exact, number = order_key(compared), ~np.isnan(compared)
    weights = 1 << np.arange(16)
    wanted = ((exact <= keys[:, None]) & number) @ weights  # NaN is left to the caller, whatever the cutoff
    np.testing.assert_array_equal(reached, wanted)
    np.testing.assert_array_equal(better, ((exact < keys[:, None]) & number) @ weights)
    np.testing.assert_array_equal(fast[fast >= 0], wanted[fast >= 0])

    assert (fast >= 0).sum() > len(keys) // 2, "the fast test is hardly ever taken"
    zero, least = order_key(np.array([0.0, -np.inf], np.float32))
    unfit = (keys == zero) | ((keys >= least) if ranking != "nan_first" else (keys == 0x007FFFFF))
    assert unfit.sum() > 2 and (fast[unfit] == -1).all()


HALVES = """
%(test)s};
int main() {
  u32 word;
  while (std::fread(&word, 4, 1, stdin) == 1) std::printf("%%u\\n", HalvesTest(__uint_as_float(word)).pair);
}
"""


@host_code.needs_compiler
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_scores_reach_the_least_of_them_that_reaches_a_cutoff(tmp_path: Path, dtype):
    test = host_code.between("stream/compare.cuh", "struct HalvesTest {", "  __device__ __forceinline__ u32 reached")
    every = np.arange(1 << 16, dtype=np.uint16)
    scores = every.view(np.float16).astype(np.float32) if dtype == "float16" else widen(every)
    numbers = scores[~np.isnan(scores)]
    beside = np.concatenate([np.nextafter(numbers, np.float32(end)) for end in (-np.inf, np.inf)])
    any_bits = np.random.default_rng(4).integers(0, 1 << 32, 4000, dtype=np.uint32).view(np.float32)
    cutoffs = np.concatenate([numbers, beside, any_bits, np.array(NUMBERS, np.float32)])
    program = device(dtype) + HALVES % {"test": test}
    printed = host_code.run(tmp_path, program, given=cutoffs.tobytes())
    pairs = np.array(printed.split(), np.int64)
    assert len(pairs) == len(cutoffs) and (pairs >> 16 == (pairs & 0xFFFF)).all(), "the same in both halves"

    least = scores[pairs & 0xFFFF]
    ordered = np.unique(numbers)
    found = np.searchsorted(ordered, cutoffs)  # the first score that is not below the cutoff
    exists = ~np.isnan(cutoffs) & (found < len(ordered))
    np.testing.assert_array_equal(least[exists], ordered[found[exists]])
    assert np.isnan(least[~exists]).all(), "no score reaches NaN, which is the only cutoff beyond infinity"
