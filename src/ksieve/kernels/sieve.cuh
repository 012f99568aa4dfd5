// The scan of phase 2: compares every score with the cutoff, stores what it admits, counts it and builds the next exact
// histogram, all on first encounter. Every scan of the row in any route is this one: a set of the algorithm is always
// a contiguous range of ordered keys, so a scan is told three keys and a digit (ScanRule).
#pragma once
#include "block.cuh"
#include "keys.cuh"
#include "output.cuh"

constexpr int kSparseLanes = 12; // up to this many lanes with a hit per load: one atomic each beats aggregation

// A place behind `counter` for each wanting lane, with one atomic per warp.
__device__ __forceinline__ int reserve(int* counter, bool wanted) {
  u32 mask = __ballot_sync(kFullWarp, wanted);
  if (mask == 0) return 0;
  int lane = threadIdx.x & 31;
  int leader = __ffs(mask) - 1;
  int base = 0;
  if (lane == leader) base = atomicAdd(counter, __popc(mask));
  base = __shfl_sync(kFullWarp, base, leader);
  return base + __popc(mask & ((1u << lane) - 1));
}

// Whether everything admitted is one value must be known when not everything is stored.
__device__ __forceinline__ void track_overflow(u32 key) {
  SharedStorage& s = shared_storage();
  if (key < *static_cast<volatile u32*>(&s.least)) atomicMin(&s.least, key);
  if (key > *static_cast<volatile u32*>(&s.greatest)) atomicMax(&s.greatest, key);
}

// Classifies each score by the rule in shared memory: better, tie, candidate or neither.
struct Sieve {
  Candidates candidates;
  float cutoff; // hot_cutoff(rule.worst)

  __device__ __forceinline__ bool wants(const Raw& raw) const {
    float top = unpack(raw, 0);
#pragma unroll
    for (int i = 1; i < kVector; ++i)
      top = fmaxf(top, unpack(raw, i));
    return !(top < cutoff); // NaN too: the exact key decides
  }

  __device__ __forceinline__ void visit(const Raw& raw, int first, u32 valid, bool mine) const {
    if (__popc(__ballot_sync(kFullWarp, mine)) <= kSparseLanes) {
      if (mine) sparse(raw, first, valid);
    } else {
      dense(raw, first, valid);
    }
  }

  __device__ __forceinline__ void sparse(const Raw& raw, int first, u32 valid) const {
    SharedStorage& s = shared_storage();
    u32 mask = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      mask |= !(unpack(raw, i) < cutoff) ? 1u << i : 0u;
    mask &= valid;
    while (mask) {
      int i = __ffs(mask) - 1;
      mask &= mask - 1;
      float score = unpack(raw, 0);
#pragma unroll
      for (int j = 1; j < kVector; ++j)
        score = i == j ? unpack(raw, j) : score;
      u32 key = order_key(score);
      if (key > s.rule.worst || key < s.rule.emit_from) continue;
      if (kExactBoundary && key == s.rule.tie) {
        write_back(atomicAdd(s.rule.ties, 1), first + i);
      } else if (key < s.rule.best) {
        write_front(atomicAdd(s.rule.emitted, 1), first + i);
      } else {
        int slot = atomicAdd(&s.count, 1);
        candidates.store(slot, key, first + i);
        atomicAdd(&s.histogram[digit_of(key, s.rule.shift)], 1u);
        if (slot >= kCapacity) track_overflow(key);
      }
    }
  }

  // Most lanes admit something: a plateau, a collapsed boundary, a classification. One atomic per warp and kind.
  __device__ __forceinline__ void dense(const Raw& raw, int first, u32 valid) const {
    SharedStorage& s = shared_storage();
#pragma unroll 1
    for (int i = 0; i < kVector; ++i) {
      float score = unpack(raw, 0);
#pragma unroll
      for (int j = 1; j < kVector; ++j)
        score = i == j ? unpack(raw, j) : score;
      u32 key = order_key(score);
      bool in = (valid >> i & 1) && key <= s.rule.worst && key >= s.rule.emit_from;
      bool tied = kExactBoundary && in && key == s.rule.tie;
      bool candidate = in && !tied && key >= s.rule.best;
      int slot = reserve(&s.count, candidate);
      if (candidate) {
        candidates.store(slot, key, first + i);
        if (slot >= kCapacity) track_overflow(key);
      }
      count_bin(s.histogram, digit_of(key, s.rule.shift), candidate);
      bool emit = in && !tied && key < s.rule.best;
      slot = reserve(s.rule.emitted, emit);
      if (emit) write_front(slot, first + i);
      if (kExactBoundary) {
        slot = reserve(s.rule.ties, tied);
        if (tied) write_back(slot, first + i);
      }
    }
  }
};

// Coarse histogram: the first of the two scans of the exact route.
struct CoarseCount {
  __device__ __forceinline__ bool wants(const Raw&) const { return true; }

  __device__ __forceinline__ void visit(const Raw& raw, int, u32 valid, bool) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      count_bin(shared_storage().histogram, coarse_bin(unpack(raw, i)), valid >> i & 1);
  }
};
