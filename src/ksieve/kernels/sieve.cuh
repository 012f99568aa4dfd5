// The scan of phase 2: compares every score with the cutoff, stores what it admits, counts it and builds the next exact
// histogram, all on first encounter. Every scan of the row in any route is this one: a set of the algorithm is always
// a contiguous range of ordered keys, so a scan is told three keys and a digit (ScanRule).
#pragma once
#include "block.cuh"
#include "keys.cuh"
#include "output.cuh"

// Lanes of the warp before this one.
__device__ __forceinline__ u32 lanes_below() {
  u32 mask;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  return mask;
}

// A place behind `counter` for each wanting lane, with one atomic per warp.
__device__ __forceinline__ int reserve(int* counter, bool wanted) {
  u32 mask = __ballot_sync(kFullWarp, wanted);
  if (mask == 0) return 0;
  int leader = __ffs(mask) - 1;
  int base = 0;
  if (static_cast<int>(threadIdx.x & 31) == leader) base = atomicAdd(counter, __popc(mask));
  base = __shfl_sync(kFullWarp, base, leader);
  return base + __popc(mask & lanes_below());
}

// Whether everything admitted is one value must be known when not everything is stored.
__device__ __forceinline__ void track_overflow(u32 key) {
  SharedStorage& s = shared_storage();
  if (key < *static_cast<volatile u32*>(&s.least)) atomicMin(&s.least, key);
  if (key > *static_cast<volatile u32*>(&s.greatest)) atomicMax(&s.greatest, key);
}

// Exclusive prefix sum over the lanes of a warp, and the total. Small values are the rule: they take two ballots.
struct Places {
  int before;
  int total;
};
__device__ __forceinline__ Places lane_places(int mine) {
  u32 ones = __ballot_sync(kFullWarp, mine & 1);
  u32 twos = __ballot_sync(kFullWarp, mine & 2);
  u32 below = lanes_below();
  Places places = {__popc(ones & below) + 2 * __popc(twos & below), __popc(ones) + 2 * __popc(twos)};
  if (__any_sync(kFullWarp, mine > 3)) {
#pragma unroll
    for (int bit = 4; bit <= kBatch * kVector; bit *= 2) {
      u32 plane = __ballot_sync(kFullWarp, mine & bit);
      places.before += bit * __popc(plane & below);
      places.total += bit * __popc(plane);
    }
  }
  return places;
}

// Stores what reaches the cutoff. Each lane gathers its hits of a batch as bits; the lanes then find their places
// together. A warp takes chunks of slots and fills them in order, so that a hit costs no atomic but its count.
struct Sieve {
  Mode mode;
  float cutoff;  // hot_cutoff(rule.worst)
  int next = 0;  // next free slot of the warp's chunk; all of this is the same in all lanes
  int room = 0;  // free slots left in it
  int found = 0; // candidates
  int tied = 0;  // scores equal to the cutoff, set apart

  __device__ __forceinline__ explicit Sieve(const ScanRule& rule) : mode(rule.mode), cutoff(hot_cutoff(rule.worst)) {}

  // `slots` is where the batch lies in shared memory, so that a hit can be read back by its bit.
  __device__ __forceinline__ void see(const Raw (&raw)[kBatch], const RingSlot* slots, int first, int limit) {
    u32 hits = 0;
    if (mode == Mode::kInclusive) {
      hits = gather_bits(raw, [&](float score) { return score >= cutoff; });
    } else if (mode == Mode::kClassify) { // NaN passes: the exact key decides
      hits = gather_bits(raw, [&](float score) { return !(score < cutoff); });
    } else {
      hits = gather_bits(raw, [&](float score) { return score > cutoff; });
      u32 equal = gather_bits(raw, [&](float score) { return score == cutoff; });
      set_apart(equal & valid_bits(first, limit), first);
    }
    hits &= valid_bits(first, limit);
    if (!__any_sync(kFullWarp, hits)) return;
    if (mode == Mode::kClassify) {
      classify(hits, slots, first);
    } else {
      append(hits, slots, first);
    }
  }

  template <class Passes> __device__ __forceinline__ static u32 gather_bits(const Raw (&raw)[kBatch], Passes passes) {
    u32 bits = 0;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        bits |= passes(unpack(raw[u], i)) ? 1u << (u * kVector + i) : 0u;
    }
    return bits;
  }

  __device__ __forceinline__ static u32 valid_bits(int first, int limit) {
    if (first + (kBatch - 1) * kStep + kVector <= limit) return ~0u;
    u32 bits = 0;
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
      bits |= valid_mask(first + u * kStep, limit) << (u * kVector);
    return bits;
  }

  __device__ __forceinline__ static int index_of(int bit, int first) {
    return first + bit / kVector * kStep + bit % kVector;
  }

  __device__ __forceinline__ static u32 key_of(int bit, const RingSlot* slots) {
    const Score* scores = reinterpret_cast<const Score*>(slots + bit / kVector * kThreads);
    return order_key(widen(scores[bit % kVector]));
  }

  // Makes sure of `members` slots; returns where those after the first `room` begin.
  __device__ __forceinline__ int take_slots(int members) {
    int chunk = 0;
    int wanted = (members - room + 31) / 32 * 32;
    if ((threadIdx.x & 31) == 0) chunk = atomicAdd(&shared_storage().slots, wanted);
    return __shfl_sync(kFullWarp, chunk, 0);
  }

  __device__ __forceinline__ void append(u32 hits, const RingSlot* slots, int first) {
    Places places = lane_places(__popc(hits));
    int chunk = places.total > room ? take_slots(places.total) : 0;
    for (int place = places.before; hits; hits &= hits - 1, ++place) {
      int bit = __ffs(hits) - 1;
      store_candidate(place < room ? next + place : chunk + place - room, key_of(bit, slots), index_of(bit, first));
    }
    used(places.total, chunk);
  }

  __device__ __forceinline__ void used(int members, int chunk) {
    if (members > room) {
      next = chunk - room;
      room += (members - room + 31) / 32 * 32;
    }
    next += members;
    room -= members;
    found += members;
  }

  __device__ __forceinline__ static void store_candidate(int slot, u32 key, int index) {
    SharedStorage& s = shared_storage();
    store_entry(slot, make_entry(key, index));
    atomicAdd(&s.histogram[digit_of(key, s.rule.shift)], 1u);
    if (slot >= kSlots) track_overflow(key);
  }

  // Better than the candidates, candidate, or neither: one hit of each lane at a time.
  __device__ __forceinline__ void classify(u32 hits, const RingSlot* slots, int first) {
    const ScanRule& rule = shared_storage().rule;
    while (__any_sync(kFullWarp, hits)) {
      int bit = hits ? __ffs(hits) - 1 : 0;
      u32 key = key_of(bit, slots);
      bool in = hits && key <= rule.worst && key >= rule.emit_from;
      bool candidate = in && key >= rule.best;
      Places places = lane_places(candidate);
      int chunk = places.total > room ? take_slots(places.total) : 0;
      if (candidate)
        store_candidate(places.before < room ? next + places.before : chunk + places.before - room, key,
                        index_of(bit, first));
      used(places.total, chunk);
      bool emit = in && !candidate;
      int slot = reserve(rule.emitted, emit);
      if (emit) write_front(slot, index_of(bit, first));
      hits &= hits - 1;
    }
  }

  // Scores equal to a boundary that is a plateau. Every warp offers its first k; more can never be needed.
  __device__ __forceinline__ void set_apart(u32 equal, int first) {
    if (!__any_sync(kFullWarp, equal)) return;
    const ScanRule& rule = shared_storage().rule;
    Places places = lane_places(__popc(equal));
    int base = 0;
    if ((threadIdx.x & 31) == 0) base = atomicAdd(rule.ties, places.total);
    if (!kTies && tied < rule.k) {
      base = __shfl_sync(kFullWarp, base, 0);
      for (int t = base + places.before; equal; equal &= equal - 1, ++t)
        write_back(t, index_of(__ffs(equal) - 1, first));
    }
    tied += places.total;
  }

  __device__ __forceinline__ void finish() {
    int lane = threadIdx.x & 31;
    if (lane < room) store_entry(next + lane, kEmptyEntry);
    if (lane == 0 && found) atomicAdd(&shared_storage().count, found);
  }
};

// Coarse histogram: the first of the two scans of the exact route.
struct CoarseCount {
  __device__ __forceinline__ void see(const Raw (&raw)[kBatch], const RingSlot*, int first, int limit) const {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      u32 valid = valid_mask(first + u * kStep, limit);
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        count_bin(shared_storage().histogram, coarse_bin(unpack(raw[u], i)), valid >> i & 1);
    }
  }
  __device__ __forceinline__ void finish() const {}
};
