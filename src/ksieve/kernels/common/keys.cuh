// Ordered keys: the CUDA mirror of core/keys.py. Descending: a better score has a smaller key.
#pragma once
#include "common/params.cuh"

// Adding +0 turns -0 into +0, so that both zeros share a key. The score must not be NaN.
__device__ __forceinline__ u32 number_key(float score) {
  u32 bits = __float_as_uint(score + 0.0f);
  return bits ^ (static_cast<u32>(~(static_cast<int>(bits) >> 31)) & 0x7fffffffu);
}

// Returns a score's ordered key; every NaN gets the worst one.
__device__ __forceinline__ u32 order_key(float score) { return score != score ? kNanKey : number_key(score); }

__device__ __forceinline__ float score_of_key(u32 key) { return __uint_as_float(key >> 31 ? key : key ^ 0x7fffffffu); }

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000); }

constexpr u32 kInfinityKey = 0x007fffffu;
constexpr u32 kZeroKey = 0x7fffffffu;
constexpr u32 kMinusInfinityKey = 0xff800000u; // also its bit pattern; the worst key of a number

// Returns the float c for which x >= c exactly if order_key(x) <= key. NaN never satisfies x >= c: the caller must test
// for it where its key counts.
__device__ __forceinline__ float hot_cutoff(u32 key) {
  return key > kMinusInfinityKey ? __uint_as_float(kMinusInfinityKey) : score_of_key(key);
}

// Returns a score's coarse bin: the upper 11 bits of the 16-bit key of its nearest float16; for NaN the last bin.
__device__ __forceinline__ int coarse_bin(float score) {
  u32 bits = half_of(score + 0.0f);
  u32 key = bits & 0x8000u ? bits : bits ^ 0x7fffu;
  return score != score ? kBins - 1 : static_cast<int>(key >> 5);
}

// Returns the 16-bit keys of two float16 scores.
__device__ __forceinline__ u32 coarse_keys_of_halves(u32 halves) {
  halves |= nan_halves(halves);
  return halves ^ (~signs_of_halves(halves) & 0x7fff7fffu);
}

// Returns the 16-bit keys of two scores, `a` in the low half; the upper 11 bits of each are its coarse_bin.
__device__ __forceinline__ u32 coarse_keys(float a, float b) {
  return coarse_keys_of_halves(halves_of(b + 0.0f, a + 0.0f));
}

// Returns the largest ordered key whose score rounds into coarse bins 0..bin (core/keys.py, BIN_CUTOFF_KEY). A score at
// the midpoint towards the next worse float16 rounds to even: into a positive bin, whose worst float16 is even, and out
// of a negative one.
__device__ __forceinline__ u32 bin_cutoff_key(int bin) {
  u32 key16 = static_cast<u32>(bin) << 5 | 31u;
  if (key16 < 0x3ffu) return 0; // better than +inf: no score maps here
  if (key16 == 0x7fffu) return order_key(0.0f);
  if (key16 >= 0xffffu) return kNanKey;
  if (key16 >= 0xfc00u) return kMinusInfinityKey;
  bool positive = key16 < 0x8000u;
  u32 worst = positive ? 0x7fffu - key16 : key16;
  u32 beyond = positive ? worst - 1 : worst + 1;
  float a = (worst & 0x7fffu) == 0x7c00u ? 65536.0f : float_of_half(worst);
  float b = (beyond & 0x7fffu) == 0x7c00u ? -65536.0f : float_of_half(beyond);
  u32 midpoint = order_key((a + b) * 0.5f);
  return positive ? midpoint : midpoint - 1;
}

// Bins of a histogram over ordered keys: bin 0 has every key below base + 2^shift, and each further bin the next
// 2^shift keys.
struct Digit {
  u32 base;
  int shift;
};

struct KeyRange {
  u32 best;
  u32 worst;
};

// Returns the range from the first to the last key of `keys` that a score can have, if there is one: a range with one
// score of few values, whose keys are kKeyStep apart, is then that score's key.
__device__ __forceinline__ KeyRange keys_of_scores(KeyRange keys) {
  if constexpr (Stored::kFewValues) {
    constexpr u32 kRest = Stored::kKeyRest;
    const bool best_nan = keys.best > Stored::kWorstKey;
    const bool worst_beyond = keys.worst > Stored::kWorstKey && keys.worst != kNanKey;
    keys.best = best_nan ? kNanKey : keys.best >> 31 ? (keys.best + kRest) & ~kRest : keys.best | kRest;
    if (worst_beyond) keys.worst = Stored::kWorstKey;
    if (keys.worst != kNanKey) keys.worst = keys.worst >> 31 ? keys.worst & ~kRest : ((keys.worst + 1) & ~kRest) - 1;
  }
  return keys;
}

// Returns the range of the keys whose scores are in a coarse bin.
__device__ __forceinline__ KeyRange keys_of_bin(int bin) {
  return {bin ? bin_cutoff_key(bin - 1) + 1 : 0, bin_cutoff_key(bin)};
}

// Returns the finest digit whose bins cover the keys of [base, worst].
__device__ __forceinline__ Digit digit_over(u32 base, u32 worst) {
  u32 span = worst - min(base, worst);
  return {base, max(0, 32 - __clz(span) - kBinBits)};
}

// Returns one of the paper's exact digits: 11, 11 and 10 bits of the keys that share the earlier ones with `prefix`.
__device__ __forceinline__ Digit paper_digit(int round, u32 prefix) {
  if (round == 0) return {0, 21};
  return round == 1 ? Digit{prefix >> 21 << 21, 10} : Digit{prefix >> 10 << 10, 0};
}

// Returns the bin of a key that is no worse than the last key of the digit's bins.
__device__ __forceinline__ u32 bin_of(u32 key, Digit digit) {
  return key <= digit.base ? 0 : (key - digit.base) >> digit.shift;
}

// Returns the keys of `all` that fall into a bin of the digit.
__device__ __forceinline__ KeyRange keys_of_bin(int bin, Digit digit, KeyRange all) {
  u32 low = digit.base + (static_cast<u32>(bin) << digit.shift);
  u32 high = low + ((1u << digit.shift) - 1);
  return {bin ? max(all.best, low) : all.best, high < low ? all.worst : min(all.worst, high)};
}
