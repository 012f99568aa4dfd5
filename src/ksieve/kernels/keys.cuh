// Ordered keys: the CUDA mirror of keys.py. Descending: a better score has a smaller key.
#pragma once
#include "params.cuh"

// Adding +0 turns -0 into +0, so both zeros share a key; every NaN gets the worst key.
__device__ __forceinline__ u32 order_key(float score) {
  u32 bits = __float_as_uint(score + 0.0f);
  u32 key = bits ^ (static_cast<u32>(~(static_cast<int>(bits) >> 31)) & 0x7fffffffu);
  return score != score ? kNanKey : key;
}

__device__ __forceinline__ float score_of_key(u32 key) { return __uint_as_float(key >> 31 ? key : key ^ 0x7fffffffu); }

// A float c such that !(x < c) holds for every x with order_key(x) <= key: the hot test of a scan. It lets NaN
// pass too; the exact key decides about those.
__device__ __forceinline__ float hot_cutoff(u32 key) {
  return key > 0xff800000u ? __uint_as_float(0xff800000u) : score_of_key(key);
}

__device__ __forceinline__ int coarse_bin(float score) {
  unsigned short half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(score + 0.0f));
  u32 bits = half;
  u32 key = bits & 0x8000u ? bits : bits ^ 0x7fffu;
  return score != score ? kBins - 1 : static_cast<int>(key >> 5);
}

__device__ __forceinline__ float half_bits_to_float(u32 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(bits)));
  return value;
}

// Largest ordered key whose score rounds into coarse bins 0..bin: keys.py, BIN_CUTOFF_KEY. The midpoint towards
// the next worse float16 ties to even: into a positive bin (its worst float16 is even), out of a negative one.
__device__ __forceinline__ u32 bin_cutoff_key(int bin) {
  u32 key16 = static_cast<u32>(bin) << 5 | 31u;
  if (key16 < 0x3ffu) return 0; // better than +inf: no score maps here
  if (key16 == 0x7fffu) return order_key(0.0f);
  if (key16 >= 0xffffu) return kNanKey;
  if (key16 >= 0xfc00u) return 0xff800000u; // -inf
  bool positive = key16 < 0x8000u;
  u32 worst = positive ? 0x7fffu - key16 : key16;
  u32 beyond = positive ? worst - 1 : worst + 1;
  float a = (worst & 0x7fffu) == 0x7c00u ? 65536.0f : half_bits_to_float(worst);
  float b = (beyond & 0x7fffu) == 0x7c00u ? -65536.0f : half_bits_to_float(beyond);
  u32 midpoint = order_key((a + b) * 0.5f);
  return positive ? midpoint : midpoint - 1;
}

__device__ __forceinline__ int digit_shift(int round) { return round == 0 ? 21 : round == 1 ? 10 : 0; }

__device__ __forceinline__ u32 digit_of(u32 key, int shift) { return key >> shift & (shift == 0 ? 1023u : 2047u); }
