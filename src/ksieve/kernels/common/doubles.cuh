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
