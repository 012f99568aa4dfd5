// Dtypes of scores: all that differs between them. Everything else asks `Stored`, or `Source`. A new dtype is a number,
// a Format, and a line of core/dtypes.py. Included by common/params.cuh alone.
#pragma once

enum class Dtype { kFloat32, kFloat16, kBfloat16 }; // numbers: core/dtypes.py
enum class Pairs { kNone, kFloat16, kBfloat16 };    // what compares two scores of a word in one instruction

// What formats have in common. Bits of a score are a sign and a size; sizes of numbers ascend, those of NaN are larger.
//   number      returns the number of some bits, whatever is above them
//   bits_of     returns the bits of a number of this format; with kConverts of any number the nearest one's
//   bits_above  returns the bits of the least number that is at least a given one
template <class ScoreType, class BitsType, u32 kGreatest, int kUnusedKeyBits> struct FormatOf {
  using Score = ScoreType; // in memory
  using Bits = BitsType;   // the same as an integer
  static constexpr int kBits = 8 * sizeof(Bits), kInWord = 4 / sizeof(Bits), kInVector = 16 / sizeof(Bits);
  static constexpr u32 kSign = 1u << (kBits - 1);
  static constexpr u32 kInfinity = kGreatest, kMinusInfinity = kSign | kGreatest; // or the greatest, and least, number
  static constexpr u32 kWorstKey = 0xff800000, kWorstBin = 0xfc00 >> 5; // ordered key and coarse bin of the latter
  static constexpr u32 kKeyStep = 1u << kUnusedKeyBits; // ordered keys of scores that differ are so far apart, or more
  static constexpr u32 kKeyRest = kKeyStep - 1; // low bits of a key: no cutoff lies between keys that differ in these
  static constexpr bool kFewValues = kKeyRest > 0; // many scores of a row are equal
  static constexpr Pairs kPairs = Pairs::kNone;
  // Whether numbers are made by a conversion, which takes registers; otherwise the bits are the upper ones of a
  // float32.
  static constexpr bool kConverts = false;

  // Returns a word of scores that have the given bits.
  __device__ static constexpr u32 word_of(u32 bits) { return bits * (~0u / (2 * kSign - 1)); }

  // Returns the bits of a score of a vector, with other bits above them.
  __device__ __forceinline__ static u32 bits_at(const Words& raw, int i) {
    return raw.word[i / kInWord] >> i % kInWord * kBits;
  }

  // Returns a word whose scores [first, last) have the given bits.
  __device__ __forceinline__ static u32 replaced(u32 word, int first, int last, u32 bits) {
    if constexpr (kInWord == 1) return bits;
    constexpr u32 kNew = kInWord == 2 ? 0x5454u : 0x4444u; // selectors of bytes
    const u32 taken = (1u << 4 * sizeof(Bits) * last) - (1u << 4 * sizeof(Bits) * first);
    return __byte_perm(word, bits, (0x3210u & ~taken) | (kNew & taken));
  }
  __device__ __forceinline__ static void put(Words& raw, int i, u32 bits) {
    raw.word[i / kInWord] = replaced(raw.word[i / kInWord], i % kInWord, i % kInWord + 1, bits);
  }

  // Returns the bits of the next higher number.
  __device__ __forceinline__ static u32 above(u32 bits) {
    return (bits & (kSign - 1)) == 0 ? 1 : bits & kSign ? bits - 1 : bits + 1;
  }
};

template <Dtype> struct Format;

template <> struct Format<Dtype::kFloat32> : FormatOf<float, u32, 0x7f800000, 0> {
  __device__ __forceinline__ static float number(u32 bits) { return __uint_as_float(bits); }
  __device__ __forceinline__ static u32 bits_of(float number) { return __float_as_uint(number); }
  __device__ __forceinline__ static u32 bits_above(float number) { return bits_of(number); }
};

template <> struct Format<Dtype::kFloat16> : FormatOf<unsigned short, unsigned short, 0x7c00, 13> {
  static constexpr Pairs kPairs = Pairs::kFloat16;
  static constexpr bool kConverts = true;
  __device__ __forceinline__ static float number(u32 bits) { return float_of_half(static_cast<Bits>(bits)); }
  __device__ __forceinline__ static u32 bits_of(float number) { return half_of(number); }
  __device__ __forceinline__ static u32 bits_above(float number) {
    u32 bits = half_of(number);
    if (Format::number(bits) < number) bits += bits & kSign ? ~0u : 1u;
    return bits;
  }
};

template <> struct Format<Dtype::kBfloat16> : FormatOf<unsigned short, unsigned short, 0x7f80, 16> {
  static constexpr Pairs kPairs = __CUDA_ARCH__ >= 900 ? Pairs::kBfloat16 : Pairs::kNone;
  __device__ __forceinline__ static float number(u32 bits) { return __uint_as_float(bits << 16); }
  __device__ __forceinline__ static u32 bits_of(float number) { return __float_as_uint(number) >> 16; }
  __device__ __forceinline__ static u32 bits_above(float number) {
    const u32 bits = __float_as_uint(number);
    return (bits >> 16) + ((bits & 0x8000ffffu) - 1 < 0xffffu); // positive, and cut off
  }
};

// Scores that a kernel selects from, and those of the caller: of blocks, the former are the float32 scores of the best.
using Stored = Format<static_cast<Dtype>(KSIEVE_DTYPE)>;
constexpr int kSourceDtype = KSIEVE_OPTION(KSIEVE_SOURCE_DTYPE);
using Source = Format<static_cast<Dtype>(kSourceDtype ? kSourceDtype : KSIEVE_DTYPE)>;
using Score = Stored::Score;
constexpr int kInWord = Stored::kInWord, kVector = Stored::kInVector; // scores of 4 bytes, and of a 16-byte load
constexpr bool kFewValues = Source::kFewValues;
