// Rows that are copied whole, to be held in registers by one CTA or a cluster, kEach scores a thread: what everybody
// must know of one, how it comes to the ring, and what lies beside its body.
#pragma once
#include "bulk.cuh"
#include "select.cuh"

constexpr int kEach = kStages * kVector;
// Not with statistics, which count the paper's digits, nor with tie-breaks, which need the candidates stored.
constexpr bool kHolds = kHeld > 0 && kEach <= 32 && !kStats && !kTies;

constexpr int kCollected = kSharedCapacity * sizeof(u64) / sizeof(int); // output positions, in the list's place

// Whether a row is selected here: positions are collected on chip, where those beside a row's body have room of their
// own even if they change under a running kernel.
__device__ __forceinline__ bool holds(const Row& row, int k) {
  return kHolds && row.length > k && row.length <= kHeld && k <= kCollected - 2 * kVector;
}

// How many samples are pooled: of 32, the worst of what the best of each pool are is then better than 1.5 to 5 times k
// scores, on average. Fewer would be read twice where all of k are not beyond; more would queue up on the histogram.
__device__ __forceinline__ int pool_of(int length, int k) {
  const int tenths = 10 * length;
  return tenths < 14 * k    ? 1
         : tenths < 26 * k  ? 2
         : tenths < 65 * k  ? 4
         : tenths < 220 * k ? 8
         : tenths < 640 * k ? 16
                            : 32;
}

// Finds out what everybody must know of a row of which this CTA holds [begin, end). By one thread. Up to `limit` may be
// copied.
__device__ __forceinline__ void describe(const Params& p, const Row& row, int begin, int end, int limit, HeldRow& to) {
  const int k = slots_of(p, row);
  const bool held = holds(row, k);
  Body body = body_of(row.scores, begin, end);
  // Scores behind the row are copied with its last ones, and then overwritten, if that leaves none beside the body.
  if (held && body.end < end && body.end + kVector <= limit) body.end += kVector;
  to.scores = row.scores;
  to.out = row_output(p, row.id);
  to.id = row.id;
  to.slots = k;
  to.begin = begin;
  to.end = end;
  to.body_begin = body.begin;
  to.body_end = body.end;
  to.valid = min(body.end, end) - body.begin;
  to.edges = body.begin != begin || body.end < end;
  to.pool = pool_of(row.length, k);
  to.copy = -1;
  to.way = held ? Way::kHeld : Way::kOther;
#if KSIEVE_WINDOWS
  to.base = row.base;
#else
  to.base = 0;
#endif
  to.least = 0;
  to.most = kNanKey;
  to.plateau = to.signs = to.better = to.equal = to.emitted = to.few_count = 0;
}

// A row's facts, read again wherever they are needed: kept in registers, they would not leave enough of them for its
// scores.
__device__ __forceinline__ const volatile HeldRow& held_row(int slot) { return shared_storage().held[slot]; }

// Position of the first score that this thread holds.
__device__ __forceinline__ int held_first(int slot) { return held_row(slot).body_begin + own_place(); }

// Starts copying a body to the ring, behind a barrier after its last use. By all threads.
__device__ __forceinline__ void copy_body(const Score* scores, Body body) {
  const int first = body.begin + own_place();
#pragma unroll 1
  for (int stage = 0; stage < kStages && first + stage * kStep < body.end; ++stage)
    copy_ahead(own_ring() + stage * kStageBytes, scores + first + stage * kStep);
  commit_copies();
}

// The same in bulk. By one thread.
__device__ __forceinline__ void copy_in_bulk(HeldRow& row) {
  SharedStorage& s = shared_storage();
  order_copies();
  u32 bytes = static_cast<u32>(row.body_end - row.body_begin) * sizeof(Score);
  copy_bulk(s.ring, static_cast<const Score*>(row.scores) + row.body_begin, bytes, &s.arrival);
  row.copy = s.copies++ & 1;
}

// This thread's number, read where it is rarely needed: addresses made of it are not kept from row to row, and spilled.
__device__ __forceinline__ int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Fills what this thread reads of the ring behind `valid` scores.
__device__ __forceinline__ void fill_own(int valid) {
  if (valid >= kTurn) return;
  const int thread = thread_again();
  const u32 first_stage = static_cast<u32>(valid) / kStep;
#pragma unroll 1
  for (u32 stage = first_stage; stage < kStages; ++stage) {
    const int left = valid - static_cast<int>(stage) * kStep - thread * kVector;
    RingSlot* slot = &shared_storage().ring[stage][thread];
    if (left <= 0) {
      fill_behind(static_cast<u32>(__cvta_generic_to_shared(slot)));
    } else {
#pragma unroll 1
      for (int i = left; i < kVector; ++i)
        reinterpret_cast<Score*>(slot)[i] = worst_score();
    }
  }
}

// Returns when this thread's part of the row is in the ring.
__device__ __forceinline__ void wait_copy(int slot) {
  const volatile HeldRow& row = held_row(slot);
  const int copy = row.copy;
  const int valid = row.valid;
  if (__CUDA_ARCH__ >= 900 && copy >= 0) {
    wait_arrival(&shared_storage().arrival, copy);
  } else {
    arrived();
  }
  fill_own(valid);
}

// The score beside the body that this thread looks after, if there is one: NaN, which is in the last step, if not.
struct Edge {
  int at;
  float score;
  bool valid;
};
__device__ __forceinline__ Edge load_edge(int slot) {
  const volatile HeldRow& row = held_row(slot);
  const int body = max(row.body_end - row.body_begin, 0);
  int at = row.begin + static_cast<int>(threadIdx.x);
  if (at >= row.body_begin) at += body;
  bool valid = threadIdx.x < 2 * kVector && at < row.end;
  const Score* scores = static_cast<const Score*>(row.scores);
  return {at, valid ? widen(scores[at]) : __uint_as_float(0x7fffffffu), valid};
}

// Calls visit(edge) in rows that have any.
template <class Visit> __device__ __forceinline__ void each_edge(int slot, Visit visit) {
  if (!rarely(held_row(slot).edges)) return;
  Edge edge = load_edge(slot);
  if (edge.valid) visit(edge);
}
