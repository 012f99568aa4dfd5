// Blocks of scores, by their best ones (core/entries.py, `pool`): a row is read once, with coalesced loads at any
// alignment, and its entries are written to shared memory or to the workspace as float32 ranked scores, so that
// everything behind this file selects float32 scores, larger first.
//   1. where loads are aligned with blocks, lanes that share a block join their best scores by shuffles
//   2. elsewhere lanes of a block do so as far as they are neighbours, and blocks are joined by atomics on ordered keys
#pragma once
#include "common/keys.cuh"

namespace source {                                             // scores in memory
constexpr int kRanking = KSIEVE_OPTION(KSIEVE_SOURCE_RANKING); // enum Ranking, of common/ranking.cuh
constexpr bool kSmallest = kRanking == 1;
constexpr bool kNanFirst = kRanking == 2;
using Bits = Source::Bits;
constexpr int kEach = Source::kInVector;
// No better than any score: minus infinity, or NaN.
constexpr u32 kAbsent = kNanFirst ? Source::kMinusInfinity : Source::kSign - 1;
constexpr u32 kUnused = kSmallest ? Source::kInfinity : Source::kMinusInfinity; // value of an unused slot

// Returns the ranked score of a score (common/ranking.cuh).
__device__ __forceinline__ float ranked(float score) {
  if constexpr (kSmallest) return -score;
  if constexpr (!kNanFirst) return score;
  const u32 bits = Source::kConverts ? Source::bits_of(score) : __float_as_uint(score) >> (32 - Source::kBits);
  const u32 size = bits & (Source::kSign - 1);
  const u32 lower = size == 0 ? Source::kSign | 1 : bits & Source::kSign ? bits + 1 : bits - 1;
  return Source::number(score != score ? Source::kInfinity : lower);
}

// Returns the better one of two scores.
__device__ __forceinline__ float best(float a, float b) {
  if constexpr (kNanFirst) return a > b || a != a ? a : b;
  return kSmallest ? fminf(a, b) : fmaxf(a, b); // of a number and NaN the number
}

__device__ __forceinline__ float loaded(const Words& raw, int i) { return Source::number(Source::bits_at(raw, i)); }

// Loads the scores of [low, high) in the vector from position `at` on, all at once.
__device__ __forceinline__ Words load_some(const Bits* from, int at, int low, int high) {
  u32 bits[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    bits[i] = kAbsent;
    if (at + i >= low && at + i < high) bits[i] = from[at + i];
  }
  Words raw = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    u32& word = raw.word[i / Source::kInWord];
    word = bits[i] << i % Source::kInWord * Source::kBits | word; // the order of operands changes machine code
  }
  return raw;
}
} // namespace source

constexpr bool kDivides = source::kEach % kBlockSize == 0; // vectors are whole blocks
constexpr int kSharers = kBlockSize % source::kEach ? 1 : kBlockSize / source::kEach;
constexpr bool kShuffles = kDivides || (kBlockSize % source::kEach == 0 && 32 % kSharers == 0); // if loads are aligned

// Calls visit(at, raw) for the vectors that cover positions [low, high), in ascending order over the lanes of a warp.
// `at` is the position of a vector's first score, -`skew` or more. Call by all threads.
template <class Visit>
__device__ __forceinline__ void each_source_vector(const source::Bits* from, int skew, int low, int high, Visit visit) {
  constexpr int kInFlight = kThreads * KSIEVE_CTAS_PER_SM >= 768 ? 4 : 8; // vectors of a thread, which take registers
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll 1
  for (int first = (static_cast<int>(threadIdx.x) - lane) * source::kEach - skew; first < high;
       first += kInFlight * kThreads * source::kEach) {
    Words raw[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int at = first + (u * kThreads + lane) * source::kEach;
      if (at >= low && at + source::kEach <= high) {
        raw[u] = load_once(from + at);
      } else {
        raw[u] = source::load_some(from, at, low, high); // one vector at either end, and none behind the row
      }
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int begin = first + u * kThreads * source::kEach; // the same for a warp
      if (begin < high) visit(begin + lane * source::kEach, raw[u]);
    }
  }
}

// Writes the entries of a row of blocks to `entries`. Call by all threads, behind a barrier after the last use of
// `entries`; ends with a barrier.
template <class AnyRow> __device__ __forceinline__ void pool_blocks(const AnyRow& row, float* entries) {
  using source::best;
  using source::kEach;
  const source::Bits* from = static_cast<const source::Bits*>(row.from);
  const int count = row.length;
  const int low = row.low; // in the first block
  const int high = min(row.high, count * kBlockSize);
  const int skew = static_cast<int>(reinterpret_cast<u64>(from) / sizeof(source::Bits) % kEach);
  const int lane = static_cast<int>(threadIdx.x & 31);
  if (kShuffles && skew == 0) {
    each_source_vector(from, 0, low, high, [&](int at, const Words& raw) {
      constexpr int kHere = kDivides ? kEach / kBlockSize : 1; // blocks of a vector
#pragma unroll
      for (int b = 0; b < kHere; ++b) {
        float mine = source::loaded(raw, b * (kEach / kHere));
#pragma unroll
        for (int i = 1; i < kEach / kHere; ++i)
          mine = best(mine, source::loaded(raw, b * (kEach / kHere) + i));
#pragma unroll
        for (int other = 1; other < kSharers; other *= 2)
          mine = best(mine, __shfl_xor_sync(kFullWarp, mine, other));
        const int begin = at + b * (kEach / kHere);
        if (lane % kSharers == 0 && begin < high) entries[begin / kBlockSize] = source::ranked(mine);
      }
    });
    __syncthreads(); // every entry is written
    return;
  }
  u32* keys = reinterpret_cast<u32*>(entries);
  for (int i = threadIdx.x; i < count; i += kThreads)
    keys[i] = kNanKey;
  __syncthreads(); // every key is the worst one
  auto join = [&](int block, float score) {
    if (block >= 0 && block < count) atomicMin(&keys[block], order_key(source::ranked(score)));
  };
  const float absent = Source::number(source::kAbsent);
  each_source_vector(from, skew, low, high, [&](int at, const Words& raw) {
    if constexpr (kBlockSize < kEach) {
      int block = (at + kEach * kBlockSize) / kBlockSize - kEach; // rounded down: `at` may be negative
      int left = (block + 1) * kBlockSize - at;
      float mine = absent;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        mine = best(mine, source::loaded(raw, i));
        if (--left && i < kEach - 1) continue;
        join(block++, mine);
        mine = absent;
        left = kBlockSize;
      }
    } else {
      const int block = (at + kEach - 1) / kBlockSize; // of the vector's last score
      const int begin = block * kBlockSize;
      float mine = absent;
      float ahead = absent; // of the scores of the block before
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float score = source::loaded(raw, i);
        mine = best(mine, at + i >= begin ? score : absent);
        ahead = best(ahead, at + i < begin ? score : absent);
      }
      if (at < begin) join(block - 1, ahead);
#pragma unroll
      for (int other = 1; other < 32 && other * kEach < kBlockSize; other *= 2) {
        const float theirs = __shfl_down_sync(kFullWarp, mine, other);
        if (lane + other < 32 && at + (other + 1) * kEach <= begin + kBlockSize) mine = best(mine, theirs);
      }
      if (lane == 0 || at <= begin) join(block, mine);
    }
  });
  __syncthreads(); // every score is in its block's key
  for (int i = threadIdx.x; i < count; i += kThreads)
    entries[i] = score_of_key(keys[i]);
  __syncthreads(); // every key is a score again
}

// The best score of a block, bit for bit the first of equal ones, and its ordered key.
struct BlockBest {
  source::Bits score;
  u32 key;
};
// Of the scores [at, end) from `from` on.
__device__ __forceinline__ BlockBest best_of_scores(const source::Bits* from, int at, int end) {
  BlockBest found = {from[at], order_key(source::ranked(Source::number(from[at])))};
#pragma unroll 4
  for (++at; at < end; ++at) {
    const source::Bits score = from[at];
    const u32 key = order_key(source::ranked(Source::number(score)));
    if (key < found.key) found = {score, key};
  }
  return found;
}
template <class AnyRow> __device__ __forceinline__ BlockBest best_of_block(const AnyRow& row, int block) {
  return best_of_scores(static_cast<const source::Bits*>(row.from), max(block * kBlockSize, row.low),
                        min((block + 1) * kBlockSize, row.high));
}
