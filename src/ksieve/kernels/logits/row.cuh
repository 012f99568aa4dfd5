// A row whose kept set has no k, and the masses of its scores (model/logits.py, masses).
#pragma once
#include "common/keys.cuh"
#include "common/powers.cuh"
#include "logits/keep.cuh"

constexpr u32 kNothing = 46;                     // a power that is so far below the unit has no mass
constexpr u32 kWorstKey = kMinusInfinityKey - 1; // of a score above minus infinity
constexpr int kParts = 4096;                     // bins of a row
constexpr float kPowers = 44.5f;                 // scores that are so far below the best one have no mass

struct Row {
  const Score* scores;
  const u32* allowed;    // words of the bitmask; null: all scores count
  double factor;         // log2(e) / temperature
  double least_exponent; // of min-p
  int length;
  float best;
  float base;      // what scores are reduced by
  float high;      // the factor
  float low;       // what its rounding left
  float least;     // reduced scores below it count as this one
  float most;      // that a reduced score is
  float by_span;   // parts of the bins' span that a difference of 1 between scores is
  float best_part; // the best score in such parts
  UnitSum few;     // of masses
  int unit;
  u32 worst; // key of the worst score that counts
  u32 cut;   // key of the worst score that min-p keeps
  float p;
  float uniform; // below 0: nothing is drawn

  // Returns a score of the row; minus infinity if the bitmask lacks it.
  __device__ __forceinline__ float score_at(int at) const {
    return is_allowed(allowed, at) ? widen(scores[at]) : -infinity();
  }
  __device__ __forceinline__ float reduced(float score) const {
    return fmaxf(fminf(score - base, most), least); // infinity less infinity is 0
  }
  __device__ __forceinline__ u64 mass(float score) const {
    const Power own = power_of(reduced(score), high, low, kRound);
    const u32 down = min(static_cast<u32>(unit - own.exponent()), kNothing);
    return ((static_cast<u64>(own.mantissa()) << 38 >> (down + 60 - kFraction)) + 1) >> 1;
  }

  __device__ __forceinline__ double term(float score) const { return few.term(reduced(score), high, low); }

  // Returns whether there is a min-p, and whether it keeps a score.
  __device__ __forceinline__ bool limited() const { return cut < kWorstKey; }
  __device__ __forceinline__ bool enough(float score) const {
    const double less = __dadd_rn(static_cast<double>(score), -static_cast<double>(best));
    return score == best || __dmul_rn(less, factor) >= least_exponent;
  }

  // Returns the bin of a score, of equal differences from the best one: no better score has a later bin.
  __device__ __forceinline__ u32 bin(float score) const {
    const float part = __saturatef(fmaf(score, -by_span, best_part)); // 0 of infinity less infinity
    return __float_as_uint(fmaf(part, kParts - 1, 0x1p23f)) - __float_as_uint(0x1p23f);
  }
  __device__ __forceinline__ float score_of_bin(u32 number) const {
    return best - __fdividef(static_cast<float>(number), (kParts - 1) * by_span);
  }

  // Returns the last key that passes a test, which that of the best score does, and each one up to the last. Call by
  // whole warps.
  template <class Test> __device__ __forceinline__ u32 last_key(Test test) const {
    u64 found = order_key(best);
#pragma unroll 1
    for (int shift = 30; shift >= 0; shift -= 5) { // 31 lanes try a digit each
      const u64 key = found + (static_cast<u64>(threadIdx.x % 32 + 1) << shift);
      const bool passes = threadIdx.x % 32 < 31 && key <= kWorstKey && test(score_of_key(static_cast<u32>(key)));
      found += static_cast<u64>(__popc(__ballot_sync(kFullWarp, passes))) << shift;
    }
    return static_cast<u32>(found);
  }
};
