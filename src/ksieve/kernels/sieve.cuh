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

// Sum of `mine` over the lanes before this one.
__device__ __forceinline__ int lanes_before(int mine) {
  int sum = mine;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    int other = __shfl_up_sync(kFullWarp, sum, offset);
    if (static_cast<int>(threadIdx.x & 31) >= offset) sum += other;
  }
  return sum - mine;
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

// The same for `mine` places of each lane. For whole warps.
__device__ __forceinline__ int reserve_many(int* counter, int mine) {
  int before = lanes_before(mine);
  int base = 0;
  if ((threadIdx.x & 31) == 31) base = atomicAdd(counter, before + mine);
  return __shfl_sync(kFullWarp, base, 31) + before;
}

// Whether everything admitted is one value must be known when not everything is stored.
__device__ __forceinline__ void track_overflow(u32 key) {
  SharedStorage& s = shared_storage();
  if (key < *static_cast<volatile u32*>(&s.least)) atomicMin(&s.least, key);
  if (key > *static_cast<volatile u32*>(&s.greatest)) atomicMax(&s.greatest, key);
}

__device__ __forceinline__ void list_at(int slot, u32 key, int index) {
  SharedStorage& s = shared_storage();
  if (slot < kListed) {
    list_entry(slot) = make_entry(key, index);
  } else {
    track_overflow(key);
  }
  atomicAdd(&s.histogram[bin_of(key, s.rule.digit)], 1u);
}

// Puts a candidate into the list.
__device__ __forceinline__ void list_candidate(u32 key, int index) {
  list_at(atomicAdd(&shared_storage().listed, 1), key, index);
  atomicAdd(&shared_storage().count, 1);
}

// One bit for each score of a batch that passes, of which `left` are valid from the first on.
template <class Passes> __device__ __forceinline__ u32 gather_bits(const Raw (&raw)[kBatch], int left, Passes passes) {
  u32 bits = 0;
#pragma unroll
  for (int u = 0; u < kBatch; ++u) {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      bits |= passes(unpack(raw[u], i)) ? 1u << (u * kVector + i) : 0u;
  }
  if (!rarely(left < (kBatch - 1) * kStep + kVector)) return bits;
  u32 valid = 0;
#pragma unroll
  for (int u = 0; u < kBatch; ++u)
    valid |= valid_mask(left - u * kStep) << (u * kVector);
  return bits & valid;
}

__device__ __forceinline__ int index_of_bit(u32 bit, int first) {
  return first + static_cast<int>(bit / kVector * kStep + bit % kVector);
}

// The score of a bit, from the batch's place in the ring (a shared address).
__device__ __forceinline__ float read_back(u32 ring, u32 bit) {
  u32 at = ring + bit / kVector * (kThreads * 16) + bit % kVector * sizeof(Score);
#if KSIEVE_DTYPE == 0
  float score;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(score) : "r"(at));
  return score;
#else
  unsigned short score;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(score) : "r"(at));
  return widen(score);
#endif
}

// The scan of a proposal. Whatever reaches the cutoff goes to the column of the thread that meets it, without a vote
// among lanes or an atomic: a row costs as many instructions as there are scores, and this loop has most of them.
// Columns hold raw scores until `finish` turns them into keys and counts them. Scores equal to a boundary that is a
// plateau (kSetApart) are not stored, but offered to the end of the output.
template <bool kSetApart> struct Admit {
  float cutoff;
  float apart;
  u32 top;      // shared address of the column's next free entry
  u32 end;      // and of the one behind its last
  int tied = 0; // scores of this warp set apart; the same in all lanes

  static constexpr u32 kPitch = kThreads * sizeof(u64); // from one entry of a column to the next

  __device__ __forceinline__ explicit Admit(const ScanRule& rule)
      : cutoff(hot_cutoff(kSetApart ? rule.worst - 1 : rule.worst)), apart(hot_cutoff(rule.worst)), top(base()),
        end(base() + kColumns * kPitch) {}

  __device__ __forceinline__ static u32 base() {
    return static_cast<u32>(__cvta_generic_to_shared(&shared_storage().columns[threadIdx.x]));
  }

  // A hit is read back from the ring by its bit.
  __device__ __forceinline__ void see(const Raw (&raw)[kBatch], u32 ring, int first, int left) {
    u32 hits = gather_bits(raw, left, [&](float score) { return score >= cutoff; });
    if (kSetApart) {
      u32 equal = gather_bits(raw, left, [&](float score) { return score == apart; });
      set_apart(equal, first);
    }
    while (hits) {
      u32 bit = __ffs(hits) - 1;
      hits &= hits - 1;
      float score = read_back(ring, bit);
      int index = index_of_bit(bit, first);
      if (!rarely(top >= end)) {
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(top), "r"(index), "f"(score) : "memory");
        top += kPitch;
      } else {
        list_candidate(order_key(score), index);
      }
    }
  }

  __device__ __forceinline__ void edge(float score, int index, bool valid) {
    if (valid && score >= cutoff) list_candidate(order_key(score), index);
    if (kSetApart) set_apart(valid && score == apart, index);
  }

  // Every warp offers its first k; more can never be needed.
  __device__ __forceinline__ void set_apart(u32 equal, int first) {
    if (!__any_sync(kFullWarp, equal)) return;
    const ScanRule& rule = shared_storage().rule;
    int mine = __popc(equal);
    int before = lanes_before(mine);
    int total = __shfl_sync(kFullWarp, before + mine, 31);
    int start = 0;
    if ((threadIdx.x & 31) == 0) start = atomicAdd(rule.ties, total);
    if (!kTies && tied < rule.k) {
      start = __shfl_sync(kFullWarp, start, 0);
      for (int t = start + before; equal; equal &= equal - 1, ++t)
        write_back(t, index_of_bit(__ffs(equal) - 1, first));
    }
    tied += total;
  }

  __device__ __forceinline__ void finish() {
    SharedStorage& s = shared_storage();
    int height = kColumns ? static_cast<int>((top - base()) / kPitch) : 0;
    s.height[threadIdx.x] = height;
    Digit digit = s.rule.digit;
    each_in_column(height, [&](u64& entry) {
      u32 key = order_key(__uint_as_float(entry_key(entry)));
      entry = make_entry(key, entry_index(entry));
      atomicAdd(&s.histogram[bin_of(key, digit)], 1u);
    });
    int total = __reduce_add_sync(kFullWarp, height);
    if ((threadIdx.x & 31) == 0 && total) atomicAdd(&s.count, total);
  }
};

// The scan of any other set: better than the candidates, candidate, or neither, by the exact key.
struct Classify {
  float cutoff;

  __device__ __forceinline__ explicit Classify(const ScanRule& rule) : cutoff(hot_cutoff(rule.worst)) {}

  // A hit is read back from the ring by its bit. NaN passes the cutoff: its key decides.
  __device__ __forceinline__ void see(const Raw (&raw)[kBatch], u32 ring, int first, int left) {
    u32 hits = gather_bits(raw, left, [&](float score) { return !(score < cutoff); });
    while (__any_sync(kFullWarp, hits)) {
      u32 bit = hits ? __ffs(hits) - 1 : 0;
      decide(order_key(read_back(ring, bit)), index_of_bit(bit, first), hits);
      hits &= hits - 1;
    }
  }

  __device__ __forceinline__ void edge(float score, int index, bool valid) { decide(order_key(score), index, valid); }

  __device__ __forceinline__ static void decide(u32 key, int index, bool valid) {
    const ScanRule& rule = shared_storage().rule;
    bool in = valid && key <= rule.worst && key >= rule.emit_from;
    bool emit = in && key < rule.best;
    int slot = reserve(rule.emitted, emit);
    if (emit) write_front(slot, index);
    if (in && !emit) list_candidate(key, index);
  }

  __device__ __forceinline__ void finish() const {}
};

// Coarse histogram: the first of the two scans of the exact route.
struct CoarseCount {
  __device__ __forceinline__ void see(const Raw (&raw)[kBatch], u32, int, int left) const {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        edge(unpack(raw[u], i), 0, left - u * kStep > i);
    }
  }
  __device__ __forceinline__ void edge(float score, int, bool valid) const {
    count_bin(shared_storage().histogram, coarse_bin(score), valid);
  }
  __device__ __forceinline__ void finish() const {}
};

// Shows the stretch to whoever the rule asks for.
__device__ __forceinline__ void scan_by_rule(const Score* scores, int begin, int end) {
  const ScanRule& rule = shared_storage().rule;
  if (kSampled && !rarely(rule.mode != Mode::kInclusive)) {
    Admit<false> admit(rule);
    scan(scores, begin, end, admit);
  } else if (kSampled && kExactBoundary && rule.mode == Mode::kApart) {
    Admit<true> admit(rule);
    scan(scores, begin, end, admit);
  } else {
    Classify classify(rule);
    scan(scores, begin, end, classify);
  }
}
