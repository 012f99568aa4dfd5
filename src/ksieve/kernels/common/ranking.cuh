// Rankings (core/ranking.py): kernels know one order, larger scores first and NaN last. They compare a score's *ranked
// score*, which this order puts where the call wants the score. Scores in memory, and in the ring, are the caller's.
#pragma once
#include "common/params.cuh"

enum class Ranking { kLargest, kSmallest, kNanFirst };
constexpr Ranking kRanking = static_cast<Ranking>(KSIEVE_OPTION(KSIEVE_RANKING));

// Bits of a score whose ranked score is minus infinity, and of the worst number.
constexpr u32 kWorstBits = kRanking == Ranking::kLargest    ? Stored::kMinusInfinity
                           : kRanking == Ranking::kSmallest ? Stored::kInfinity
                                                            : Stored::kMinusInfinity - 1;
constexpr u32 kWorstNumberBits = kRanking == Ranking::kSmallest ? Stored::kInfinity : Stored::kMinusInfinity;

__device__ __forceinline__ Score score_of_bits(u32 bits) {
  if constexpr (kInWord > 1) return static_cast<Score>(bits);
  return __uint_as_float(bits);
}
__device__ __forceinline__ u32 bits_of(Score score) {
  if constexpr (kInWord > 1) return score;
  return __float_as_uint(score);
}

// Returns a score as float32.
__device__ __forceinline__ float float_of(Score score) { return Stored::number(bits_of(score)); }

// Returns the bits of the next lower number; of NaN those of +inf, and of -inf those of a NaN.
__device__ __forceinline__ u32 lowered(u32 bits) {
  const u32 size = bits & (Stored::kSign - 1);
  const u32 lower = size == 0 ? Stored::kSign | 1 : bits & Stored::kSign ? bits + 1 : bits - 1;
  return size > Stored::kInfinity ? Stored::kInfinity : lower;
}

// Returns the bits of the ranked scores of the scores in a word.
__device__ __forceinline__ u32 ranked_word(u32 word) {
  if constexpr (kRanking == Ranking::kSmallest) return word ^ Stored::word_of(Stored::kSign);
  if constexpr (kRanking == Ranking::kLargest) return word;
  if constexpr (Stored::kPairs == Pairs::kNone) {
    u32 all = 0;
#pragma unroll
    for (int i = 0; i < kInWord; ++i)
      all |= lowered(word << (kInWord - 1 - i) * Stored::kBits >> (32 - Stored::kBits)) << i * Stored::kBits;
    return all;
  }
  // As `lowered`, but both at once: no half borrows from the other one, or carries over.
  constexpr bool kBFloat = Stored::kPairs == Pairs::kBfloat16;
  const u32 numbers = equal_halves<kBFloat>(word, word);
  word = (word & numbers) | (~numbers & Stored::word_of(Stored::kInfinity + 1));
  word |= equal_halves<kBFloat>(word, 0) & Stored::word_of(Stored::kSign);
  return word - 0x00010001u + (signs_of_halves(word) & 0x00020002u);
}

// Returns the ranked score of a score, as float32.
__device__ __forceinline__ float widen(Score score) {
  if constexpr (kRanking == Ranking::kNanFirst) return float_of(score_of_bits(lowered(bits_of(score))));
  if constexpr (kRanking == Ranking::kSmallest) return -float_of(score);
  return float_of(score);
}

// Returns the score that has this ranked score, which is widened from the score's dtype; both as float32.
__device__ __forceinline__ float score_of_ranked(float ranked) {
  if constexpr (kRanking == Ranking::kLargest) return ranked;
  if constexpr (kRanking == Ranking::kSmallest) return -ranked;
  const u32 bits = Stored::kConverts ? Stored::bits_of(ranked) : __float_as_uint(ranked) >> (32 - Stored::kBits);
  constexpr u32 kSize = Stored::kSign - 1;
  return float_of(score_of_bits((bits & kSize) > Stored::kInfinity ? Stored::kMinusInfinity : Stored::above(bits)));
}
