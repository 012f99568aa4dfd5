// Functions of float64 numbers, written out: additions, multiplications and divisions, none of them fused. They equal
// model/logits.py to the byte.
#pragma once

constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr double kLog2e = 0x1.71547652b82fep+0;

// Returns x * y + z, rounded twice.
__device__ __forceinline__ double mul_add(double x, double y, double z) { return __dadd_rn(__dmul_rn(x, y), z); }

// Returns log2(s) of a normal number.
__device__ inline double log2_of(double s) {
  const i64 bits = __double_as_longlong(s);
  const i64 exponent = (bits - 0x3fe8000000000000ll) >> 52;
  const double m = __longlong_as_double(bits - static_cast<i64>(static_cast<u64>(exponent) << 52));
  const double z = __ddiv_rn(__dadd_rn(m, -1.0), __dadd_rn(m, 1.0));
  const double square = __dmul_rn(z, z);
  double found = 1.0 / 23;
#pragma unroll
  for (int i = 10; i >= 0; --i)
    found = mul_add(found, square, 1.0 / (2 * i + 1));
  return __dadd_rn(static_cast<double>(exponent), __dmul_rn(2 * kLog2e, __dmul_rn(z, found)));
}

// Returns 2^y for y <= 0; 0 below -1,000.
__device__ inline double exp2_of(double y) {
  constexpr double kCoefficients[] = {0x1.816193166d0f7p-40, 0x1.c3bd650fc2984p-36,
                                      0x1.e8cac7351bb23p-32, 0x1.e4cf5158b8ec8p-28,
                                      0x1.b5253d395e7c3p-24, 0x1.62c0223a5c823p-20,
                                      0x1.ffcbfc588b0c6p-17, 0x1.430912f86c787p-13,
                                      0x1.5d87fe78a6731p-10, 0x1.3b2ab6fba4e77p-7,
                                      0x1.c6b08d704a0bfp-5,  0x1.ebfbdff82c58ep-3,
                                      0x1.62e42fefa39efp-1,  1.0};
  constexpr double kRounder = 0x1.8p52;
  if (!(y > -1000.0)) return 0;
  const double rounded = __dadd_rn(y, kRounder);
  const double f = __dadd_rn(y, -__dadd_rn(rounded, -kRounder));
  double found = kCoefficients[0];
#pragma unroll
  for (int i = 1; i < 14; ++i)
    found = mul_add(found, f, kCoefficients[i]);
  return __dmul_rn(found, __longlong_as_double((__double_as_longlong(rounded) + 1023) << 52));
}
