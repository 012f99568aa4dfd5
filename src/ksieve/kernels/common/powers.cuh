// The power of a score (model/logits.py): an integer of 24 bits times a power of two.
#pragma once
#include "common/params.cuh"

constexpr float kRound = 12582912.0f; // 1.5 * 2^23: what is added to it is rounded to an integer
constexpr int kHeadroom = 3;          // of the unit's exponent above the reference's
constexpr int kFraction = 44;         // near powers are below 2^(kFraction + 1) units
constexpr float kWithin = 2097152.0f; // scores whose exponents are larger are reduced first

// The power of a score: a float in [0.7, 1.42), times a power of two whose exponent is added to `magic`.
struct Power {
  u32 bits;
  u32 rounded;
  __device__ __forceinline__ int exponent() const { // of the whole, with kRound
    return static_cast<int>((bits >> 23) + rounded - 127 - __float_as_uint(kRound));
  }
  __device__ __forceinline__ u32 mantissa() const { return (bits & 0x7fffffu) | 0x800000u; }
};

__device__ __forceinline__ Power power_of(float score, float factor, float rest, float magic) {
  const float rounded = fmaf(score, factor, magic);
  const float f = fmaf(score, rest, fmaf(score, factor, -(rounded - magic)));
  float power = 0x1.416b5ep-13f;
  power = fmaf(power, f, 0x1.5f0830p-10f);
  power = fmaf(power, f, 0x1.3b2de0p-7f);
  power = fmaf(power, f, 0x1.c6af7cp-5f);
  power = fmaf(power, f, 0x1.ebfbdcp-3f);
  power = fmaf(power, f, 0x1.62e430p-1f);
  power = fmaf(power, f, 1.0f);
  return {__float_as_uint(power), __float_as_uint(rounded)};
}

// A sum of a few powers in a double whose last place is a unit, to which each of them is rounded.
struct UnitSum {
  float magic; // kRound, and what the double's exponent has besides the power's: an even number, as kRound is
  u32 zero;    // upper word of an empty sum; its lower word is 0

  // Of powers in 2^-kFraction times that of an exponent.
  __device__ __forceinline__ static UnitSum of(int exponent) {
    const int bias = 1023 - 127 + kFraction - exponent;
    return {kRound + static_cast<float>(bias & ~1), 0x43380000u - ((bias & 1) << 20)}; // half of it, if magic lacks 1
  }
  __device__ __forceinline__ double empty() const { return __hiloint2double(static_cast<int>(zero), 0); }
  __device__ __forceinline__ u64 units(double sum) const {
    return __double_as_longlong(sum) - (static_cast<u64>(zero) << 32);
  }
  // Returns what the power of a score adds. Its last bit decides halves upwards.
  __device__ __forceinline__ double term(float score, float factor, float rest) const {
    const Power power = power_of(score, factor, rest, magic);
    const u32 high = (power.rounded << 20) + (power.bits >> 3);
    return __hiloint2double(static_cast<int>(high), static_cast<int>(power.bits << 29 | 1));
  }
};
