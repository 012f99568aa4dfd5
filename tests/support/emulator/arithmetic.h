// Instructions that C has no operator for. Approximations are exact here.
#pragma once

static inline float float_of(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static inline uint32_t bits_of(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return bits;
}
static inline double double_of(uint64_t bits) {
  double d;
  memcpy(&d, &bits, 8);
  return d;
}
static inline uint64_t bits_of_double(double d) {
  uint64_t bits;
  memcpy(&bits, &d, 8);
  return bits;
}
static inline float half_to_float(uint16_t bits) {
  _Float16 h;
  memcpy(&h, &bits, 2);
  return (float)h;
}
static inline uint16_t float_to_half(float f) {
  _Float16 h = (_Float16)f;
  uint16_t bits;
  memcpy(&bits, &h, 2);
  return bits;
}
static inline float round_down(double sum, double error) {
  const float f = (float)sum;
  if ((double)f > sum || ((double)f == sum && error < 0)) return nextafterf(f, -INFINITY);
  return f;
}
static inline float fma_down(float a, float b, float c) { // the product is exact, and so is the sum with its error
  const double product = (double)a * b, sum = product + c;
  const double part = sum - product, error = (product - (sum - part)) + (c - part);
  return isfinite(sum) ? round_down(sum, error) : (float)sum;
}
static inline float mul_up(float a, float b) {
  const double product = (double)a * b;
  return isfinite(product) ? -round_down(-product, 0) : (float)product;
}
// Of a number and a NaN, of either kind, the number; zeros are ordered by their signs.
static inline float number_of(float a, float b, int least) {
  if (isnan(a) || isnan(b)) return isnan(a) ? isnan(b) ? float_of(0x7fffffff) : b : a;
  if (a == b) return !signbit(a) == !least ? a : b;
  return (a < b) == least ? a : b;
}
// The greater number, or NaN if one of them is.
static inline float greater_or_nan(float a, float b) {
  return isnan(a) || isnan(b) ? float_of(0x7fffffff) : a > b ? a : b;
}
static inline uint32_t greater_or_nan_halves(int bfloat, uint32_t a, uint32_t b) {
  uint32_t out = 0;
  for (int i = 0; i < 32; i += 16) {
    const uint16_t x = a >> i, y = b >> i;
    const float wide[2] = {bfloat ? float_of(x << 16) : half_to_float(x),
                           bfloat ? float_of(y << 16) : half_to_float(y)};
    const uint32_t greater = isnan(wide[0]) || isnan(wide[1]) ? 0x7fff : wide[0] > wide[1] ? x : y;
    out |= greater << i;
  }
  return out;
}
static inline float saturate(float a) { return a > 0 ? a < 1 ? a : 1.0f : 0.0f; }
static inline int32_t to_s32(float a) {
  return isnan(a) ? 0 : a >= 0x1p31f ? INT32_MAX : a <= -0x1p31f ? INT32_MIN : (int32_t)a;
}
static inline uint32_t to_u32(float a) { return isnan(a) || a <= 0 ? 0 : a >= 0x1p32f ? UINT32_MAX : (uint32_t)a; }
static inline uint32_t permute(uint32_t a, uint32_t b, uint32_t how) {
  const uint64_t both = (uint64_t)b << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t pick = how >> 4 * i & 15;
    uint32_t byte = both >> 8 * (pick & 7) & 255;
    if (pick & 8) byte = byte & 128 ? 255 : 0;
    out |= byte << 8 * i;
  }
  return out;
}
static inline uint64_t insert_field(uint64_t field, uint64_t into, uint32_t at, uint32_t length, int width) {
  at &= 255;
  length &= 255;
  if (at >= (uint32_t)width || length == 0) return into;
  const uint64_t ones = length >= 64 ? ~0ull : (1ull << length) - 1;
  return (into & ~(ones << at)) | (field & ones) << at;
}
static inline uint32_t reverse_bits(uint32_t a) {
  uint32_t out = 0;
  for (int i = 0; i < 32; ++i)
    out |= (a >> i & 1) << (31 - i);
  return out;
}
static inline uint32_t find_shift(uint32_t a) { return a ? (uint32_t)__builtin_clz(a) : 0xffffffffu; }
static inline uint32_t add_halves(uint32_t a, uint32_t b) { return ((a + b) & 0xffff) | ((a >> 16) + (b >> 16)) << 16; }
static inline uint32_t min_halves_relu(uint32_t a, uint32_t b) {
  uint32_t out = 0;
  for (int i = 0; i < 32; i += 16) {
    const int16_t x = (int16_t)(a >> i), y = (int16_t)(b >> i), least = x < y ? x : y;
    out |= (uint32_t)(uint16_t)(least < 0 ? 0 : least) << i;
  }
  return out;
}
static inline float half_of_pair(uint32_t pair, int at, int bfloat) {
  const uint16_t half = (uint16_t)(pair >> at);
  const uint32_t wide = (uint32_t)half << 16;
  float number;
  memcpy(&number, &wide, sizeof number);
  return bfloat ? number : half_to_float(half);
}
/* Of bfloat16; of a number and NaN, the number. */
static inline uint32_t greater_halves(uint32_t a, uint32_t b) {
  uint32_t out = 0;
  for (int i = 0; i < 32; i += 16) {
    const float x = half_of_pair(a, i, 1), y = half_of_pair(b, i, 1);
    const int second = isnan(x) || x < y || (x == y && signbit(x));
    out |= (uint32_t)(uint16_t)(isnan(x) && isnan(y) ? 0x7fff : (second ? b : a) >> i) << i;
  }
  return out;
}
/* `test`: 0 for NaN in either, 1 for at least, 2 for equal. */
static inline uint32_t test_halves(uint32_t a, uint32_t b, int test, int bfloat) {
  uint32_t out = 0;
  for (int i = 0; i < 32; i += 16) {
    const float x = half_of_pair(a, i, bfloat), y = half_of_pair(b, i, bfloat);
    if (test == 0 ? isnan(x) || isnan(y) : test == 1 ? x >= y : x == y) out |= 0xffffu << i;
  }
  return out;
}
