// Comparisons of a batch of scores with one cutoff, which give one bit for each score: the inner loop of a scan. Ranked
// scores are compared without being computed. With kSmallest the negation is part of the instruction. With kNanFirst a
// ranked score is that of the next lower number, and so reaches a cutoff exactly if the score is not at most the
// cutoff: NaN never is.
#pragma once
#include "common/keys.cuh"
#include "common/load.cuh"

// Returns one bit for each score of a batch: whether it passes a test.
template <class Passes> __device__ __forceinline__ u32 gather_bits(const Raw (&raw)[kBatch], Passes passes) {
  u32 bits = 0;
#pragma unroll
  for (int u = 0; u < kBatch; ++u) {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      bits |= passes(unpack(raw[u], i)) ? 1u << (u * kVector + i) : 0u;
  }
  return bits;
}

// Returns one bit for each score of a batch: whether it is in the body, which has `left` scores from the batch's first
// on.
__device__ __forceinline__ u32 valid_bits(int left) {
  constexpr u32 kAll = ~0u >> (32 - kBatch * kVector);
  if (!unlikely(left < (kBatch - 1) * kStep + kVector)) return kAll;
  u32 valid = 0;
#pragma unroll
  for (int u = 0; u < kBatch; ++u)
    valid |= ((1u << min(max(left - u * kStep, 0), kVector)) - 1) << (u * kVector);
  return valid;
}

__device__ __forceinline__ u32 valid_bits(const PositionedLeft& some) { return valid_bits(some.left) & some.present; }

// Returns the float for which score > float exactly if order_key(score) <= key: the greatest float with a worse key.
__device__ __forceinline__ float float_below(u32 key) {
  return score_of_key(key + (key == kZeroKey ? 2 : 1)); // no score has 0x80000000
}

// Returns the bits of gather_bits, for tests whose results are 1 or 0 as floats: weighted and added up, the results are
// the low bits of a mantissa. The first sums join two vectors; otherwise ptxas would load the second one only when the
// first has been used.
template <int kCount, class Test> __device__ __forceinline__ u32 gather_tests(Test test) {
  static_assert(kCount <= 16, "hits are the low bits of a mantissa");
  if constexpr (kCount == 4) {
    const float low = fmaf(test(1), 2.0f, test(0));
    return __float_as_uint(fmaf(fmaf(test(3), 2.0f, test(2)), 4.0f, low) + 0x1p23f) & 0xffffu;
  }
  constexpr int kHalf = kCount / 2;
  auto both = [&](int i) { return fmaf(test(kHalf + i), static_cast<float>(1 << kHalf), test(i)); };
  float sum = 0x1p23f;
#pragma unroll
  for (int i = 0; i < kHalf; i += 4) {
    float low = fmaf(both(i + 1), 2.0f, both(i));
    float high = fmaf(both(i + 3), 2.0f, both(i + 2));
    sum = fmaf(fmaf(high, 4.0f, low), static_cast<float>(1 << i), sum);
  }
  return __float_as_uint(sum) & 0xffffu;
}

// The test score > below, made by multiply-adds alone: comparisons and selections share a pipe of half that rate, which
// a scan would wait for. saturate(score * scale - below * scale) is 1 or 0 if a score beyond `below`, at least half a
// unit in its last place away, is at least 1 away after scaling by a power of two. NaN gives 0.
struct Above {
  float scale;
  float offset;

  // Returns whether there is such a test for the scores whose key is at most this.
  __device__ __forceinline__ static bool usable(u32 key) { return Above(key).scale != 0; }
  __device__ __forceinline__ explicit Above(u32 key) : Above(float_below(key)) {}

  // The scale is 0, which makes the test unusable, for a `below` that is infinite, NaN, or so near zero that the scale
  // overflows.
  __device__ __forceinline__ explicit Above(float below) {
    u32 exponent = __float_as_uint(below) >> 23 & 0xffu;
    bool exists = fabsf(below) >= 0x1p-100f && exponent < 0xffu;
    scale = __uint_as_float(exists ? (278 - exponent) << 23 : 0); // 2^24 over the power of two in `below`
    offset = -below * scale;
  }

  __device__ __forceinline__ float test(float score) const { return __saturatef(fmaf(score, scale, offset)); }

  template <int kCount = kBatch> __device__ __forceinline__ u32 gather(const Raw (&raw)[kCount]) const {
    return gather_tests<kCount * kVector>([&](int i) { return test(unpack(raw[i / kVector], i % kVector)); });
  }
};

// The same with kNanFirst: whether a score is not below the next number above the cutoff that its ranked score reaches.
// The test score < next is made in the same way.
struct NotBelow {
  float scale;
  float offset;

  __device__ __forceinline__ static bool usable(u32 key) { return NotBelow(key).scale != 0; }
  __device__ __forceinline__ explicit NotBelow(u32 key) {
    const Above other(__uint_as_float(Stored::above(__float_as_uint(hot_cutoff(key))))); // its offset is -below * scale
    scale = -other.scale;
    offset = -other.offset;
  }

  template <int kCount = kBatch> __device__ __forceinline__ u32 gather(const Raw (&raw)[kCount]) const {
    constexpr u32 kAll = ~0u >> (32 - kCount * kVector);
    const u32 below = gather_tests<kCount * kVector>(
        [&](int i) { return __saturatef(fmaf(__uint_as_float(raw[i / kVector].word[i % kVector]), scale, offset)); });
    return ~below & kAll;
  }
};

// The comparisons for scores that are widened to float32.
struct WideTest {
  float value;
  __device__ __forceinline__ explicit WideTest(float value) : value(value) {}

  // Return the bits of the ranked scores that are at least the cutoff, and of those that equal it: never of NaN.
  __device__ __forceinline__ u32 reached(const Raw (&raw)[kBatch]) const {
    return gather_bits(raw, [&](float score) { return score >= value; });
  }
  __device__ __forceinline__ u32 equalled(const Raw (&raw)[kBatch]) const {
    return gather_bits(raw, [&](float score) { return score == value; });
  }
};

// The same for 16-bit scores, two in a word, as they are loaded: one comparison and one logical operation for two
// scores.
struct HalvesTest {
  static constexpr bool kBFloat = Stored::kPairs == Pairs::kBfloat16;
  u32 pair; // the cutoff, with kSmallest its negation
  u32 some; // all ones, or with kNanFirst zero where no score reaches the cutoff

  // Scores that are at least `value` are at least the least 16-bit score that is.
  __device__ __forceinline__ explicit HalvesTest(float value) {
    const u32 least = Stored::bits_above(value);
    pair = (value == value ? least & 0xffffu : 0x7fffu) * 0x10001u;
    if (kRanking == Ranking::kSmallest) pair ^= 0x80008000u;
    some = kRanking == Ranking::kNanFirst && value != value ? 0 : ~0u;
  }

  __device__ __forceinline__ u32 reached(const Raw (&raw)[kBatch]) const {
    return gather_halves(raw, [&](u32 scores) {
      if constexpr (kRanking == Ranking::kLargest) return halves_reaching<kBFloat>(scores, pair);
      const u32 at_most = halves_reaching<kBFloat>(pair, scores);
      return kRanking == Ranking::kSmallest ? at_most : ~at_most & some;
    });
  }
  __device__ __forceinline__ u32 equalled(const Raw (&raw)[kBatch]) const {
    if constexpr (kRanking == Ranking::kNanFirst) {
      const u32 bits = pair & 0xffffu;
      if (bits == Stored::kInfinity) // the ranked score of NaN
        return gather_halves(raw, [&](u32 scores) { return ~equal_halves<kBFloat>(scores, scores); });
      const u32 next = Stored::above(bits) * 0x10001u;
      return gather_halves(raw, [&](u32 scores) { return equal_halves<kBFloat>(scores, next) & some; });
    }
    return gather_halves(raw, [&](u32 scores) { return equal_halves<kBFloat>(scores, pair); });
  }

  // Joins masks of two scores each. Of eight words the first scores' bits fall into the low half of a word, the second
  // ones' into the high half, one bit further.
  template <class Mask> __device__ __forceinline__ static u32 gather_halves(const Raw (&raw)[kBatch], Mask mask) {
    constexpr int kEight = kBatch > 2 ? 2 : 1; // masks are joined eight at a time
    static_assert(kBatch <= 4, "a word has a bit for every score");
    u32 bits[kEight];
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      u32 both = 0;
#pragma unroll
      for (int w = 8 * e; w < 8 * e + 8 && w < kBatch * 4; ++w)
        both |= mask(raw[w / 4].word[w % 4]) & 0x00020001u << w % 8 * 2;
      bits[e] = both | both >> 16; // in the low half; what is above it is cut off
    }
    return __byte_perm(bits[0], kEight > 1 ? bits[kEight - 1] : 0, 0x5410);
  }
};

using CutoffTest = Choose<Stored::kPairs == Pairs::kNone, WideTest, HalvesTest>::Type;

// The fast test of scores that are converted, or compared in pairs, is the comparison, for any cutoff.
struct ReachTest : CutoffTest {
  __device__ __forceinline__ explicit ReachTest(u32 key) : CutoffTest(hot_cutoff(key)) {}
  __device__ __forceinline__ static bool usable(u32) { return true; }
  __device__ __forceinline__ u32 gather(const Raw (&raw)[kBatch]) const { return reached(raw); }
};
using FloatTest = Choose<kRanking == Ranking::kNanFirst, NotBelow, Above>::Type;
using FastTest = Choose<kInWord == 1, FloatTest, ReachTest>::Type;
