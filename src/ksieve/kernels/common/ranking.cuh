// Rankings (core/ranking.py): kernels know one order, larger scores first and NaN last. They compare a score's *ranked
// score*, which this order puts where the call wants the score. Scores in memory, and in the ring, are the caller's.
#pragma once
#include "common/params.cuh"

enum class Ranking { kLargest, kSmallest, kNanFirst };
constexpr Ranking kRanking = static_cast<Ranking>(KSIEVE_OPTION(KSIEVE_RANKING));

using Score = Choose<kDtype == Dtype::kFloat32, float, unsigned short>::Type;
constexpr bool kHalfScores = kDtype != Dtype::kFloat32;

// Dtype of the caller's scores: those that are pooled to float32 entries keep their few values.
constexpr int kSourceDtype = KSIEVE_OPTION(KSIEVE_SOURCE_DTYPE);
constexpr Dtype kValues = kSourceDtype ? static_cast<Dtype>(kSourceDtype) : kDtype;
constexpr bool kHalfValues = kValues != Dtype::kFloat32;

// Bits of a score in memory.
constexpr u32 kSignBit = kHalfScores ? 0x8000 : 0x80000000;
constexpr u32 kInfinityBits = kDtype == Dtype::kFloat32 ? 0x7f800000 : kDtype == Dtype::kFloat16 ? 0x7c00 : 0x7f80;
constexpr u32 kMinusInfinityBits = kSignBit | kInfinityBits;
constexpr u32 kWorstBits = kRanking == Ranking::kLargest    ? kMinusInfinityBits
                           : kRanking == Ranking::kSmallest ? kInfinityBits
                                                            : kMinusInfinityBits - 1; // ranked: minus infinity
constexpr u32 kWorstNumberBits = kRanking == Ranking::kSmallest ? kInfinityBits : kMinusInfinityBits;

// Returns a word of one or two scores.
__device__ constexpr u32 word_of(u32 bits) { return kHalfScores ? bits * 0x10001u : bits; }

__device__ __forceinline__ Score score_of_bits(u32 bits) {
  if constexpr (kHalfScores) return static_cast<Score>(bits);
  return __uint_as_float(bits);
}
__device__ __forceinline__ u32 bits_of(Score score) {
  if constexpr (kHalfScores) return score;
  return __float_as_uint(score);
}

// Returns a score as float32.
__device__ __forceinline__ float float_of(Score score) {
  if constexpr (kDtype == Dtype::kFloat32) return score;
  if constexpr (kDtype == Dtype::kFloat16) return float_of_half(static_cast<unsigned short>(score));
  return __uint_as_float(static_cast<u32>(score) << 16);
}

// Returns the bits of the next lower number; of NaN those of +inf, and of -inf those of a NaN.
__device__ __forceinline__ u32 lowered(u32 bits) {
  const u32 size = bits & (kSignBit - 1);
  const u32 lower = size == 0 ? kSignBit | 1 : bits & kSignBit ? bits + 1 : bits - 1;
  return size > kInfinityBits ? kInfinityBits : lower;
}

// Returns the bits of the next higher number: its ranked score is the given number.
__device__ __forceinline__ u32 raised(u32 bits) {
  return (bits & (kSignBit - 1)) == 0 ? 1 : bits & kSignBit ? bits - 1 : bits + 1;
}

// Returns the bits of the ranked scores of one or two scores.
__device__ __forceinline__ u32 ranked_word(u32 word) {
  if constexpr (kRanking == Ranking::kSmallest) return word ^ word_of(kSignBit);
  if constexpr (kRanking == Ranking::kLargest) return word;
  if constexpr (!kHalfScores) return lowered(word);
  if constexpr (kDtype == Dtype::kBfloat16 && __CUDA_ARCH__ < 900)
    return lowered(word & 0xffffu) | lowered(word >> 16) << 16;
  // As `lowered`, but both at once: no half borrows from the other one, or carries over.
  constexpr bool kBFloat = kDtype == Dtype::kBfloat16;
  const u32 numbers = equal_halves<kBFloat>(word, word);
  word = (word & numbers) | (~numbers & word_of(kInfinityBits + 1));
  word |= equal_halves<kBFloat>(word, 0) & word_of(kSignBit);
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
  const u32 bits = kDtype == Dtype::kFloat16 ? half_of(ranked) : __float_as_uint(ranked) >> (kHalfScores ? 16 : 0);
  return float_of(score_of_bits((bits & (kSignBit - 1)) > kInfinityBits ? kMinusInfinityBits : raised(bits)));
}
